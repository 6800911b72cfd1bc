// A process's fence page: 64-bit values that hold the progress of each of the process's streams. The owner's GPU (or
// host thread) raises the values. The owner's peers wait for them, on a stream or by reading. The daemon reads all
// pages and sets the values to the top when the owner dies, which wakes every waiter. None of this requires CUDA.
//
// The broker creates the page and holds a writable mapping. The owner gets a writable fd; all others get a read-only
// reopening of the 0400 memfd, so only the owner and the daemon write. For the same reason the page holds the slot of
// the permit that the process caches (common/wire/permit_slot.h), and the words by which it takes up grants
// (common/wire/take_up.h).

#ifndef COMMON_WIRE_FENCE_PAGE_H_
#define COMMON_WIRE_FENCE_PAGE_H_

#include <atomic>
#include <cstdint>
#include <utility>

#include <berth/ids.h>

#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"
#include "common/wire/permit_slot.h"
#include "common/wire/take_up.h"

namespace berth {

// Fence value of every slot of a process that has ended: no waiter has anything left to wait for. CUDA's wait compares
// the difference as a signed number, so the top is half the range: all ones would be below everything. Use counts run
// from 1 to below kFenceTop.
inline constexpr uint64_t kFenceTop = INT64_MAX;

// The fence values of one stream.
struct alignas(32) FenceSlot {
  // Only rises: at n, every use with number n or less has ended. Written by the stream, after its work.
  std::atomic<uint64_t> done;
  // Launches on the stream that write blocks which the process tracks alone. The process counts launches in `begun`
  // before they start, and in `ended`, in order, once it has seen them end. If the process dies while the two differ,
  // such work may be unfinished. No stream writes these values.
  std::atomic<uint64_t> begun;
  std::atomic<uint64_t> ended;
};

// Streams that one process can have: the slots that fit into a page after its head.
inline constexpr uint32_t kFenceSlots = 252;

// The page as it lies in memory.
struct FencePageLayout {
  static constexpr uint64_t kMagic = 0x323065636e656662;  // "bfence02"
  uint64_t magic;
  // Owner of the page: a ChannelId.
  uint64_t channel;
  PermitSlot permit;
  TakeUpWords take_up;
  FenceSlot slots[kFenceSlots];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
// CUDA registers whole pages of memory.
static_assert(sizeof(FencePageLayout) == 2 * 4096);

// Creates the page of `channel`, its values 0, sealed. Returns a writable fd.
absl::StatusOr<UniqueFd> CreateFencePage(ChannelId channel);

// A mapping of a page. Movable; unmaps when destroyed. Thread-safe through the atomics.
class FencePage {
 public:
  // Errors: kInvalidArgument if `fd` is no fence page.
  static absl::StatusOr<FencePage> MapReadOnly(int fd);
  static absl::StatusOr<FencePage> MapWritable(int fd);

  FencePage(FencePage&& other) noexcept : layout_(std::exchange(other.layout_, nullptr)) {}
  FencePage& operator=(FencePage&&) = delete;
  ~FencePage();

  ChannelId channel() const { return ChannelId(layout_->channel); }
  // Requires: slot < kFenceSlots.
  const FenceSlot& slot(uint32_t slot) const { return layout_->slots[slot]; }
  // Requires: mapped writable, slot < kFenceSlots.
  FenceSlot& writable_slot(uint32_t slot) { return layout_->slots[slot]; }
  // Requires: mapped writable.
  PermitSlot& permit_slot() { return layout_->permit; }
  TakeUpWords& take_up() { return layout_->take_up; }
  // Address of the page, for callers that register its memory.
  void* address() const { return layout_; }

  // Sets `done` of every slot to kFenceTop. Requires: mapped writable.
  void SetTop();

 private:
  explicit FencePage(FencePageLayout* layout) : layout_(layout) {}
  static absl::StatusOr<FencePage> Map(int fd, int protection);
  FencePageLayout* layout_;
};

}  // namespace berth

#endif  // COMMON_WIRE_FENCE_PAGE_H_
