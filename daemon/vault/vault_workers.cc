// The vault's part that has to do with devices: finding them, their workers, and what is ordered of both.

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/fd_passing.h"
#include "common/ids.h"
#include "common/memfd.h"
#include "common/named_memory.h"
#include "common/os_error.h"
#include "common/status_macros.h"
#include "daemon/vault/vault.h"
#include "daemon/vault/vault_log.h"

namespace berth {
namespace {

using custody::Key;
using custody::KeyOf;
using custody::Kind;
using custody::OrderKind;
using custody::WorkerState;
using std::chrono::seconds;

// cuInit takes 0.2 s, and a device that does not answer is waited for twice; a driver that needs this long is stuck.
constexpr seconds kInventoryLimit(15);

const char* NameOf(Lane lane) { return lane == Lane::kMain ? "worker" : "context worker"; }

}  // namespace

absl::StatusOr<std::vector<DeviceRecord>> Vault::ReadRecords(int fd) {
  struct stat info;
  if (::fstat(fd, &info) < 0) return OsError("fstat(inventory)", errno);
  std::vector<DeviceRecord> records(static_cast<size_t>(info.st_size) / sizeof(DeviceRecord));
  const size_t size = records.size() * sizeof(DeviceRecord);
  if (records.empty() || records.size() > kMaxDeviceOrdinals || size != static_cast<size_t>(info.st_size) ||
      ::pread(fd, records.data(), size, 0) != static_cast<ssize_t>(size)) {
    return absl::InternalError(absl::StrCat("an inventory of ", info.st_size, " bytes"));
  }
  for (const DeviceRecord& record : records) {
    if (record.ordinal >= kMaxDeviceOrdinals) {
      return absl::InternalError(
          absl::StrCat("device ordinal ", record.ordinal, ", limit ", kMaxDeviceOrdinals));
    }
  }
  return records;
}

absl::StatusOr<Vault::Inventory> Vault::StartInventory() {
  BERTH_ASSIGN_OR_RETURN(UniqueFd table, CreateMemfd("berth-devices", 0));
  std::vector<std::string> flags = options_.child_flags;
  flags.push_back("--role=inventory");
  BERTH_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(flags, table.get()));
  return Inventory{
      .process = std::move(process), .table = std::move(table), .deadline = Now() + kInventoryLimit};
}

absl::StatusOr<std::vector<DeviceRecord>> Vault::TakeInventory(Inventory& inventory) {
  if (!inventory.process.IsGone()) {
    return absl::UnavailableError(
        absl::StrCat("the inventory of devices did not end in ", kInventoryLimit.count(), " s"));
  }
  if (const ProcessEnd end = inventory.process.Reap(); end.code != 0) {
    return absl::UnavailableError(absl::StrCat("the inventory of devices failed: ", end.ToString()));
  }
  BERTH_RETURN_IF_ERROR(SealMemfd(inventory.table.get(), F_SEAL_WRITE));
  return ReadRecords(inventory.table.get());
}

absl::Status Vault::FindDevices() {
  BERTH_ASSIGN_OR_RETURN(Inventory inventory, StartInventory());
  pollfd entries[] = {{.fd = inventory.process.pidfd(), .events = POLLIN, .revents = 0},
                      {.fd = signals_.get(), .events = POLLIN, .revents = 0}};
  ::poll(entries, 2, PollTimeout(inventory.deadline));
  if (StopAsked()) return absl::CancelledError("asked to stop");
  BERTH_ASSIGN_OR_RETURN(const std::vector<DeviceRecord> records, TakeInventory(inventory));
  ListWorkers(records);
  held_[KeyOf(Kind::kDeviceTable)] = std::move(inventory.table);
  return absl::OkStatus();
}

void Vault::ListWorkers(const std::vector<DeviceRecord>& records) {
  for (const DeviceRecord& record : records) {
    for (const Lane lane : kLanes) {
      workers_.push_back(
          {.record = record, .lane = lane, .supervision = Supervision(/*on_demand=*/lane == Lane::kContext)});
    }
  }
}

Vault::Worker* Vault::FindWorker(uint32_t device, Lane lane) {
  const auto found = std::find_if(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    return worker.record.ordinal == device && worker.lane == lane;
  });
  return found == workers_.end() ? nullptr : &*found;
}

