#include "daemon/supervisor/supervisor.h"

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
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <berth/ids.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/os/fd_passing.h"
#include "common/os/memfd.h"
#include "common/os/nonblocking_write.h"
#include "common/os/os_error.h"
#include "common/os/process.h"
#include "common/patience.h"
#include "common/secret.h"
#include "common/status_macros.h"
#include "daemon/base/control_signals.h"
#include "daemon/base/standard_fds.h"
#include "daemon/base/stderr_log.h"
#include "daemon/supervisor/fd_store/service_manager.h"
#include "daemon/supervisor/processes/broker_environment.h"
#include "daemon/supervisor/supervisor_log.h"

namespace berth {
namespace {

using fd_store::Key;
using fd_store::KeyOf;
using fd_store::Kind;
using fd_store::MessageKind;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A clean stop takes at most the sum of these limits: the broker's time, the workers' time, and for each the time to
// end after SIGKILL.
constexpr milliseconds kBrokerStopLimit(500);
constexpr milliseconds kWorkerStopLimit(200);
constexpr milliseconds kKillLimit(100);
static_assert(kBrokerStopLimit + kWorkerStopLimit + 2 * kKillLimit < seconds(1));
constexpr milliseconds kLongestPoll(60'000);
// Interval of the retries while the reader of the log is behind.
constexpr milliseconds kLogRetry(100);
// A higher limit is useless: the fds of the fd store are sent through a socket one by one.
constexpr rlim_t kFdsMax = 65536;
// Fds that the supervisor needs beside the fd store: children's pidfds, pages, fds just being received.
constexpr rlim_t kFdHeadroom = 256;

// Raises the fd limit for this process and its children. Returns the resulting limit.
absl::StatusOr<rlim_t> LiftFdLimit() {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) < 0) return OsError("getrlimit", errno);
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kFdsMax));
  if (::setrlimit(RLIMIT_NOFILE, &limit) < 0) return OsError("setrlimit", errno);
  return limit.rlim_cur;
}

// Removes the limit on processor time for this process and its children: the kernel ends a process at the limit, and a
// daemon reaches any limit. Errors: a limit that this process may not raise.
absl::Status LiftCpuLimit() {
  rlimit limit;
  if (::getrlimit(RLIMIT_CPU, &limit) < 0) return OsError("getrlimit", errno);
  if (limit.rlim_cur == RLIM_INFINITY) return absl::OkStatus();
  const rlimit none = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
  if (::setrlimit(RLIMIT_CPU, &none) == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("RLIMIT_CPU is ", limit.rlim_cur, " s, at which the kernel ends the daemon; the hard limit, ",
                   limit.rlim_max, " s, may not be raised: start it with ulimit -t unlimited, or LimitCPU=infinity of "
                   "the service"));
}

// Returns an fd to read the control signals from.
absl::StatusOr<UniqueFd> TakeSignals() {
  // The reader of ready_fd may have ended.
  ::signal(SIGPIPE, SIG_IGN);
  const sigset_t set = TakeControlSignals();
  UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return OsError("signalfd", errno);
  return fd;
}

// Returns the path that this program was started from; empty if the system does not report it.
std::string ReadProgram() {
  char path[PATH_MAX];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof(path));
  // A newer file may already have that path.
  const absl::string_view whole(path, size > 0 ? static_cast<size_t>(size) : 0);
  return std::string(absl::StripSuffix(whole, " (deleted)"));
}

}  // namespace

absl::Status Supervisor::Run(const SupervisorOptions& options) {
  ContinueLog();
  UniqueFd ready;
  if (options.ready_fd >= 0) {
    absl::StatusOr<UniqueFd> taken = TakeOverFd(options.ready_fd);
    if (!taken.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--ready-fd=", options.ready_fd, ": ", taken.status().message(),
                                                     "; name a file descriptor that the caller leaves open"));
    }
    ready = *std::move(taken);
    const int mode = ::fcntl(ready.get(), F_GETFL);
    if (mode >= 0 && (mode & O_ACCMODE) == O_RDONLY) {
      return absl::InvalidArgumentError(absl::StrCat("--ready-fd=", options.ready_fd,
                                                     " is open for reading only; name one that is open for writing"));
    }
  }
  BERTH_RETURN_IF_ERROR(LiftCpuLimit());
  BERTH_ASSIGN_OR_RETURN(const rlim_t fds, LiftFdLimit());
  BERTH_ASSIGN_OR_RETURN(UniqueFd signals, TakeSignals());
  if (options.broker_fd >= 0) return Succeed(options, fds, std::move(signals));
  return Begin(options, fds, std::move(signals), std::move(ready));
}

