#include "daemon/core/placement.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "common/error.h"
#include "daemon/core/invariant.h"

namespace berth::core {
namespace {

Bytes SaturatingAdd(Bytes a, Bytes b) {
  return CheckedAdd(a, b).value_or(Bytes(std::numeric_limits<uint64_t>::max()));
}

bool Named(const DeviceWish& wish, const Placement::Facts& facts) {
  return wish.pick != DevicePick::kNamed || facts.uuid == wish.uuid;
}

}  // namespace

void Placement::Update(uint32_t ordinal, const State& state) {
  State& before = devices_.at(ordinal).state;
  // Less room counts as well: whom the pool was held for may stand aside now.
  changes_.verdicts =
      changes_.verdicts || state.ledger != before.ledger || state.in_service != before.in_service;
  changes_.dropped = changes_.dropped || (state.dropped && !before.dropped);
  before = state;
}

Bytes Placement::NeedOf(const Device& device, const DeviceWish& wish) {
  if (wish.declared == Bytes()) return wish.min_free;
  return std::max(wish.min_free, SaturatingAdd(wish.declared, device.facts.context));
}

Bytes Placement::FreeOf(const Device& device, Bytes taken) {
  Bytes free = device.facts.total;
  for (const Bytes part : {device.facts.reserve, device.state.ledger, device.facts.others, taken}) {
    free = SaturatingSub(free, part);
  }
  return free;
}

absl::Status Placement::Check(absl::string_view pool, const DeviceWish& wish) const {
  const Device* largest = nullptr;
  bool dropped = false;
  const auto room = [](const Device& device) {
    return SaturatingSub(device.facts.total, device.facts.reserve);
  };
  for (const auto& [ordinal, device] : devices_) {
    if (!Named(wish, device.facts)) continue;
    dropped = dropped || device.state.dropped;
    if (device.state.dropped) continue;
    if (largest == nullptr || room(*largest) < room(device)) largest = &device;
  }
  const std::string name = wish.pick == DevicePick::kNamed ? wish.uuid : "of any kind";
  if (largest == nullptr && dropped) {
    return Refuse(Reason::kDeviceStopped, "device {device} is out of service: {why}",
                  {{"device", name}, {"why", "gone from the node"}});
  }
  if (largest == nullptr) {
    return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "device"}, {"id", name}});
  }
  if (const Bytes need = NeedOf(*largest, wish); need > room(*largest)) {
    return Refuse(Reason::kOverCap, "permit pool {pool}: asked {asked} bytes of a device, the most is {cap}",
                  {{"pool", pool}, {"asked", need.count()}, {"cap", room(*largest).count()}});
  }
  return absl::OkStatus();
}

Placement::Choice Placement::Judge(uint32_t ordinal, const Device& device, const DeviceWish& wish) const {
  if (!device.state.in_service || !Named(wish, device.facts)) return {.verdict = Verdict::kAside};
  const Bytes need = NeedOf(device, wish);
  if (need <= FreeOf(device, device.taken)) return {.verdict = Verdict::kFits, .ordinal = ordinal};
  return {.verdict = need <= FreeOf(device, Bytes()) ? Verdict::kWaits : Verdict::kAside};
}

Placement::Choice Placement::Choose(const DeviceWish& wish) const {
  Choice best{.verdict = Verdict::kAside};
  // Fewer permits and more bytes are better, in this order.
  std::tuple<uint64_t, uint64_t> best_rank;
  for (const auto& [ordinal, device] : devices_) {
    const Choice choice = Judge(ordinal, device, wish);
    if (choice.verdict != Verdict::kFits) {
      if (best.verdict == Verdict::kAside) best.verdict = choice.verdict;
      continue;
    }
    const std::tuple<uint64_t, uint64_t> rank = {
        wish.pick == DevicePick::kBest ? 0 : device.permits,
        std::numeric_limits<uint64_t>::max() - FreeOf(device, device.taken).count()};
    if (best.verdict == Verdict::kFits && best_rank <= rank) continue;
    best = choice;
    best_rank = rank;
  }
  return best;
}

void Placement::Take(uint32_t ordinal, Bytes declared) {
  Device& device = devices_.at(ordinal);
  ++device.permits;
  if (declared == Bytes()) return;
  device.declared = SaturatingAdd(device.declared, declared);
  device.taken = SaturatingAdd(device.taken, SaturatingAdd(declared, device.facts.context));
}

void Placement::Give(uint32_t ordinal, Bytes declared) {
  Device& device = devices_.at(ordinal);
  BERTH_INVARIANT(device.permits > 0);
  --device.permits;
  changes_.verdicts = true;
  if (declared == Bytes()) return;
  device.declared = SaturatingSub(device.declared, declared);
  device.taken = SaturatingSub(device.taken, SaturatingAdd(declared, device.facts.context));
}

PlacedDevice Placement::Describe(uint32_t ordinal) const {
  const Device& device = devices_.at(ordinal);
  return {.ordinal = ordinal,
          .uuid = device.facts.uuid,
          .kind = device.facts.kind,
          .generation = device.state.generation};
}

Bytes Placement::FreeOn(uint32_t ordinal) const {
  const Device& device = devices_.at(ordinal);
  return FreeOf(device, device.taken);
}

Bytes Placement::DeclaredOn(uint32_t ordinal) const { return devices_.at(ordinal).declared; }

uint64_t Placement::PermitsOn(uint32_t ordinal) const { return devices_.at(ordinal).permits; }

}  // namespace berth::core
