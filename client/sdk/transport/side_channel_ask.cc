// SideChannel: the RPCs that this process calls on its side channel.

#include <string.h>

#include <optional>
#include <span>
#include <utility>

#include "client/sdk/transport/side_channel.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"

namespace berth::internal {
namespace {

std::optional<attach::Answer> AsAnswer(const Message& message) {
  attach::Answer answer;
  const size_t size = message.bytes.size();
  if (!message.fds.empty() || size < attach::Answer::kHeadBytes || size > sizeof(answer)) return std::nullopt;
  memcpy(&answer, message.bytes.data(), size);
  const bool whole = answer.kind == attach::Kind::kAnswer && answer.bytes <= attach::Answer::kMaxBytes &&
                     size == attach::Answer::BytesOf(answer.bytes);
  return whole ? std::optional(answer) : std::nullopt;
}

bool IsRefused(const Message& message) {
  attach::Kind kind;
  if (message.bytes.size() != sizeof(attach::Refused) || !message.fds.empty()) return false;
  memcpy(&kind, message.bytes.data(), sizeof(kind));
  return kind == attach::Kind::kRefused;
}

absl::Status SendAsk(int socket, const attach::Ask& ask) {
  return SendMessage(socket, std::as_bytes(std::span(&ask, 1)).first(attach::Ask::BytesOf(ask.bytes)));
}

}  // namespace

absl::StatusOr<attach::Answer> SideChannel::Ask(attach::Ask ask, absl::Time deadline, Cancellation* cancellation) {
  Asking own;
  // The hook may run at once, and takes the lock.
  const Cancellation::Hook cancelled(cancellation, [&] {
    MutexLock lock(&mu_);
    own.cancelled = true;
    own.news.Signal();
  });
  MutexLock lock(&mu_);
  const bool acquires = ask.method == attach::Method::kAcquirePermit;
  // The daemon would reject it as malformed, and a rejection names no Ask: it would end the waiting acquire, too.
  if (acquires && acquiring_) return absl::UnimplementedError("another acquire waits on the side channel");
  if (acquires) acquiring_ = true;
  ask.number = ++last_ask_;
  asking_[ask.number] = &own;
  bool late = false;
  while (state_.ok() && !own.answer.has_value() && !own.cancelled && !late) {
    if (own.sent || away_) {
      late = own.news.WaitWithDeadline(&mu_, deadline);
      continue;
    }
    const absl::Status sent = SendAsk(socket_, ask);
    own.sent = sent.ok();
    if (own.sent) {
      ++unanswered_asks_;
      continue;
    }
    // Notices the end of the stream, if that is the cause. The channel's thread then looks for the next daemon.
    DrainLocked();
    Wake();
    if (!away_) own.answer = sent;
  }
  asking_.erase(ask.number);
  if (acquires) acquiring_ = false;
  if (own.answer.has_value()) return *std::move(own.answer);
  BERTH_RETURN_IF_ERROR(state_);
  // A cancel names no request: the end of another call must not end another thread's acquire. If the socket takes no
  // message, the daemon cancels the acquire when it forgets the request.
  if (own.sent && acquires) {
    SendAsk(socket_, {.method = attach::Method::kCancel, .session = ask.session, .secret = ask.secret}).IgnoreError();
  }
  if (own.cancelled) return absl::CancelledError("the call was cancelled");
  return absl::DeadlineExceededError("the daemon did not answer in time");
}

void SideChannel::WakeAsksLocked() {
  for (const auto& [number, asking] : asking_) asking->news.Signal();
}

SideChannel::Return SideChannel::AwaitReturn(absl::Duration patience) {
  TakeIn();
  MutexLock lock(&mu_);
  if (away_ && SteadyNow() > await_until_ + patience) await_until_ = SteadyNow() + patience;
  bool late = false;
  while (away_ && state_.ok() && !late) late = returned_.WaitWithDeadline(&mu_, await_until_);
  if (!state_.ok()) return Return::kLost;
  return away_ ? Return::kAbsent : Return::kPresent;
}

std::optional<EndNotice> SideChannel::TakeInEnd() {
  TakeIn();
  MutexLock lock(&mu_);
  return end_;
}

void SideChannel::EndAsksLocked(const absl::Status& why) {
  unanswered_asks_ = 0;
  for (const auto& [number, asking] : asking_) {
    if (asking->sent && !asking->answer.has_value()) asking->answer = why;
  }
  WakeAsksLocked();
}

bool SideChannel::DispatchAnswerLocked(const Message& message) {
  if (const std::optional<attach::Answer> answer = AsAnswer(message)) {
    if (unanswered_asks_ > 0) --unanswered_asks_;
    const auto at = asking_.find(answer->number);
    // A cancelled call has no waiter.
    if (at == asking_.end()) return true;
    if (!at->second->answer.has_value()) at->second->answer = *answer;
    at->second->news.Signal();
    return true;
  }
  if (unanswered_asks_ == 0 || !IsRefused(message)) return false;
  EndAsksLocked(absl::UnimplementedError("the daemon rejected the message"));
  return true;
}

}  // namespace berth::internal
