// StoreRecord: a page for a supervisor that starts while no broker is left. The service manager holds the page beside
// the fds (service_manager_fd_store.h), as does every supervisor and broker. The page identifies the daemon that the
// fds belong to, and lists the fds that the manager was given.

#ifndef DAEMON_SUPERVISOR_FD_STORE_STORE_RECORD_H_
#define DAEMON_SUPERVISOR_FD_STORE_STORE_RECORD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"
#include "daemon/supervisor/fd_store/fd_store_wire.h"

namespace berth {

// Move-only; a mapping. Thread-compatible. The next process that maps the page reads each value untorn.
class StoreRecord {
 public:
  // Number of fds that the service manager stores (FileDescriptorStoreMax= in the unit).
  static constexpr size_t kPlaces = 1024;

  // Creates a page for this boot, PID namespace and `node`. Returns the page with its fd.
  static absl::StatusOr<std::pair<UniqueFd, StoreRecord>> Create(uint64_t node);
  // Maps an existing page. Errors: kInvalidArgument if it is no such page.
  static absl::StatusOr<StoreRecord> Map(int fd);

  StoreRecord(StoreRecord&& other) noexcept;
  StoreRecord& operator=(StoreRecord&&) = delete;
  ~StoreRecord();

  // Checks whether this process can continue the page's daemon. Errors: kFailedPrecondition, with the reason: another
  // boot, PID namespace or node, or a daemon that ended in good order or never served.
  absl::Status Check(uint64_t node) const;

  uint64_t incarnation() const { return layout_->incarnation; }
  void Begin(uint64_t incarnation);
  // Records that a broker of that incarnation has served.
  void SetServed() { layout_->begun = 1; }
  // Marks the daemon as over: no supervisor shall continue it.
  void End() { layout_->over = 1; }

  // The keys that the manager was given and not requested to forget.
  const std::map<fd_store::Key, size_t>& places() const { return places_; }
  bool Contains(fd_store::Key key) const { return places_.contains(key); }
  // Records a key. Returns whether there was a place.
  bool Add(fd_store::Key key);
  void Remove(fd_store::Key key);

 private:
  // Memory layout of the page.
  struct Layout {
    static constexpr uint64_t kMagic = 0x313064726f636572;  // "record01"
    uint64_t magic;
    uint64_t node;
    // Inode of the PID namespace.
    uint64_t pids;
    char boot[40];
    std::atomic<uint64_t> incarnation;
    std::atomic<uint64_t> begun;
    std::atomic<uint64_t> over;
    struct Place {
      // 0 for an empty place. Written last, cleared first.
      std::atomic<uint64_t> kind;
      std::atomic<uint64_t> id;
    } places[kPlaces];
  };

  explicit StoreRecord(Layout* layout);

  Layout* layout_;
  std::map<fd_store::Key, size_t> places_;
  std::set<size_t> free_;
};

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_FD_STORE_STORE_RECORD_H_
