#include "daemon/supervisor/fd_store/supervisor_fd_store.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

#include <berth/error.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/os/fd_passing.h"
#include "common/os/os_error.h"
#include "common/os/proc_file.h"
#include "common/os/process.h"
#include "common/status_macros.h"
#include "daemon/base/struct_message.h"

namespace berth {
namespace {

using fd_store::Facts;
using fd_store::GiveMessage;
using fd_store::Key;
using fd_store::KeyMessage;
using fd_store::KeyOf;
using fd_store::MessageKind;
using Clock = std::chrono::steady_clock;

constexpr auto kReceiveLimit = std::chrono::seconds(10);
// For an entire handover: a started supervisor takes a moment.
constexpr auto kHandOverLimit = std::chrono::seconds(10);
constexpr int kMaxReplacements = 3;
constexpr auto kSendLimit = std::chrono::seconds(1);
// For the end of a process after SIGKILL. A process that is stuck in the kernel ends later, and runs no program before.
constexpr int kKillLimitMs = 500;

// Returns whether SIGTERM or SIGINT is pending for the process, which inherits the mask by which the supervisor blocks
// them. False for a process that has ended.
bool HasPendingStop(int pidfd) {
  const absl::StatusOr<std::string> status = ReadProcFile(absl::StrCat("/proc/", PidOfPidfd(pidfd), "/status"));
  for (absl::string_view line : absl::StrSplit(status.ok() ? *status : "", '\n')) {
    uint64_t pending = 0;
    if (!absl::ConsumePrefix(&line, "ShdPnd:\t") || !absl::SimpleHexAtoi(line, &pending)) continue;
    const auto has = [pending](int signal) { return (pending >> (signal - 1) & 1) != 0; };
    return has(SIGTERM) || has(SIGINT);
  }
  return false;
}

absl::Status Broken(absl::string_view what) {
  return absl::InternalError(absl::StrCat("the supervisor sent ", what));
}

// Waits until `socket` is ready for `events` or `deadline`.
absl::Status WaitFor(int socket, short events, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return absl::DeadlineExceededError("the supervisor's socket stayed busy");
    pollfd entry = {.fd = socket, .events = events, .revents = 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(left));
    if (ready < 0 && errno != EINTR) return OsError("poll(supervisor)", errno);
    if (ready <= 0) continue;
    // A socket whose peer is gone is writable too; what the peer has sent can still be read.
    if ((entry.revents & POLLIN) != 0) return absl::OkStatus();
    if ((entry.revents & (POLLHUP | POLLERR)) != 0) return absl::UnavailableError("the supervisor is gone");
    if ((entry.revents & events) != 0) return absl::OkStatus();
  }
}

absl::StatusOr<Message> ReceiveBefore(int socket, Clock::time_point deadline) {
  while (true) {
    absl::StatusOr<Message> message = ReceiveMessage(socket);
    if (message.ok()) return message;
    if (IsEndOfStream(message.status())) return absl::UnavailableError("the supervisor is gone");
    if (!IsWouldBlock(message.status())) return message.status();
    BERTH_RETURN_IF_ERROR(WaitFor(socket, POLLIN, deadline));
  }
}

// Sends, and waits for space in the socket. Errors: kUnavailable if the supervisor has ended; kDeadlineExceeded.
template <typename T>
absl::Status SendBefore(int socket, const T& message, std::span<const int> fds, Clock::time_point deadline) {
  while (true) {
    const absl::Status sent = SendStruct(socket, message, fds);
    if (!IsWouldBlock(sent)) return sent;
    BERTH_RETURN_IF_ERROR(WaitFor(socket, POLLOUT, deadline));
  }
}

// Waits for a started supervisor to request the handover state.
absl::Status AwaitRequest(int socket) {
  BERTH_ASSIGN_OR_RETURN(const Message first, ReceiveBefore(socket, Clock::now() + kHandOverLimit));
  if (AsStruct<fd_store::Signal>(first, MessageKind::kHandOver, 0).has_value()) return absl::OkStatus();
  return Broken("another message than the request for the handover");
}

bool HasHungUp(int socket) {
  pollfd entry = {.fd = socket, .events = 0, .revents = 0};
  return ::poll(&entry, 1, 0) == 1 && (entry.revents & POLLHUP) != 0;
}

// Fds that only supervisors need, to hand on to one another.
bool IsForSupervisors(fd_store::Kind kind) {
  return kind == fd_store::Kind::kFolderLock || kind == fd_store::Kind::kFolderClaim ||
         kind == fd_store::Kind::kWorkerProcess ||
         kind == fd_store::Kind::kContextProcess || kind == fd_store::Kind::kMonitorProcess ||
         kind == fd_store::Kind::kStoreRecord;
}

// Fds that their owner in the broker may close before the supervisor has reported their end.
bool MayEndSooner(fd_store::Kind kind) {
  return kind == fd_store::Kind::kWorker || kind == fd_store::Kind::kContextWorker ||
         kind == fd_store::Kind::kMonitor;
}

absl::StatusOr<std::vector<HeldFd>> LedgersIn(const Message& message) {
  std::vector<HeldFd> ledgers;
  const std::optional<GiveMessage> give = fd_store::AsGive(message);
  for (size_t i = 0; give.has_value() && i < message.fds.size(); ++i) {
    if (give->keys[i].kind != fd_store::Kind::kLedger) continue;
    BERTH_ASSIGN_OR_RETURN(UniqueFd ledger, DuplicateFd(message.fds[i].get()));
    ledgers.push_back({give->keys[i], std::move(ledger)});
  }
  return ledgers;
}

}  // namespace

