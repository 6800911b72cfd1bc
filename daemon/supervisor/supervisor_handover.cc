// The supervisor's part for replacement: continuing where another supervisor ended, and making way for another program.

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/os/fd_passing.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "daemon/supervisor/fd_store/service_manager.h"
#include "daemon/supervisor/handover_state.h"
#include "daemon/supervisor/supervisor.h"
#include "daemon/supervisor/supervisor_log.h"

namespace berth {
namespace {

using fd_store::KeyOf;
using fd_store::Kind;
using fd_store::MessageKind;
using fd_store::WorkerState;
using fd_store::WorkerStatus;

// Includes the start of a program that replaces another.
constexpr std::chrono::seconds kHandoverLimit(10);

absl::StatusOr<UniqueFd> CopyOf(const HeldFds& held, fd_store::Key key) {
  const auto at = held.find(key);
  if (at == held.end()) return UniqueFd();
  return DuplicateFd(at->second.get());
}

}  // namespace

absl::Status Supervisor::Succeed(const SupervisorOptions& options, rlim_t fds, UniqueFd signals) {
  UniqueFd broker(options.broker_fd);
  BERTH_RETURN_IF_ERROR(NameProcess("berthd"));
  if (::fcntl(broker.get(), F_SETFD, FD_CLOEXEC) < 0) return OsError("fcntl(broker fd)", errno);
  BERTH_RETURN_IF_ERROR(SetNonBlocking(broker.get()));
  BERTH_RETURN_IF_ERROR(SendStruct(broker.get(), fd_store::Signal{.kind = MessageKind::kHandOver}));
  BERTH_ASSIGN_OR_RETURN(HandoverState handover_state, ReceiveHandoverState(broker.get(), Now() + kHandoverLimit));
  BERTH_ASSIGN_OR_RETURN(StatePage page, StatePage::MapWritable(handover_state.held.at(KeyOf(Kind::kStatePage)).get()));
  BERTH_ASSIGN_OR_RETURN(UniqueFd lock, CopyOf(handover_state.held, KeyOf(Kind::kFolderLock)));
  BERTH_ASSIGN_OR_RETURN(UniqueFd claim, CopyOf(handover_state.held, KeyOf(Kind::kFolderClaim)));
  BERTH_ASSIGN_OR_RETURN(RunFolder folder, RunFolder::Inherit(options.folder, std::move(lock), std::move(claim),
                                                              handover_state.facts.node));
  Supervisor supervisor(options, std::move(folder), std::move(signals), std::move(page), fds);
  supervisor.DivideCgroup();
  if (const absl::Status taken = supervisor.TakeHandoverState(std::move(handover_state), std::move(broker));
      !taken.ok()) {
    // Exit as if killed: the broker and the adopted workers continue and go to the next supervisor.
    Log("cannot take over the handover state: %s; exiting", std::string(taken.message()).c_str());
    ::_exit(1);
  }
  return supervisor.ServeAndStop();
}

absl::Status Supervisor::TakeHandoverState(HandoverState handover_state, UniqueFd broker) {
  incarnation_ = handover_state.facts.incarnation;
  begun_ = handover_state.facts.begun != 0;
  lost_ = handover_state.facts.begun >= fd_store::kBegunBeforeALoss;
  elsewhere_ = handover_state.facts.begun == fd_store::kBegunElsewhere;
  epoch_ = handover_state.facts.epoch;
  held_ = std::move(handover_state.held);
  BERTH_RETURN_IF_ERROR(HoldFolder());
  // A supervisor of an earlier program had none of these.
  for (const fd_store::Listener listener : {fd_store::Listener::kObserver, fd_store::Listener::kAdminAttach}) {
    if (held_.contains(KeyOf(listener))) continue;
    BERTH_ASSIGN_OR_RETURN(RunFolder::Listening made, folder_.ListenOn(listener, options_.groups));
    held_[KeyOf(made.listener)] = std::move(made.fd);
  }
  broker_.emplace(Broker{.process = ChildProcess::Adopt(std::move(handover_state.broker)),
                         .link = BrokerLink(std::move(broker)),
                         .served = page_->serving != 0,
                         .start_deadline = Now() + kBrokerStartLimit});
  BERTH_ASSIGN_OR_RETURN(
      const std::vector<DeviceRecord> records,
      ReadRecords(held_.at(KeyOf(Kind::kDeviceTable)).get()));
  ListWorkers(records);
  for (Worker& worker : workers_) {
    const auto status = std::find_if(
        handover_state.statuses.begin(), handover_state.statuses.end(), [&](const WorkerStatus& of) {
          return of.device == worker.record.ordinal && of.worker_kind == worker.worker_kind;
        });
    BERTH_RETURN_IF_ERROR(AdoptWorker(worker, status == handover_state.statuses.end() ? nullptr : &*status));
  }
  BERTH_ASSIGN_OR_RETURN(UniqueFd monitor, CopyOf(held_, KeyOf(Kind::kMonitorProcess)));
  if (monitor) {
    monitor_.emplace(Monitor{.process = ChildProcess::Adopt(std::move(monitor)), .started = Now()});
  } else if (WantsMonitor()) {
    StartMonitor();
  }
  OpenStore();
  // If this supervisor fails to come up, the sockets are the next one's, including those recreated here.
  folder_.KeepSockets();
  AttendFolder(/*changed=*/true);
  BERTH_RETURN_IF_ERROR(OpenRecord());
  NotifyServiceManager(absl::StrCat("MAINPID=", ::getpid()));
  // A new program that failed to come up is replaced by a supervisor that is not newer, without --renew.
  page_.writable().upgrading = options_.renew ? 1 : 0;
  if (options_.renew) upgrade_ = Upgrade::kBroker;
  Log("supervisor, pid %d, has taken over from its predecessor", ::getpid());
  return absl::OkStatus();
}

void Supervisor::AttendUpgrade() {
  if (upgrade_ == Upgrade::kNone || !broker_.has_value() || !broker_->served) return;
  const auto changing = [](const Worker& worker) {
    return worker.test.has_value() || worker.supervision.state() == Supervision::State::kEnding;
  };
  if (driver_look_.has_value() || std::any_of(workers_.begin(), workers_.end(), changing)) return;
  switch (upgrade_) {
    case Upgrade::kNone:
      return;
    case Upgrade::kWanted:
      // Only this program knows what is queued for the broker. Flush here what can be sent: nothing would wake this
      // process later.
      broker_->link.Flush(held_);
      if (!broker_->link.wants_write()) Exec();
      return;
    case Upgrade::kBroker:
      // The broker loses nothing by the kill, and its clients wait for the next broker.
      broker_->process.Kill();
      replaced_epoch_ = epoch_;
      upgrade_ = Upgrade::kWorkers;
      return;
    case Upgrade::kWorkers:
      if (epoch_ == replaced_epoch_) return;
      break;
  }
  while (renewed_ < workers_.size()) {
    Worker& worker = workers_[renewed_++];
    // A context worker's memory would end with it, so the worker ends only after the last of that memory is freed.
    if (worker.worker_kind == WorkerKind::kContext || !worker.process.has_value()) continue;
    return KillWorker(worker, Supervision::Then::kRestart, "");
  }
  KillMonitor("upgrade to another program");
  upgrade_ = Upgrade::kNone;
  page_.writable().upgrading = 0;
  Log("upgrade complete: every process runs this program, except context workers in use");
}

void Supervisor::Exec() {
  upgrade_ = Upgrade::kNone;
  const int broker = broker_->link.fd();
  std::vector<std::string> arguments = {"berthd"};
  arguments.insert(arguments.end(), options_.child_flags.begin(), options_.child_flags.end());
  arguments.insert(arguments.end(), {"--role=vault", absl::StrCat("--broker-fd=", broker), "--renew"});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  Log("upgrade: replacing this supervisor by %s", program_.c_str());
  page_.writable().upgrading = 1;
  ::fcntl(broker, F_SETFD, 0);
  ::execv(program_.c_str(), argv.data());
  Log("upgrade failed: %s; the running program continues", strerror(errno));
  ::fcntl(broker, F_SETFD, FD_CLOEXEC);
  page_.writable().upgrading = 0;
}

absl::Status Supervisor::AdoptWorker(Worker& worker, const WorkerStatus* status) {
  const WorkerState state = status == nullptr ? WorkerState::kRunning : status->state;
  const std::string failure = status == nullptr ? "" : fd_store::ReasonOf(status->last_failure);
  if (status != nullptr) worker.drain_reason = fd_store::ReasonOf(status->drain_reason);
  worker.lost = state == WorkerState::kLost;
  BERTH_ASSIGN_OR_RETURN(UniqueFd process,
                         CopyOf(held_, fd_store::ProcessKeyOf(worker.worker_kind, worker.record.ordinal)));
  if (process) {
    worker.process = ChildProcess::Adopt(std::move(process));
    worker.supervision.OnWanted();
    worker.over = false;
    // The worker was being ended, and still is.
    if (state == WorkerState::kAbandoned) KillWorker(worker, Supervision::Then::kStop, failure);
  } else if (state == WorkerState::kStopped || state == WorkerState::kLost || state == WorkerState::kAbandoned ||
             EntryOf(worker).dropped != 0) {
    worker.supervision.OnNotStarted(failure);
  } else if (state == WorkerState::kTesting) {
    worker.supervision.OnNotStarted(failure);
    worker.supervision.OnEnabled();
    StartTest(worker);
  } else if (worker.worker_kind == WorkerKind::kMain) {
    TryStartWorker(worker);
  }
  QueueStatus(worker);
  return absl::OkStatus();
}

}  // namespace berth
