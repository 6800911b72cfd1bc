// Splits a plan's units: selects the devices to consider, their weights and capacities, and the leases to acquire.

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "common/device_score.h"
#include "common/status_macros.h"
#include "daemon/base/partition.h"
#include "daemon/base/repartition.h"
#include "daemon/core/managers.h"
#include "daemon/core/plans/plan_transaction.h"

namespace berth::core {
namespace {

absl::Status CheckFields(const PlanRequest& request) {
  if (request.units == 0) {
    return Refuse(Reason::kInvalidField, "{field} is {value}, the least is {limit}",
                  {{"field", "units"}, {"value", 0}, {"limit", 1}});
  }
  if (request.devices.size() > kMaxDeviceOrdinals) {
    return Refuse(Reason::kInvalidField, "{field}: {value} devices; a node has at most {limit}",
                  {{"field", "devices"}, {"value", request.devices.size()}, {"limit", kMaxDeviceOrdinals}});
  }
  const size_t weights = request.source == WeightSource::kScore ? 0 : request.devices.size();
  if (request.weights.size() != weights || (weights == 0 && request.source != WeightSource::kScore)) {
    return Refuse(
        Reason::kInvalidField, "{field}: {value} weights; {limit}",
        {{"field", "weights"},
         {"value", request.weights.size()},
         {"limit", request.source == WeightSource::kScore
                       ? std::string("expected none with scores")
                       : absl::StrCat("expected one for each of the ", request.devices.size(), " named devices")}});
  }
  if (request.reserve && request.bytes_per_unit == Bytes()) {
    return Refuse(Reason::kInvalidField, "{field} is {value}, the least is {limit} with a reservation of bytes",
                  {{"field", "bytes_per_unit"}, {"value", 0}, {"limit", 1}});
  }
  return absl::OkStatus();
}

bool MayUse(const PlanRequest& request, const Device& device) {
  return request.among.empty() || std::binary_search(request.among.begin(), request.among.end(), device.config.uuid);
}

const PlanDevice* FindIn(const PlanLayout* layout, uint32_t ordinal) {
  if (layout == nullptr) return nullptr;
  for (const PlanDevice& device : layout->devices) {
    if (device.ordinal == ordinal) return &device;
  }
  return nullptr;
}

// A considered device and its score, which is negative if the device does not serve.
struct Ranked {
  double score = 0;
  Bytes free;
  const Device* device = nullptr;
};

Ranked Rank(const Device& device, Bytes free) {
  const double score = device.takes_leases() ? device.config.facts.ScoreWith(free) : -1;
  return {.score = score, .free = free, .device = &device};
}

// Fills a new PlanDevice, except its capacity for units.
void Describe(const Ranked& one, PlanDevice* described) {
  const DeviceConfig& config = one.device->config;
  described->ordinal = config.ordinal;
  described->uuid = one.device->uuid;
  described->kind = config.kind;
  described->generation = one.device->main.generation;
  described->sm_count = config.facts.sm_count;
  described->cc_major = config.facts.cc_major;
  described->free = one.free;
  if (one.score < 0) {
    described->left = PlanDevice::Left::kOutOfService;
  } else {
    described->weight = one.score;
  }
}

bool Serves(const PlanDevice& device) { return device.left != PlanDevice::Left::kOutOfService; }

// Returns the tiles of `before` with indexes into `devices`, which contains all of its devices.
std::vector<Tile> TilesOf(const PlanLayout& before, const std::vector<PlanDevice>& devices) {
  std::vector<Tile> tiles = before.tiles;
  for (Tile& tile : tiles) {
    const uint32_t ordinal = before.devices[tile.device].ordinal;
    const auto at = std::find_if(devices.begin(), devices.end(),
                                 [&](const PlanDevice& device) { return device.ordinal == ordinal; });
    tile.device = at - devices.begin();
  }
  return tiles;
}

PerDevice<uint64_t> UnitsOf(const std::vector<PlanDevice>& devices) {
  PerDevice<uint64_t> units(devices.size());
  uint64_t* to = units.data();
  for (const PlanDevice& device : devices) *to++ = device.units;
  return units;
}

// Returns the moves of all units that changed their device, or whose device has lost its memory.
std::vector<PlanMove> MovesOf(const PlanLayout& before, const std::vector<Tile>& had, const PlanLayout& layout) {
  std::vector<PlanMove> moves;
  auto was = had.begin();
  for (const Tile& is : layout.tiles) {
    for (uint64_t at = is.begin; at < is.end;) {
      while (was->end <= at) ++was;
      const uint64_t end = std::min(was->end, is.end);
      const PlanDevice* const from = FindIn(&before, layout.devices[was->device].ordinal);
      if (was->device != is.device || from->generation != layout.devices[is.device].generation) {
        moves.push_back(
            {.from = was->device, .from_generation = from->generation, .to = is.device, .begin = at, .end = end});
      }
      at = end;
    }
  }
  return moves;
}

}  // namespace

bool PlanTransaction::Holds(SessionId session, AcquisitionId acquisition) const {
  return std::any_of(core_.permits.pools().begin(), core_.permits.pools().end(),
                     [&](const auto& pool) { return pool.second.Holds(session, acquisition); });
}

Bytes PlanTransaction::LeftOn(const Session& session, const Device& device) const {
  const uint32_t ordinal = device.config.ordinal;
  const auto left = [](const std::optional<Bytes>& limit, Bytes held) {
    return limit.has_value() ? SaturatingSub(*limit, held) : Bytes(UINT64_MAX);
  };
  Bytes least = left(device.account.limit(), device.account.held());
  const auto own = session.budgets.find(ordinal);
  const bool charged = own != session.budgets.end();
  least = std::min(
      least, charged ? left(own->second.limit(), own->second.held()) : left(core_.config.session_budget, Bytes()));
  const TenantAccount& tenant = core_.budgets.tenants().at(session.tenant);
  const auto shared = tenant.budgets.find(ordinal);
  least = std::min(least, shared != tenant.budgets.end() ? left(shared->second.limit(), shared->second.held())
                                                         : left(core_.config.tenant_budget, Bytes()));
  const uint64_t granularity = device.config.granularity.count();
  return Bytes(least.count() / granularity * granularity);
}

Bytes PlanTransaction::HasOn(const Session& session, const Device& device, Bytes bytes_per_unit,
                             const PlanLayout& before) const {
  const uint32_t ordinal = device.config.ordinal;
  if (before.asked.reserve) {
    const Reservation* const own = core_.reservations.Find(before.reservation);
    return own == nullptr ? Bytes() : core_.reservations.HeldIn(*own, ordinal);
  }
  const PlanDevice* const had = FindIn(&before, ordinal);
  const auto blocks = session.budgets.find(ordinal);
  // Bytes in lost memory do not count.
  if (had == nullptr || had->generation != device.main.generation || blocks == session.budgets.end()) return Bytes();
  return std::min(blocks->second.held(), Bytes(had->units * bytes_per_unit.count()));
}

uint64_t PlanTransaction::CapacityOn(const Session& session, const Device& device, Bytes bytes_per_unit,
                                     const PlanLayout* before) const {
  Bytes left = LeftOn(session, device);
  if (before != nullptr) left = CheckedAdd(left, HasOn(session, device, bytes_per_unit, *before)).value_or(left);
  return left.count() / bytes_per_unit.count();
}

absl::StatusOr<std::vector<const Device*>> PlanTransaction::Named(const PlanRequest& request) const {
  std::vector<const Device*> devices;
  std::set<absl::string_view> named;
  for (const std::string& name : request.devices) {
    if (name.empty()) {
      return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "device"}, {"id", "of an empty UUID"}});
    }
    BERTH_ASSIGN_OR_RETURN(const Device* const device, core_.devices.FindDevice(0, name));
    if (!named.insert(*device->uuid).second) {
      return Refuse(Reason::kInvalidField, "{field}: \"{value}\" appears twice; expected {limit}",
                    {{"field", "devices"}, {"value", name}, {"limit", "each device once"}});
    }
    if (!MayUse(request, *device)) {
      return Refuse(Reason::kNoDevice, "no eligible device: asked {asked}; {lacking}",
                    {{"asked", absl::StrCat("device ", name)},
                     {"lacking", "the caller's CUDA_VISIBLE_DEVICES does not name it"}});
    }
    devices.push_back(device);
  }
  return devices;
}