absl::StatusOr<UniqueFd> SupervisorFdStore::Hold(const Key& key, UniqueFd fd, HeldByKey* held) {
  // Keys arrive in ascending order.
  Held& entry = held->insert_or_assign(held->end(), key, Held{.fd = fd.get()})->second;
  if (IsForSupervisors(key.kind)) {
    entry.own = std::move(fd);
  } else if (MayEndSooner(key.kind)) {
    BERTH_ASSIGN_OR_RETURN(entry.own, DuplicateFd(fd.get()));
    entry.fd = entry.own.get();
  }
  return fd;
}

absl::StatusOr<Inheritance> SupervisorFdStore::Receive(UniqueFd socket, OnFacts on_facts) {
  BERTH_RETURN_IF_ERROR(SetNonBlocking(socket.get()));
  const Clock::time_point deadline = Clock::now() + kReceiveLimit;
  BERTH_ASSIGN_OR_RETURN(const Message first, ReceiveBefore(socket.get(), deadline));
  const std::optional<Facts> facts = AsStruct<Facts>(first, MessageKind::kFacts, 0);
  if (!facts.has_value()) return Broken("no facts in its first message");

  Inheritance inherited;
  inherited.facts = *facts;
  HeldByKey held;
  for (bool first = true;; first = false) {
    BERTH_ASSIGN_OR_RETURN(Message message, ReceiveBefore(socket.get(), deadline));
    if (first) {
      BERTH_ASSIGN_OR_RETURN(std::vector<HeldFd> ledgers, LedgersIn(message));
      on_facts(*facts, std::move(ledgers));
    }
    if (AsStruct<fd_store::Signal>(message, MessageKind::kGiveEnd, 0).has_value()) break;
    const std::optional<GiveMessage> give = fd_store::AsGive(message);
    if (!give.has_value()) return Broken("another message than a held fd");
    for (size_t i = 0; i < message.fds.size(); ++i) {
      BERTH_ASSIGN_OR_RETURN(UniqueFd fd, Hold(give->keys[i], std::move(message.fds[i]), &held));
      if (fd) inherited.held.push_back({give->keys[i], std::move(fd)});
    }
  }
  inherited.fd_store.reset(new SupervisorFdStore(std::move(socket), *facts, std::move(held)));
  return inherited;
}

