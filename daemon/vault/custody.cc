#include "daemon/vault/custody.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#include <chrono>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/fd_passing.h"
#include "common/os_error.h"
#include "common/status_macros.h"

namespace berth {
namespace {

using custody::Facts;
using custody::Key;
using custody::KeyMessage;
using custody::MessageKind;
using Clock = std::chrono::steady_clock;

constexpr auto kReceiveLimit = std::chrono::seconds(10);
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

// The message as a `T`, if it is one of `kind` with `fds` fds.
template <typename T>
std::optional<T> As(const Message& message, MessageKind kind, size_t fds) {
  T value;
  if (message.bytes.size() != sizeof(T) || message.fds.size() != fds) return std::nullopt;
  memcpy(&value, message.bytes.data(), sizeof(T));
  if (value.kind != kind) return std::nullopt;
  return value;
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

}  // namespace

absl::StatusOr<Inheritance> Custody::Receive(UniqueFd socket) {
  BERTH_RETURN_IF_ERROR(SetNonBlocking(socket.get()));
  const Clock::time_point deadline = Clock::now() + kReceiveLimit;
  BERTH_ASSIGN_OR_RETURN(const Message first, ReceiveBefore(socket.get(), deadline));
  const std::optional<Facts> facts = As<Facts>(first, MessageKind::kFacts, 0);
  if (!facts.has_value()) return Broken("no facts first");

  Inheritance inherited;
  inherited.facts = *facts;
  std::set<Key> held;
  while (true) {
    BERTH_ASSIGN_OR_RETURN(Message message, ReceiveBefore(socket.get(), deadline));
    if (As<custody::Signal>(message, MessageKind::kGiveEnd, 0).has_value()) break;
    const std::optional<KeyMessage> give = As<KeyMessage>(message, MessageKind::kGive, 1);
    if (!give.has_value()) return Broken("something else than what it holds");
    held.insert(give->key);
    inherited.held.push_back({give->key, std::move(message.fds[0])});
  }
  inherited.custody.reset(new Custody(std::move(socket), facts->custody_limit, std::move(held)));
  return inherited;
}

template <typename T>
absl::Status Custody::Send(const T& message, int fd) {
  const Clock::time_point deadline = Clock::now() + kSendLimit;
  while (true) {
    const absl::Status sent =
        SendStruct(socket_.get(), message, fd < 0 ? std::span<const int>() : std::span<const int>(&fd, 1));
    if (!IsWouldBlock(sent)) return sent;
    const absl::Status room = WaitFor(socket_.get(), POLLOUT, deadline);
    if (!room.ok()) return absl::UnavailableError(room.message());
  }
}

absl::Status Custody::Put(Key key, int fd) {
  {
    MutexLock lock(&mu_);
    if (held_.size() >= limit_) {
      return Refuse(Reason::kLimit, "{what}: {current} held, limit {limit}",
                    {{"what", "file descriptors in custody"}, {"current", held_.size()}, {"limit", limit_}});
    }
    if (!held_.insert(key).second) {
      return absl::AlreadyExistsError(
          absl::StrCat("custody holds kind ", static_cast<uint32_t>(key.kind), " id ", key.id, " already"));
    }
  }
  absl::Status sent = Send(KeyMessage{.kind = MessageKind::kPut, .key = key}, fd);
  if (!sent.ok()) {
    MutexLock lock(&mu_);
    held_.erase(key);
  }
  return sent;
}

template <typename T>
void Custody::Queue(const T& message) {
  MutexLock lock(&mu_);
  outbox_.emplace_back(reinterpret_cast<const char*>(&message), sizeof(message));
  // Under the lock: room that comes after this found none is announced to a Flush() that finds the message.
  FlushLocked();
}

void Custody::Drop(Key key) { Queue(KeyMessage{.kind = MessageKind::kDrop, .key = key}); }

void Custody::Order(uint32_t device, Lane lane, custody::OrderKind order, absl::string_view why) {
  custody::Order message = {.device = device, .order = order, .lane = lane};
  custody::SetReason(std::string_view(why.data(), why.size()), message.why);
  Queue(message);
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

absl::Status Custody::Ready() { return Send(custody::Signal{.kind = MessageKind::kReady}); }

absl::Status Custody::Reset() { return Send(custody::Signal{.kind = MessageKind::kReset}); }

absl::StatusOr<Notice> Custody::ReadNotice() {
  BERTH_ASSIGN_OR_RETURN(Message message, ReceiveMessage(socket_.get()));
  if (As<custody::Signal>(message, MessageKind::kStop, 0).has_value()) return StopRequested{};
  if (const auto status = As<custody::WorkerStatus>(message, MessageKind::kWorkerStatus, 0);
      status.has_value()) {
    if (status->state != custody::WorkerState::kRunning) {
      MutexLock lock(&mu_);
      held_.erase(custody::KeyOf(status->lane, status->device));
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
  if (const auto dropped = As<KeyMessage>(message, MessageKind::kDropped, 0); dropped.has_value()) {
    MutexLock lock(&mu_);
    held_.erase(dropped->key);
    return DroppedFd{dropped->key};
  }
  const auto give = As<KeyMessage>(message, MessageKind::kGive, 1);
  if (give.has_value() && give->key.kind == custody::Kind::kMonitor) {
    MutexLock lock(&mu_);
    held_.insert(give->key);
    return MonitorUp{.socket = std::move(message.fds[0])};
  }
  const bool main = give.has_value() && give->key.kind == custody::Kind::kWorker;
  if (main || (give.has_value() && give->key.kind == custody::Kind::kContextWorker)) {
    MutexLock lock(&mu_);
    held_.insert(give->key);
    return WorkerUp{.device = static_cast<uint32_t>(give->key.id),
                    .lane = main ? Lane::kMain : Lane::kContext,
                    .socket = std::move(message.fds[0])};
  }
  return Broken("an unknown message");
}

}  // namespace berth
