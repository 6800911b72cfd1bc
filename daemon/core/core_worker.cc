// What the devices' workers report, and what they are asked.

#include "common/error.h"
#include "daemon/core/core_impl.h"

namespace berth::core {
namespace {

bool IsOutOfMemory(const absl::Status& status) { return IsRefusal(status, Reason::kOutOfMemory); }

}  // namespace

void Core::BlockCreated(absl::Time now, BlockId block, const absl::Status& status, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  Block* const made = impl_->blocks_.Find(block);
  if (made == nullptr || !InTheMaking(made->phase) || !made->asked) return;
  made->asked = false;
  impl_->DeviceOf(*made).calls.OnAnswered(now, made->bytes);
  if (!status.ok()) {
    impl_->NotMade(step, *made, status);
  } else {
    impl_->Apply(step, *made, BlockEvent::kMade);
    if (made->phase == BlockPhase::kLive) impl_->FinishMaking(step, *made);
  }
  impl_->NoteRoom();
}

void Core::Impl::NotMade(const Step& step, Block& block, const absl::Status& status) {
  Device& device = DeviceOf(block);
  const bool wanted = block.phase == BlockPhase::kReserved;
  if (wanted && !block.retried && IsOutOfMemory(status)) {
    // The budget has room that the device lacks: what nobody holds may make it.
    for (const BlockId warm : device.warm.All()) Abandon(step, *blocks_.Find(warm));
    if (device.releases_asked > device.releases_ended) {
      block.retried = true;
      device.retries.push_back({.after_release = device.releases_asked, .block = block.id});
      return;
    }
  }
  const RequestId request = block.request;
  Apply(step, block, BlockEvent::kNotMade);
  if (wanted) Answer(step, request, status);
}

void Core::BlockReleased(absl::Time now, BlockId block, const absl::Status& status, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  Block* const released = impl_->blocks_.Find(block);
  if (released == nullptr || released->phase != BlockPhase::kRetired) return;
  Device& device = impl_->DeviceOf(*released);
  // Not asked any more where it was its worker's death that released it.
  const bool asked = std::exchange(released->asked, false);
  if (asked) {
    ++device.releases_ended;
    device.calls.OnAnswered(now, released->bytes);
  }
  if (released->owned() && (status.ok() || asked))
    impl_->Log(step, impl_->RecordOf(*released, LogAction::kRelease), status);
  impl_->NoteReaped(step, *released, status.ok());
  if (status.ok()) {
    if (released->stuck) {
      impl_->ForEachBudget(*released, [&](ByteBudget& budget) { budget.UnmarkStuck(released->bytes); });
    }
    impl_->Apply(step, *released, BlockEvent::kReleased);
  } else if (asked) {
    released->stuck = true;
    impl_->ForEachBudget(*released, [&](ByteBudget& budget) { budget.MarkStuck(released->bytes); });
  }
  impl_->RunRetries(step, device);
  impl_->NoteRoom();
}

void Core::WorkerUp(absl::Time now, uint32_t device, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto found = impl_->devices_.find(device);
  if (found == impl_->devices_.end() || found->second.state == DeviceState::kDropped) return;
  found->second.state = DeviceState::kReady;
  impl_->Emit(step, DevicesChanged());
  for (Block* const block : impl_->blocks_.OfDevice(device)) {
    if (block->asked) continue;
    if (InTheMaking(block->phase)) impl_->AskCreate(step, *block);
    if (block->phase != BlockPhase::kRetired) continue;
    if (block->stuck) {
      // A new worker may succeed where the last one failed.
      block->stuck = false;
      impl_->ForEachBudget(*block, [&](ByteBudget& budget) { budget.UnmarkStuck(block->bytes); });
    }
    impl_->AskRelease(step, *block);
  }
  impl_->NoteRoom();
}

void Core::WorkerDown(absl::Time now, uint32_t device, bool stopped, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto found = impl_->devices_.find(device);
  if (found == impl_->devices_.end()) return;
  Device& down = found->second;
  if (down.state != DeviceState::kDropped) {
    down.state = stopped ? DeviceState::kStopped : DeviceState::kRebuilding;
  }
  impl_->Emit(step, DevicesChanged());
  down.calls.Clear();
  down.retries.clear();
  down.releases_ended = down.releases_asked;
  for (Block* const block : impl_->blocks_.OfDevice(device)) {
    block->asked = false;
    impl_->NoteReaped(step, *block, /*back=*/false);
    if (block->phase == BlockPhase::kAbandoned) impl_->Apply(step, *block, BlockEvent::kNotMade);
  }
  if (!down.in_service()) impl_->RefuseWaiting(step, down);
}

void Core::Impl::RefuseWaiting(const Step& step, Device& device) {
  const absl::Status why = OutOfService(device);
  for (Block* const block : blocks_.OfDevice(device.config.ordinal)) {
    if (InTheMaking(block->phase) && !block->asked) NotMade(step, *block, why);
  }
  std::vector<RequestId> requests;
  for (const Waiting& waiting : room_.entries()) {
    for (const RoomAsk& ask : waiting.asks) {
      if (ask.device == device.config.ordinal) requests.push_back(waiting.request);
    }
  }
  for (const RequestId& request : requests) {
    GiveUp(room_.Take(request));
    Answer(step, request, why);
  }
  NoteRoom();
}

void Core::Impl::AskCreate(const Step& step, Block& block) {
  Device& device = DeviceOf(block);
  block.device_generation = device.generation;
  if (device.state != DeviceState::kReady) return;
  block.asked = true;
  device.calls.OnAsked(step.now, block.bytes);
  Emit(step, CreateBlock{.device = block.device, .block = block.id, .bytes = block.bytes});
}

void Core::Impl::AskRelease(const Step& step, Block& block) {
  Device& device = DeviceOf(block);
  if (device.state != DeviceState::kReady || !MayGoBack(step, block)) return;
  block.asked = true;
  ++device.releases_asked;
  device.calls.OnAsked(step.now, block.bytes);
  Emit(step, ReleaseBlock{.device = block.device, .block = block.id});
}

void Core::Impl::RunRetries(const Step& step, Device& device) {
  while (!device.retries.empty() && device.retries.front().after_release <= device.releases_ended) {
    Block* const block = blocks_.Find(device.retries.front().block);
    device.retries.pop_front();
    if (block != nullptr && block->phase == BlockPhase::kReserved && !block->asked) AskCreate(step, *block);
  }
}

}  // namespace berth::core