absl::Status SupervisorFdStore::GiveAllLocked(int socket) {
  const Clock::time_point deadline = Clock::now() + kHandOverLimit;
  const UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!self) return OsError("pidfd_open", errno);
  // The messages below cover the outbox's content.
  outbox_.clear();
  fd_store::Facts facts = facts_;
  // A broker that has not yet restored everything leaves the rest to the next broker.
  if ((served_ && facts.begun != fd_store::kBegunUnrecorded) || facts.begun == 0) facts.begun = fd_store::kBegun;
  BERTH_RETURN_IF_ERROR(SendBefore(socket, facts, {}, deadline));
  GiveMessage give = {.keys = {KeyOf(fd_store::Kind::kBroker)}};
  std::vector<int> fds = {self.get()};
  for (const auto& [key, held] : held_) {
    if (held.dropping) continue;
    if (fds.size() == kMaxMessageFds) {
      BERTH_RETURN_IF_ERROR(SendBefore(socket, give, fds, deadline));
      fds.clear();
    }
    give.keys[fds.size()] = key;
    fds.push_back(held.fd);
  }
  BERTH_RETURN_IF_ERROR(SendBefore(socket, give, fds, deadline));
  for (const auto& [key, status] : statuses_) BERTH_RETURN_IF_ERROR(SendBefore(socket, status, {}, deadline));
  BERTH_RETURN_IF_ERROR(SendBefore(socket, fd_store::Signal{.kind = MessageKind::kGiveEnd}, {}, deadline));
  std::set<Key> drops = dropping_absent_;
  for (const auto& [key, held] : held_) {
    if (held.dropping) drops.insert(key);
  }
  for (const Key& key : drops) {
    const KeyMessage drop = {.kind = MessageKind::kDrop, .key = key};
    BERTH_RETURN_IF_ERROR(SendBefore(socket, drop, {}, deadline));
  }
  for (const fd_store::CommandMessage& command : commands_)
    BERTH_RETURN_IF_ERROR(SendBefore(socket, command, {}, deadline));
  if (bound_.has_value())
    BERTH_RETURN_IF_ERROR(SendBefore(socket, fd_store::BoundMessage{.bytes = *bound_}, {}, deadline));
  if (served_)
    BERTH_RETURN_IF_ERROR(SendBefore(socket, fd_store::Signal{.kind = MessageKind::kReady}, {}, deadline));
  return absl::OkStatus();
}

void SupervisorFdStore::KillExecutedLocked() {
  if (!executed_) return;
  ::syscall(SYS_pidfd_send_signal, executed_.get(), SIGKILL, nullptr, 0);
  pollfd entry = {.fd = executed_.get(), .events = POLLIN, .revents = 0};
  ::poll(&entry, 1, kKillLimitMs);
}

bool SupervisorFdStore::EndExecuted() {
  MutexLock lock(&mu_);
  if (!executed_) return false;
  const bool stops = HasPendingStop(executed_.get());
  KillExecutedLocked();
  // The program's own children may have the other end of the socket.
  ::shutdown(socket_.get(), SHUT_RDWR);
  return stops;
}

absl::Status SupervisorFdStore::SucceedLocked() {
  if (!replacement_.start) return absl::UnavailableError("the supervisor is gone");
  // A program that stopped in the middle of a handover must not continue it later.
  KillExecutedLocked();
  absl::Status why;
  for (int i = 0; i < kMaxReplacements; ++i) {
    BERTH_ASSIGN_OR_RETURN(const UniqueFd socket, replacement_.start());
    BERTH_RETURN_IF_ERROR(SetNonBlocking(socket.get()));
    why = AwaitRequest(socket.get());
    if (why.ok()) why = GiveAllLocked(socket.get());
    if (!why.ok()) continue;
    if (::dup3(socket.get(), socket_.get(), O_CLOEXEC) < 0) return OsError("dup3", errno);
    executed_.reset();
    replacement_.on_replaced();
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat(kMaxReplacements, " supervisors in a row took over no state; the last: ", why.message()));
}

absl::Status SupervisorFdStore::Succeed() {
  MutexLock lock(&mu_);
  return HasHungUp(socket_.get()) ? SucceedLocked() : absl::OkStatus();
}

absl::Status SupervisorFdStore::HandOver() {
  MutexLock lock(&mu_);
  if (const absl::Status given = GiveAllLocked(socket_.get()); given.ok()) return given;
  return SucceedLocked();
}

size_t SupervisorFdStore::LimitOf(FdOwner owner) const {
  const size_t limit = facts_.fd_store_limit;
  // The share of operators is smaller if the fd store holds few fds.
  return owner == FdOwner::kClient ? limit - std::min<size_t>(kOperatorSessionFds, limit / 8) : limit;
}

