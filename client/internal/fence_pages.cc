#include "client/internal/fence_pages.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace berth::internal {

namespace {

// Makes a context the calling thread's for a while.
class CurrentContext {
 public:
  static absl::StatusOr<CurrentContext> Enter(cuda::Driver& driver, cuda::Context context) {
    BERTH_ASSIGN_OR_RETURN(const cuda::Context before, driver.CurrentContext());
    BERTH_RETURN_IF_ERROR(driver.SetCurrentContext(context));
    return CurrentContext(driver, before);
  }
  CurrentContext(CurrentContext&& other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)), before_(other.before_) {}
  CurrentContext& operator=(CurrentContext&&) = delete;
  ~CurrentContext() {
    if (driver_ != nullptr) driver_->SetCurrentContext(before_).IgnoreError();
  }

 private:
  CurrentContext(cuda::Driver& driver, cuda::Context before) : driver_(&driver), before_(before) {}
  // Null once moved from.
  cuda::Driver* driver_;
  cuda::Context before_;
};

}  // namespace

MappedPage::~MappedPage() {
  MutexLock lock(&mu_);
  if (driver_ == nullptr) return;
  {
    const absl::StatusOr<CurrentContext> current = CurrentContext::Enter(*driver_, context_);
    driver_->UnregisterHostMemory(page_.address()).IgnoreError();
  }
  driver_->ReleasePrimaryContext(ordinal_).IgnoreError();
}

absl::Status MappedPage::Register(cuda::Driver& driver) {
  BERTH_ASSIGN_OR_RETURN(const CurrentContext current, CurrentContext::Enter(driver, context_));
  BERTH_ASSIGN_OR_RETURN(
      registered_, driver.RegisterHostMemory(page_.address(), Bytes(sizeof(FencePageLayout)), read_only_));
  driver_ = &driver;
  return absl::OkStatus();
}

absl::StatusOr<cuda::DevicePointer> MappedPage::DeviceWord(cuda::Driver& driver, uint32_t slot) {
  MutexLock lock(&mu_);
  if (driver_ == nullptr) {
    BERTH_ASSIGN_OR_RETURN(ordinal_, driver.CurrentDevice());
    BERTH_ASSIGN_OR_RETURN(context_, driver.RetainPrimaryContext(ordinal_));
    if (absl::Status status = Register(driver); !status.ok()) {
      driver.ReleasePrimaryContext(ordinal_).IgnoreError();
      return status;
    }
  }
  return registered_ + offsetof(FencePageLayout, slots) + slot * sizeof(FenceSlot) +
         offsetof(FenceSlot, done);
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
          absl::StrCat("the fence page of channel ", owner.value(), " did not come in time"));
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
