// The supervisor's part for devices: finding them, their workers, and worker commands.

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <berth/ids.h>

#include "absl/strings/str_cat.h"
#include "common/os/fd_passing.h"
#include "common/os/memfd.h"
#include "common/os/named_memory.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "daemon/device/monitor/monitor_wire.h"
#include "daemon/supervisor/supervisor.h"
#include "daemon/supervisor/supervisor_log.h"

namespace berth {
namespace {

using fd_store::Key;
using fd_store::KeyOf;
using fd_store::Kind;
using fd_store::WorkerState;
using std::chrono::seconds;

// cuInit takes 0.2 s, and an unresponsive device is waited for twice; a driver that needs this long is stuck.
constexpr seconds kInventoryLimit(15);

const char* NameOf(WorkerKind worker_kind) { return worker_kind == WorkerKind::kMain ? "worker" : "context worker"; }

using std::chrono::milliseconds;

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

absl::StatusOr<std::vector<DeviceRecord>> Supervisor::ReadRecords(int fd) {
  struct stat info;
  if (::fstat(fd, &info) < 0) return OsError("fstat(inventory)", errno);
  std::vector<DeviceRecord> records(static_cast<size_t>(info.st_size) / sizeof(DeviceRecord));
  const size_t size = records.size() * sizeof(DeviceRecord);
  if (records.empty() || records.size() > kMaxDeviceOrdinals || size != static_cast<size_t>(info.st_size) ||
      ::pread(fd, records.data(), size, 0) != static_cast<ssize_t>(size)) {
    return absl::InternalError(absl::StrCat("malformed inventory of ", info.st_size, " bytes"));
  }
  for (const DeviceRecord& record : records) {
    if (record.ordinal >= kMaxDeviceOrdinals) {
      return absl::InternalError(
          absl::StrCat("device ordinal ", record.ordinal, ", limit ", kMaxDeviceOrdinals));
    }
  }
  return records;
}

absl::StatusOr<Supervisor::Inventory> Supervisor::StartInventory() {
  BERTH_ASSIGN_OR_RETURN(UniqueFd table, CreateMemfd("berth-devices", 0));
  std::vector<std::string> flags = options_.child_flags;
  flags.push_back("--role=inventory");
  BERTH_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(flags, table.get()));
  return Inventory{
      .process = std::move(process), .table = std::move(table), .deadline = Now() + kInventoryLimit};
}

absl::StatusOr<std::vector<DeviceRecord>> Supervisor::TakeInventory(Inventory& inventory) {
  std::string failure;
  if (!inventory.process.IsGone()) {
    inventory.process.Kill();
    failure = absl::StrCat("not in ", kInventoryLimit.count(), " s");
  } else if (const ProcessEnd end = inventory.process.Reap(); end.code != 0) {
    failure = end.ToString();
  }
  BERTH_RETURN_IF_ERROR(SealMemfd(inventory.table.get(), F_SEAL_WRITE));
  absl::StatusOr<std::vector<DeviceRecord>> records = ReadRecords(inventory.table.get());
  if (failure.empty()) return records;
  if (!records.ok() || records->front().fault != DeviceFault::kNoDriver) {
    return absl::UnavailableError(absl::StrCat("the inventory of devices failed: ", failure));
  }
  // The process wrote this record before it called the driver.
  ScrubFinding& finding = records->front().scrub;
  const std::string why = absl::StrCat(finding.detail, ": ", failure);
  snprintf(finding.detail, sizeof(finding.detail), "%s", why.c_str());
  return records;
}

absl::Status Supervisor::FindDevices() {
  BERTH_ASSIGN_OR_RETURN(Inventory inventory, StartInventory());
  pollfd entries[] = {{.fd = inventory.process.pidfd(), .events = POLLIN, .revents = 0},
                      {.fd = signals_.get(), .events = POLLIN, .revents = 0}};
  // A reload that is requested meanwhile follows once there is a broker.
  while (!inventory.process.IsGone() && Now() < inventory.deadline) {
    ::poll(entries, 2, PollTimeout(inventory.deadline));
    if (StopAsked()) return absl::CancelledError("stopped during the inventory of devices");
  }
  BERTH_ASSIGN_OR_RETURN(const std::vector<DeviceRecord> records, TakeInventory(inventory));
  ListWorkers(records);
  held_[KeyOf(Kind::kDeviceTable)] = std::move(inventory.table);
  return absl::OkStatus();
}

void Supervisor::ListWorkers(const std::vector<DeviceRecord>& records) {
  for (const DeviceRecord& record : records) {
    for (const WorkerKind worker_kind : kWorkerKinds) {
      workers_.push_back({.record = record,
                          .worker_kind = worker_kind,
                          .supervision = Supervision(/*on_demand=*/worker_kind == WorkerKind::kContext)});
    }
  }
}

std::string Supervisor::WhyNotStarted(const DeviceRecord& record) {
  switch (record.fault) {
    case DeviceFault::kNone:
      break;
    case DeviceFault::kNotDescribed:
      return absl::StrCat("the device failed at the daemon's start: ", record.scrub.detail);
    case DeviceFault::kNoDriver:
      return absl::StrCat("waiting for the GPU driver: ", record.scrub.detail,
                          "; start berthd with --backend=host to serve host memory");
  }
  if (record.scrub.outcome != ScrubOutcome::kStale) return "";
  return absl::StrCat("the driver does not clear memory between processes: ", record.scrub.detail);
}

void Supervisor::StartWorkers() {
  for (Worker& worker : workers_) {
    if (worker.worker_kind != WorkerKind::kMain || EntryOf(worker).dropped != 0) continue;
    // A device's memory outlives its workers, so their later starts do not advance the generation.
    ++EntryOf(worker).generation;
    const std::string why = WhyNotStarted(worker.record);
    if (why.empty()) {
      TryStartWorker(worker);
    } else {
      worker.supervision.OnNotStarted(why);
      Log("device %u is stopped: %s", worker.record.ordinal, why.c_str());
    }
  }
}

Supervisor::Worker* Supervisor::FindWorker(uint32_t device, WorkerKind worker_kind) {
  const auto found = std::find_if(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    return worker.record.ordinal == device && worker.worker_kind == worker_kind;
  });
  return found == workers_.end() ? nullptr : &*found;
}

