// NodeRecord: a file beside the ledger for the next daemon of a run folder. That daemon needs it after this one was
// stopped or killed with all its processes. The ledger has the leases. The record identifies the ledger's daemon and
// has the last values of the numbers that clients compare.
//
// The file lives as long as the folder. A record of another boot is void: what it counted ended with that boot. The
// object has its own copy of the content, so it can write the file again after any damage.

#ifndef DAEMON_SUPERVISOR_FD_STORE_NODE_RECORD_H_
#define DAEMON_SUPERVISOR_FD_STORE_NODE_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/os/unique_fd.h"
#include "common/wire/state_page.h"

namespace berth {

// Move-only. Thread-compatible.
class NodeRecord {
 public:
  // The file's name in the run folder.
  static constexpr char kName[] = "record";

  // Reads the folder's record and changes nothing. A missing or damaged record is no error: damaged() and Check()
  // report it. Requires: the folder is locked. Errors: those of the file system.
  static absl::StatusOr<NodeRecord> Open(const std::string& folder);
  // Returns the node of the folder's record; 0 if the record is missing or damaged.
  static uint64_t ReadNode(const std::string& folder);

  // Checks whether a daemon of this boot and node served, so that its leases can be resumed. Errors: kNotFound if no
  // daemon has served; kFailedPrecondition if the record is of another boot; kDataLoss if the record is damaged or of
  // another node. Each states the reason.
  absl::Status Check(uint64_t node) const;
  // Whether the record is whole and states that its daemon never served: then there are no leases.
  bool never_served() const { return fault_.ok() && content_.begun == 0; }
  // Returns whether the recorded pids are pids of this PID namespace.
  absl::StatusOr<bool> PidsAreOurs() const;

  uint64_t incarnation() const { return content_.incarnation; }
  uint64_t epoch() const { return content_.epoch; }
  // Sets the generations to the first values that no memory of the previous daemon had.
  void ContinueDevices(StatePageLayout* page) const;

  // Records this daemon as the writer, with this boot and PID namespace. `begun`: one of its brokers has served. A
  // daemon that is killed meanwhile leaves the old or the new record. Errors: those of the file system; Repair()
  // retries.
  absl::Status Begin(uint64_t node, uint64_t incarnation, bool begun);
  // Copies the numbers of the state page. Cheap if nothing has changed. No effect before Begin().
  void Update(const StatePageLayout& page);
  // Writes the file again if it was deleted, replaced or changed. Returns whether it was. No effect before Begin().
  // Errors: those of the file system.
  absl::StatusOr<bool> Repair();

  // Returns the bytes of a record with a checksum that is right for them: tests change a record.
  static std::string Seal(std::string bytes);

 private:
  // The content of the file.
  struct Content {
    static constexpr uint64_t kMagic = 0x323030657461746e;  // "ntate002"
    // The magic of a file without the checksum, which earlier programs wrote.
    static constexpr uint64_t kEarlierMagic = 0x313030657461746e;  // "ntate001"
    uint64_t magic = 0;
    uint64_t node = 0;
    // Inode of the PID namespace.
    uint64_t pids = 0;
    char boot[40] = {};
    uint64_t incarnation = 0;
    uint64_t epoch = 0;
    uint64_t begun = 0;
    struct Device {
      uint64_t generation = 0;
      uint64_t context_generation = 0;
    } devices[kMaxDeviceOrdinals];
    // Checksum of all fields above.
    uint64_t checksum = 0;
  };
  static_assert(std::is_trivially_copyable_v<Content>);

  explicit NodeRecord(std::string path) : path_(std::move(path)) {}
  // Returns the bytes of a file with this content.
  static absl::string_view BytesOf(const Content& content);
  static uint64_t ChecksumOf(const Content& content);
  // Returns whether the file at `path_` is the written one, and has its content.
  bool IsWhole() const;
  // Writes the content into a new file, which replaces the file at `path_` in one step.
  absl::Status Replace();
  // Writes the content into the file at `path_`. Requires: the file was usable.
  absl::Status Overwrite();

  std::string path_;
  // The file that this object wrote; empty before Begin().
  UniqueFd fd_;
  // The content that was read or written last.
  Content content_;
  // Why the file that was read is unusable: kNotFound or kDataLoss.
  absl::Status fault_;
  // Begin() was called: the file belongs to this object.
  bool begun_ = false;
};

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_FD_STORE_NODE_RECORD_H_