absl::StatusOr<std::vector<PlanDevice>> PlanTransaction::Consider(const Session& session, const PlanRequest& request,
                                                                  const PlanLayout* before) const {
  // Sorts small entries, because a PlanDevice is too large to sort.
  PerDevice<Ranked> ranked;
  if (!request.devices.empty()) {
    BERTH_ASSIGN_OR_RETURN(const std::vector<const Device*> named, Named(request));
    for (const Device* const device : named) {
      ranked.push_back(Rank(*device, core_.devices.placement().FreeOn(device->config.ordinal)));
    }
  } else {
    ranked.resize(core_.devices.all().size());
    Ranked* last = ranked.data();
    for (const auto& [ordinal, device] : core_.devices.all()) {
      // Skips devices that are permanently gone.
      if (device.main.state == DeviceState::kDropped && FindIn(before, ordinal) == nullptr) continue;
      if (!MayUse(request, device)) continue;
      *last++ = Rank(device, core_.devices.placement().FreeOn(ordinal));
    }
    ranked.resize(last - ranked.data());
    if (before == nullptr) {
      // Best score first, devices that do not serve last. Equal scores stay in ordinal order.
      Ranked* const first = ranked.data();
      for (Ranked* next = first; next < last; ++next) {
        for (Ranked* at = next; at > first && at->score > at[-1].score; --at) std::swap(*at, at[-1]);
      }
    }
  }
  std::vector<PlanDevice> devices(ranked.size());
  PlanDevice* described = devices.data();
  for (const Ranked& one : ranked) Describe(one, described++);
  if (request.source != WeightSource::kScore) {
    for (size_t i = 0; i < devices.size(); ++i) devices[i].weight = request.weights[i];
  }
  if (request.bytes_per_unit > Bytes()) {
    for (size_t i = 0; i < devices.size(); ++i) {
      if (!Serves(devices[i])) continue;
      devices[i].capacity = CapacityOn(session, *ranked[i].device, request.bytes_per_unit, before);
    }
  }
  if (before == nullptr) return devices;
  // Devices that had tiles keep their order.
  const auto place = [&](const PlanDevice& device) {
    const PlanDevice* const at = FindIn(before, device.ordinal);
    return at == nullptr ? before->devices.size() : static_cast<size_t>(at - before->devices.data());
  };
  std::stable_sort(devices.begin(), devices.end(),
                   [&](const PlanDevice& a, const PlanDevice& b) { return place(a) < place(b); });
  return devices;
}

