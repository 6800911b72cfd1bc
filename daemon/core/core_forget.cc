// Forgetting: a request whose outcome its caller does not know is undone, whatever it was.

#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"

namespace berth::core {

void Core::Forget(absl::Time now, CallId call, const Caller& caller, uint64_t sequence, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const absl::StatusOr<const Channel*> channel = impl_->AdmitCaller(caller);
  if (!channel.ok()) return impl_->Reply(step, call, channel.status());
  const absl::StatusOr<ForgetOutcome> outcome = impl_->Settle(step, **channel, sequence);
  if (!outcome.ok()) return impl_->Reply(step, call, outcome.status());
  impl_->Reply(step, call, Response(ForgetResult{.outcome = *outcome}));
}

absl::StatusOr<ForgetOutcome> Core::Impl::Settle(const Step& step, const Channel& channel, uint64_t sequence) {
  if (sequence == 0) {
    return Refuse(Reason::kInvalidField, "{field} is {value}, the least is {limit}",
                  {{"field", "sequence"}, {"value", 0}, {"limit", 1}});
  }
  RequestMemory& memory = sessions_.RequestsOf(channel.id);
  const RequestMemory::Entry* const entry = memory.Find(sequence);
  if (entry == nullptr) {
    // A settled one is refused without a tombstone, too.
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
      const bool making = std::holds_alternative<BlockId>(pending_.at(request).place);
      outcome = making ? ForgetOutcome::kUndone : ForgetOutcome::kCancelled;
      Leave(step, {request},
            Refuse(Reason::kCancelled, "request {sequence} of channel {channel} was forgotten",
                   {{"channel", channel.id.value()}, {"sequence", sequence}}));
      break;
    }
    case RequestMemory::State::kAnswered:
      // Undoing answers others, and the memory moves.
      if (entry->answer.ok()) outcome = Undo(step, channel, Response(*entry->answer));
      break;
  }
  BERTH_RETURN_IF_ERROR(memory.Bury(sequence, outcome));
  return outcome;
}

ForgetOutcome Core::Impl::Undo(const Step& step, const Channel& channel, const Response& answer) {
  bool undone = false;
  if (const auto* const acquired = std::get_if<AcquireResult>(&answer)) {
    undone = ReleaseAcquisition(step, channel.session, acquired->acquisition, LeaseEnd::kForgotten).ok();
  } else if (const auto* const gang = std::get_if<GangResult>(&answer)) {
    for (const AcquireResult& permit : gang->permits) {
      undone = ReleaseAcquisition(step, channel.session, permit.acquisition, LeaseEnd::kForgotten).ok() || undone;
    }
    if (gang->reservation.has_value()) {
      if (Reservation* const reservation = reservations_.Find(gang->reservation->id)) {
        DropReservation(step, *reservation, LogCause::kForgotten);
        undone = true;
      }
    }
  } else if (const auto* const allocated = std::get_if<AllocateResult>(&answer)) {
    // The fd may be with the process already; then its import ends by the process's word or death alone.
    WithdrawImport(step, channel.id, allocated->import);
    const absl::StatusOr<Block*> block = FindOwned(channel.session, allocated->block.handle);
    undone = block.ok();
    if (undone) FreeBlock(step, **block, LogCause::kForgotten);
  } else if (const auto* const published = std::get_if<PublishResult>(&answer)) {
    Block* const block = blocks_.Find(published->block.handle.block);
    undone = block != nullptr && block->published && block->name == published->block.name;
    if (undone) {
      Log(step, RecordOf(*block, LogAction::kUnpublish, LogCause::kForgotten));
      blocks_.GiveBack(*block, channel.session);
      // Where it has filled its share meanwhile, the block is charged to the tenant alone.
      const ByteBudget& share = SessionBudget(channel.session, block->device);
      if (share.Judge(block->bytes) == ByteBudget::Verdict::kNow) {
        ChargeTo(*block, channel.session, block->charged_tenants);
      }
    }
  } else if (const auto* const reserved = std::get_if<ReserveResult>(&answer)) {
    Reservation* const reservation = reservations_.Find(reserved->reservation.id);
    undone = reservation != nullptr;
    if (undone) DropReservation(step, *reservation, LogCause::kForgotten);
  } else if (const auto* const planned = std::get_if<PlanResult>(&answer)) {
    // A re-plan stays: what it moved from may be gone.
    const Plan* const plan = planned->from_revision == 0 ? plans_.Find(planned->layout->id) : nullptr;
    undone = plan != nullptr;
    if (undone) PlanRun(this, &step).End(*plan, LeaseEnd::kForgotten);
  } else if (const auto* const imported = std::get_if<ImportResult>(&answer)) {
    undone = blocks_.FindByImport(imported->import) != nullptr;
    WithdrawImport(step, channel.id, imported->import);
  } else if (const auto* const opened = std::get_if<OpenStreamResult>(&answer)) {
    undone = fences_.streams().Close(opened->stream).ok();
  } else if (const auto* const module = std::get_if<ObtainModuleResult>(&answer)) {
    undone = modules_.Undo(step, *module);
  } else if (const auto* const prepared = std::get_if<Prepared>(&answer)) {
    LogForgotten(step, channel.id, prepared->use);
    PrepareOutcomes outcomes;
    undone = fences_.Abandon(StepOf(step, &outcomes), channel.id, prepared->use).ok();
    AnswerPrepares(step, std::move(outcomes));
  }
  return undone ? ForgetOutcome::kUndone : ForgetOutcome::kNothingToDo;
}

}  // namespace berth::core