Supervisor::Supervisor(const SupervisorOptions& options, RunFolder folder, UniqueFd signals, StatePage page, rlim_t fds)
    : options_(options),
      program_(options.program.empty() ? ReadProgram() : options.program),
      folder_(std::move(folder)),
      folder_watch_(options.folder, {RunFolder::kNode, NodeRecord::kName, RunFolder::kLedger}),
      signals_(std::move(signals)),
      page_(std::move(page)),
      fd_store_limit_(fds > 2 * kFdHeadroom ? fds - kFdHeadroom : fds / 2),
      incarnation_(RandomId()) {}

absl::Status Supervisor::ServeAndStop() {
  const absl::Status status = Serve();
  Stop();
  CloseRecord(status.ok());
  return status;
}

absl::Status Supervisor::Start(UniqueFd page) {
  held_[KeyOf(Kind::kStatePage)] = std::move(page);
  BERTH_RETURN_IF_ERROR(HoldFolder());
  page_.writable().node = folder_.node();
  BERTH_RETURN_IF_ERROR(ContinueRecord());
  BERTH_RETURN_IF_ERROR(FindDevices());
  BERTH_ASSIGN_OR_RETURN(std::vector<RunFolder::Listening> sockets, folder_.Listen(options_.groups));
  for (RunFolder::Listening& socket : sockets) held_[KeyOf(socket.listener)] = std::move(socket.fd);
  OpenStore();
  return StartProcesses();
}

absl::Status Supervisor::HoldInheritedOutputs() {
  std::error_code error;
  std::vector<int> outputs;
  const std::filesystem::directory_iterator end;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error); entry != end; entry.increment(error)) {
    int fd = -1;
    if (!absl::SimpleAtoi(entry->path().filename().string(), &fd) || fd <= STDERR_FILENO) continue;
    const int mode = ::fcntl(fd, F_GETFL);
    if ((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0 || mode < 0 || (mode & O_PATH) != 0) continue;
    if ((mode & O_ACCMODE) == O_WRONLY || (mode & O_ACCMODE) == O_RDWR) outputs.push_back(fd);
  }
  for (const int fd : outputs) {
    BERTH_ASSIGN_OR_RETURN(held_[KeyOf(Kind::kInheritedOutput, static_cast<uint64_t>(fd))], DuplicateFd(fd));
  }
  return absl::OkStatus();
}

absl::Status Supervisor::StartProcesses() {
  BERTH_RETURN_IF_ERROR(HoldInheritedOutputs());
  StartWorkers();
  if (WantsMonitor()) StartMonitor();
  return StartBroker();
}