absl::Status Supervisor::StartWorker(Worker& worker) {
  const DeviceRecord& record = worker.record;
  BERTH_ASSIGN_OR_RETURN(auto sockets, SocketPair());
  // Only the broker's end is non-blocking; the worker's end blocks.
  BERTH_RETURN_IF_ERROR(SetNonBlocking(sockets.first.get()));
  const std::vector<std::string> flags = {
      worker.worker_kind == WorkerKind::kMain ? "--role=worker" : "--role=context-worker",
      absl::StrCat("--device=", record.ordinal), absl::StrCat("--device-uuid=", record.uuid),
      absl::StrCat("--backend=", record.backend == BackendKind::kHost ? "host" : "cuda"),
      absl::StrCat("--host-bytes=", record.total_bytes), absl::StrCat("--folder=", options_.folder)};
  if (worker.worker_kind == WorkerKind::kContext) {
    if (GenerationOf(worker) == 0) GenerationOf(worker) = 1;
    worker.over = false;
  }
  BERTH_ASSIGN_OR_RETURN(worker.process, ChildProcess::Start(flags, sockets.second.get()));
  if (worker.worker_kind == WorkerKind::kContext) QueueStatus(worker);
  return Give(KeyOf(worker.worker_kind, record.ordinal), std::move(sockets.first),
              fd_store::ProcessKeyOf(worker.worker_kind, record.ordinal), *worker.process);
}

absl::Status Supervisor::Give(Key socket_key, UniqueFd socket, Key process_key, const ChildProcess& process) {
  BERTH_ASSIGN_OR_RETURN(held_[process_key], DuplicateFd(process.pidfd()));
  held_[socket_key] = std::move(socket);
  if (!broker_.has_value()) return absl::OkStatus();
  broker_->link.QueueGive(process_key);
  broker_->link.QueueGive(socket_key);
  return absl::OkStatus();
}

void Supervisor::TryStartWorker(Worker& worker) {
  worker.start = MonotonicTime::max();
  const absl::Status started = StartWorker(worker);
  if (started.ok()) return worker.retries.OnSuccess();
  Log("cannot start the %s of device %u: %s; retrying", NameOf(worker.worker_kind), worker.record.ordinal,
      std::string(started.message()).c_str());
  // Ends whatever the failed start has created.
  worker.process.reset();
  worker.over = true;
  held_.erase(KeyOf(worker.worker_kind, worker.record.ordinal));
  held_.erase(fd_store::ProcessKeyOf(worker.worker_kind, worker.record.ordinal));
  worker.start = Now() + worker.retries.OnFailure();
  QueueStatus(worker);
}

