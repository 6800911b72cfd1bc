// The supervisor's part for replacement: continuing where another supervisor ended, and making way for another program.

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/os/fd_passing.h"
#include "common/os/os_error.h"
#include "common/patience.h"
#include "common/status_macros.h"
#include "daemon/base/boot_id.h"
#include "daemon/base/stderr_log.h"
#include "daemon/ledger/ledger_file.h"
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

// From the execution of another program until it has taken over. The broker ends a program that is late (UpgradeWatch),
// sooner than this. The limit is for a broker that dies meanwhile.
constexpr absl::Duration kProgramLimit = absl::Seconds(30);

// Has the kernel end this process by SIGALRM after `limit`, also if the process executes another program; never for 0.
void LimitProgram(absl::Duration limit) {
  ::signal(SIGALRM, SIG_DFL);
  sigset_t alarm;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  ::sigprocmask(SIG_UNBLOCK, &alarm, nullptr);
  const itimerval value = {.it_interval = {}, .it_value = absl::ToTimeval(limit)};
  ::setitimer(ITIMER_REAL, &value, nullptr);
}

absl::StatusOr<UniqueFd> CopyOf(const HeldFds& held, fd_store::Key key) {
  const auto at = held.find(key);
  if (at == held.end()) return UniqueFd();
  return DuplicateFd(at->second.get());
}

using fd_store::Key;
using fd_store::KeyMessage;

// Hangs up lifelines and channels for their peers, even if other processes have duplicates of these fds.
void HangUp(const HeldFds& held) {
  for (const auto& [key, fd] : held) {
    if (key.kind == Kind::kLifeline || key.kind == Kind::kChannel) ::shutdown(fd.get(), SHUT_RDWR);
  }
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
  unrecorded_ = handover_state.facts.begun == fd_store::kBegunUnrecorded;
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
                         .start_deadline = Now() + kBrokerStartLimit,
                         .earlier = options_.renew});
  // In place of the predecessor's, which has another pid in its name.
  if (folder_.node_claimed()) broker_->link.QueueGive(KeyOf(Kind::kFolderClaim, fd_store::kNodeClaim));
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
  LimitProgram(absl::ZeroDuration());
  // A SIGHUP that the predecessor received may be lost with it.
  reload_ = true;
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
      if (const absl::Status announced = AnnounceExec(); !announced.ok()) {
        return OnExecFailed(std::string(announced.message()));
      }
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

absl::Status Supervisor::AnnounceExec() {
  if (broker_->earlier || broker_->exec_announced) return absl::OkStatus();
  UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!self) return OsError("pidfd_open", errno);
  broker_->link.Queue(fd_store::Signal{.kind = MessageKind::kExec}, std::move(self));
  broker_->exec_announced = true;
  page_.writable().upgrading = StatePageLayout::kTakeOverAwaited;
  return absl::OkStatus();
}

void Supervisor::Exec() {
  const int broker = broker_->link.fd();
  std::vector<std::string> arguments = {"berthd"};
  arguments.insert(arguments.end(), options_.child_flags.begin(), options_.child_flags.end());
  arguments.insert(arguments.end(), {"--role=vault", absl::StrCat("--broker-fd=", broker), "--renew"});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  Log("upgrade: replacing this supervisor by %s", program_.c_str());
  if (!broker_->exec_announced) page_.writable().upgrading = 1;
  ::fcntl(broker, F_SETFD, 0);
  HandLogOn();
  LimitProgram(PatientUnless("BERTH_TEST_PROGRAM_MS", kProgramLimit));
  ::execv(program_.c_str(), argv.data());
  const int error = errno;
  LimitProgram(absl::ZeroDuration());
  KeepLog();
  ::fcntl(broker, F_SETFD, FD_CLOEXEC);
  OnExecFailed(absl::StrCat(strerror(error), " (", program_, ")"));
}

