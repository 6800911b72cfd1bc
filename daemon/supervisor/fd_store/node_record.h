// NodeRecord: a mapped file beside the ledger for the next daemon of a run folder. That daemon needs it after this one
// was stopped or killed with all its processes. The ledger has the leases. The record identifies the ledger's daemon
// and has the last values of the numbers that clients compare.
//
// The file lives as long as the folder. A record of another boot is void: what it counted ended with that boot.

#ifndef DAEMON_SUPERVISOR_FD_STORE_NODE_RECORD_H_
#define DAEMON_SUPERVISOR_FD_STORE_NODE_RECORD_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"
#include "common/wire/state_page.h"

namespace berth {

// Move-only; a mapping. Thread-compatible. The next process that maps the file reads each number untorn.
class NodeRecord {
 public:
  // The file's name in the run folder.
  static constexpr char kName[] = "record";

  // Maps the folder's record; creates an empty one if there is none. Requires: the folder is locked.
  // Errors: kFailedPrecondition if the file is no record, with the remedy; those of the file system, such as a full
  // one.
  static absl::StatusOr<NodeRecord> Open(const std::string& folder);

  NodeRecord(NodeRecord&& other) noexcept;
  NodeRecord& operator=(NodeRecord&&) = delete;
  ~NodeRecord();

  // Checks whether a daemon of this boot and node served, so that its leases can be resumed. Errors:
  // kFailedPrecondition, with the reason.
  absl::Status Check(uint64_t node) const;
  // Returns whether the recorded pids are pids of this PID namespace.
  absl::StatusOr<bool> PidsAreOurs() const;

  uint64_t incarnation() const { return layout_->incarnation; }
  uint64_t epoch() const { return layout_->epoch; }
  // Sets the generations to the first values that no memory of the previous daemon had.
  void ContinueDevices(StatePageLayout* page) const;

  // Records this daemon as the writer, with this boot and PID namespace. `begun`: one of its brokers has served. A
  // daemon that is killed meanwhile leaves the old or the new record; no record if the incarnation changes.
  absl::Status Begin(uint64_t node, uint64_t incarnation, bool begun);
  // Copies the numbers of the state page. Cheap if nothing has changed.
  void Update(const StatePageLayout& page);
  // Restores the file if it was deleted or replaced. Errors: those of the file system.
  absl::Status Relink();

 private:
  // Memory layout of the file.
  struct Layout {
    static constexpr uint64_t kMagic = 0x313030657461746e;  // "ntate001"
    std::atomic<uint64_t> magic;
    uint64_t node;
    // Inode of the PID namespace.
    std::atomic<uint64_t> pids;
    char boot[40];
    std::atomic<uint64_t> incarnation;
    std::atomic<uint64_t> epoch;
    std::atomic<uint64_t> begun;
    struct Device {
      std::atomic<uint64_t> generation;
      std::atomic<uint64_t> context_generation;
    } devices[kMaxDeviceOrdinals];
  };

  NodeRecord(std::string path, UniqueFd fd, Layout* layout);
  // Allocates the file behind `fd` to the size of a record and maps it. Errors: those of the system.
  static absl::StatusOr<Layout*> MapFile(const std::string& path, int fd);

  std::string path_;
  UniqueFd fd_;
  Layout* layout_;
};

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_FD_STORE_NODE_RECORD_H_