absl::Status Vault::StartWorker(Worker& worker) {
  const DeviceRecord& record = worker.record;
  BERTH_ASSIGN_OR_RETURN(auto sockets, SocketPair());
  // The broker's end; the worker's own blocks.
  BERTH_RETURN_IF_ERROR(SetNonBlocking(sockets.first.get()));
  const std::vector<std::string> flags = {
      worker.lane == Lane::kMain ? "--role=worker" : "--role=context-worker",
      absl::StrCat("--device=", record.ordinal), absl::StrCat("--device-uuid=", record.uuid),
      absl::StrCat("--backend=", record.backend == BackendKind::kHost ? "host" : "cuda"),
      absl::StrCat("--host-bytes=", record.total_bytes), absl::StrCat("--folder=", options_.folder)};
  if (worker.lane == Lane::kContext) {
    if (GenerationOf(worker) == 0) GenerationOf(worker) = 1;
    worker.over = false;
  }
  BERTH_ASSIGN_OR_RETURN(worker.process, ChildProcess::Start(flags, sockets.second.get()));
  if (worker.lane == Lane::kContext) QueueStatus(worker);
  return Give(KeyOf(worker.lane, record.ordinal), std::move(sockets.first),
              custody::ProcessKeyOf(worker.lane, record.ordinal), *worker.process);
}

absl::Status Vault::Give(Key socket_key, UniqueFd socket, Key process_key, const ChildProcess& process) {
  BERTH_ASSIGN_OR_RETURN(held_[process_key], DuplicateFd(process.pidfd()));
  held_[socket_key] = std::move(socket);
  if (!broker_.has_value()) return absl::OkStatus();
  broker_->link.QueueGive(process_key);
  broker_->link.QueueGive(socket_key);
  return absl::OkStatus();
}

void Vault::TryStartWorker(Worker& worker) {
  worker.start = MonotonicTime::max();
  const absl::Status started = StartWorker(worker);
  if (started.ok()) return worker.retries.OnSuccess();
  Log("no %s of device %u can be started, and another is tried: %s", NameOf(worker.lane), worker.record.ordinal,
      std::string(started.message()).c_str());
  // What came of it ends.
  worker.process.reset();
  worker.over = true;
  held_.erase(KeyOf(worker.lane, worker.record.ordinal));
  held_.erase(custody::ProcessKeyOf(worker.lane, worker.record.ordinal));
  worker.start = Now() + worker.retries.OnFailure();
  QueueStatus(worker);
}

void Vault::KillWorker(Worker& worker, Supervision::Then then, const std::string& why) {
  const Supervision::State state = worker.supervision.state();
  if (state != Supervision::State::kRunning && state != Supervision::State::kEnding) return;
  if (worker.test.has_value()) {
    // There is none yet. Who wants no other one wants no test either.
    if (then != Supervision::Then::kStop) return;
    worker.test.reset();
    return worker.supervision.OnNotStarted(why);
  }
  if (!worker.process.has_value()) {
    // It is still to be started.
    worker.supervision.OnKilled(Now(), then, why);
    if (!worker.supervision.OnEnded(Now(), {})) worker.start = MonotonicTime::max();
    return;
  }
  Log("the %s of device %u is killed: %s", NameOf(worker.lane), worker.record.ordinal, why.c_str());
  EndContext(worker);
  worker.process->Kill();
  worker.supervision.OnKilled(Now(), then, why);
}

void Vault::EndContext(Worker& worker) {
  if (worker.lane != Lane::kContext || std::exchange(worker.over, true)) return;
  ++GenerationOf(worker);
  QueueStatus(worker);
}

void Vault::OnWorkerDeath(Worker& worker) {
  const ProcessEnd end = worker.process->Reap();
  worker.process.reset();
  held_.erase(KeyOf(worker.lane, worker.record.ordinal));
  held_.erase(custody::ProcessKeyOf(worker.lane, worker.record.ordinal));
  if (worker.lane == Lane::kContext) {
    if (!std::exchange(worker.over, true)) ++GenerationOf(worker);
    RemoveNamedMemory(options_.folder, worker.record.ordinal);
  }
  if (IsDeviceLost(end)) LoseDevice(worker.record.ordinal, &worker, "the driver says that the device is lost");
  const bool another = worker.supervision.OnEnded(Now(), end);
  const bool stopped = worker.supervision.state() == Supervision::State::kStopped;
  Log("the %s of device %u ended: %s%s", NameOf(worker.lane), worker.record.ordinal, end.ToString().c_str(),
      !stopped                     ? ""
      : worker.lane == Lane::kMain ? "; the device is stopped"
                                   : "; there will be no other");
  QueueStatus(worker);
  if (another) TryStartWorker(worker);
}

