#include "daemon/vault/custody.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/fd_passing.h"
#include "common/os_error.h"
#include "common/status_macros.h"
#include "common/struct_message.h"

namespace berth {
namespace {

using custody::Facts;
using custody::GiveMessage;
using custody::Key;
using custody::KeyMessage;
using custody::KeyOf;
using custody::MessageKind;
using Clock = std::chrono::steady_clock;

constexpr auto kReceiveLimit = std::chrono::seconds(10);
// For all of a hand-over: a vault that is started takes a moment.
constexpr auto kHandOverLimit = std::chrono::seconds(10);
constexpr int kMaxSuccessors = 3;
constexpr auto kSendLimit = std::chrono::seconds(1);

absl::Status Broken(absl::string_view what) {
  return absl::InternalError(absl::StrCat("the vault sent ", what));
}

// Waits until `socket` is ready for `events` or `deadline`.
absl::Status WaitFor(int socket, short events, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return absl::DeadlineExceededError("the vault's socket stayed busy");
    pollfd entry = {.fd = socket, .events = events, .revents = 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(left));
    if (ready < 0 && errno != EINTR) return OsError("poll(vault)", errno);
    if (ready <= 0) continue;
    // A socket whose peer is gone is writable too; what the peer has sent can still be read.
    if ((entry.revents & POLLIN) != 0) return absl::OkStatus();
    if ((entry.revents & (POLLHUP | POLLERR)) != 0) return absl::UnavailableError("the vault is gone");
    if ((entry.revents & events) != 0) return absl::OkStatus();
  }
}

absl::StatusOr<Message> ReceiveBefore(int socket, Clock::time_point deadline) {
  while (true) {
    absl::StatusOr<Message> message = ReceiveMessage(socket);
    if (message.ok()) return message;
    if (IsEndOfStream(message.status())) return absl::UnavailableError("the vault is gone");
    if (!IsWouldBlock(message.status())) return message.status();
    BERTH_RETURN_IF_ERROR(WaitFor(socket, POLLIN, deadline));
  }
}

// Sends, and waits for room. Errors: kUnavailable if the vault is gone; kDeadlineExceeded.
template <typename T>
absl::Status SendBefore(int socket, const T& message, std::span<const int> fds, Clock::time_point deadline) {
  while (true) {
    const absl::Status sent = SendStruct(socket, message, fds);
    if (!IsWouldBlock(sent)) return sent;
    BERTH_RETURN_IF_ERROR(WaitFor(socket, POLLOUT, deadline));
  }
}

// Waits for a vault that was started to ask for everything.
absl::Status AwaitWish(int socket) {
  BERTH_ASSIGN_OR_RETURN(const Message first, ReceiveBefore(socket, Clock::now() + kHandOverLimit));
  if (AsStruct<custody::Signal>(first, MessageKind::kHandOver, 0).has_value()) return absl::OkStatus();
  return Broken("something else than that it wants everything");
}

bool IsGone(int socket) {
  pollfd entry = {.fd = socket, .events = 0, .revents = 0};
  return ::poll(&entry, 1, 0) == 1 && (entry.revents & POLLHUP) != 0;
}

// What only vaults need, of each other.
bool IsForVaults(custody::Kind kind) {
  return kind == custody::Kind::kFolderLock || kind == custody::Kind::kWorkerProcess ||
         kind == custody::Kind::kContextProcess || kind == custody::Kind::kMonitorProcess ||
         kind == custody::Kind::kStoreRecord;
}

// What its owner here closes before the vault has said that it is over.
bool MayEndSooner(custody::Kind kind) {
  return kind == custody::Kind::kWorker || kind == custody::Kind::kContextWorker ||
         kind == custody::Kind::kMonitor;
}

}  // namespace

absl::StatusOr<UniqueFd> Custody::Keep(const Key& key, UniqueFd fd, HeldByKey* held) {
  // They come in the order of their keys.
  Held& kept = held->insert_or_assign(held->end(), key, Held{.fd = fd.get()})->second;
  if (IsForVaults(key.kind)) {
    kept.own = std::move(fd);
  } else if (MayEndSooner(key.kind)) {
    BERTH_ASSIGN_OR_RETURN(kept.own, DuplicateFd(fd.get()));
    kept.fd = kept.own.get();
  }
  return fd;
}

absl::StatusOr<Inheritance> Custody::Receive(UniqueFd socket, absl::FunctionRef<void(const Facts&)> on_facts) {
  BERTH_RETURN_IF_ERROR(SetNonBlocking(socket.get()));
  const Clock::time_point deadline = Clock::now() + kReceiveLimit;
  BERTH_ASSIGN_OR_RETURN(const Message first, ReceiveBefore(socket.get(), deadline));
  const std::optional<Facts> facts = AsStruct<Facts>(first, MessageKind::kFacts, 0);
  if (!facts.has_value()) return Broken("no facts first");
  on_facts(*facts);

  Inheritance inherited;
  inherited.facts = *facts;
  HeldByKey held;
  while (true) {
    BERTH_ASSIGN_OR_RETURN(Message message, ReceiveBefore(socket.get(), deadline));
    if (AsStruct<custody::Signal>(message, MessageKind::kGiveEnd, 0).has_value()) break;
    const std::optional<GiveMessage> give = custody::AsGive(message);
    if (!give.has_value()) return Broken("something else than what it holds");
    for (size_t i = 0; i < message.fds.size(); ++i) {
      BERTH_ASSIGN_OR_RETURN(UniqueFd fd, Keep(give->keys[i], std::move(message.fds[i]), &held));
      if (fd) inherited.held.push_back({give->keys[i], std::move(fd)});
    }
  }
  inherited.custody.reset(new Custody(std::move(socket), *facts, std::move(held)));
  return inherited;
}