void Supervisor::KillWorker(Worker& worker, Supervision::Then then, const std::string& why) {
  const Supervision::State state = worker.supervision.state();
  if (state != Supervision::State::kRunning && state != Supervision::State::kEnding) return;
  if (worker.test.has_value()) {
    // No worker exists yet. Only kStop ends the test too.
    if (then != Supervision::Then::kStop) return;
    worker.test.reset();
    return worker.supervision.OnNotStarted(why);
  }
  if (!worker.process.has_value()) {
    // The worker is still to be started.
    worker.supervision.OnKilled(Now(), then, why);
    if (!worker.supervision.OnEnded(Now(), {})) worker.start = MonotonicTime::max();
    return;
  }
  Log("killing the %s of device %u%s%s", NameOf(worker.worker_kind), worker.record.ordinal, why.empty() ? "" : ": ",
      why.c_str());
  EndContext(worker);
  worker.process->Kill();
  worker.supervision.OnKilled(Now(), then, why);
}

void Supervisor::EndContext(Worker& worker) {
  if (worker.worker_kind != WorkerKind::kContext || std::exchange(worker.over, true)) return;
  ++GenerationOf(worker);
  QueueStatus(worker);
}

void Supervisor::OnWorkerDeath(Worker& worker) {
  const ProcessEnd end = worker.process->Reap();
  worker.process.reset();
  held_.erase(KeyOf(worker.worker_kind, worker.record.ordinal));
  held_.erase(fd_store::ProcessKeyOf(worker.worker_kind, worker.record.ordinal));
  if (worker.worker_kind == WorkerKind::kContext) {
    if (!std::exchange(worker.over, true)) ++GenerationOf(worker);
    RemoveNamedMemory(options_.folder, worker.record.ordinal);
  }
  if (IsDeviceLost(end)) LoseDevice(worker.record.ordinal, &worker, "the driver reports the device as lost");
  const bool another = worker.supervision.OnEnded(Now(), end);
  const bool stopped = worker.supervision.state() == Supervision::State::kStopped;
  Log("%s of device %u exited: %s%s", NameOf(worker.worker_kind), worker.record.ordinal, end.ToString().c_str(),
      !stopped                                  ? ""
      : worker.worker_kind == WorkerKind::kMain ? "; the device is stopped"
                                                : "; not restarting it");
  QueueStatus(worker);
  if (another) TryStartWorker(worker);
}

void Supervisor::AttendWorkers() {
  const MonotonicTime now = Now();
  for (Worker& worker : workers_) {
    if (worker.process.has_value() && worker.process->IsGone()) OnWorkerDeath(worker);
    if (worker.test.has_value() && (worker.test->process.IsGone() || now >= worker.test->deadline)) {
      OnTestDone(worker);
    }
    if (now >= worker.start) TryStartWorker(worker);
    if (!worker.supervision.OnTime(now)) continue;
    if (worker.supervision.state() == Supervision::State::kAbandoned) {
      Log("abandoning the %s of device %u: %s", NameOf(worker.worker_kind), worker.record.ordinal,
          worker.supervision.last_failure().c_str());
      held_.erase(KeyOf(worker.worker_kind, worker.record.ordinal));
    }
    QueueStatus(worker);
  }
}

void Supervisor::DropDevice(uint32_t device, const std::string& why) {
  Log("device %u is dropped: %s", device, why.c_str());
  for (Worker& worker : workers_) {
    if (worker.record.ordinal != device) continue;
    EntryOf(worker).dropped = 1;
    worker.start = MonotonicTime::max();
    if (worker.process.has_value() || worker.test.has_value()) {
      KillWorker(worker, Supervision::Then::kStop, why);
    } else {
      worker.supervision.OnNotStarted(why);
    }
    QueueStatus(worker);
  }
}

void Supervisor::LoseDevice(uint32_t device, const Worker* seen_by, const std::string& why) {
  Log("device %u is lost: %s", device, why.c_str());
  for (Worker& worker : workers_) {
    if (worker.record.ordinal != device) continue;
    // Several processes may report the loss: each of the device's workers, and the monitor.
    const bool again = std::exchange(worker.lost, true);
    if (worker.worker_kind == WorkerKind::kMain && !again) ++EntryOf(worker).generation;
    worker.start = MonotonicTime::max();
    if (&worker == seen_by) continue;
    if (worker.process.has_value() || worker.test.has_value()) {
      KillWorker(worker, Supervision::Then::kStop, why);
    } else {
      worker.supervision.OnNotStarted(why);
    }
    QueueStatus(worker);
  }
}

