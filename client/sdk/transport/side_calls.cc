// SessionCore: calls on the side channel, and the report of a daemon that does not answer a call.

#include <atomic>
#include <utility>

#include "client/sdk/transport/session_core.h"
#include "client/sdk/transport/side_channel.h"
#include "client/sdk/transport/status_conversion.h"
#include "common/patience.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"
#include "google/protobuf/message_lite.h"

namespace berth::internal {

class SessionCore::SilenceWatch {
 public:
  // Reports nothing unless the daemon `answers_soon`.
  SilenceWatch(SessionCore* core, bool answers_soon)
      : core_(*core),
        at_(answers_soon ? core->SilenceDeadline() : absl::InfiniteFuture()),
        alarm_(&core->timer(), at_, [this] { Report(); }) {}
  // The timer's thread may be late, or missing.
  ~SilenceWatch() {
    if (at_ != absl::InfiniteFuture() && SteadyNow() >= at_) Report();
  }

 private:
  void Report() {
    if (!reported_.exchange(true)) core_.on_silence_(core_.attach_path_);
  }

  SessionCore& core_;
  const absl::Time at_;
  std::atomic<bool> reported_ = false;
  const CallTimer::Alarm alarm_;
};

absl::Status SessionCore::Ask(const CallLimits& limits, attach::Method method,
                              const google::protobuf::MessageLite& request, google::protobuf::MessageLite* response) {
  BERTH_RETURN_IF_ERROR(CheckActs());
  const size_t bytes = request.ByteSizeLong();
  {
    MutexLock lock(&mu_);
    if (live_->stubs != nullptr || bytes > attach::Ask::kMaxBytes) return absl::UnimplementedError("use gRPC");
  }
  attach::Ask ask = {.method = method,
                     .session = credentials_.session.value(),
                     .secret = credentials_.secret,
                     .bytes = static_cast<uint32_t>(bytes)};
  request.SerializeToArray(ask.body, sizeof(ask.body));
  const absl::StatusOr<attach::Answer> answer = [&] {
    const SilenceWatch watch(this, AnswersSoon(limits));
    return channel().Ask(ask, limits.deadline, limits.cancellation);
  }();
  if (absl::IsDeadlineExceeded(answer.status())) return NoAnswer();
  if (!answer.ok()) return Check().ok() ? answer.status() : Check();
  switch (answer->outcome) {
    case attach::Answer::Outcome::kDone:
      if (response->ParseFromArray(answer->body, static_cast<int>(answer->bytes))) return absl::OkStatus();
      break;
    case attach::Answer::Outcome::kRefused:
      return FromStatusProto({answer->body, answer->bytes});
    case attach::Answer::Outcome::kTooLong:
      return absl::UnimplementedError("use gRPC");
  }
  return absl::InternalError("the daemon sent a malformed answer");
}

absl::StatusOr<Arrival> SessionCore::Await(uint64_t sequence, absl::Time deadline) {
  const SilenceWatch watch(this, /*answers_soon=*/true);
  return channel().Await(sequence, deadline);
}

absl::Status SessionCore::GiveBack(AcquisitionId acquisition, bool if_idle, absl::Time deadline) {
  const SilenceWatch watch(this, /*answers_soon=*/true);
  return channel().GiveBack(acquisition, if_idle, deadline);
}

absl::Time SessionCore::SilenceDeadline() const {
  // Early enough for a call that gives up after kSilence.
  const absl::Duration lead = 2 * CallTimer::kGrace;
  return on_silence_ == nullptr ? absl::InfiniteFuture() : SteadyNow() + Patient(SessionOptions::kSilence) - lead;
}

bool SessionCore::AnswersSoon(const CallLimits& limits) const {
  // A wait of no time leaves its call the slack alone.
  return limits.deadline <= SteadyNow() + (limits.waits ? Patient(CallLimits::kAnswerSlack) : timeout_);
}

}  // namespace berth::internal