absl::Status Custody::GiveAllLocked(int socket) {
  const Clock::time_point deadline = Clock::now() + kHandOverLimit;
  const UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!self) return OsError("pidfd_open", errno);
  // What follows says all that is in it.
  outbox_.clear();
  custody::Facts facts = facts_;
  // One that has not taken everything up yet leaves it to be taken up.
  if (served_ || facts.begun == 0) facts.begun = custody::kBegun;
  BERTH_RETURN_IF_ERROR(SendBefore(socket, facts, {}, deadline));
  GiveMessage give = {.keys = {KeyOf(custody::Kind::kBroker)}};
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
  BERTH_RETURN_IF_ERROR(SendBefore(socket, custody::Signal{.kind = MessageKind::kGiveEnd}, {}, deadline));
  for (const auto& [key, held] : held_) {
    if (!held.dropping) continue;
    const KeyMessage drop = {.kind = MessageKind::kDrop, .key = key};
    BERTH_RETURN_IF_ERROR(SendBefore(socket, drop, {}, deadline));
  }
  for (const custody::Order& order : orders_) BERTH_RETURN_IF_ERROR(SendBefore(socket, order, {}, deadline));
  return absl::OkStatus();
}

absl::Status Custody::SucceedLocked() {
  if (!succession_.start) return absl::UnavailableError("the vault is gone");
  absl::Status why;
  for (int i = 0; i < kMaxSuccessors; ++i) {
    BERTH_ASSIGN_OR_RETURN(const UniqueFd socket, succession_.start());
    BERTH_RETURN_IF_ERROR(SetNonBlocking(socket.get()));
    why = AwaitWish(socket.get());
    if (why.ok()) why = GiveAllLocked(socket.get());
    if (!why.ok()) continue;
    if (::dup3(socket.get(), socket_.get(), O_CLOEXEC) < 0) return OsError("dup3", errno);
    succession_.on_replaced();
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat(kMaxSuccessors, " vaults in a row took nothing over; the last: ", why.message()));
}

absl::Status Custody::Succeed() {
  MutexLock lock(&mu_);
  return IsGone(socket_.get()) ? SucceedLocked() : absl::OkStatus();
}

absl::Status Custody::HandOver() {
  MutexLock lock(&mu_);
  if (const absl::Status given = GiveAllLocked(socket_.get()); given.ok()) return given;
  return SucceedLocked();
}

size_t Custody::LimitOf(FdOwner owner) const {
  const size_t limit = facts_.custody_limit;
  // What clients leave is less where it holds little.
  return owner == FdOwner::kClient ? limit - std::min<size_t>(kOperatorSessionFds, limit / 8) : limit;
}

absl::Status Custody::Put(Key key, int fd, FdOwner owner) {
  BERTH_RETURN_IF_ERROR(CheckFd(fd, owner));
  {
    MutexLock lock(&mu_);
    if (held_.size() >= LimitOf(owner)) {
      return Refuse(
          Reason::kLimit, "{what}: {current} held, limit {limit}",
          {{"what", "file descriptors in custody"}, {"current", held_.size()}, {"limit", LimitOf(owner)}});
    }
    if (!held_.insert({key, Held{.fd = fd}}).second) {
      return absl::AlreadyExistsError(
          absl::StrCat("custody holds kind ", static_cast<uint32_t>(key.kind), " id ", key.id, " already"));
    }
  }
  const absl::Status sent = SendBefore(socket_.get(), KeyMessage{.kind = MessageKind::kPut, .key = key},
                                       std::span(&fd, 1), Clock::now() + kSendLimit);
  if (sent.ok()) return sent;
  MutexLock lock(&mu_);
  // Another vault is given this with the rest, by now or here.
  const bool gone = absl::IsUnavailable(sent);
  if (gone && (!IsGone(socket_.get()) || SucceedLocked().ok())) return absl::OkStatus();
  held_.erase(key);
  return absl::IsDeadlineExceeded(sent) ? absl::UnavailableError(sent.message()) : sent;
}

template <typename T>
void Custody::QueueLocked(const T& message) {
  outbox_.emplace_back(reinterpret_cast<const char*>(&message), sizeof(message));
  // At once: room that comes after this found none is announced to a Flush() that finds the message.
  FlushLocked();
}

