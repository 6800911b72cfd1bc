// Devices in and out of service: what the vault reports, what an operator wants, and workers that hang.

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"

namespace berth::core {

void Core::ReportDevice(absl::Time now, uint32_t device, const DeviceReport& report, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto found = impl_->devices_.find(device);
  if (found == impl_->devices_.end()) return;
  Device& changed = found->second;
  changed.abandoned = report.abandoned;
  changed.restarts_left = report.restarts_left;
  changed.last_failure = report.last_failure;
  impl_->Emit(step, DevicesChanged());
  if (report.dropped && changed.state != DeviceState::kDropped) {
    changed.state = DeviceState::kDropped;
    changed.calls.Clear();
    impl_->RefuseWaiting(step, changed);
  }
  if (report.generation <= changed.generation) return;
  changed.generation = report.generation;
  // What nobody has is good for nobody. What somebody has stays theirs to give back.
  for (const BlockId warm : changed.warm.All()) impl_->Abandon(step, *impl_->blocks_.Find(warm));
}

absl::StatusOr<DeviceView> Core::EnableDevice(absl::Time now, uint32_t device, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  BERTH_ASSIGN_OR_RETURN(Device* const found, impl_->FindForOperator(device));
  if (found->abandoned) return impl_->OutOfService(*found);
  if (found->state == DeviceState::kStopped) {
    impl_->Order(step, *found, DeviceOrder::kEnable, "");
  }
  return impl_->ViewDevice(*found);
}

absl::StatusOr<DeviceView> Core::RestartDevice(absl::Time now, uint32_t device, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  BERTH_ASSIGN_OR_RETURN(Device* const found, impl_->FindForOperator(device));
  if (found->state == DeviceState::kStopped) return impl_->OutOfService(*found);
  if (found->state == DeviceState::kReady) {
    impl_->Order(step, *found, DeviceOrder::kRestart, "an operator had it restarted");
  }
  return impl_->ViewDevice(*found);
}

absl::StatusOr<DeviceView> Core::ResetDevice(absl::Time now, uint32_t device, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  BERTH_ASSIGN_OR_RETURN(Device* const found, impl_->FindForOperator(device));
  impl_->Order(step, *found, DeviceOrder::kReset, "an operator said that the device was reset");
  return impl_->ViewDevice(*found);
}

absl::StatusOr<DeviceView> Core::DropDevice(absl::Time now, uint32_t device, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  BERTH_ASSIGN_OR_RETURN(Device* const found, impl_->FindForOperator(device));
  found->last_failure = "an operator took the device out of the node";
  impl_->Order(step, *found, DeviceOrder::kDrop, found->last_failure);
  impl_->RefuseWaiting(step, *found);
  return impl_->ViewDevice(*found);
}

absl::StatusOr<Device*> Core::Impl::FindForOperator(uint32_t device) {
  const auto found = devices_.find(device);
  if (found == devices_.end()) {
    return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "device"}, {"id", device}});
  }
  if (found->second.state == DeviceState::kDropped) return OutOfService(found->second);
  return &found->second;
}

void Core::Impl::Order(const Step& step, Device& device, DeviceOrder order, const std::string& why) {
  device.calls.Clear();
  if (order == DeviceOrder::kDrop) {
    device.state = DeviceState::kDropped;
  } else if (device.in_service() || order == DeviceOrder::kEnable) {
    device.state = DeviceState::kRebuilding;
  }
  Emit(step, OrderDevice{.device = device.config.ordinal, .order = order, .why = why});
  Emit(step, DevicesChanged());
}

void Core::Impl::EndHungWorkers(const Step& step) {
  for (auto& [ordinal, device] : devices_) {
    if (device.calls.deadline() > step.now) continue;
    device.last_failure =
        absl::StrCat("a driver call did not end in ",
                     absl::FormatDuration(absl::Trunc(device.calls.allowed(), absl::Milliseconds(1))));
    Order(step, device, DeviceOrder::kKill, device.last_failure);
  }
}

absl::Status Core::Impl::OutOfService(const Device& device) {
  return Refuse(Reason::kDeviceStopped, "device {device} is out of service: {why}",
                {{"device", device.config.ordinal},
                 {"why", device.last_failure.empty() ? "stopped" : device.last_failure}});
}

const char* Core::Impl::WhyStale(const Block& block) const {
  const Device& device = devices_.at(block.device);
  if (device.state == DeviceState::kDropped) return "device state dropped";
  return block.device_generation == device.generation ? nullptr : "context rebuilt";
}

}  // namespace berth::core
