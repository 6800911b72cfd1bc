// The broker's link to the supervisor: its notices, and the start of another supervisor after its end.

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/os/fd_passing.h"
#include "common/status_macros.h"
#include "daemon/server/broker_process.h"
#include "daemon/supervisor/processes/child_process.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

// Pause of a broker without a supervisor before its next attempt to start one. The next attempt may find resources that
// the last one lacked.
constexpr absl::Duration kFirstSeekPause = absl::Milliseconds(50);
constexpr absl::Duration kLongestSeekPause = absl::Seconds(2);

}  // namespace

absl::Status BrokerProcess::WatchSupervisor() {
  loop_->Unwatch(supervisor_watch_);
  // Edge-triggered, so that a writable socket causes one event only.
  BERTH_ASSIGN_OR_RETURN(supervisor_watch_, loop_->Watch(fd_store_->fd(), EPOLLIN | EPOLLOUT | EPOLLET,
                                                         [this](uint32_t) { OnSupervisorEvent(); }));
  return absl::OkStatus();
}

absl::Status BrokerProcess::WatchLauncher() {
  return loop_
      ->Watch(launcher_.fd(), EPOLLRDHUP,
              [this](uint32_t) {
                if (stopping_) return;
                spdlog::critical("supervisor launcher exited; restarting broker");
                ::_exit(1);
              })
      .status();
}

void BrokerProcess::OnSupervisorReplaced() {
  spdlog::warn("supervisor died; a new supervisor has taken over its state");
  if (upgrade_ != nullptr) upgrade_->OnSupervisorReplaced();
  // Start() has not reached WatchSupervisor() yet.
  if (supervisor_watch_ == 0) return;
  const absl::Status watched = WatchSupervisor();
  if (watched.ok()) return;
  // This broker could not detect the new supervisor's end either. The new supervisor runs by now, and starts another
  // broker.
  spdlog::critical("cannot watch the new supervisor: {}; restarting the broker", std::string(watched.message()));
  ::_exit(kExitForWant);
}

void BrokerProcess::OnSupervisorEvent() {
  fd_store_->Flush();
  while (true) {
    absl::StatusOr<Notice> notice = fd_store_->ReadNotice();
    if (notice.ok()) {
      OnNotice(*std::move(notice));
      continue;
    }
    if (IsWouldBlock(notice.status())) return;
    if (IsEndOfStream(notice.status()) && stopping_) return;
    if (IsEndOfStream(notice.status())) {
      const absl::Status succeeded = fd_store_->Succeed();
      if (succeeded.ok()) continue;
      spdlog::critical("cannot start a new supervisor: {}; retrying", std::string(succeeded.message()));
      return SeekSupervisor();
    }
    // No other process would restart the broker or report a dead worker: it is better to end than to serve partially.
    spdlog::critical("cannot read from the supervisor: {}; exiting", std::string(notice.status().message()));
    _exit(1);
  }
}

void BrokerProcess::EndExecuted() {
  if (fd_store_->EndExecuted()) {
    spdlog::warn("the new program left a request to stop unread; the next supervisor gets it");
    // Repeated to the next supervisor.
    fd_store_->SendCommand(/*device=*/0, WorkerKind::kMain, WorkerCommand::kStop, "");
  }
  // Reads the end of the socket.
  OnSupervisorEvent();
}

void BrokerProcess::SeekSupervisor() {
  if (!seeking_.exchange(true)) seeker_->Ask();
}

void BrokerProcess::RetrySupervisor() {
  // Also replaces a supervisor that died before this loop ended.
  do {
    absl::Duration pause = kFirstSeekPause;
    do {
      absl::SleepFor(pause);
      pause = std::min(2 * pause, kLongestSeekPause);
    } while (!stopping_ && !fd_store_->Succeed().ok());
    seeking_ = false;
  } while (!stopping_ && !fd_store_->Succeed().ok() && !seeking_.exchange(true));
}

}  // namespace berth
