// How simulated clients split work over devices, and the guarantees of a split.

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "tests/sim/simulation.h"

namespace berth::core {

PlanRequest Simulation::NewPlan() {
  PlanRequest request{
      .units = Chance(95) ? 1 + Draw(200) : Draw(2) * UINT64_MAX,
      .one_island = Chance(10),
      .wait = !Chance(20),
      .deadline = Chance(50) ? absl::InfiniteFuture() : now_ + absl::Milliseconds(Draw(2'000)),
      .independent = Chance(50)};
  if (Chance(40)) {
    for (uint64_t i = 0; i <= Draw(2); ++i)
      request.devices.push_back(absl::StrCat("HOST-", Chance(98) ? i : 7));
    if (Chance(50)) {
      request.source = WeightSource::kGiven;
      for (size_t i = 0; i < request.devices.size(); ++i)
        request.weights.push_back(static_cast<double>(Draw(4)));
    }
  }
  if (Chance(50)) request.bytes_per_unit = Bytes(1 + Draw(200'000));
  request.reserve = request.bytes_per_unit > Bytes() && Chance(70);
  if (Chance(30)) request.min_units = Draw(60);
  if (Chance(20)) request.max_devices = Draw(3);
  if (Chance(60)) {
    request.pool = Chance(40) ? "gpu-tests" : "wide";
    request.permit_units = Chance(80) ? 1 : 1 + Draw(4);
  }
  return request;
}

Simulation::Payload Simulation::NewPlanPayload(const Client& client) {
  if (client.plans.empty() || Chance(40)) return NewPlan();
  const PlanId plan = Chance(98) ? client.plans[Draw(client.plans.size())] : PlanId(Draw(1'000));
  if (Chance(70)) return ReplanRequest{.plan = plan, .reweigh = Chance(30)};
  return plan;
}

void Simulation::LearnPlan(const Process& process, const PlanResult& result) {
  const PlanLayout& layout = *result.layout;
  std::map<uint32_t, uint64_t> had;
  std::map<PermitId, AcquisitionId> permits;
  ++(result.from_revision == 0 ? counts_.plans : counts_.replans);
  if (const auto before = plans_.find(layout.id); before != plans_.end()) {
    if (before->second->revision != result.from_revision) Fail("a plan is re-planned from another revision");
    for (const PlanDevice& device : before->second->devices) {
      had[device.ordinal] = device.units;
      if (device.permit) permits[device.permit] = device.acquisition;
    }
  } else if (result.from_revision != 0) {
    Fail("a plan is re-planned that is not there");
  }
  uint64_t units = 0, devices = 0, must_move = 0, moved = 0;
  for (const PlanDevice& device : layout.devices) {
    units += device.units;
    devices += device.units > 0 ? 1 : 0;
    must_move += had[device.ordinal] > device.units ? had[device.ordinal] - device.units : 0;
    if (device.units > 0 && device.units < layout.asked.min_units)
      Fail("a device has fewer units than asked");
    if (!device.permit) {
      if (device.units > 0 && !layout.asked.pool.empty()) Fail("a plan lacks a permit");
      continue;
    }
    if (permits.erase(device.permit) > 0) continue;
    auto& [session, acquisitions] = permits_[device.permit];
    if (!acquisitions.empty()) Fail("a plan's permit was out already");
    session = process.session;
    acquisitions.insert(device.acquisition);
  }
  if (units != layout.asked.units) Fail("a plan does not cover its units");
  if (layout.asked.max_devices != 0 && devices > layout.asked.max_devices)
    Fail("a plan has too many devices");
  for (const PlanMove& move : result.moves) moved += move.from != move.to ? move.end - move.begin : 0;
  if (result.from_revision != 0 && moved != must_move) Fail("more units move than must");
  counts_.moves += result.moves.empty() ? 0 : 1;
  // Permits that the new revision does not use are back.
  for (const auto& [permit, acquisition] : permits) {
    if (permits_.contains(permit)) permits_.at(permit).second.erase(acquisition);
  }
  plans_[layout.id] = result.layout;
}

void Simulation::ForgetPlan(PlanId plan) {
  const auto found = plans_.find(plan);
  if (found == plans_.end()) return Fail("a plan is given back that is not there");
  for (const PlanDevice& device : found->second->devices) {
    if (device.permit && permits_.contains(device.permit))
      permits_.at(device.permit).second.erase(device.acquisition);
  }
  plans_.erase(found);
}

void Simulation::CheckPlans() {
  const std::vector<PlanView> there = core_->ListPlans(Admin());
  if (there.size() != plans_.size()) {
    Fail(absl::StrCat(there.size(), " plans are there, ", plans_.size(), " were told of"));
  }
  for (const PlanView& view : there) {
    const auto known = plans_.find(view.layout->id);
    if (known == plans_.end() || known->second->revision != view.layout->revision) Fail("a plan is not as told");
    if (!clients_.contains(view.layout->session)) Fail("a plan outlives its session");
  }
}

}  // namespace berth::core
