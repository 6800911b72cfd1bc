// The supervisor's part for inspecting known devices: the monitor, and self-tests.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/os/fd_passing.h"
#include "common/os/memfd.h"
#include "common/status_macros.h"
#include "daemon/device/monitor/monitor_wire.h"
#include "daemon/supervisor/supervisor.h"
#include "daemon/supervisor/supervisor_log.h"

namespace berth {
namespace {

using fd_store::KeyOf;
using fd_store::Kind;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A context takes 0.2 s; writing and reading memory takes less.
constexpr seconds kTestLimit(30);

// Returns the text that a failed process wrote; empty if it wrote none.
std::string TextIn(int fd) {
  char text[fd_store::kReasonBytes] = {};
  const ssize_t got = ::pread(fd, text, sizeof(text) - 1, 0);
  return std::string(text, got > 0 ? static_cast<size_t>(got) : 0);
}

// Returns the flags for a process that inspects the device, or all devices of its kind.
std::vector<std::string> FlagsFor(const char* role, const DeviceRecord& record, const SupervisorOptions& options) {
  const std::string& script = options.host_devices_file;
  std::vector<std::string> flags = {
      role, absl::StrCat("--folder=", options.folder), absl::StrCat("--device=", record.ordinal),
      absl::StrCat("--device-uuid=", record.uuid),
      absl::StrCat("--host-bytes=", record.total_bytes),
      record.backend == BackendKind::kHost ? "--backend=host" : "--backend=cuda"};
  if (!script.empty()) flags.push_back(absl::StrCat("--host-devices-file=", script));
  return flags;
}

}  // namespace

// ---- The monitor --------------------------------------------------------------------------------------------

bool Supervisor::WantsMonitor() const {
  return !options_.host_devices_file.empty() ||
         std::any_of(workers_.begin(), workers_.end(),
                     [](const Worker& worker) {
                       return worker.record.backend != BackendKind::kHost &&
                              worker.record.fault != DeviceFault::kNoDriver;
                     });
}

void Supervisor::StartMonitor() {
  monitor_start_ = MonotonicTime::max();
  const auto start = [this]() -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(auto sockets, SocketPair());
    BERTH_RETURN_IF_ERROR(SetNonBlocking(sockets.first.get()));
    const int table = held_.at(KeyOf(Kind::kDeviceTable)).get();
    const auto count = static_cast<uint32_t>(workers_.size() / kWorkerKinds.size());
    // This message is the first in the socket, whichever process later holds the sending end.
    BERTH_RETURN_IF_ERROR(
        SendStruct(sockets.first.get(), monitor::Devices{.count = count}, std::span<const int>(&table, 1)));
    const auto flags = FlagsFor("--role=monitor", workers_.front().record, options_);
    BERTH_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(flags, sockets.second.get()));
    monitor_.emplace(Monitor{.process = std::move(process), .started = Now()});
    return Give(KeyOf(Kind::kMonitor), std::move(sockets.first), KeyOf(Kind::kMonitorProcess), monitor_->process);
  };
  const absl::Status started = start();
  if (started.ok()) return;
  Log("cannot start the monitor: %s; retrying", started.ToString().c_str());
  monitor_start_ = Now() + MonitorRestarts::kLongestPause;
}

void Supervisor::KillMonitor(const std::string& why) {
  if (!monitor_.has_value() || monitor_->kill_deadline != MonotonicTime::max()) return;
  Log("killing the monitor: %s", why.c_str());
  monitor_->process.Kill();
  monitor_->kill_deadline = Now() + Supervision::kKillPatience;
}

void Supervisor::AttendMonitor() {
  const MonotonicTime now = Now();
  if (abandoned_monitor_.has_value() && abandoned_monitor_->process.IsGone()) abandoned_monitor_.reset();
  if (monitor_.has_value() && monitor_->process.IsGone()) {
    const milliseconds pause = monitor_restarts_.OnDeath(monitor_->started, now);
    Log("monitor exited: %s; restarting it", monitor_->process.Reap().ToString().c_str());
    monitor_.reset();
    held_.erase(KeyOf(Kind::kMonitor));
    held_.erase(KeyOf(Kind::kMonitorProcess));
    monitor_start_ = now + pause;
  } else if (monitor_.has_value() && now >= monitor_->kill_deadline && !abandoned_monitor_.has_value()) {
    Log("monitor did not end after SIGKILL; starting another monitor");
    abandoned_monitor_ = std::exchange(monitor_, std::nullopt);
    abandoned_monitor_->kill_deadline = MonotonicTime::max();
    held_.erase(KeyOf(Kind::kMonitor));
    monitor_start_ = now;
  }
  if (now >= monitor_start_) StartMonitor();
}

MonotonicTime Supervisor::monitor_wake() const {
  if (!monitor_.has_value()) return monitor_start_;
  // A second monitor that does not end is waited for.
  return abandoned_monitor_.has_value() ? MonotonicTime::max() : monitor_->kill_deadline;
}

// ---- Self-tests ---------------------------------------------------------------------------------------------

void Supervisor::StartTest(Worker& worker) {
  const auto start = [&]() -> absl::StatusOr<Inventory> {
    BERTH_ASSIGN_OR_RETURN(UniqueFd table, CreateMemfd("berth-self-test", 0));
    const auto flags = FlagsFor("--role=self-test", worker.record, options_);
    BERTH_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(flags, table.get()));
    return Inventory{
        .process = std::move(process), .table = std::move(table), .deadline = Now() + kTestLimit};
  };
  absl::StatusOr<Inventory> test = start();
  if (test.ok()) {
    worker.test = *std::move(test);
  } else {
    worker.supervision.OnNotStarted(absl::StrCat("cannot start the self-test: ", test.status().ToString()));
  }
}

void Supervisor::OnTestDone(Worker& worker) {
  Inventory test = *std::exchange(worker.test, std::nullopt);
  std::string why;
  if (!test.process.IsGone()) {
    why = absl::StrCat("the self-test did not end within ", kTestLimit.count(), " s");
  } else if (const ProcessEnd end = test.process.Reap(); end.code != 0) {
    why = TextIn(test.table.get());
    if (why.empty()) why = end.ToString();
  }
  if (why.empty()) {
    Log("device %u passed its self-test", worker.record.ordinal);
    return TryStartWorker(worker);
  }
  worker.supervision.OnNotStarted(absl::StrCat("the self-test failed: ", why));
  Log("device %u stays stopped: %s", worker.record.ordinal, worker.supervision.last_failure().c_str());
  QueueStatus(worker);
}

}  // namespace berth
