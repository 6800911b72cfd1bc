#include "daemon/vault/vault.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/fd_passing.h"
#include "common/ids.h"
#include "common/memfd.h"
#include "common/os_error.h"
#include "common/process.h"
#include "common/secret.h"
#include "common/status_macros.h"
#include "daemon/vault/broker_environment.h"
#include "daemon/vault/service_manager.h"
#include "daemon/vault/vault_log.h"

namespace berth {
namespace {

using custody::Key;
using custody::KeyOf;
using custody::Kind;
using custody::MessageKind;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A clean stop takes at most the sum of these: the broker's and the workers' time, and what either may take to be gone
// once it is killed.
constexpr milliseconds kBrokerStopLimit(500);
constexpr milliseconds kWorkerStopLimit(200);
constexpr milliseconds kKillLimit(100);
static_assert(kBrokerStopLimit + kWorkerStopLimit + 2 * kKillLimit < seconds(1));
// More is of no use: custody is sent through a socket, one by one.
constexpr rlim_t kFdsMax = 65536;
// Fds that the vault needs beside those in custody: children's pidfds, pages, what is just being received.
constexpr rlim_t kFdHeadroom = 256;

// Lifts the limit for this process and its children. Returns what it is then.
absl::StatusOr<rlim_t> LiftFdLimit() {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) < 0) return OsError("getrlimit", errno);
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kFdsMax));
  if (::setrlimit(RLIMIT_NOFILE, &limit) < 0) return OsError("setrlimit", errno);
  return limit.rlim_cur;
}

// Blocks the signals that end the daemon, and SIGHUP, and returns an fd that they are read from.
absl::StatusOr<UniqueFd> TakeSignals() {
  // Whoever reads ready_fd may have gone.
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, number);
  if (::sigprocmask(SIG_BLOCK, &set, nullptr) < 0) return OsError("sigprocmask", errno);
  UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return OsError("signalfd", errno);
  return fd;
}

// The path that this program was started from; empty where the system does not say.
std::string ReadProgram() {
  char path[PATH_MAX];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof(path));
  // Another one may be there already.
  const absl::string_view whole(path, size > 0 ? static_cast<size_t>(size) : 0);
  return std::string(absl::StripSuffix(whole, " (deleted)"));
}

}  // namespace

absl::Status Vault::Run(const VaultOptions& options) {
  UniqueFd ready(options.ready_fd);
  if (ready && ::fcntl(ready.get(), F_SETFD, FD_CLOEXEC) < 0) return OsError("fcntl(ready fd)", errno);
  BERTH_ASSIGN_OR_RETURN(const rlim_t fds, LiftFdLimit());
  BERTH_ASSIGN_OR_RETURN(UniqueFd signals, TakeSignals());
  if (options.broker_fd >= 0) return Succeed(options, fds, std::move(signals));
  return Begin(options, fds, std::move(signals), std::move(ready));
}

Vault::Vault(const VaultOptions& options, RunFolder folder, UniqueFd signals, StatePage page, rlim_t fds)
    : options_(options),
      program_(ReadProgram()),
      folder_(std::move(folder)),
      signals_(std::move(signals)),
      page_(std::move(page)),
      custody_limit_(fds > 2 * kFdHeadroom ? fds - kFdHeadroom : fds / 2),
      incarnation_(RandomId()) {}

absl::Status Vault::ServeAndStop() {
  const absl::Status status = Serve();
  Stop();
  CloseBooks(status.ok());
  return status;
}

absl::Status Vault::Start(UniqueFd page) {
  held_[KeyOf(Kind::kStatePage)] = std::move(page);
  BERTH_ASSIGN_OR_RETURN(held_[KeyOf(Kind::kFolderLock)], folder_.ShareLock());
  page_.writable().node = folder_.node();
  BERTH_RETURN_IF_ERROR(FindDevices());
  BERTH_ASSIGN_OR_RETURN(std::vector<RunFolder::Listening> sockets, folder_.Listen(options_.observers));
  for (RunFolder::Listening& socket : sockets) held_[KeyOf(socket.listener)] = std::move(socket.fd);
  OpenStore();
  return StartProcesses();
}

