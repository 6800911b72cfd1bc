// The vault's part that has to do with looking at devices that are known: the monitor, and self-tests.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/fd_passing.h"
#include "common/memfd.h"
#include "common/status_macros.h"
#include "daemon/device/monitor_wire.h"
#include "daemon/vault/vault.h"
#include "daemon/vault/vault_log.h"

namespace berth {
namespace {

using custody::KeyOf;
using custody::Kind;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A context takes 0.2 s, and what is written and read less.
constexpr seconds kTestLimit(30);

// What a process wrote that failed; empty where that was nothing.
std::string TextIn(int fd) {
  char text[custody::kReasonBytes] = {};
  const ssize_t got = ::pread(fd, text, sizeof(text) - 1, 0);
  return std::string(text, got > 0 ? static_cast<size_t>(got) : 0);
}

// What a process is started with that is to look at the device, or at all that are like it.
std::vector<std::string> FlagsFor(const char* role, const DeviceRecord& record, const VaultOptions& options) {
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

bool Vault::WantsMonitor() const {
  return !options_.host_devices_file.empty() ||
         std::any_of(workers_.begin(), workers_.end(),
                     [](const Worker& worker) { return worker.record.backend != BackendKind::kHost; });
}

void Vault::StartMonitor() {
  monitor_start_ = MonotonicTime::max();
  const auto start = [this]() -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(auto sockets, SocketPair());
    BERTH_RETURN_IF_ERROR(SetNonBlocking(sockets.first.get()));
    const int table = held_.at(KeyOf(Kind::kDeviceTable)).get();
    const auto count = static_cast<uint32_t>(workers_.size() / kLanes.size());
    // It is the first in the socket, whoever has the end that it comes from.
    BERTH_RETURN_IF_ERROR(
        SendStruct(sockets.first.get(), monitor::Devices{.count = count}, std::span<const int>(&table, 1)));
    const auto flags = FlagsFor("--role=monitor", workers_.front().record, options_);
    BERTH_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(flags, sockets.second.get()));
    monitor_.emplace(Monitor{.process = std::move(process), .started = Now()});
    return Give(KeyOf(Kind::kMonitor), std::move(sockets.first), KeyOf(Kind::kMonitorProcess), monitor_->process);
  };
  const absl::Status started = start();
  if (started.ok()) return;
  Log("no monitor can be started: %s", started.ToString().c_str());
  monitor_start_ = Now() + MonitorRestarts::kLongestPause;
}

void Vault::KillMonitor(const std::string& why) {
  if (!monitor_.has_value() || monitor_->kill_deadline != MonotonicTime::max()) return;
  Log("the monitor is killed: %s", why.c_str());
  monitor_->process.Kill();
  monitor_->kill_deadline = Now() + Supervision::kKillPatience;
}

void Vault::AttendMonitor() {
  const MonotonicTime now = Now();
  if (abandoned_monitor_.has_value() && abandoned_monitor_->process.IsGone()) abandoned_monitor_.reset();
  if (monitor_.has_value() && monitor_->process.IsGone()) {
    const milliseconds pause = monitor_restarts_.OnDeath(monitor_->started, now);
    Log("the monitor ended: %s", monitor_->process.Reap().ToString().c_str());
    monitor_.reset();
    held_.erase(KeyOf(Kind::kMonitor));
    held_.erase(KeyOf(Kind::kMonitorProcess));
    monitor_start_ = now + pause;
  } else if (monitor_.has_value() && now >= monitor_->kill_deadline && !abandoned_monitor_.has_value()) {
    Log("the monitor is abandoned: SIGKILL did not end it");
    abandoned_monitor_ = std::exchange(monitor_, std::nullopt);
    abandoned_monitor_->kill_deadline = MonotonicTime::max();
    held_.erase(KeyOf(Kind::kMonitor));
    monitor_start_ = now;
  }
  if (now >= monitor_start_) StartMonitor();
}

MonotonicTime Vault::monitor_wake() const {
  if (!monitor_.has_value()) return monitor_start_;
  // A second one that does not end is waited for.
  return abandoned_monitor_.has_value() ? MonotonicTime::max() : monitor_->kill_deadline;
}

// ---- Self-tests ---------------------------------------------------------------------------------------------

void Vault::StartTest(Worker& worker) {
  const auto start = [&]() -> absl::StatusOr<Inventory> {
    BERTH_ASSIGN_OR_RETURN(UniqueFd words, CreateMemfd("berth-self-test", 0));
    const auto flags = FlagsFor("--role=self-test", worker.record, options_);
    BERTH_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(flags, words.get()));
    return Inventory{
        .process = std::move(process), .table = std::move(words), .deadline = Now() + kTestLimit};
  };
  absl::StatusOr<Inventory> test = start();
  if (test.ok()) {
    worker.test = *std::move(test);
  } else {
    worker.supervision.OnNotStarted(absl::StrCat("no self-test can be started: ", test.status().ToString()));
  }
}

void Vault::OnTestDone(Worker& worker) {
  Inventory test = *std::exchange(worker.test, std::nullopt);
  std::string why;
  if (!test.process.IsGone()) {
    why = absl::StrCat("it did not end in ", kTestLimit.count(), " s");
  } else if (const ProcessEnd end = test.process.Reap(); end.code != 0) {
    why = TextIn(test.table.get());
    if (why.empty()) why = end.ToString();
  }
  if (why.empty()) {
    Log("device %u has passed its self-test", worker.record.ordinal);
    return TryStartWorker(worker);
  }
  worker.supervision.OnNotStarted(absl::StrCat("the self-test failed: ", why));
  Log("device %u stays stopped: %s", worker.record.ordinal, worker.supervision.last_failure().c_str());
  QueueStatus(worker);
}

}  // namespace berth
