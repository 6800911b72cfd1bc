// Devices in and out of service: what the vault reports, what an operator wants, and workers that hang.

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"

namespace berth::core {

void Core::ReportDevice(absl::Time now, uint32_t device, Lane lane, const DeviceReport& report,
                        Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto found = impl_->devices_.find(device);
  if (found == impl_->devices_.end()) return;
  Device& changed = found->second;
  Worker& worker = changed.worker(lane);
  worker.abandoned = report.abandoned;
  worker.restarts_left = report.restarts_left;
  worker.last_failure = report.last_failure;
  impl_->Emit(step, DevicesChanged());
  if (lane == Lane::kMain && !std::exchange(changed.drain_known, true)) {
    changed.drain_reason = report.drain_reason;
    if (!changed.drain_reason.empty()) impl_->RefuseDrained(step, changed);
  }
  if (report.dropped && worker.state != DeviceState::kDropped) {
    worker.state = DeviceState::kDropped;
    worker.calls.Clear();
    impl_->UpdateIslands();
    impl_->RefuseWaiting(step, changed, lane);
  }
  if (report.generation <= worker.generation) return;
  worker.generation = report.generation;
  if (lane == Lane::kContext) {
    // Its memory goes with it: whoever is asked next is another one.
    if (worker.state == DeviceState::kReady) worker.state = DeviceState::kRebuilding;
    impl_->NoteContextNeed(step, changed);
    return;
  }
  // What nobody has is good for nobody. What somebody has stays theirs to give back.
  for (const BlockId warm : changed.warm.All()) impl_->Abandon(step, *impl_->blocks_.Find(warm));
}

absl::StatusOr<DeviceView> Core::EnableDevice(absl::Time now, uint32_t device, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  BERTH_ASSIGN_OR_RETURN(Device* const found, impl_->FindForOperator(device));
  for (const Lane lane : kLanes) {
    const Worker& worker = found->worker(lane);
    if (worker.state == DeviceState::kStopped && worker.abandoned) return impl_->OutOfService(*found, lane);
  }
  impl_->Enable(step, *found);
  return impl_->ViewDevice(*found);
}

absl::StatusOr<DeviceView> Core::RestartDevice(absl::Time now, uint32_t device, Effects* effects) {
  return impl_->Restart(impl_->Begin(now, effects), device, Lane::kMain);
}

absl::StatusOr<DeviceView> Core::RestartContext(absl::Time now, uint32_t device, Effects* effects) {
  return impl_->Restart(impl_->Begin(now, effects), device, Lane::kContext);
}

absl::StatusOr<DeviceView> Core::Impl::Restart(const Step& step, uint32_t device, Lane lane) {
  BERTH_ASSIGN_OR_RETURN(Device* const found, FindForOperator(device));
  if (lane == Lane::kContext) BERTH_RETURN_IF_ERROR(CheckHasContext(*found));
  const DeviceState state = found->worker(lane).state;
  if (state == DeviceState::kStopped) return OutOfService(*found, lane);
  if (state == DeviceState::kReady) {
    Order(step, *found, lane, DeviceOrder::kRestart, "an operator had it restarted");
  }
  return ViewDevice(*found);
}

absl::StatusOr<DeviceView> Core::ResetDevice(absl::Time now, uint32_t device, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  BERTH_ASSIGN_OR_RETURN(Device* const found, impl_->FindForOperator(device));
  impl_->Order(step, *found, Lane::kMain, DeviceOrder::kReset, "an operator said that the device was reset");
  return impl_->ViewDevice(*found);
}

absl::StatusOr<DeviceView> Core::DropDevice(absl::Time now, uint32_t device, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  BERTH_ASSIGN_OR_RETURN(Device* const found, impl_->FindForOperator(device));
  const std::string why = "an operator took the device out of the node";
  for (const Lane lane : kLanes) found->worker(lane).last_failure = why;
  impl_->Order(step, *found, Lane::kMain, DeviceOrder::kDrop, why);
  impl_->UpdateIslands();
  for (const Lane lane : kLanes) impl_->RefuseWaiting(step, *found, lane);
  return impl_->ViewDevice(*found);
}

absl::StatusOr<Device*> Core::Impl::FindForOperator(uint32_t device) {
  const auto found = devices_.find(device);
  if (found == devices_.end()) {
    return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "device"}, {"id", device}});
  }
  if (found->second.main.state == DeviceState::kDropped) return OutOfService(found->second, Lane::kMain);
  return &found->second;
}

void Core::Impl::Order(const Step& step, Device& device, Lane lane, DeviceOrder order,
                       const std::string& why) {
  for (const Lane each : kLanes) {
    Worker& worker = device.worker(each);
    const bool drains = order == DeviceOrder::kDrain || order == DeviceOrder::kUndrain;
    const bool both =
        order == DeviceOrder::kReset || order == DeviceOrder::kDrop || order == DeviceOrder::kLose;
    if (drains || (each != lane && !both)) continue;
    worker.calls.Clear();
    if (order == DeviceOrder::kDrop) {
      worker.state = DeviceState::kDropped;
    } else if (order == DeviceOrder::kLose) {
      worker.state = DeviceState::kStopped;
    } else if (order == DeviceOrder::kEnable && each == Lane::kMain) {
      worker.state = DeviceState::kProbation;
      device.tested = false;
    } else if (order == DeviceOrder::kEnable || order == DeviceOrder::kStart ||
               worker.state == DeviceState::kReady) {
      // One on probation stays there until the vault says what came of it.
      worker.state = DeviceState::kRebuilding;
    }
  }
  NoteContextNeed(step, device);
  Emit(step, OrderDevice{.device = device.config.ordinal, .order = order, .lane = lane, .why = why});
  Emit(step, DevicesChanged());
}

void Core::Impl::EndHungWorkers(const Step& step) {
  for (auto& [ordinal, device] : devices_) {
    for (const Lane lane : kLanes) {
      Worker& worker = device.worker(lane);
      if (worker.calls.deadline() > step.now) continue;
      worker.last_failure =
          absl::StrCat("a driver call did not end in ",
                       absl::FormatDuration(absl::Trunc(worker.calls.allowed(), absl::Milliseconds(1))));
      Order(step, device, lane, DeviceOrder::kKill, worker.last_failure);
    }
  }
}

absl::Status Core::Impl::OutOfService(const Device& device, Lane lane) {
  const std::string& why = device.worker(lane).last_failure;
  return Refuse(Reason::kDeviceStopped, "{what} {device} is out of service: {why}",
                {{"what", lane == Lane::kMain ? "device" : "the context worker of device"},
                 {"device", device.config.ordinal},
                 {"why", why.empty() ? "stopped" : why}});
}

const char* Core::Impl::WhyStale(const Block& block) const {
  const Device& device = devices_.at(block.device);
  if (device.main.state == DeviceState::kDropped) return "device state dropped";
  return block.memory_generation == device.worker(block.lane()).generation ? nullptr : "context rebuilt";
}

}  // namespace berth::core