absl::Status SupervisorFdStore::Put(Key key, int fd, FdOwner owner) {
  BERTH_RETURN_IF_ERROR(CheckFd(fd, owner));
  {
    MutexLock lock(&mu_);
    if (held_.size() >= LimitOf(owner)) {
      return Refuse(
          Reason::kLimit, "{what}: {current} held, limit {limit}",
          {{"what", "file descriptors in the fd store"}, {"current", held_.size()}, {"limit", LimitOf(owner)}});
    }
    if (dropping_absent_.contains(key) || !held_.insert({key, Held{.fd = fd, .putting = true}}).second) {
      return absl::AlreadyExistsError(
          absl::StrCat("the fd store holds kind ", static_cast<uint32_t>(key.kind), " id ", key.id, " already"));
    }
  }
  const absl::Status sent = SendBefore(socket_.get(), KeyMessage{.kind = MessageKind::kPut, .key = key},
                                       std::span(&fd, 1), Clock::now() + kSendLimit);
  MutexLock lock(&mu_);
  const auto at = held_.find(key);
  if (at != held_.end()) at->second.putting = false;
  const bool dropping = at != held_.end() && at->second.dropping;
  if (sent.ok()) {
    if (dropping) QueueDropLocked(key);
    return sent;
  }
  // A new supervisor gets this fd with all others: already, or from SucceedLocked() here.
  if (absl::IsUnavailable(sent)) {
    if (!HasHungUp(socket_.get())) {
      if (dropping) QueueDropLocked(key);
      return absl::OkStatus();
    }
    if (SucceedLocked().ok()) return absl::OkStatus();
  }
  held_.erase(key);
  if (dropping) {
    dropping_absent_.insert(key);
    QueueDropLocked(key);
  }
  return absl::IsDeadlineExceeded(sent) ? absl::UnavailableError(sent.message()) : sent;
}

template <typename T>
void SupervisorFdStore::QueueLocked(const T& message) {
  outbox_.emplace_back(reinterpret_cast<const char*>(&message), sizeof(message));
  // Flush now: a Flush() for space that becomes free after this try finds the message in the outbox.
  FlushLocked();
}

void SupervisorFdStore::Drop(Key key) {
  MutexLock lock(&mu_);
  // The confirmation of an earlier drop is this one's, too: a second one could arrive after a later Put().
  const auto at = held_.find(key);
  const bool again =
      at == held_.end() ? !dropping_absent_.insert(key).second : std::exchange(at->second.dropping, true);
  // A drop must not overtake the Put() of its key, which sends the drop itself then.
  if (again || (at != held_.end() && at->second.putting)) return;
  QueueDropLocked(key);
}

void SupervisorFdStore::QueueDropLocked(Key key) {
  QueueLocked(KeyMessage{.kind = MessageKind::kDrop, .key = key});
}

void SupervisorFdStore::SendCommand(uint32_t device, WorkerKind worker_kind, WorkerCommand command,
                                    absl::string_view why) {
  fd_store::CommandMessage message = {.device = device, .command = command, .worker_kind = worker_kind};
  fd_store::SetReason(std::string_view(why.data(), why.size()), message.why);
  MutexLock lock(&mu_);
  std::erase_if(commands_, [&](const fd_store::CommandMessage& other) {
    return other.device == device && other.worker_kind == worker_kind && other.command == command;
  });
  // The upgrade itself replaces the supervisor, so the command must not be repeated to the next one.
  if (command != WorkerCommand::kUpgrade) commands_.push_back(message);
  QueueLocked(message);
}

void SupervisorFdStore::Flush() {
  MutexLock lock(&mu_);
  FlushLocked();
}

void SupervisorFdStore::FlushLocked() {
  while (!outbox_.empty()) {
    if (!SendMessage(socket_.get(), std::as_bytes(std::span(outbox_.front()))).ok()) return;
    outbox_.pop_front();
  }
}

template <typename T>
absl::Status SupervisorFdStore::SendOrSucceed(const T& message) {
  const auto send = [&] { return SendBefore(socket_.get(), message, {}, Clock::now() + kSendLimit); };
  if (const absl::Status sent = send(); sent.ok()) return sent;
  BERTH_RETURN_IF_ERROR(Succeed());
  return send();
}

absl::Status SupervisorFdStore::Ready() {
  {
    MutexLock lock(&mu_);
    served_ = true;
  }
  return SendOrSucceed(fd_store::Signal{.kind = MessageKind::kReady});
}

absl::Status SupervisorFdStore::Bound(uint64_t bytes) {
  {
    MutexLock lock(&mu_);
    bound_ = bytes;
  }
  return SendOrSucceed(fd_store::BoundMessage{.bytes = bytes});
}

absl::Status SupervisorFdStore::Reset() { return SendOrSucceed(fd_store::Signal{.kind = MessageKind::kReset}); }