void Vault::AttendWorkers() {
  const MonotonicTime now = Now();
  for (Worker& worker : workers_) {
    if (worker.process.has_value() && worker.process->IsGone()) OnWorkerDeath(worker);
    if (worker.test.has_value() && (worker.test->process.IsGone() || now >= worker.test->deadline)) {
      OnTestDone(worker);
    }
    if (now >= worker.start) TryStartWorker(worker);
    if (!worker.supervision.OnTime(now)) continue;
    if (worker.supervision.state() == Supervision::State::kAbandoned) {
      Log("the %s of device %u is abandoned: %s", NameOf(worker.lane), worker.record.ordinal,
          worker.supervision.last_failure().c_str());
      held_.erase(KeyOf(worker.lane, worker.record.ordinal));
    }
    QueueStatus(worker);
  }
}

void Vault::DropDevice(uint32_t device, const std::string& why) {
  Log("device %u is dropped: %s", device, why.c_str());
  for (Worker& worker : workers_) {
    if (worker.record.ordinal != device) continue;
    WordsOf(worker).dropped = 1;
    worker.start = MonotonicTime::max();
    if (worker.process.has_value() || worker.test.has_value()) {
      KillWorker(worker, Supervision::Then::kStop, why);
    } else {
      worker.supervision.OnNotStarted(why);
    }
    QueueStatus(worker);
  }
}

void Vault::LoseDevice(uint32_t device, const Worker* seen_by, const std::string& why) {
  Log("device %u is lost: %s", device, why.c_str());
  for (Worker& worker : workers_) {
    if (worker.record.ordinal != device) continue;
    // Several may see it: its workers, each by itself, and the monitor.
    const bool again = std::exchange(worker.lost, true);
    if (worker.lane == Lane::kMain && !again) ++WordsOf(worker).generation;
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

void Vault::ResetDevice(uint32_t device, const std::string& why) {
  for (Worker& worker : workers_) {
    if (worker.record.ordinal != device) continue;
    if (worker.lane == Lane::kMain) ++WordsOf(worker).generation;
    QueueStatus(worker);
    KillWorker(worker, Supervision::Then::kRestart, why);
  }
}

void Vault::OnRequest(OrderRequest request) {
  if (request.order == OrderKind::kKillMonitor) return KillMonitor(request.why);
  if (request.order == OrderKind::kUpgrade) {
    upgrade_ = Upgrade::kWanted;
    return;
  }
  const bool context = request.order == OrderKind::kStart || request.order == OrderKind::kEnd;
  Worker* const found = FindWorker(request.device, context ? Lane::kContext : request.lane);
  if (found == nullptr) return;
  Worker& worker = *found;
  switch (request.order) {
    case OrderKind::kKill:
      // One that has just ended by itself is followed by another, which this may hit: that costs a restart.
      return KillWorker(worker, Supervision::Then::kAsByItself, request.why);
    case OrderKind::kRestart:
      return KillWorker(worker, Supervision::Then::kRestart, request.why);
    case OrderKind::kEnd:
      // That is no failure.
      KillWorker(worker, Supervision::Then::kRestart, "");
      break;
    case OrderKind::kReset:
      return ResetDevice(request.device, request.why);
    case OrderKind::kDrop:
      return DropDevice(request.device, request.why);
    case OrderKind::kLose:
      // One that is out of service already was lost before, or needs an operator anyway.
      if (worker.supervision.state() == Supervision::State::kStopped) break;
      return LoseDevice(request.device, /*seen_by=*/nullptr, request.why);
    case OrderKind::kDrain:
      worker.drain_reason = request.why;
      break;
    case OrderKind::kUndrain:
      worker.drain_reason.clear();
      break;
    case OrderKind::kKillMonitor:
    case OrderKind::kUpgrade:
      break;
    case OrderKind::kStart:
      if (WordsOf(worker).dropped == 0 && worker.supervision.OnWanted()) return TryStartWorker(worker);
      break;
    case OrderKind::kEnable:
      if (WordsOf(worker).dropped != 0 || worker.supervision.state() != Supervision::State::kStopped) break;
      Log("the %s of device %u is enabled again", NameOf(worker.lane), worker.record.ordinal);
      worker.lost = false;
      if (worker.supervision.OnEnabled()) StartTest(worker);
      break;
  }
  QueueStatus(worker);
}

void Vault::QueueStatus(const Worker& worker) {
  if (!broker_.has_value()) return;
  custody::WorkerStatus status = {.device = worker.record.ordinal,
                                  .restarts_left = worker.supervision.restarts_left(),
                                  .generation = GenerationOf(worker),
                                  .dropped = WordsOf(worker).dropped != 0 ? 1u : 0u,
                                  .lane = worker.lane};
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
  custody::SetReason(worker.supervision.last_failure(), status.last_failure);
  custody::SetReason(worker.drain_reason, status.drain_reason);
  broker_->link.Queue(status);
}

}  // namespace berth
