// StoreRecord: what a vault that finds nobody needs to know of those before it: a page that the service manager keeps
// beside the fds (fd_store.h), and every vault and broker, too. It says whose the fds are, and which of them the
// manager was given.

#ifndef DAEMON_VAULT_STORE_RECORD_H_
#define DAEMON_VAULT_STORE_RECORD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "daemon/vault/custody_wire.h"

namespace berth {

// Move-only; a mapping. Thread-compatible; whoever maps the page next finds each word whole.
class StoreRecord {
 public:
  // As many as the service manager keeps (FileDescriptorStoreMax= in the unit).
  static constexpr size_t kPlaces = 1024;

  // Makes a page of this boot and PID namespace, and of `node`. Returns it with its fd.
  static absl::StatusOr<std::pair<UniqueFd, StoreRecord>> Create(uint64_t node);
  // Maps an earlier one. Errors: kInvalidArgument if it is none.
  static absl::StatusOr<StoreRecord> Map(int fd);

  StoreRecord(StoreRecord&& other) noexcept;
  StoreRecord& operator=(StoreRecord&&) = delete;
  ~StoreRecord();

  // Whether what it is of can be gone on with here. Errors: kFailedPrecondition, saying why not: another boot's, PID
  // namespace's or node's, or of a daemon that has ended in good order, or that never served.
  absl::Status Check(uint64_t node) const;

  uint64_t incarnation() const { return layout_->incarnation; }
  // A broker of that incarnation has served.
  bool begun() const { return layout_->begun != 0; }
  void Begin(uint64_t incarnation);
  void SetServed() { layout_->begun = 1; }
  // Nobody is to go on.
  void End() { layout_->over = 1; }

  // What the manager was given, and was not told to forget.
  const std::map<custody::Key, size_t>& places() const { return places_; }
  bool Contains(custody::Key key) const { return places_.contains(key); }
  // Notes one. Returns whether there was a place.
  bool Add(custody::Key key);
  void Remove(custody::Key key);

 private:
  // The page as it lies in memory.
  struct Layout {
    static constexpr uint64_t kMagic = 0x313064726f636572;  // "record01"
    uint64_t magic;
    uint64_t node;
    // The PID namespace's inode.
    uint64_t pids;
    char boot[40];
    std::atomic<uint64_t> incarnation;
    std::atomic<uint64_t> begun;
    std::atomic<uint64_t> over;
    struct Place {
      // 0 for none. Written last, cleared first.
      std::atomic<uint64_t> kind;
      std::atomic<uint64_t> id;
    } places[kPlaces];
  };

  explicit StoreRecord(Layout* layout);

  Layout* layout_;
  std::map<custody::Key, size_t> places_;
  std::set<size_t> free_;
};

}  // namespace berth

#endif  // DAEMON_VAULT_STORE_RECORD_H_
