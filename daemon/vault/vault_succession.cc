// The vault's part that has to do with vaults before and after it: going on where another one ended, and making place
// for another program.

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
#include "common/fd_passing.h"
#include "common/os_error.h"
#include "common/status_macros.h"
#include "daemon/vault/estate.h"
#include "daemon/vault/service_manager.h"
#include "daemon/vault/vault.h"
#include "daemon/vault/vault_log.h"

namespace berth {
namespace {

using custody::KeyOf;
using custody::Kind;
using custody::MessageKind;
using custody::WorkerState;
using custody::WorkerStatus;

// A program that takes another's place has to be started first.
constexpr std::chrono::seconds kEstateLimit(10);

absl::StatusOr<UniqueFd> CopyOf(const HeldFds& held, custody::Key key) {
  const auto at = held.find(key);
  if (at == held.end()) return UniqueFd();
  return DuplicateFd(at->second.get());
}

}  // namespace

absl::Status Vault::Succeed(const VaultOptions& options, rlim_t fds, UniqueFd signals) {
  UniqueFd broker(options.broker_fd);
  BERTH_RETURN_IF_ERROR(NameProcess("berthd"));
  if (::fcntl(broker.get(), F_SETFD, FD_CLOEXEC) < 0) return OsError("fcntl(broker fd)", errno);
  BERTH_RETURN_IF_ERROR(SetNonBlocking(broker.get()));
  BERTH_RETURN_IF_ERROR(SendStruct(broker.get(), custody::Signal{.kind = MessageKind::kHandOver}));
  BERTH_ASSIGN_OR_RETURN(Estate estate, ReceiveEstate(broker.get(), Now() + kEstateLimit));
  BERTH_ASSIGN_OR_RETURN(StatePage page, StatePage::MapWritable(estate.held.at(KeyOf(Kind::kStatePage)).get()));
  BERTH_ASSIGN_OR_RETURN(UniqueFd lock, CopyOf(estate.held, KeyOf(Kind::kFolderLock)));
  BERTH_ASSIGN_OR_RETURN(RunFolder folder, RunFolder::Inherit(options.folder, std::move(lock)));
  Vault vault(options, std::move(folder), std::move(signals), std::move(page), fds);
  vault.DivideCgroup();
  if (const absl::Status taken = vault.TakeEstate(std::move(estate), std::move(broker)); !taken.ok()) {
    // As if it were killed: the broker and the workers that it has taken by then are the next one's, and go on.
    Log("%s", std::string(taken.message()).c_str());
    ::_exit(1);
  }
  return vault.ServeAndStop();
}

absl::Status Vault::TakeEstate(Estate estate, UniqueFd broker) {
  incarnation_ = estate.facts.incarnation;
  begun_ = estate.facts.begun != 0;
  lost_ = estate.facts.begun == custody::kBegunBeforeALoss;
  epoch_ = estate.facts.epoch;
  held_ = std::move(estate.held);
  // A vault of an earlier program had none of these.
  if (!held_.contains(KeyOf(custody::Listener::kObserver))) {
    BERTH_ASSIGN_OR_RETURN(RunFolder::Listening made, folder_.ListenForObservers(options_.observers));
    held_[KeyOf(made.listener)] = std::move(made.fd);
  }
  if (!held_.contains(KeyOf(custody::Listener::kAdminAttach))) {
    BERTH_ASSIGN_OR_RETURN(RunFolder::Listening made, folder_.ListenForOperators());
    held_[KeyOf(made.listener)] = std::move(made.fd);
  }
  broker_.emplace(Broker{.process = ChildProcess::Adopt(std::move(estate.broker)),
                         .link = BrokerLink(std::move(broker)),
                         .served = page_->serving != 0,
                         .start_deadline = Now() + kBrokerStartLimit});
  BERTH_ASSIGN_OR_RETURN(
      const std::vector<DeviceRecord> records,
      ReadRecords(held_.at(KeyOf(Kind::kDeviceTable)).get()));
  ListWorkers(records);
  for (Worker& worker : workers_) {
    const auto status = std::find_if(
        estate.statuses.begin(), estate.statuses.end(), [&](const WorkerStatus& of) {
          return of.device == worker.record.ordinal && of.lane == worker.lane;
        });
    BERTH_RETURN_IF_ERROR(AdoptWorker(worker, status == estate.statuses.end() ? nullptr : &*status));
  }
  BERTH_ASSIGN_OR_RETURN(UniqueFd monitor, CopyOf(held_, KeyOf(Kind::kMonitorProcess)));
  if (monitor) {
    monitor_.emplace(Monitor{.process = ChildProcess::Adopt(std::move(monitor)), .started = Now()});
  } else if (WantsMonitor()) {
    StartMonitor();
  }
  OpenStore();
  TellServiceManager(absl::StrCat("MAINPID=", ::getpid()));
  // Until then they are the next one's, should this one not come up.
  folder_.KeepSockets();
  // A program that did not come up is followed by one that is no newer.
  page_.writable().upgrading = options_.renew ? 1 : 0;
  if (options_.renew) upgrade_ = Upgrade::kBroker;
  Log("this vault, pid %d, goes on where another one ended", ::getpid());
  return absl::OkStatus();
}

void Vault::AttendUpgrade() {
  if (upgrade_ == Upgrade::kNone || !broker_.has_value() || !broker_->served) return;
  const auto changing = [](const Worker& worker) {
    return worker.test.has_value() || worker.supervision.state() == Supervision::State::kEnding;
  };
  if (std::any_of(workers_.begin(), workers_.end(), changing)) return;
  switch (upgrade_) {
    case Upgrade::kNone:
      return;
    case Upgrade::kWanted:
      // What the broker is to be told is known to this program alone.
      if (!broker_->link.wants_write()) Exec();
      return;
    case Upgrade::kBroker:
      // It loses nothing by that, and its clients wait for the next one.
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
    // What a context worker has made would end with it: it goes when the last of that is gone.
    if (worker.lane == Lane::kContext || !worker.process.has_value()) continue;
    return KillWorker(worker, Supervision::Then::kRestart, "");
  }
  KillMonitor("another program takes its place");
  upgrade_ = Upgrade::kNone;
  page_.writable().upgrading = 0;
  Log("every process is of this program, but for context workers that are in use");
}

void Vault::Exec() {
  upgrade_ = Upgrade::kNone;
  const int broker = broker_->link.fd();
  std::vector<std::string> arguments = {"berthd"};
  arguments.insert(arguments.end(), options_.child_flags.begin(), options_.child_flags.end());
  arguments.insert(arguments.end(), {"--role=vault", absl::StrCat("--broker-fd=", broker), "--renew"});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  Log("%s takes this vault's place", program_.c_str());
  page_.writable().upgrading = 1;
  ::fcntl(broker, F_SETFD, 0);
  ::execv(program_.c_str(), argv.data());
  Log("it does not: %s", strerror(errno));
  ::fcntl(broker, F_SETFD, FD_CLOEXEC);
  page_.writable().upgrading = 0;
}

absl::Status Vault::AdoptWorker(Worker& worker, const WorkerStatus* status) {
  const WorkerState state = status == nullptr ? WorkerState::kRunning : status->state;
  const std::string failure = status == nullptr ? "" : custody::ReasonOf(status->last_failure);
  if (status != nullptr) worker.drain_reason = custody::ReasonOf(status->drain_reason);
  worker.lost = state == WorkerState::kLost;
  BERTH_ASSIGN_OR_RETURN(UniqueFd process,
                         CopyOf(held_, custody::ProcessKeyOf(worker.lane, worker.record.ordinal)));
  if (process) {
    worker.process = ChildProcess::Adopt(std::move(process));
    worker.supervision.OnWanted();
    worker.over = false;
    // It was being ended, and still is.
    if (state == WorkerState::kAbandoned) KillWorker(worker, Supervision::Then::kStop, failure);
  } else if (state == WorkerState::kStopped || state == WorkerState::kLost || state == WorkerState::kAbandoned ||
             WordsOf(worker).dropped != 0) {
    worker.supervision.OnNotStarted(failure);
  } else if (state == WorkerState::kTesting) {
    worker.supervision.OnNotStarted(failure);
    worker.supervision.OnEnabled();
    StartTest(worker);
  } else if (worker.lane == Lane::kMain) {
    TryStartWorker(worker);
  }
  QueueStatus(worker);
  return absl::OkStatus();
}

}  // namespace berth