absl::Status PlanTransaction::Share(const PlanRequest& request, const PlanLayout* before,
                                    std::vector<PlanDevice>* devices) const {
  PerDevice<PartitionDevice> serving(devices->size());
  PartitionDevice* to = serving.data();
  double sum = 0;
  for (const PlanDevice& device : *devices) {
    if (!Serves(device)) continue;
    to->weight = device.weight;
    to->most_units = device.capacity;
    if (request.one_island) to->island = core_.devices.At(device.ordinal).island;
    if (const PlanDevice* const had = FindIn(before, device.ordinal); had != nullptr) to->had_units = had->units;
    if (device.weight > 0) sum += device.weight;
    ++to;
  }
  serving.resize(to - serving.data());
  BERTH_ASSIGN_OR_RETURN(const std::vector<uint64_t> shares, ConstrainedShares(request.units, serving,
                                                                               {.min_units = request.min_units,
                                                                                .max_devices = request.max_devices,
                                                                                .one_island = request.one_island}));
  const bool even = !std::isfinite(sum) || sum <= 0;
  const uint64_t* share = shares.data();
  for (PlanDevice& device : *devices) {
    if (!Serves(device)) continue;
    // Share by weight alone, for display: the split itself is exact.
    const double part = even ? 1.0 / static_cast<double>(serving.size()) : device.weight > 0 ? device.weight / sum : 0;
    device.ideal = static_cast<double>(request.units) * part;
    device.units = *share++;
    if (device.units > 0) continue;
    device.left = device.ideal < 1 ? PlanDevice::Left::kTooLight : PlanDevice::Left::kConstraint;
  }
  return absl::OkStatus();
}

