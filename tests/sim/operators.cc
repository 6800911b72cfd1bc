// Operators' actions in a simulation: on devices, blocks, caps and budgets.

#include <iterator>

#include <berth/error.h>

#include "absl/algorithm/container.h"
#include "tests/sim/simulation.h"

namespace berth::core {

void Simulation::OperateDevice() {
  const uint32_t device = static_cast<uint32_t>(Draw(config_.devices.size()));
  const DeviceView view = core_->ListDevices().at(device);
  if (view.state == DeviceState::kDropped) return;
  if (device == 2 && Chance(20)) {
    ++counts_.dropped_devices;
    if (!core_->DropDevice(now_, device, &effects_).ok()) Fail("a device cannot be dropped");
    return;
  }
  if (Chance(5)) {
    // A reset concerns all cards of the node.
    for (const DeviceView& each : core_->ListDevices()) {
      if (each.state != DeviceState::kDropped && !core_->ResetDevice(now_, each.ordinal, &effects_).ok()) {
        Fail("a device cannot be reset");
      }
    }
    return;
  }
  const bool stopped = view.state == DeviceState::kStopped;
  const bool has_context = view.context.has_value();
  const bool context_stopped = has_context && view.context->state == DeviceState::kStopped;
  const uint64_t die = Draw(16);
  if (die >= 12) return ChangeDevice(device);
  if (die < 7) {
    const bool stuck = (stopped && workers_[{device, WorkerKind::kMain}].abandoned) ||
                       (context_stopped && workers_[{device, WorkerKind::kContext}].abandoned);
    if (core_->EnableDevice(now_, device, &effects_).ok() == stuck) Fail("enabling is judged wrongly");
  } else if (die < 9) {
    const auto restarted = core_->RestartDevice(now_, device, &effects_);
    if (restarted.ok() == stopped) Fail("a restart is judged wrongly");
  } else if (die < 11) {
    const auto restarted = core_->RestartContext(now_, device, &effects_);
    if (restarted.ok() != (has_context && !context_stopped)) Fail("a restart is judged wrongly");
  } else if (!core_->ResetDevice(now_, device, &effects_).ok()) {
    Fail("a device cannot be reset");
  }
}

void Simulation::ChangeDevice(uint32_t device) {
  if (Chance(20)) {
    ++counts_.drained;
    // A step begins with whatever is due, which may grant the device once more.
    core_->Tick(now_, &effects_);
    Apply();
    OncePersisted([this, device] { drained_[device] = "a reason"; });
    if (!core_->DrainDevice(now_, device, "a reason", &effects_).ok()) Fail("a device cannot be drained");
  } else if (Chance(65)) {
    OncePersisted([this, device] { drained_.erase(device); });
    if (!core_->UndrainDevice(now_, device, &effects_).ok()) Fail("a device cannot be undrained");
  } else {
    // The monitor reports that the device has left the bus, or has returned.
    const bool lost = Chance(60);
    counts_.lost_devices += lost ? 1 : 0;
    core_->DeviceSurveyed(now_, device,
                          {.lost = lost, .trouble = lost ? "off the bus" : "", .nvlink_peers = Draw(4)},
                          &effects_);
  }
}

void Simulation::OperateBlock() {
  if (clients_.empty()) return;
  const auto& [session, client] = *clients_.Nth(Draw(clients_.size()));
  const Caller caller{.credentials = {.session = session, .secret = client.secret},
                      .tenant = client.tenant,
                      .admin = Chance(50)};
  const uint64_t die = Draw(10);
  if (die < 5) {
    const CallId call(++last_call_);
    reaps_.insert(call);
    core_->Reap(now_, call, caller, &effects_);
    if (Chance(20)) core_->CancelCall(now_, call, &effects_);
    return;
  }
  if (handles_.empty()) return;
  BlockId block = handles_[Draw(handles_.size())].block;
  if (Chance(60)) {
    for (const BlockView& torn : core_->ListBlocks(Admin())) {
      if (torn.torn && Chance(90)) block = torn.handle.block;
    }
    const absl::StatusOr<BlockView> whole = core_->ClearTorn(now_, caller, block, &effects_);
    if (whole.ok() && whole->torn) Fail("a block is torn that was said to be whole");
    if (whole.ok() && !caller.admin && whole->owner != session) Fail("a stranger says that a block is whole");
    if (!whole.ok()) return;
    ++counts_.cleared;
    return OncePersisted([this, block] { alone_.ClearTorn(block); });
  }
  const absl::StatusOr<BlockView> view = die < 9 ? core_->Recall(now_, caller, block, &effects_)
                                                 : core_->FreeById(now_, caller, block, &effects_);
  if (view.ok() && !caller.admin && view->tenant != client.tenant) Fail("a stranger names a block");
}

PoolChange Simulation::NewPoolChange() {
  PoolChange change{.cap = Draw(9)};
  if (Chance(20)) change.device_cap = Chance(50) ? 0 : 1 + Draw(4);
  // A grant whose answer is on its way would be compared with the new cap.
  if (Chance(15) && effects_.empty()) change.no_device_cap = Draw(4);
  if (Chance(10)) change.device_caps["HOST-1"] = Draw(3);
  if (Chance(20)) change.device_caps["HOST-1"] = std::nullopt;
  return change;
}

void Simulation::Operate() {
  if (config_.quotas != QuotaTable() && Chance(20)) return ChangeQuotas();
  if (Chance(30)) return OperateDevice();
  if (Chance(20)) return OperateBlock();
  if (Chance(10)) {
    const uint32_t device = static_cast<uint32_t>(Draw(config_.devices.size()));
    // A next broker uses the configuration at its start.
    config_.devices[device].budget = MiB(8 + Draw(56));
    return core_->ConfigureBudget(now_, device, config_.devices[device].budget, &effects_);
  }
  if (Chance(30)) {
    if (permits_.empty()) return;
    const PermitId permit = std::next(permits_.begin(), Draw(permits_.size()))->first;
    if (!core_->RevokePermit(now_, permit, &effects_).ok()) {
      // The step may have withdrawn it first.
      const auto is_it = [&](const PermitView& view) { return view.id == permit; };
      const bool out = absl::c_any_of(core_->ListPermits(Admin(), ""), is_it);
      return !options_.pauses || out ? Fail("a permit cannot be revoked") : void();
    }
    return OncePersisted([this, permit] { permits_.erase(permit); });
  }
  if (Chance(50)) {
    // Grants that are due are made under the earlier caps.
    core_->Tick(now_, &effects_);
    CheckPools();
    const auto changed = core_->SetPool(now_, Chance(50) ? "gpu-tests" : "wide", NewPoolChange(), &effects_);
    if (!changed.ok() && !absl::IsInvalidArgument(changed.status())) Fail("a cap cannot be set");
  } else {
    if (clients_.empty()) return;
    const auto& [session, client] = *clients_.Nth(Draw(clients_.size()));
    const bool admin = Chance(80);
    const Caller caller{.credentials = {.session = session, .secret = client.secret},
                        .tenant = client.tenant,
                        .admin = admin};
    SetBudgetRequest request{.device = static_cast<uint32_t>(Draw(2)), .limit = MiB(Draw(70))};
    if (Chance(60)) request.of = client.tenant;
    if (Chance(40)) request.of = session;
    // Removes the limit again, so that inner layers do not end up as small as they ever were.
    if (Chance(40) && request.of.index() != 0) request.limit.reset();
    const auto changed = core_->SetBudget(now_, caller, request, &effects_);
    const bool may = admin || request.of == BudgetOwner(session);
    if (!may && changed.ok()) Fail("a budget is set by whom it is not for");
    if (!changed.ok() && !absl::IsOutOfRange(changed.status()) &&
        !IsRefusal(changed.status(), Reason::kAdminOnly)) {
      Fail("a budget cannot be set");
    }
  }
}

}  // namespace berth::core
