// FencePages: the fence pages that this process has mapped: its own, and those of processes whose fence values it waits
// for.

#ifndef CLIENT_SDK_FENCES_FENCE_PAGES_H_
#define CLIENT_SDK_FENCES_FENCE_PAGES_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include <berth/ids.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/sdk/memory/registered_memory.h"
#include "common/cuda/driver.h"
#include "common/mutex.h"
#include "common/os/unique_fd.h"
#include "common/steady_cond_var.h"
#include "common/wire/fence_page.h"
#include "common/wire/take_up.h"

namespace berth::internal {

// A mapped page and its CUDA address. Thread-safe.
class MappedPage {
 public:
  MappedPage(FencePage page, bool read_only) : read_only_(read_only), page_(std::move(page)) {}
  const FenceSlot& slot(uint32_t slot) const { return page_.slot(slot); }
  // Requires: this process's own page.
  FencePage& page() { return page_; }
  // Returns the address at which CUDA streams in any context access `done` of the slot. The first call registers the
  // page with the driver, which requires a current context. Errors: those of Driver.
  absl::StatusOr<cuda::DevicePointer> DeviceFenceValue(cuda::Driver& driver, uint32_t slot)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const bool read_only_;
  FencePage page_;
  Mutex mu_;
  // Empty until a CUDA stream needs the page.
  std::optional<RegisteredMemory> registered_ ABSL_GUARDED_BY(mu_);
  // CUDA address of the page, read without the lock after registration; 0 before.
  std::atomic<cuda::DevicePointer> at_ = 0;
};

// Thread-safe. Pages stay mapped as long as this object lives, because a stream may have queued a wait on their values.
class FencePages {
 public:
  // Sets this process's own page. Only the first call has an effect. Errors: those of FencePage.
  absl::Status SetOwn(UniqueFd fd) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns this process's own page; null before SetOwn().
  MappedPage* own() const ABSL_LOCKS_EXCLUDED(mu_);

  // Maps a page of this process that has arrived, for its take-up words; -1 for a page whose fd this process had no
  // number for. Each daemon that this process joined sends a page of its own.
  void ReceiveOwn(int fd) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether a page has arrived that this process could not map: the process cannot take up grants.
  bool misses_own() const ABSL_LOCKS_EXCLUDED(mu_);
  // Takes up the grant of the request `sequence` (common/wire/take_up.h).
  TakeUpWords::Taking TakeUp(uint64_t sequence) ABSL_LOCKS_EXCLUDED(mu_);

  // Stores the page of another process; an empty fd means that the process has ended. An fd that is no valid page
  // counts as empty.
  void Put(ChannelId owner, UniqueFd fd) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for the page of `owner` until `deadline`, of SteadyNow(). Returns null if its process has ended: then there
  // is nothing to wait for. Errors: kDeadlineExceeded; the status given to End().
  absl::StatusOr<MappedPage*> Await(ChannelId owner, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all waits with `why`: no more pages will arrive.
  void End(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  SteadyCondVar came_ ABSL_GUARDED_BY(mu_);
  absl::Status end_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<MappedPage> own_ ABSL_GUARDED_BY(mu_);
  // Pages with take-up words, latest last, and the latest one's inode.
  std::deque<FencePage> take_up_pages_ ABSL_GUARDED_BY(mu_);
  uint64_t take_up_inode_ ABSL_GUARDED_BY(mu_) = 0;
  bool misses_own_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<ChannelId, std::unique_ptr<MappedPage>> pages_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_FENCES_FENCE_PAGES_H_