void PlanTransaction::AskLeases(const Plan* before, PlanDraft* draft) const {
  PlanLayout& layout = *draft->layout;
  const PlanRequest& asked = layout.asked;
  if (asked.pool.empty() && !asked.reserve) return;
  const Reservation* const own = before == nullptr ? nullptr : core_.reservations.Find(before->layout->reservation);
  for (size_t i = 0; i < layout.devices.size(); ++i) {
    PlanDevice& device = layout.devices[i];
    if (device.units == 0) continue;
    if (const PlanDevice* const had = before == nullptr ? nullptr : FindIn(before->layout.get(), device.ordinal);
        had != nullptr && had->permit && Holds(layout.session, had->acquisition)) {
      device.permit = had->permit;
      device.acquisition = had->acquisition;
      device.holder_key = had->holder_key;
    } else if (!asked.pool.empty()) {
      draft->permits.push_back(i);
      draft->leases.members.push_back({.pool = asked.pool,
                                       .units = asked.permit_units,
                                       .client_cap = asked.client_cap,
                                       .device = {.pick = DevicePick::kNamed, .uuid = *device.uuid}});
    }
    if (!asked.reserve) continue;
    // The reservation fits: capacity is counted in whole blocks.
    const Bytes need = *Bytes(device.units * asked.bytes_per_unit.count())
                            .RoundUp(core_.devices.At(device.ordinal).config.granularity);
    const Bytes has = own == nullptr ? Bytes() : core_.reservations.HeldIn(*own, device.ordinal);
    if (need <= has) continue;
    draft->leases.reserve.push_back({.device = device.ordinal, .bytes = SaturatingSub(need, has)});
  }
  GangRequest& leases = draft->leases;
  if (leases.members.empty() && leases.reserve.empty()) return;
  leases.holder_key = absl::StrCat("plan-", layout.id.value(), ".", layout.revision);
  leases.label = asked.label;
  leases.wait = asked.wait;
  leases.deadline = asked.deadline;
  leases.independent = asked.independent;
  leases.priority = asked.priority;
}

absl::Status PlanTransaction::Draft(const Session& session, const PlanRequest& asked, PlanDraft* draft) {
  BERTH_RETURN_IF_ERROR(CheckFields(asked));
  PlanRequest request = asked;
  const std::optional<std::string> visible = std::exchange(request.visible, std::nullopt);
  BERTH_ASSIGN_OR_RETURN(request.among, core_.devices.placement().Among({}, visible));
  draft->layout = std::make_shared<PlanLayout>();
  PlanLayout& layout = *draft->layout;
  BERTH_ASSIGN_OR_RETURN(layout.devices, Consider(session, request, nullptr));
  BERTH_RETURN_IF_ERROR(Share(request, nullptr, &layout.devices));
  layout.id = core_.NewId<PlanId>();
  layout.session = session.id;
  layout.tenant = session.tenant;
  layout.asked = request;
  layout.score_version = kDeviceScoreVersion;
  layout.tiles = LayOut(UnitsOf(layout.devices));
  layout.since = step_->now;
  AskLeases(nullptr, draft);
  return absl::OkStatus();
}

absl::Status PlanTransaction::Redraft(const Session& session, const Plan& plan, const ReplanRequest& request,
                                      PlanDraft* draft) {
  const PlanLayout& before = *plan.layout;
  const PlanRequest& asked = before.asked;
  draft->layout = std::make_shared<PlanLayout>();
  draft->from_revision = before.revision;
  PlanLayout& layout = *draft->layout;
  BERTH_ASSIGN_OR_RETURN(layout.devices, Consider(session, asked, &before));
  if (!request.reweigh) {
    for (PlanDevice& device : layout.devices) {
      const PlanDevice* const had = FindIn(&before, device.ordinal);
      if (had != nullptr && Serves(*had) && Serves(device)) device.weight = had->weight;
    }
  }
  BERTH_RETURN_IF_ERROR(Share(asked, &before, &layout.devices));
  layout.id = before.id;
  layout.revision = before.revision + 1;
  layout.session = before.session;
  layout.tenant = before.tenant;
  layout.asked = asked;
  layout.score_version = kDeviceScoreVersion;
  layout.reservation = before.reservation;
  layout.since = before.since;
  const std::vector<Tile> had = TilesOf(before, layout.devices);
  const PerDevice<uint64_t> units = UnitsOf(layout.devices);
  layout.tiles = MoveFewest(had, units).tiles;
  if (layout.tiles.size() > kMaxTiles) layout.tiles = LayOut(units);
  draft->moves = MovesOf(before, had, layout);
  AskLeases(&plan, draft);
  // A plan that holds some leases must not wait for others.
  draft->leases.wait = false;
  draft->leases.deadline = absl::InfiniteFuture();
  return absl::OkStatus();
}

}  // namespace berth::core