absl::Status Supervisor::Serve() {
  while (!StopAsked()) {
    record_->Update(*page_);
    StderrLog().Flush();
    AttendUpgrade();
    AttendReload();
    std::vector<pollfd> entries = {{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                                   {.fd = folder_watch_.folder_fd(), .events = POLLIN, .revents = 0},
                                   {.fd = folder_watch_.mounts_fd(), .events = POLLPRI, .revents = 0}};
    MonotonicTime wake = std::min(Now() + (StderrLog().behind() ? kLogRetry : kLongestPoll), folder_watch_.due());
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
    wake = std::min({wake, monitor_wake(), driver_wake()});
    if (driver_look_.has_value()) {
      entries.push_back({.fd = driver_look_->process.pidfd(), .events = POLLIN, .revents = 0});
    }
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
      if (errno != ENOMEM && errno != EAGAIN && errno != EINVAL) return OsError("poll", errno);
      // EINVAL: RLIMIT_NOFILE was lowered below the number of entries.
      if (errno == EINVAL && !std::exchange(said_fd_limit_, true)) {
        Log("cannot wait for %zu file descriptors: %s; looking at them periodically", entries.size(),
            std::string(OsError("poll", EMFILE).message()).c_str());
      }
      // Continue all the same: the checks below need no poll result.
      std::this_thread::sleep_for(StartRetries::kFirstPause);
    }

    AttendFolder(/*changed=*/(entries[1].revents | entries[2].revents) != 0);
    AttendWorkers();
    AttendMonitor();
    AttendDriver();
    AttendStore();
    if (!broker_.has_value()) {
      if (Now() >= broker_start_) BERTH_RETURN_IF_ERROR(TryStartBroker());
    } else if (broker_->process.IsGone()) {
      BERTH_RETURN_IF_ERROR(OnBrokerDeath());
    } else {
      ReadFromBroker();
      if (!broker_->served && Now() >= broker_->start_deadline) {
        Log("broker did not serve within %d s of its start; killing it", static_cast<int>(kBrokerStartLimit.count()));
        broker_->process.Kill();
        broker_->start_deadline = MonotonicTime::max();
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Supervisor::StartBroker() {
  BERTH_ASSIGN_OR_RETURN(auto sockets, SocketPair());
  BERTH_RETURN_IF_ERROR(SetNonBlocking(sockets.first.get()));
  ++epoch_;
  // A Ready among a dead broker's last messages may have set it.
  page_.writable().serving = 0;
  page_.writable().epoch = epoch_;
  page_.writable().incarnation = incarnation_;
  std::vector<std::string> flags = options_.child_flags;
  flags.push_back("--role=broker");
  if (!program_.empty()) flags.push_back(absl::StrCat("--program=", program_));
  BERTH_ASSIGN_OR_RETURN(ChildProcess process,
                         ChildProcess::Start(flags, sockets.second.get(), BrokerEnvironment()));
  // The broker does nothing before it has read the first message.
  if (cgroups_.has_value()) RecordCgroup(cgroups_->PlaceBroker(PidOfPidfd(process.pidfd())));
  broker_.emplace(Broker{.process = std::move(process),
                         .link = BrokerLink(std::move(sockets.first)),
                         .start_deadline = Now() + kBrokerStartLimit});
  BrokerLink& link = broker_->link;
  link.Queue(fd_store::Facts{.device_count = static_cast<uint32_t>(workers_.size() / kWorkerKinds.size()),
                             .node = folder_.node(),
                             .incarnation = incarnation_,
                             .epoch = epoch_,
                             .fd_store_limit = fd_store_limit_,
                             .begun = !begun_       ? 0
                                      : unrecorded_ ? fd_store::kBegunUnrecorded
                                      : elsewhere_  ? fd_store::kBegunElsewhere
                                      : lost_       ? fd_store::kBegunBeforeALoss
                                                    : fd_store::kBegun});
  link.QueueGiveAll(held_);
  link.Queue(fd_store::Signal{.kind = MessageKind::kGiveEnd});
  for (const Worker& worker : workers_) QueueStatus(worker);
  link.Flush(held_);
  return absl::OkStatus();
}

void Supervisor::DivideCgroup() {
  const std::optional<std::string> folder = Cgroups::Find();
  if (!folder.has_value()) return;
  absl::StatusOr<Cgroups> divided = Cgroups::Divide(*folder);
  RecordCgroup(divided.status());
  if (divided.ok()) cgroups_.emplace(*std::move(divided));
}

void Supervisor::RecordCgroup(const absl::Status& status) {
  if (status.ok() || std::exchange(said_no_cgroup_, true)) return;
  Log("cannot limit the broker's memory by cgroup: %s; only limits.broker_memory applies",
      std::string(status.message()).c_str());
}

void Supervisor::OnRequest(BoundRequest request) {
  if (cgroups_.has_value()) RecordCgroup(cgroups_->BoundBroker(request.bytes));
}

absl::Status Supervisor::TryStartBroker() {
  const absl::Status started = StartBroker();
  if (started.ok()) {
    broker_retries_.OnSuccess();
    return absl::OkStatus();
  }
  const std::optional<milliseconds> pause =
      begun_ ? broker_retries_.OnFailure() : broker_restarts_.OnDeath(/*had_served=*/false);
  const std::string fault = absl::StrCat("cannot start the broker: ", started.message());
  if (!pause.has_value()) return absl::Status(started.code(), fault);
  Log("%s; retrying", fault.c_str());
  broker_start_ = Now() + *pause;
  return absl::OkStatus();
}

absl::Status Supervisor::OnBrokerDeath() {
  page_.writable().serving = 0;
  // Reads what the broker put before it died: those fds are held.
  ReadFromBroker();
  // Reaped once the next broker has been started.
  const ChildProcess dead = std::move(broker_->process);
  const ProcessEnd how = dead.End();
  // While leases may exist, a shortage of resources does not count as a failed start.
  const bool wanted = begun_ && !broker_->served && how.code == kExitForWant;
  if (!broker_->served && how.code == kExitForConfiguration) {
    broker_.reset();
    return absl::InvalidArgumentError(
        "cannot start with this configuration: correct the mistake that the broker has logged");
  }
  const std::optional<milliseconds> pause =
      wanted ? broker_retries_.OnFailure() : broker_restarts_.OnDeath(broker_->served);
  const std::string end = how.ToString();
  broker_.reset();
  Log("broker exited: %s%s", end.c_str(), pause.has_value() ? "; restarting it" : "");
  if (!pause.has_value()) {
    return absl::UnavailableError(absl::StrCat(
        BrokerRestarts::kMaxFailures, " brokers in a row ended before they served; the last with ", end));
  }
  broker_start_ = Now() + *pause;
  return *pause == milliseconds(0) ? TryStartBroker() : absl::OkStatus();
}

void Supervisor::ReadFromBroker() {
  while (!broker_->link.ended()) {
    absl::StatusOr<BrokerRequest> request = broker_->link.Read();
    if (!request.ok()) {
      if (IsWouldBlock(request.status()) || IsEndOfStream(request.status())) return;
      Log("cannot read from the broker: %s; killing it", request.status().ToString().c_str());
      broker_->process.Kill();
      // The fds that it put last were reported as held but are lost.
      lost_ = true;
      return;
    }
    std::visit([this](auto&& one) { OnRequest(std::move(one)); }, *std::move(request));
  }
}

void Supervisor::OnRequest(PutRequest request) {
  held_[request.key] = std::move(request.fd);
  if (store_.has_value()) store_->Put(Now(), request.key);
}

void Supervisor::OnRequest(DropRequest request) {
  held_.erase(request.key);
  // If the service manager has a duplicate too, AttendStore() sends Dropped once that is closed.
  if (store_.has_value() && store_->Drop(Now(), request.key)) return;
  broker_->link.Queue(fd_store::KeyMessage{.kind = MessageKind::kDropped, .key = request.key});
}

void Supervisor::OnRequest(ReadySignal) {
  // The broker repeats the signal to each supervisor; the earlier one had read it.
  if (broker_->served) return;
  broker_->served = true;
  begun_ = true;
  lost_ = elsewhere_ = false;
  // Until a reset no daemon can resume the leases.
  if (!unrecorded_) {
    BeginRecord();
    if (store_.has_value()) store_->record().SetServed();
  }
  page_.writable().serving = 1;
  NotifyServiceManager("READY=1");
  if (!ready_) return;
  if (WriteWithoutBlocking(ready_.get(), "ready\n", 6) < 0) Log("cannot write to the ready fd: %s", strerror(errno));
  ready_.reset();
}

void Supervisor::OnRequest(ResetSignal) {
  Log("reset: ending all leases and starting a new incarnation");
  incarnation_ = RandomId();
  begun_ = false;
  lost_ = elsewhere_ = unrecorded_ = false;
  BeginRecord();
  if (store_.has_value()) store_->record().Begin(incarnation_);
}

bool Supervisor::StopAsked() {
  if (stop_commanded_) return true;
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGHUP) return true;
    reload_ = true;
    folder_watch_.LookNow();
  }
  return false;
}

void Supervisor::AttendReload() {
  if (!reload_ || !broker_.has_value()) return;
  // If this program is newer than the broker's, the next broker reads the file anyway.
  if (upgrade_ != Upgrade::kBroker) broker_->link.Queue(fd_store::Signal{.kind = MessageKind::kReload});
  reload_ = false;
}

bool Supervisor::AwaitBroker(MonotonicTime deadline) {
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

void Supervisor::Stop() {
  NotifyServiceManager("STOPPING=1");
  // The monitor may hang and has no state to lose, so it ends while the others do.
  if (monitor_.has_value()) monitor_->process.Kill();
  for (const Worker& worker : workers_) EntryOf(worker).shutting_down = 1;
  page_.writable().serving = 0;
  if (record_.has_value()) {
    record_->Update(*page_);
    RestoreRecords();
  }
  if (broker_.has_value()) {
    broker_->link.Queue(fd_store::Signal{.kind = MessageKind::kStop});
    if (!AwaitBroker(Now() + Patient(kBrokerStopLimit))) {
      Log("broker did not stop within %d ms; killing it", static_cast<int>(Patient(kBrokerStopLimit).count()));
      broker_->process.Kill();
      broker_->process.WaitUntil(Now() + Patient(kKillLimit));
    }
    broker_.reset();
  }
  // After the broker's end these are the last other ends of the workers' sockets.
  for (const Worker& worker : workers_) held_.erase(KeyOf(worker.worker_kind, worker.record.ordinal));
  const MonotonicTime deadline = Now() + Patient(kWorkerStopLimit);
  for (Worker& worker : workers_) {
    if (worker.process.has_value() && !worker.process->WaitUntil(deadline)) worker.process->Kill();
  }
  for (const Worker& worker : workers_) {
    if (worker.process.has_value()) worker.process->WaitUntil(deadline + Patient(kKillLimit));
  }
  if (monitor_.has_value()) monitor_->process.WaitUntil(deadline + Patient(kKillLimit));
}

}  // namespace berth
