// What the monitor says of devices, what follows from it, and what an operator wants empty.

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"

namespace berth::core {
namespace {

// A driver that hangs for a device for good has the monitor ended ever more seldom: the others lose a second each time.
constexpr absl::Duration kLongestPatience = absl::Minutes(10);

}  // namespace

void Core::MonitorUp(absl::Time now, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  for (auto& [ordinal, device] : impl_->devices_) device.survey_due = now + device.survey_patience;
}

void Core::MonitorDown(absl::Time now, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  for (auto& [ordinal, device] : impl_->devices_) device.survey_due = absl::InfiniteFuture();
}

void Core::DeviceSurveyed(absl::Time now, uint32_t device, const DeviceSurvey& survey, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto found = impl_->devices_.find(device);
  if (found == impl_->devices_.end()) return;
  Device& seen = found->second;
  seen.survey_patience = impl_->config_.calls.base;
  seen.survey_due = now + seen.survey_patience;
  if (seen.main.state == DeviceState::kDropped) return;
  if (survey.nvlink_peers.has_value() && *survey.nvlink_peers != seen.nvlink_peers) {
    seen.nvlink_peers = *survey.nvlink_peers;
    impl_->UpdateIslands();
    impl_->Emit(step, DevicesChanged());
  }
  if (survey.lost) {
    if (!std::exchange(seen.lost, true)) impl_->journal_.Touch(RowKind::kDevice, device);
    if (!seen.main.in_service()) return;
    const std::string why = survey.trouble.empty() ? "the driver has lost the device" : survey.trouble;
    for (const Lane lane : kLanes) seen.worker(lane).last_failure = why;
    impl_->Order(step, seen, Lane::kMain, DeviceOrder::kLose, why);
    for (const Lane lane : kLanes) impl_->RefuseWaiting(step, seen, lane);
  } else if (seen.lost && seen.main.state == DeviceState::kStopped && !seen.main.abandoned) {
    impl_->Enable(step, seen);
  }
}

void Core::Impl::Enable(const Step& step, Device& device) {
  for (const Lane lane : kLanes) {
    // One that does not end even by SIGKILL is followed by none until it does.
    if (device.worker(lane).state != DeviceState::kStopped || device.worker(lane).abandoned) continue;
    Order(step, device, lane, DeviceOrder::kEnable, "");
  }
}

void Core::Impl::EndHungMonitor(const Step& step) {
  const Device* hung = nullptr;
  for (auto& [ordinal, device] : devices_) {
    if (device.survey_due > step.now) continue;
    hung = &device;
    device.survey_patience = std::min(2 * device.survey_patience, kLongestPatience);
  }
  if (hung == nullptr) return;
  for (auto& [ordinal, device] : devices_) device.survey_due = absl::InfiniteFuture();
  Emit(step, OrderDevice{.device = hung->config.ordinal,
                         .order = DeviceOrder::kKillMonitor,
                         .why = absl::StrCat("nothing was heard of device ", hung->config.ordinal)});
}

// ---- Draining -----------------------------------------------------------------------------------------------

absl::StatusOr<DeviceView> Core::DrainDevice(absl::Time now, uint32_t device, const std::string& reason,
                                             Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  BERTH_RETURN_IF_ERROR(ValidateLabel("reason", reason));
  BERTH_ASSIGN_OR_RETURN(Device* const found, impl_->FindForOperator(device));
  found->drain_known = true;
  found->drain_reason = reason.empty() ? "drained by an operator" : reason;
  impl_->Order(step, *found, Lane::kMain, DeviceOrder::kDrain, found->drain_reason);
  impl_->RefuseDrained(step, *found);
  return impl_->ViewDevice(*found);
}

absl::StatusOr<DeviceView> Core::UndrainDevice(absl::Time now, uint32_t device, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  BERTH_ASSIGN_OR_RETURN(Device* const found, impl_->FindForOperator(device));
  found->drain_known = true;
  impl_->journal_.Touch(RowKind::kDevice, device);
  if (found->drain_reason.empty()) return impl_->ViewDevice(*found);
  found->drain_reason.clear();
  impl_->Order(step, *found, Lane::kMain, DeviceOrder::kUndrain, "");
  impl_->NoteRoom();
  return impl_->ViewDevice(*found);
}

void Core::Impl::RefuseDrained(const Step& step, Device& device) {
  const absl::Status why = Draining(device);
  std::vector<RequestId> requests;
  for (const Waiting& waiting : room_.entries()) {
    for (const RoomAsk& ask : waiting.asks) {
      if (ask.device != device.config.ordinal) continue;
      requests.push_back(waiting.request);
      break;
    }
  }
  for (const RequestId& request : requests) TurnAway(step, request, why);
  // What was made ahead is for those who come, and nobody does.
  for (const BlockId warm : device.warm.All()) Abandon(step, *blocks_.Find(warm));
  NoteRoom();
}

absl::Status Core::Impl::Draining(const Device& device) {
  return Refuse(Reason::kDeviceDraining, "device {device} is being drained: {why}",
                {{"device", device.config.ordinal}, {"why", device.drain_reason}});
}

// ---- Islands ------------------------------------------------------------------------------------------------

void Core::Impl::UpdateIslands() {
  for (auto& [ordinal, device] : devices_) device.island = ordinal;
  // Each takes the least of those that it reaches, as often as anything changes: at most once for each device.
  for (bool changed = true; changed;) {
    changed = false;
    for (auto& [ordinal, device] : devices_) {
      if (device.main.state == DeviceState::kDropped) continue;
      for (auto& [other, peer] : devices_) {
        if (peer.main.state == DeviceState::kDropped) continue;
        const bool named =
            device.config.facts.island.has_value() && device.config.facts.island == peer.config.facts.island;
        const bool linked =
            named || ((device.nvlink_peers >> other) & 1) != 0 || ((peer.nvlink_peers >> ordinal) & 1) != 0;
        if (!linked || peer.island >= device.island) continue;
        device.island = peer.island;
        changed = true;
      }
    }
  }
  for (const auto& [ordinal, device] : devices_) placement_.SetIsland(ordinal, device.island);
}

std::vector<IslandView> Core::ListIslands() const {
  std::vector<IslandView> views;
  for (const auto& [ordinal, device] : impl_->devices_) {
    if (device.main.state == DeviceState::kDropped) continue;
    views.push_back({.ordinal = ordinal,
                     .uuid = device.config.uuid,
                     .generation = device.main.generation,
                     .island = device.island});
  }
  return views;
}

}  // namespace berth::core