void Custody::Drop(Key key) {
  MutexLock lock(&mu_);
  if (const auto at = held_.find(key); at != held_.end()) at->second.dropping = true;
  QueueLocked(KeyMessage{.kind = MessageKind::kDrop, .key = key});
}

void Custody::Order(uint32_t device, Lane lane, custody::OrderKind order, absl::string_view why) {
  custody::Order message = {.device = device, .order = order, .lane = lane};
  custody::SetReason(std::string_view(why.data(), why.size()), message.why);
  MutexLock lock(&mu_);
  std::erase_if(orders_, [&](const custody::Order& other) {
    return other.device == device && other.lane == lane && other.order == order;
  });
  // The vault that does this is followed by another for that very reason.
  if (order != custody::OrderKind::kUpgrade) orders_.push_back(message);
  QueueLocked(message);
}

void Custody::Flush() {
  MutexLock lock(&mu_);
  FlushLocked();
}

void Custody::FlushLocked() {
  while (!outbox_.empty()) {
    if (!SendMessage(socket_.get(), std::as_bytes(std::span(outbox_.front()))).ok()) return;
    outbox_.pop_front();
  }
}

template <typename T>
absl::Status Custody::SendOrSucceed(const T& message) {
  const auto send = [&] { return SendBefore(socket_.get(), message, {}, Clock::now() + kSendLimit); };
  if (const absl::Status sent = send(); sent.ok()) return sent;
  BERTH_RETURN_IF_ERROR(Succeed());
  return send();
}

absl::Status Custody::Ready() {
  BERTH_RETURN_IF_ERROR(SendOrSucceed(custody::Signal{.kind = MessageKind::kReady}));
  MutexLock lock(&mu_);
  served_ = true;
  return absl::OkStatus();
}

absl::Status Custody::Bound(uint64_t bytes) { return SendOrSucceed(custody::BoundMessage{.bytes = bytes}); }

absl::Status Custody::Reset() { return SendOrSucceed(custody::Signal{.kind = MessageKind::kReset}); }

void Custody::ForgetLocked(const custody::WorkerStatus& status) {
  statuses_[custody::KeyOf(status.lane, status.device)] = status;
  std::erase_if(orders_, [&](const custody::Order& order) { return order.device == status.device; });
  if (status.state == custody::WorkerState::kRunning) return;
  held_.erase(custody::KeyOf(status.lane, status.device));
  // SIGKILL did not end it: whoever follows is to know when it is gone.
  if (status.state == custody::WorkerState::kAbandoned) return;
  held_.erase(custody::ProcessKeyOf(status.lane, status.device));
}

absl::StatusOr<Notice> Custody::ReadNotice() {
  BERTH_ASSIGN_OR_RETURN(Message message, ReceiveMessage(socket_.get()));
  if (AsStruct<custody::Signal>(message, MessageKind::kStop, 0).has_value()) return StopRequested{};
  if (AsStruct<custody::Signal>(message, MessageKind::kHandOver, 0).has_value()) return HandOverRequested{};
  if (AsStruct<custody::Signal>(message, MessageKind::kReload, 0).has_value()) return ReloadRequested{};
  if (const auto status = AsStruct<custody::WorkerStatus>(message, MessageKind::kWorkerStatus, 0);
      status.has_value()) {
    {
      MutexLock lock(&mu_);
      ForgetLocked(*status);
    }
    return WorkerNews{.device = status->device,
                      .lane = status->lane,
                      .state = status->state,
                      .restarts_left = status->restarts_left,
                      .generation = status->generation,
                      .dropped = status->dropped != 0,
                      .last_failure = custody::ReasonOf(status->last_failure),
                      .drain_reason = custody::ReasonOf(status->drain_reason)};
  }
  if (const auto dropped = AsStruct<KeyMessage>(message, MessageKind::kDropped, 0); dropped.has_value()) {
    MutexLock lock(&mu_);
    held_.erase(dropped->key);
    return DroppedFd{dropped->key};
  }
  const std::optional<GiveMessage> give = custody::AsGive(message);
  if (!give.has_value() || message.fds.size() != 1) return Broken("an unknown message");
  const Key& key = give->keys[0];
  absl::StatusOr<UniqueFd> fd;
  {
    MutexLock lock(&mu_);
    fd = Keep(key, std::move(message.fds[0]), &held_);
    if (key.kind == custody::Kind::kMonitor) {
      std::erase_if(orders_, [](const custody::Order& order) {
        return order.order == custody::OrderKind::kKillMonitor;
      });
    }
  }
  BERTH_RETURN_IF_ERROR(fd.status());
  if (IsForVaults(key.kind)) return ReadNotice();
  if (key.kind == custody::Kind::kMonitor) return MonitorUp{.socket = *std::move(fd)};
  const bool main = key.kind == custody::Kind::kWorker;
  if (!main && key.kind != custody::Kind::kContextWorker) return Broken("what it was not asked for");
  return WorkerUp{.device = static_cast<uint32_t>(key.id),
                  .lane = main ? Lane::kMain : Lane::kContext,
                  .socket = *std::move(fd)};
}

}  // namespace berth
