// Forgetting: reverts a request whose outcome its caller does not know, whatever the outcome.

#include <cstdint>
#include <variant>

#include <berth/error.h>

#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "daemon/core/requests/requests.h"
#include "daemon/core/requests/undo_step.h"

namespace berth::core {

void Requests::Forget(StepContext& step, CallId call, const Caller& caller, uint64_t sequence) {
  const absl::StatusOr<const Channel*> channel = AdmitCaller(caller);
  if (!channel.ok()) return Reply(step, call, channel.status());
  const absl::StatusOr<ForgetOutcome> outcome = ForgetRequest(step, **channel, sequence);
  if (!outcome.ok()) return Reply(step, call, outcome.status());
  Reply(step, call, Response(ForgetResult{.outcome = *outcome}));
}

absl::StatusOr<ForgetOutcome> Requests::ForgetRequest(StepContext& step, const Channel& channel, uint64_t sequence) {
  if (sequence == 0) {
    return Refuse(Reason::kInvalidField, "{field} is {value}, the least is {limit}",
                  {{"field", "sequence"}, {"value", 0}, {"limit", 1}});
  }
  RequestMemory& memory = core_.sessions.RequestsOf(channel.id);
  const RequestMemory::Entry* const entry = memory.Find(sequence);
  if (entry == nullptr) {
    // A settled request is refused even without a tombstone.
    if (memory.Settled(sequence)) return ForgetOutcome::kNothingToDo;
    BERTH_RETURN_IF_ERROR(memory.Bury(sequence, ForgetOutcome::kRemembered));
    return ForgetOutcome::kRemembered;
  }
  ForgetOutcome outcome = entry->outcome;
  switch (entry->state) {
    case RequestMemory::State::kForgotten:
      return outcome;
    case RequestMemory::State::kPending: {
      const RequestId request{channel.id, sequence};
      const bool making = pending_.at(request).place == &core_.blocks;
      outcome = making ? ForgetOutcome::kUndone : ForgetOutcome::kCancelled;
      Leave(step, {request},
            Refuse(Reason::kCancelled, "request {sequence} of channel {channel} was forgotten",
                   {{"channel", channel.id.value()}, {"sequence", sequence}}));
      break;
    }
    case RequestMemory::State::kAnswered: {
      const absl::StatusOr<Response> answer = entry->answer();
      if (answer.ok()) outcome = Undo(step, channel, *answer);
      break;
    }
  }
  BERTH_RETURN_IF_ERROR(memory.Bury(sequence, outcome));
  return outcome;
}

ForgetOutcome Requests::Undo(StepContext& step, const Channel& channel, const Response& answer) {
  const UndoStep undo = {.core = core_, .step = step, .channel = channel};
  const bool undone = std::visit([&](const auto& result) { return core::Undo(undo, result); }, answer);
  return undone ? ForgetOutcome::kUndone : ForgetOutcome::kNothingToDo;
}

}  // namespace berth::core
