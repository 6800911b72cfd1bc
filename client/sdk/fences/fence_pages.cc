#include "client/sdk/fences/fence_pages.h"

#include <sys/stat.h>

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace berth::internal {

absl::StatusOr<cuda::DevicePointer> MappedPage::DeviceFenceValue(cuda::Driver& driver, uint32_t slot) {
  cuda::DevicePointer at = at_.load(std::memory_order_acquire);
  if (at == 0) {
    MutexLock lock(&mu_);
    if (!registered_.has_value()) {
      BERTH_ASSIGN_OR_RETURN(
          RegisteredMemory memory,
          RegisteredMemory::Register(driver, page_.address(), Bytes(sizeof(FencePageLayout)), read_only_));
      registered_.emplace(std::move(memory));
    }
    at = registered_->at();
    at_.store(at, std::memory_order_release);
  }
  return at + offsetof(FencePageLayout, slots) + slot * sizeof(FenceSlot) + offsetof(FenceSlot, done);
}

absl::Status FencePages::SetOwn(UniqueFd fd) {
  MutexLock lock(&mu_);
  if (own_ != nullptr) return absl::OkStatus();
  BERTH_ASSIGN_OR_RETURN(FencePage page, FencePage::MapWritable(fd.get()));
  own_ = std::make_unique<MappedPage>(std::move(page), /*read_only=*/false);
  return absl::OkStatus();
}

MappedPage* FencePages::own() const {
  MutexLock lock(&mu_);
  return own_.get();
}

void FencePages::ReceiveOwn(int fd) {
  struct stat info = {};
  const bool known = fd >= 0 && ::fstat(fd, &info) == 0;
  MutexLock lock(&mu_);
  // The daemon sends a page again to a process that requests it for another purpose.
  if (known && info.st_ino == take_up_inode_) return;
  absl::StatusOr<FencePage> page =
      known ? FencePage::MapWritable(fd) : absl::StatusOr<FencePage>(absl::ResourceExhaustedError("no fd"));
  misses_own_ = misses_own_ || !page.ok();
  if (!page.ok()) return;
  take_up_pages_.push_back(*std::move(page));
  take_up_inode_ = info.st_ino;
}

bool FencePages::misses_own() const {
  MutexLock lock(&mu_);
  return misses_own_;
}

TakeUpWords::Taking FencePages::TakeUp(uint64_t sequence) {
  MutexLock lock(&mu_);
  for (auto page = take_up_pages_.rbegin(); page != take_up_pages_.rend(); ++page) {
    const TakeUpWords::Taking taking = page->take_up().Take(sequence);
    if (taking != TakeUpWords::Taking::kNotOffered) return taking;
  }
  return TakeUpWords::Taking::kNotOffered;
}

void FencePages::Put(ChannelId owner, UniqueFd fd) {
  MutexLock lock(&mu_);
  std::unique_ptr<MappedPage>& mapped = pages_[owner];
  came_.SignalAll();
  if (mapped != nullptr || !fd) return;
  absl::StatusOr<FencePage> page = FencePage::MapReadOnly(fd.get());
  if (page.ok()) mapped = std::make_unique<MappedPage>(*std::move(page), /*read_only=*/true);
}

absl::StatusOr<MappedPage*> FencePages::Await(ChannelId owner, absl::Time deadline) {
  MutexLock lock(&mu_);
  bool late = false;
  while (true) {
    const auto page = pages_.find(owner);
    if (page != pages_.end()) return page->second.get();
    if (!end_.ok()) return end_;
    if (late) {
      return absl::DeadlineExceededError(
          absl::StrCat("the fence page of channel ", owner.value(), " did not arrive in time"));
    }
    late = came_.WaitWithDeadline(&mu_, deadline);
  }
}

void FencePages::End(const absl::Status& why) {
  MutexLock lock(&mu_);
  if (end_.ok()) end_ = why;
  came_.SignalAll();
}

}  // namespace berth::internal
