// What the devices' workers report, and what they are asked.

#include <algorithm>
#include <utility>

#include "common/error.h"
#include "common/label.h"
#include "daemon/core/core_impl.h"

namespace berth::core {
namespace {

bool IsOutOfMemory(const absl::Status& status) { return IsRefusal(status, Reason::kOutOfMemory); }

}  // namespace

void Core::BlockCreated(absl::Time now, BlockId block, const absl::Status& status, Effects* effects,
                        const IpcHandle& handle) {
  const Step step = impl_->Begin(now, effects);
  Block* const made = impl_->blocks_.Find(block);
  if (made == nullptr || !InTheMaking(made->phase) || !made->asked) return;
  made->asked = made->asked_earlier = false;
  impl_->DeviceOf(*made).worker(made->lane()).calls.OnAnswered(now, made->bytes);
  if (!status.ok()) {
    impl_->NotMade(step, *made, status);
  } else {
    made->ipc_handle = handle;
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
  Unmake(step, block);
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
    device.worker(released->lane()).calls.OnAnswered(now, released->bytes);
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
    released->release_error = ToMessage(status.message(), LogRecord::kMaxMessageBytes);
    impl_->ForEachBudget(*released, [&](ByteBudget& budget) { budget.MarkStuck(released->bytes); });
  }
  impl_->RunRetries(step, device);
  impl_->NoteRoom();
}

void Core::WorkerAtWork(absl::Time now, uint32_t device, Lane lane, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto found = impl_->devices_.find(device);
  if (found == impl_->devices_.end()) return;
  // It may be at the largest of them.
  Bytes most;
  for (const Block* const block : impl_->blocks_.OfDevice(device)) {
    const bool under_way = InTheMaking(block->phase) || block->phase == BlockPhase::kRetired;
    if (block->lane() == lane && under_way) most = std::max(most, block->bytes);
  }
  CallWatch& calls = found->second.worker(lane).calls;
  calls.Clear();
  calls.OnAsked(step.now, most);
}

void Core::WorkerUp(absl::Time now, uint32_t device, Lane lane, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto found = impl_->devices_.find(device);
  if (found == impl_->devices_.end()) return;
  Device& served = found->second;
  Worker& up = served.worker(lane);
  if (up.state == DeviceState::kDropped) return;
  up.state = DeviceState::kReady;
  up.calls.Clear();
  if (lane == Lane::kMain) served.lost = served.tested = false;
  impl_->Emit(step, DevicesChanged());
  for (const Block* const there : impl_->blocks_.OfDevice(device)) {
    if (there->asked || there->lane() != lane) continue;
    if (!InTheMaking(there->phase) && there->phase != BlockPhase::kRetired) continue;
    Block* const block = impl_->blocks_.Find(there->id);
    if (InTheMaking(block->phase)) {
      impl_->AskCreate(step, *block);
      continue;
    }
    if (block->stuck) {
      // A new worker may succeed where the last one failed.
      block->stuck = false;
      impl_->ForEachBudget(*block, [&](ByteBudget& budget) { budget.UnmarkStuck(block->bytes); });
    }
    impl_->AskRelease(step, *block);
  }
  if (lane == Lane::kContext) impl_->NoteContextNeed(step, served);
  impl_->NoteRoom();
}

void Core::WorkerDown(absl::Time now, uint32_t device, Lane lane, DeviceState state, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto found = impl_->devices_.find(device);
  if (found == impl_->devices_.end()) return;
  Device& served = found->second;
  Worker& down = served.worker(lane);
  if (lane == Lane::kMain) {
    // It was looked at, and does not work: it has to be lost and come back, or an operator has to ask, for another
    // look.
    if (state == DeviceState::kStopped && served.tested) served.lost = false;
    served.tested = state == DeviceState::kProbation;
  }
  if (down.state != DeviceState::kDropped) down.state = state;
  impl_->Emit(step, DevicesChanged());
  down.calls.Clear();
  if (lane == Lane::kContext) {
    impl_->NoteContextNeed(step, served);
    if (!down.abandoned) {
      down.lost_before = down.generation;
      served.account.set_daemon(Bytes(0));
    }
  }
  for (const Block* const there : impl_->blocks_.OfDevice(device)) {
    const bool goes = there->phase == BlockPhase::kAbandoned || there->phase == BlockPhase::kRetired;
    if (there->lane() != lane || !(there->asked || goes)) continue;
    Block& block = *impl_->blocks_.Find(there->id);
    const bool asked = std::exchange(block.asked, false);
    impl_->NoteReaped(step, block, /*back=*/false);
    if (block.phase == BlockPhase::kAbandoned) {
      impl_->Unmake(step, block);
    } else if (block.phase == BlockPhase::kRetired) {
      served.releases_ended += asked ? 1 : 0;
      if (impl_->IsLost(block)) impl_->AskRelease(step, block);
    }
  }
  impl_->RunRetries(step, served);
  if (!down.in_service()) impl_->RefuseWaiting(step, served, lane);
  impl_->StartContextIfWanted(step, served);
  impl_->NoteRoom();
}

void Core::Impl::RefuseWaiting(const Step& step, Device& device, Lane lane) {
  const absl::Status why = OutOfService(device, lane);
  for (const Block* const there : blocks_.OfDevice(device.config.ordinal)) {
    if (there->lane() != lane || !InTheMaking(there->phase) || there->asked) continue;
    NotMade(step, *blocks_.Find(there->id), why);
  }
  std::vector<RequestId> requests;
  for (const Waiting& waiting : room_.entries()) {
    if (LaneOf(waiting.kind) != lane) continue;
    for (const RoomAsk& ask : waiting.asks) {
      if (ask.device == device.config.ordinal) requests.push_back(waiting.request);
    }
  }
  for (const RequestId& request : requests) TurnAway(step, request, why);
  NoteRoom();
}

void Core::Impl::AskCreate(const Step& step, Block& block) {
  Worker& worker = DeviceOf(block).worker(block.lane());
  if (block.lane() == Lane::kMain && block.asked_earlier && block.memory_generation < worker.generation) {
    // What an earlier broker had made of it would be taken for an answer, and is lost.
    const absl::Status lost = Refuse(Reason::kDeviceRebuilding, "device {device} has lost its memory: ask once more",
                                     {{"device", block.device}});
    return NotMade(step, block, lost);
  }
  block.memory_generation = worker.generation;
  if (worker.state != DeviceState::kReady) return;
  block.asked = true;
  worker.calls.OnAsked(step.now, block.bytes);
  Emit(step,
       CreateBlock{.device = block.device, .lane = block.lane(), .block = block.id, .bytes = block.bytes});
}

void Core::Impl::AskRelease(const Step& step, Block& block) {
  Device& device = DeviceOf(block);
  Worker& worker = device.worker(block.lane());
  const bool lost = IsLost(block);
  if (!lost && worker.state != DeviceState::kReady) return;
  if (!MayGoBack(step, block)) return;
  block.asked = true;
  ++device.releases_asked;
  if (!lost) worker.calls.OnAsked(step.now, block.bytes);
  Emit(step, ReleaseBlock{.device = block.device, .lane = block.lane(), .block = block.id, .lost = lost});
}

void Core::Impl::RunRetries(const Step& step, Device& device) {
  while (!device.retries.empty() && device.retries.front().after_release <= device.releases_ended) {
    Block* const block = blocks_.Find(device.retries.front().block);
    device.retries.pop_front();
    if (block != nullptr && block->phase == BlockPhase::kReserved && !block->asked) AskCreate(step, *block);
  }
}

}  // namespace berth::core