absl::Status Vault::StartProcesses() {
  for (Worker& worker : workers_) {
    if (worker.lane != Lane::kMain || WordsOf(worker).dropped != 0) continue;
    // Memory of a device outlives its workers, so their later starts do not move the generation.
    ++WordsOf(worker).generation;
    if (worker.record.failed != 0) {
      worker.supervision.OnNotStarted(absl::StrCat("it failed when the daemon started: ", worker.record.clears.detail));
      Log("device %u is stopped: %s", worker.record.ordinal, worker.supervision.last_failure().c_str());
      continue;
    }
    if (worker.record.clears.outcome == ClearsOutcome::kStale) {
      worker.supervision.OnNotStarted(
          absl::StrCat("the driver hands memory on uncleared: ", worker.record.clears.detail));
      Log("device %u is stopped: %s", worker.record.ordinal, worker.supervision.last_failure().c_str());
      continue;
    }
    TryStartWorker(worker);
  }
  if (WantsMonitor()) StartMonitor();
  return StartBroker();
}

absl::Status Vault::Serve() {
  while (!StopAsked()) {
    AttendUpgrade();
    AttendReload();
    std::vector<pollfd> entries = {{.fd = signals_.get(), .events = POLLIN, .revents = 0}};
    MonotonicTime wake = Now() + seconds(60);
    if (!broker_.has_value()) {
      wake = broker_start_;
    } else {
      if (!broker_->served) wake = broker_->start_deadline;
      BrokerLink& link = broker_->link;
      link.Flush(held_);
      const int events = (link.wants_read() ? POLLIN : 0) | (link.wants_write() ? POLLOUT : 0);
      entries.push_back(
          {.fd = link.ended() ? -1 : link.fd(), .events = static_cast<short>(events), .revents = 0});
      entries.push_back({.fd = broker_->process.pidfd(), .events = POLLIN, .revents = 0});
    }
    for (const Worker& worker : workers_) {
      wake = std::min({wake, worker.supervision.next_change(), worker.start});
      if (worker.process.has_value()) {
        entries.push_back({.fd = worker.process->pidfd(), .events = POLLIN, .revents = 0});
      }
      if (worker.test.has_value()) {
        wake = std::min(wake, worker.test->deadline);
        entries.push_back({.fd = worker.test->process.pidfd(), .events = POLLIN, .revents = 0});
      }
    }
    wake = std::min(wake, monitor_wake());
    if (store_.has_value()) {
      wake = std::min(wake, store_->wake());
      entries.push_back({.fd = store_->fd(), .events = 0, .revents = 0});
    }
    for (const std::optional<Monitor>* const monitor : {&monitor_, &abandoned_monitor_}) {
      if (monitor->has_value()) {
        entries.push_back({.fd = (*monitor)->process.pidfd(), .events = POLLIN, .revents = 0});
      }
    }
    if (::poll(entries.data(), entries.size(), PollTimeout(wake)) < 0 && errno != EINTR) {
      if (errno != ENOMEM && errno != EAGAIN) return OsError("poll", errno);
      // What there is to do is looked for all the same.
      std::this_thread::sleep_for(StartRetries::kFirstPause);
    }

    AttendWorkers();
    AttendMonitor();
    AttendStore();
    if (!broker_.has_value()) {
      if (Now() >= broker_start_) TryStartBroker();
    } else if (broker_->process.IsGone()) {
      BERTH_RETURN_IF_ERROR(OnBrokerDeath());
    } else {
      ReadFromBroker();
      if (!broker_->served && Now() >= broker_->start_deadline) {
        Log("the broker did not serve in %d s: killed", static_cast<int>(kBrokerStartLimit.count()));
        broker_->process.Kill();
        broker_->start_deadline = MonotonicTime::max();
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Vault::StartBroker() {
  BERTH_ASSIGN_OR_RETURN(auto sockets, SocketPair());
  BERTH_RETURN_IF_ERROR(SetNonBlocking(sockets.first.get()));
  ++epoch_;
  // A Ready that was found among a dead broker's last words.
  page_.writable().serving = 0;
  page_.writable().epoch = epoch_;
  page_.writable().incarnation = incarnation_;
  std::vector<std::string> flags = options_.child_flags;
  flags.push_back("--role=broker");
  BERTH_ASSIGN_OR_RETURN(ChildProcess process,
                         ChildProcess::Start(flags, sockets.second.get(), BrokerEnvironment()));
  // It does nothing before it has read what comes first.
  if (cgroups_.has_value()) NoteCgroup(cgroups_->PlaceBroker(PidOfPidfd(process.pidfd())));
  broker_.emplace(Broker{.process = std::move(process),
                         .link = BrokerLink(std::move(sockets.first)),
                         .start_deadline = Now() + kBrokerStartLimit});
  BrokerLink& link = broker_->link;
  link.Queue(custody::Facts{.device_count = static_cast<uint32_t>(workers_.size() / kLanes.size()),
                            .node = folder_.node(),
                            .incarnation = incarnation_,
                            .epoch = epoch_,
                            .custody_limit = custody_limit_,
                            .begun = !begun_ ? 0 : lost_ ? custody::kBegunBeforeALoss : custody::kBegun});
  link.QueueGiveAll(held_);
  link.Queue(custody::Signal{.kind = MessageKind::kGiveEnd});
  for (const Worker& worker : workers_) QueueStatus(worker);
  link.Flush(held_);
  return absl::OkStatus();
}

void Vault::DivideCgroup() {
  const std::optional<std::string> folder = Cgroups::Find();
  if (!folder.has_value()) return;
  absl::StatusOr<Cgroups> divided = Cgroups::Divide(*folder);
  NoteCgroup(divided.status());
  if (divided.ok()) cgroups_.emplace(*std::move(divided));
}

void Vault::NoteCgroup(const absl::Status& status) {
  if (status.ok() || std::exchange(said_no_cgroup_, true)) return;
  Log("the broker's memory has no bound of the kernel's: %s", std::string(status.message()).c_str());
}

void Vault::OnRequest(BoundRequest request) {
  if (cgroups_.has_value()) NoteCgroup(cgroups_->BoundBroker(request.bytes));
}

void Vault::TryStartBroker() {
  const absl::Status started = StartBroker();
  if (started.ok()) return broker_retries_.OnSuccess();
  Log("no broker can be started, and another is tried: %s", std::string(started.message()).c_str());
  broker_start_ = Now() + broker_retries_.OnFailure();
}

absl::Status Vault::OnBrokerDeath() {
  page_.writable().serving = 0;
  // What it put before it died is in custody.
  ReadFromBroker();
  // Taken away once another one is started.
  const ChildProcess dead = std::move(broker_->process);
  const ProcessEnd how = dead.End();
  // With leases out it is not given up for what it did not get.
  const bool wanted = begun_ && !broker_->served && how.code == kExitForWant;
  const std::optional<milliseconds> pause =
      wanted ? broker_retries_.OnFailure() : broker_restarts_.OnDeath(broker_->served);
  const std::string end = how.ToString();
  broker_.reset();
  Log("the broker ended: %s", end.c_str());
  if (!pause.has_value()) {
    return absl::UnavailableError(absl::StrCat(
        BrokerRestarts::kMaxFailures, " brokers in a row ended before they served; the last with ", end));
  }
  broker_start_ = Now() + *pause;
  if (*pause == milliseconds(0)) TryStartBroker();
  return absl::OkStatus();
}

void Vault::ReadFromBroker() {
  while (!broker_->link.ended()) {
    absl::StatusOr<BrokerRequest> request = broker_->link.Read();
    if (!request.ok()) {
      if (IsWouldBlock(request.status()) || IsEndOfStream(request.status())) return;
      Log("the broker is killed: %s", request.status().ToString().c_str());
      broker_->process.Kill();
      // What it put last is not here, though it was told so.
      lost_ = true;
      return;
    }
    std::visit([this](auto&& one) { OnRequest(std::move(one)); }, *std::move(request));
  }
}

void Vault::OnRequest(PutRequest request) {
  held_[request.key] = std::move(request.fd);
  if (store_.has_value()) store_->Put(Now(), request.key);
}

void Vault::OnRequest(DropRequest request) {
  held_.erase(request.key);
  // The service manager closes it first, too.
  if (store_.has_value() && store_->Drop(Now(), request.key)) return;
  broker_->link.Queue(custody::KeyMessage{.kind = MessageKind::kDropped, .key = request.key});
}

void Vault::OnRequest(ReadySignal) {
  broker_->served = true;
  begun_ = true;
  lost_ = false;
  if (store_.has_value()) store_->record().SetServed();
  page_.writable().serving = 1;
  TellServiceManager("READY=1");
  if (!ready_) return;
  if (::write(ready_.get(), "ready\n", 6) < 0) Log("ready fd: %s", strerror(errno));
  ready_.reset();
}

void Vault::OnRequest(ResetSignal) {
  Log("everything that is out is let go of: a new incarnation begins");
  incarnation_ = RandomId();
  begun_ = false;
  lost_ = false;
  if (store_.has_value()) store_->record().Begin(incarnation_);
}

bool Vault::StopAsked() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGHUP) return true;
    reload_ = true;
  }
  return false;
}

void Vault::AttendReload() {
  if (!reload_ || !broker_.has_value()) return;
  // Where this program is a newer one than the broker's, the next broker reads the file anyway.
  if (upgrade_ != Upgrade::kBroker) broker_->link.Queue(custody::Signal{.kind = MessageKind::kReload});
  reload_ = false;
}

bool Vault::AwaitBroker(MonotonicTime deadline) {
  while (!broker_->process.IsGone()) {
    if (Now() >= deadline) return false;
    broker_->link.Flush(held_);
    pollfd entries[] = {
        {.fd = broker_->process.pidfd(), .events = POLLIN, .revents = 0},
        {.fd = broker_->link.ended() ? -1 : broker_->link.fd(), .events = POLLIN, .revents = 0}};
    ::poll(entries, 2, PollTimeout(deadline));
    ReadFromBroker();
  }
  return true;
}

void Vault::Stop() {
  TellServiceManager("STOPPING=1");
  // It may hang, and has nothing to lose. It ends while the others do.
  if (monitor_.has_value()) monitor_->process.Kill();
  for (const Worker& worker : workers_) WordsOf(worker).shutting_down = 1;
  page_.writable().serving = 0;
  if (broker_.has_value()) {
    broker_->link.Queue(custody::Signal{.kind = MessageKind::kStop});
    if (!AwaitBroker(Now() + kBrokerStopLimit)) {
      Log("the broker did not stop in %d ms: killed", static_cast<int>(kBrokerStopLimit.count()));
      broker_->process.Kill();
      broker_->process.WaitUntil(Now() + kKillLimit);
    }
    broker_.reset();
  }
  // With the broker gone, these are the last other ends of the workers' sockets.
  for (const Worker& worker : workers_) held_.erase(KeyOf(worker.lane, worker.record.ordinal));
  const MonotonicTime deadline = Now() + kWorkerStopLimit;
  for (Worker& worker : workers_) {
    if (worker.process.has_value() && !worker.process->WaitUntil(deadline)) worker.process->Kill();
  }
  for (const Worker& worker : workers_) {
    if (worker.process.has_value()) worker.process->WaitUntil(deadline + kKillLimit);
  }
  if (monitor_.has_value()) monitor_->process.WaitUntil(deadline + kKillLimit);
}

}  // namespace berth
