// The node's state page: a memfd that tells every client, without a call, whether what it holds is still good. The
// vault makes it and keeps the writable fd; the broker writes through it; clients map a read-only reopening.
//
// Every word that a client's Access() reads is one 64-bit atomic of its own, so that no reader waits for a writer and a
// writer's death leaves no half-written word.

#ifndef COMMON_STATE_PAGE_H_
#define COMMON_STATE_PAGE_H_

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/unique_fd.h"

namespace berth {

// The words of one device.
struct DeviceWords {
  // Generation of the device's memory: 0 before its first start, 1 from then on, one more after each loss or reset.
  std::atomic<uint64_t> generation;
  // 1 once the device is gone for good from this node.
  std::atomic<uint64_t> dropped;
  // 1 while the device takes no new work because it is being shut down.
  std::atomic<uint64_t> shutting_down;
  // Generation of what its context worker makes: 0 before the first start, 1 from then on, one more whenever one has
  // ended or is being ended.
  std::atomic<uint64_t> context_generation;
  std::atomic<uint64_t> reserved[4];
};

// The page as it lies in memory.
struct StatePageLayout {
  static constexpr uint64_t kMagic = 0x3130657461747362;  // "bstate01"
  uint64_t magic;
  std::atomic<uint64_t> node;
  // Changes only when the ledger or all custody was lost: handles of another incarnation are stale.
  std::atomic<uint64_t> incarnation;
  // Rises with every start of the broker.
  std::atomic<uint64_t> epoch;
  // 1 while a broker serves; the vault clears it when the broker dies.
  std::atomic<uint64_t> serving;
  // The broker's: 1 while it acts on what a process said. A broker that finds it so may follow one that died of that.
  std::atomic<uint64_t> hearing;
  // The vault's: 1 while the daemon's processes are being replaced by those of another program.
  std::atomic<uint64_t> upgrading;
  // The broker's: how many brokers have ended because they had more memory than they may have.
  std::atomic<uint64_t> memory_restarts;
  DeviceWords devices[kMaxDeviceOrdinals];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(StatePageLayout) == 64 + kMaxDeviceOrdinals * 64);

// Makes the page: zeroed but for the magic word, sealed. The returned fd is the writable one.
absl::StatusOr<UniqueFd> CreateStatePage();

// A mapping of the page. Movable; unmaps when destroyed. Thread-safe through the atomics.
class StatePage {
 public:
  // Errors: kInvalidArgument if `fd` is no state page.
  static absl::StatusOr<StatePage> MapReadOnly(int fd);
  static absl::StatusOr<StatePage> MapWritable(int fd);

  StatePage(StatePage&& other) noexcept : layout_(other.layout_) { other.layout_ = nullptr; }
  StatePage& operator=(StatePage&&) = delete;
  ~StatePage();

  const StatePageLayout& operator*() const { return *layout_; }
  const StatePageLayout* operator->() const { return layout_; }
  // Requires: mapped writable.
  StatePageLayout& writable() { return *layout_; }

 private:
  explicit StatePage(StatePageLayout* layout) : layout_(layout) {}
  static absl::StatusOr<StatePage> Map(int fd, int protection);
  StatePageLayout* layout_;
};

}  // namespace berth

#endif  // COMMON_STATE_PAGE_H_