void Supervisor::OnExecFailed(const std::string& why) {
  Log("upgrade failed: %s; the running program continues", why.c_str());
  upgrade_ = Upgrade::kNone;
  page_.writable().upgrading = 0;
  if (broker_->earlier) return;
  broker_->exec_announced = false;
  fd_store::ExecFailedMessage message;
  fd_store::SetReason(why, message.why);
  broker_->link.Queue(message);
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

// ---- The supervisor's part for the service manager's fd store: starting from its content, and updating it ----

absl::Status Supervisor::Begin(const SupervisorOptions& options, rlim_t fds, UniqueFd signals, UniqueFd ready) {
  HeldFds stored = ServiceManagerFdStore::Sort(TakeHandedOver(), SendToServiceManager);
  UniqueFd lock;
  if (auto found = stored.extract(KeyOf(Kind::kFolderLock))) lock = std::move(found.mapped());
  const bool locked = static_cast<bool>(lock);
  BERTH_ASSIGN_OR_RETURN(RunFolder folder,
                         RunFolder::Take(options.folder, options.groups, std::move(lock)));
  absl::StatusOr<StoreRecord> record = FindRecord(stored, folder.node());
  if (record.ok()) {
    BERTH_ASSIGN_OR_RETURN(StatePage page, StatePage::MapWritable(stored.at(KeyOf(Kind::kStatePage)).get()));
    Supervisor supervisor(options, std::move(folder), std::move(signals), std::move(page), fds);
    supervisor.ready_ = std::move(ready);
    supervisor.DivideCgroup();
    const absl::Status resumed = supervisor.Resume(std::move(stored), *std::move(record));
    if (resumed.ok()) return supervisor.ServeAndStop();
    supervisor.Stop();
    supervisor.CloseRecord(/*over=*/false);
    return resumed;
  }
  // The stored fds may belong to a daemon that is not over.
  if (absl::IsResourceExhausted(record.status())) return record.status();
  if (!stored.empty()) {
    Log("cannot use the fds stored with the service manager: %s; closing them",
        std::string(record.status().message()).c_str());
    HangUp(stored);
    ServiceManagerFdStore::Forget(stored, SendToServiceManager);
    stored.clear();
  }
  if (locked) SendToServiceManager(ServiceManagerFdStore::RemovalOf(KeyOf(Kind::kFolderLock))).IgnoreError();
  BERTH_ASSIGN_OR_RETURN(UniqueFd page_fd, CreateStatePage());
  BERTH_ASSIGN_OR_RETURN(StatePage page, StatePage::MapWritable(page_fd.get()));
  Supervisor supervisor(options, std::move(folder), std::move(signals), std::move(page), fds);
  supervisor.ready_ = std::move(ready);
  supervisor.DivideCgroup();
  const absl::Status started = supervisor.Start(std::move(page_fd));
  if (started.ok()) return supervisor.ServeAndStop();
  supervisor.Stop();
  supervisor.CloseRecord(/*over=*/true);
  return absl::IsCancelled(started) ? absl::OkStatus() : started;
}

absl::StatusOr<StoreRecord> Supervisor::FindRecord(const HeldFds& stored, uint64_t node) {
  const auto found = stored.find(KeyOf(Kind::kStoreRecord));
  if (found == stored.end()) return absl::FailedPreconditionError("no store record with the fds");
  BERTH_ASSIGN_OR_RETURN(StoreRecord record, StoreRecord::Map(found->second.get()));
  BERTH_RETURN_IF_ERROR(record.Check(node));
  for (const Key& key : {KeyOf(Kind::kStatePage), KeyOf(Kind::kDeviceTable), KeyOf(fd_store::Listener::kBerthd),
                         KeyOf(fd_store::Listener::kAdmin), KeyOf(fd_store::Listener::kAttach),
                         KeyOf(fd_store::Listener::kObserver), KeyOf(fd_store::Listener::kAdminAttach)}) {
    if (!stored.contains(key)) {
      return absl::FailedPreconditionError(absl::StrCat("no fd named ", ServiceManagerFdStore::NameOf(key)));
    }
  }
  BERTH_ASSIGN_OR_RETURN(const StatePage page, StatePage::MapReadOnly(stored.at(KeyOf(Kind::kStatePage)).get()));
  if (page->incarnation != record.incarnation()) {
    return absl::FailedPreconditionError("the state page is of another incarnation");
  }
  BERTH_RETURN_IF_ERROR(ReadRecords(stored.at(KeyOf(Kind::kDeviceTable)).get()).status());
  return record;
}

absl::Status Supervisor::Resume(HeldFds stored, StoreRecord record) {
  incarnation_ = record.incarnation();
  begun_ = lost_ = true;
  epoch_ = page_->epoch;
  BERTH_RETURN_IF_ERROR(OpenRecord());
  folder_.KeepSockets();
  held_ = std::move(stored);
  Log("supervisor and broker died together; resuming with %zu fds stored with the service manager", held_.size());
  store_.emplace(std::move(record), SendToServiceManager);
  store_->RecordStored(held_);
  BERTH_RETURN_IF_ERROR(HoldFolder());
  store_->Reconcile(Now(), held_, /*again=*/false);
  page_.writable().upgrading = 0;
  BERTH_ASSIGN_OR_RETURN(const std::vector<DeviceRecord> records,
                         ReadRecords(held_.at(KeyOf(Kind::kDeviceTable)).get()));
  ListWorkers(records);
  for (Worker& worker : workers_) {
    // An earlier context worker's memory ended with it. (The generation of a main worker's device advances with its
    // start.)
    if (worker.worker_kind == WorkerKind::kContext && GenerationOf(worker) != 0) ++GenerationOf(worker);
    if (worker.worker_kind == WorkerKind::kMain && EntryOf(worker).dropped != 0) {
      for (const WorkerKind worker_kind : kWorkerKinds) {
        FindWorker(worker.record.ordinal, worker_kind)->supervision.OnNotStarted("the device was dropped");
      }
    }
  }
  return StartProcesses();
}

absl::Status Supervisor::ContinueRecord() {
  BERTH_ASSIGN_OR_RETURN(NodeRecord record, NodeRecord::Open(options_.folder));
  const absl::Status left = record.Check(folder_.node());
  if (left.ok()) {
    incarnation_ = record.incarnation();
    epoch_ = record.epoch();
    begun_ = lost_ = true;
    BERTH_ASSIGN_OR_RETURN(const bool pids_are_ours, record.PidsAreOurs());
    elsewhere_ = !pids_are_ours;
    record.ContinueDevices(&page_.writable());
    Log("resuming the leases of the previous daemon%s",
        elsewhere_ ? ", which ran in another PID namespace: the ends of its processes cannot be observed" : "");
  } else if (absl::IsNotFound(left) || absl::IsFailedPrecondition(left) || absl::IsDataLoss(left)) {
    if (!record.never_served()) {
      BERTH_ASSIGN_OR_RETURN(unrecorded_, ContinueUnrecorded(left));
    }
    if (!unrecorded_) Log("no leases to resume: %s", std::string(left.message()).c_str());
  } else {
    // The record may be of a daemon whose leases still exist.
    return left;
  }
  record_.emplace(std::move(record));
  return BeginOpenedRecord();
}

absl::StatusOr<bool> Supervisor::ContinueUnrecorded(const absl::Status& why) {
  const absl::StatusOr<LedgerIdentity> ledger =
      LedgerFile::ReadIdentity(absl::StrCat(options_.folder, "/", RunFolder::kLedger));
  if (ledger.ok()) {
    BERTH_ASSIGN_OR_RETURN(const std::string boot, ReadBootId());
    if (ledger->boot != boot) return false;
    incarnation_ = ledger->incarnation;
  } else if (absl::IsNotFound(ledger.status())) {
    // The first daemon of a folder finds neither file.
    if (!absl::IsDataLoss(why)) return false;
  } else if (!absl::IsDataLoss(ledger.status())) {
    return ledger.status();
  } else if (absl::IsFailedPrecondition(why)) {
    return false;
  }
  begun_ = lost_ = true;
  Log("cannot resume leases: node record %s/%s is unusable: %s; while the ledger may have leases, nothing is granted "
      "until `berth reset`",
      options_.folder.c_str(), NodeRecord::kName,
      absl::IsNotFound(why) ? "missing or empty" : std::string(why.message()).c_str());
  return true;
}

absl::Status Supervisor::OpenRecord() {
  BERTH_ASSIGN_OR_RETURN(NodeRecord record, NodeRecord::Open(options_.folder));
  record_.emplace(std::move(record));
  return BeginOpenedRecord();
}

absl::Status Supervisor::BeginOpenedRecord() {
  // The record's pids belong to the other namespace until a broker has marked the processes whose end it cannot
  // observe. An unusable record stays as it is until a reset.
  if (elsewhere_ || unrecorded_) return absl::OkStatus();
  return record_->Begin(folder_.node(), incarnation_, begun_);
}

void Supervisor::BeginRecord() {
  const absl::Status begun = record_->Begin(folder_.node(), incarnation_, begun_);
  if (!begun.ok())
    Log("cannot persist the node record: %s; the next daemon cannot resume these leases",
        std::string(begun.message()).c_str());
}

void Supervisor::OpenStore() {
  if (!HasServiceManager()) return;
  const auto stored = held_.find(KeyOf(Kind::kStoreRecord));
  const bool again = stored != held_.end();
  if (again) {
    absl::StatusOr<StoreRecord> record = StoreRecord::Map(stored->second.get());
    if (record.ok()) store_.emplace(*std::move(record), SendToServiceManager);
  } else {
    absl::StatusOr<std::pair<UniqueFd, StoreRecord>> made = StoreRecord::Create(folder_.node());
    if (made.ok()) {
      held_[KeyOf(Kind::kStoreRecord)] = std::move(made->first);
      store_.emplace(std::move(made->second), SendToServiceManager);
      store_->record().Begin(incarnation_);
      if (begun_) store_->record().SetServed();
    }
  }
  if (!store_.has_value()) return Log("no fds are stored with the service manager: the store record cannot be opened");
  store_->Reconcile(Now(), held_, again);
}

void Supervisor::AttendStore() {
  if (!store_.has_value()) return;
  for (const Key& key : store_->Attend(Now(), held_)) {
    // If another fd has replaced the key's (supervisor_folder.cc), the broker continues with the new one.
    if (broker_.has_value() && !held_.contains(key)) {
      broker_->link.Queue(KeyMessage{.kind = MessageKind::kDropped, .key = key});
    }
  }
}

void Supervisor::CloseRecord(bool over) {
  if (store_.has_value() && !over) {
    folder_.LeaveSockets();
  } else if (store_.has_value()) {
    // The manager holds the record longer than this process does.
    store_->record().End();
    HangUp(held_);
  }
  // The rest closes with the process: closing a client's socket may wait for what the client sent on it, exiting does
  // not.
  for (auto& [key, fd] : held_) fd.release();
}

}  // namespace berth
