#include "daemon/server/upgrade_watch.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"
#include "common/patience.h"
#include "common/status_macros.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

// From the announcement until the new program has taken over. Includes the start of that program.
constexpr absl::Duration kTakeOverLimit = absl::Seconds(10);

}  // namespace

UpgradeWatch::UpgradeWatch(EventLoop* loop, const StatePageLayout* page, std::function<void()> end_executed)
    : loop_(loop),
      page_(page),
      end_executed_(std::move(end_executed)),
      limit_(PatientUnless("BERTH_TEST_TAKE_OVER_MS", kTakeOverLimit)) {}

void UpgradeWatch::Forget() {
  MutexLock lock(&mu_);
  fault_.clear();
}

void UpgradeWatch::OnRequest() {
  MutexLock lock(&mu_);
  requested_ = true;
  why_ = "the supervisor ended before the new program took over";
}

void UpgradeWatch::OnExecAnnounced(UniqueFd process) {
  Unwatch();
  {
    MutexLock lock(&mu_);
    // Another broker may have got the request.
    requested_ = true;
    why_ = "the new program ended before it took over";
  }
  process_ = std::move(process);
  for (const absl::Status& watched : {WatchProcess(), WatchLimit()}) {
    if (!watched.ok()) spdlog::error("cannot watch the new program: {}", std::string(watched.message()));
  }
}

absl::Status UpgradeWatch::WatchProcess() {
  if (!process_) return absl::ResourceExhaustedError("no file descriptor for its process");
  BERTH_ASSIGN_OR_RETURN(process_watch_,
                         loop_->Watch(process_.get(), EPOLLIN, [this](uint32_t) { OnProcessEnd(); }));
  return absl::OkStatus();
}

absl::Status UpgradeWatch::WatchLimit() {
  UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer) return OsError("timerfd_create", errno);
  const itimerspec spec = {.it_interval = {}, .it_value = absl::ToTimespec(limit_)};
  if (::timerfd_settime(timer.get(), 0, &spec, nullptr) < 0) return OsError("timerfd_settime", errno);
  BERTH_ASSIGN_OR_RETURN(timer_watch_, loop_->Watch(timer.get(), EPOLLIN, [this](uint32_t) { OnLimit(); }));
  timer_ = std::move(timer);
  return absl::OkStatus();
}

void UpgradeWatch::Unwatch() {
  loop_->Unwatch(std::exchange(process_watch_, 0));
  loop_->Unwatch(std::exchange(timer_watch_, 0));
  process_.reset();
  timer_.reset();
}

void UpgradeWatch::OnProcessEnd() {
  Unwatch();
  end_executed_();
}

void UpgradeWatch::OnLimit() {
  loop_->Unwatch(std::exchange(timer_watch_, 0));
  timer_.reset();
  if (page_->upgrading != StatePageLayout::kTakeOverAwaited) return;
  {
    MutexLock lock(&mu_);
    why_ = absl::StrCat("the new program did not take over within ", absl::FormatDuration(limit_));
  }
  Unwatch();
  end_executed_();
}

void UpgradeWatch::OnExecFailed(const std::string& why) {
  Unwatch();
  MutexLock lock(&mu_);
  FailLocked(absl::StrCat("cannot execute the new program: ", why));
}

void UpgradeWatch::OnSupervisorReplaced() {
  MutexLock lock(&mu_);
  if (requested_) FailLocked(why_);
}

void UpgradeWatch::FailLocked(absl::string_view why) {
  requested_ = false;
  fault_ = absl::StrCat(why, ": the earlier one continues");
  spdlog::error("upgrade failed: {}", fault_);
}

std::string UpgradeWatch::fault() const {
  MutexLock lock(&mu_);
  return fault_;
}

}  // namespace berth