void SupervisorFdStore::ForgetLocked(const fd_store::WorkerStatus& status) {
  statuses_[fd_store::KeyOf(status.worker_kind, status.device)] = status;
  std::erase_if(commands_, [&](const fd_store::CommandMessage& command) { return command.device == status.device; });
  if (status.state == fd_store::WorkerState::kRunning) return;
  held_.erase(fd_store::KeyOf(status.worker_kind, status.device));
  // SIGKILL did not end it: a later supervisor has to learn when it ends.
  if (status.state == fd_store::WorkerState::kAbandoned) return;
  held_.erase(fd_store::ProcessKeyOf(status.worker_kind, status.device));
}

absl::StatusOr<Notice> SupervisorFdStore::ReadNotice() {
  BERTH_ASSIGN_OR_RETURN(Message message, ReceiveMessage(socket_.get()));
  if (AsStruct<fd_store::Signal>(message, MessageKind::kStop, 0).has_value()) return StopRequested{};
  if (AsStruct<fd_store::Signal>(message, MessageKind::kHandOver, 0).has_value()) return HandOverRequested{};
  if (AsStruct<fd_store::Signal>(message, MessageKind::kReload, 0).has_value()) return ReloadRequested{};
  if (AsStruct<fd_store::Signal>(message, MessageKind::kFolderChanged, 0).has_value()) return FolderChanged{};
  if (const auto status = AsStruct<fd_store::WorkerStatus>(message, MessageKind::kWorkerStatus, 0);
      status.has_value()) {
    {
      MutexLock lock(&mu_);
      ForgetLocked(*status);
    }
    return WorkerNews{.device = status->device,
                      .worker_kind = status->worker_kind,
                      .state = status->state,
                      .restarts_left = status->restarts_left,
                      .generation = status->generation,
                      .dropped = status->dropped != 0,
                      .last_failure = fd_store::ReasonOf(status->last_failure),
                      .drain_reason = fd_store::ReasonOf(status->drain_reason)};
  }
  if (const auto dropped = AsStruct<KeyMessage>(message, MessageKind::kDropped, 0); dropped.has_value()) {
    MutexLock lock(&mu_);
    held_.erase(dropped->key);
    dropping_absent_.erase(dropped->key);
    return DroppedFd{dropped->key};
  }
  if (AsStruct<fd_store::Signal>(message, MessageKind::kExec, 1).has_value()) {
    absl::StatusOr<UniqueFd> process = DuplicateFd(message.fds[0].get());
    MutexLock lock(&mu_);
    executed_ = std::move(message.fds[0]);
    return ExecAnnounced{.process = process.ok() ? *std::move(process) : UniqueFd()};
  }
  if (const auto failed = AsStruct<fd_store::ExecFailedMessage>(message, MessageKind::kExecFailed, 0);
      failed.has_value()) {
    MutexLock lock(&mu_);
    executed_.reset();
    return ExecFailed{.why = fd_store::ReasonOf(failed->why)};
  }
  const std::optional<GiveMessage> give = fd_store::AsGive(message);
  if (!give.has_value() || message.fds.size() != 1) return Broken("an unknown message");
  const Key& key = give->keys[0];
  absl::StatusOr<UniqueFd> fd;
  {
    MutexLock lock(&mu_);
    fd = Hold(key, std::move(message.fds[0]), &held_);
    if (key.kind == fd_store::Kind::kMonitor) {
      std::erase_if(commands_, [](const fd_store::CommandMessage& command) {
        return command.command == WorkerCommand::kKillMonitor;
      });
    }
  }
  BERTH_RETURN_IF_ERROR(fd.status());
  if (IsForSupervisors(key.kind)) return ReadNotice();
  if (key.kind == fd_store::Kind::kMonitor) return MonitorUp{.socket = *std::move(fd)};
  if (key.kind == fd_store::Kind::kListener) {
    return ListenerUp{.listener = static_cast<fd_store::Listener>(key.id), .socket = *std::move(fd)};
  }
  const bool main = key.kind == fd_store::Kind::kWorker;
  if (!main && key.kind != fd_store::Kind::kContextWorker) return Broken("a socket that the broker did not request");
  return WorkerUp{.device = static_cast<uint32_t>(key.id),
                  .worker_kind = main ? WorkerKind::kMain : WorkerKind::kContext,
                  .socket = *std::move(fd)};
}

}  // namespace berth
