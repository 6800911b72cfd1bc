// FencePages: the fence pages that this process has mapped: its own, and those of processes whose words it waits for.

#ifndef CLIENT_INTERNAL_FENCE_PAGES_H_
#define CLIENT_INTERNAL_FENCE_PAGES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/internal/registered_memory.h"
#include "common/cuda/driver.h"
#include "common/fence_page.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/steady_cond_var.h"
#include "common/unique_fd.h"

namespace berth::internal {

// A page, and where CUDA reaches it. Thread-safe.
class MappedPage {
 public:
  MappedPage(FencePage page, bool read_only) : read_only_(read_only), page_(std::move(page)) {}
  const FenceSlot& slot(uint32_t slot) const { return page_.slot(slot); }
  // Requires: this process's own page.
  FencePage& page() { return page_; }
  // The address at which streams of CUDA find `done` of the slot, in any context. The page is registered with the
  // driver the first time, which takes a current context. Errors: those of Driver.
  absl::StatusOr<cuda::DevicePointer> DeviceWord(cuda::Driver& driver, uint32_t slot)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const bool read_only_;
  FencePage page_;
  Mutex mu_;
  // Nothing until a stream of CUDA's wants the page.
  std::optional<RegisteredMemory> registered_ ABSL_GUARDED_BY(mu_);
  // Where streams find the page, for who does not register it; 0 before.
  std::atomic<cuda::DevicePointer> at_ = 0;
};

// Thread-safe. Pages stay mapped as long as this does: a stream may have a wait on their words queued.
class FencePages {
 public:
  // This process's own page: the first one stays. Errors: as FencePage.
  absl::Status SetOwn(UniqueFd fd) ABSL_LOCKS_EXCLUDED(mu_);
  // Null before SetOwn().
  MappedPage* own() const ABSL_LOCKS_EXCLUDED(mu_);

  // The page of another process has come; an empty fd if that process is gone. What is no page counts as that too.
  void Put(ChannelId owner, UniqueFd fd) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for it until `deadline`, of SteadyNow(). Null if its process is gone, and there is nothing to wait for.
  // Errors: kDeadlineExceeded; what End() said.
  absl::StatusOr<MappedPage*> Await(ChannelId owner, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // No more pages will come.
  void End(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  SteadyCondVar came_ ABSL_GUARDED_BY(mu_);
  absl::Status end_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<MappedPage> own_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ChannelId, std::unique_ptr<MappedPage>> pages_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_FENCE_PAGES_H_
