// A process's fence page: 64-bit words that say, for each of its streams, how far the stream has come. Its owner's GPU
// (or host thread) raises the words; the owner's peers wait for them, on a stream or by reading; the daemon reads them
// all and sets them to the top when the owner dies, so that whoever waits goes on. No process needs CUDA for any of it.
//
// The broker makes the page and keeps a writable mapping; the owner gets a writable fd, everyone else a read-only
// reopening of the 0400 memfd: a word is written by its own process and the daemon alone. So the word of the permit
// that the process keeps (common/permit_word.h) lies there, too.

#ifndef COMMON_FENCE_PAGE_H_
#define COMMON_FENCE_PAGE_H_

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/permit_word.h"
#include "common/unique_fd.h"

namespace berth {

// The value of every word of a process that is gone: whatever was waited for will not come any more. CUDA's
// wait compares the difference as a signed number, so half the range is the top: all ones would be below
// everything. Uses are counted from 1 to below it.
inline constexpr uint64_t kFenceTop = INT64_MAX;

// The words of one stream.
struct alignas(32) FenceSlot {
  // Only rises: at n, whatever was told to end with n or less has ended. Written by the stream, behind its work.
  std::atomic<uint64_t> done;
  // Launches on the stream that write blocks which the process tracks alone, counted by the process as it begins
  // them, and those of them, in their order, that it has seen to end. Apart, they tell of a process that died that
  // such work may have been under way. No stream writes these.
  std::atomic<uint64_t> begun;
  std::atomic<uint64_t> ended;
};

// Streams that one process can have. What is left of a page beside its head.
inline constexpr uint32_t kFenceSlots = 252;

// The page as it lies in memory.
struct FencePageLayout {
  static constexpr uint64_t kMagic = 0x323065636e656662;  // "bfence02"
  uint64_t magic;
  // Whose it is: a ChannelId.
  uint64_t channel;
  PermitWord permit;
  std::atomic<uint64_t> reserved[12];
  FenceSlot slots[kFenceSlots];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
// CUDA registers whole pages of memory.
static_assert(sizeof(FencePageLayout) == 2 * 4096);

// Makes the page of `channel`, its words 0, sealed. The returned fd is a writable one.
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
  PermitWord& permit_word() { return layout_->permit; }
  // For what registers the page's memory.
  void* address() const { return layout_; }

  // Sets `done` of every slot to kFenceTop. Requires: mapped writable.
  void SetTop();

 private:
  explicit FencePage(FencePageLayout* layout) : layout_(layout) {}
  static absl::StatusOr<FencePage> Map(int fd, int protection);
  FencePageLayout* layout_;
};

}  // namespace berth

#endif  // COMMON_FENCE_PAGE_H_