void Supervisor::ResetDevice(uint32_t device, const std::string& why) {
  for (Worker& worker : workers_) {
    if (worker.record.ordinal != device) continue;
    if (worker.worker_kind == WorkerKind::kMain) ++EntryOf(worker).generation;
    QueueStatus(worker);
    KillWorker(worker, Supervision::Then::kRestart, why);
  }
}

void Supervisor::OnRequest(CommandRequest request) {
  if (request.command == WorkerCommand::kKillMonitor) return KillMonitor(request.why);
  if (request.command == WorkerCommand::kUpgrade) {
    upgrade_ = Upgrade::kWanted;
    return;
  }
  if (request.command == WorkerCommand::kStop) {
    stop_commanded_ = true;
    return;
  }
  const bool context = request.command == WorkerCommand::kStart || request.command == WorkerCommand::kEnd;
  Worker* const found = FindWorker(request.device, context ? WorkerKind::kContext : request.worker_kind);
  if (found == nullptr) return;
  Worker& worker = *found;
  switch (request.command) {
    case WorkerCommand::kKill:
      // If the worker has just ended by itself, the kill may hit the next worker: that costs one restart.
      return KillWorker(worker, Supervision::Then::kAsByItself, request.why);
    case WorkerCommand::kRestart:
      return KillWorker(worker, Supervision::Then::kRestart, request.why);
    case WorkerCommand::kEnd:
      // An ordered end is no failure.
      KillWorker(worker, Supervision::Then::kRestart, "");
      break;
    case WorkerCommand::kReset:
      return ResetDevice(request.device, request.why);
    case WorkerCommand::kDrop:
      return DropDevice(request.device, request.why);
    case WorkerCommand::kLose:
      // A device already out of service was lost before, or needs an operator anyway.
      if (worker.supervision.state() == Supervision::State::kStopped) break;
      return LoseDevice(request.device, /*seen_by=*/nullptr, request.why);
    case WorkerCommand::kDrain:
      worker.drain_reason = request.why;
      break;
    case WorkerCommand::kUndrain:
      worker.drain_reason.clear();
      break;
    case WorkerCommand::kKillMonitor:
    case WorkerCommand::kUpgrade:
    case WorkerCommand::kStop:
      break;
    case WorkerCommand::kStart:
      if (EntryOf(worker).dropped == 0 && worker.supervision.OnWanted()) return TryStartWorker(worker);
      break;
    case WorkerCommand::kEnable:
      if (EntryOf(worker).dropped != 0 || worker.supervision.state() != Supervision::State::kStopped) break;
      if (AwaitsDriver()) {
        next_driver_look_ = Now();
        break;
      }
      Log("%s of device %u is enabled again", NameOf(worker.worker_kind), worker.record.ordinal);
      worker.lost = false;
      if (worker.supervision.OnEnabled()) StartTest(worker);
      break;
  }
  QueueStatus(worker);
}

void Supervisor::QueueStatus(const Worker& worker) {
  if (!broker_.has_value()) return;
  fd_store::WorkerStatus status = {.device = worker.record.ordinal,
                                   .restarts_left = worker.supervision.restarts_left(),
                                   .generation = GenerationOf(worker),
                                   .dropped = EntryOf(worker).dropped != 0 ? 1u : 0u,
                                   .worker_kind = worker.worker_kind};
  switch (worker.supervision.state()) {
    case Supervision::State::kIdle:
      status.state = WorkerState::kIdle;
      break;
    case Supervision::State::kRunning:
    case Supervision::State::kEnding:
      status.state = worker.test.has_value()      ? WorkerState::kTesting
                     : worker.process.has_value() ? WorkerState::kRunning
                                                  : WorkerState::kGone;
      break;
    case Supervision::State::kStopped:
      status.state = worker.lost ? WorkerState::kLost : WorkerState::kStopped;
      break;
    case Supervision::State::kAbandoned:
      status.state = WorkerState::kAbandoned;
      break;
  }
  fd_store::SetReason(worker.supervision.last_failure(), status.last_failure);
  fd_store::SetReason(worker.drain_reason, status.drain_reason);
  broker_->link.Queue(status);
}

// ---- The supervisor's part for inspecting known devices: the monitor, and self-tests -------------------------

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
