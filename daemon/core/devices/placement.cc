#include "daemon/core/devices/placement.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include <berth/error.h>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "daemon/core/types/invariant.h"

namespace berth::core {
namespace {

Bytes SaturatingAdd(Bytes a, Bytes b) {
  return CheckedAdd(a, b).value_or(Bytes(std::numeric_limits<uint64_t>::max()));
}

// Most bytes of a CUDA_VISIBLE_DEVICES that a message repeats.
constexpr size_t kShownVisible = 64;

// Formats a capability, such as "9.0".
std::string CapabilityText(uint32_t capability) {
  return absl::StrCat(capability / 10, ".", capability % 10);
}

uint64_t UnitsIn(const std::map<const DeviceShares*, uint64_t>& units, const DeviceShares* shares) {
  const auto found = units.find(shares);
  return found == units.end() ? 0 : found->second;
}

// Assigns each item its own candidate (augmenting paths), its first choice if possible.
class Matching {
 public:
  explicit Matching(const std::vector<std::vector<uint32_t>>& candidates) : candidates_(candidates) {}

  // Returns empty if some item gets no candidate.
  std::optional<std::vector<uint32_t>> Find() {
    for (size_t i = 0; i < candidates_.size(); ++i) {
      seen_.clear();
      if (!Place(i)) return std::nullopt;
    }
    std::vector<uint32_t> found(candidates_.size());
    for (const auto& [candidate, owner] : owners_) found[owner] = candidate;
    return found;
  }

 private:
  // Moves the owner of a candidate to another candidate if necessary. Recursion depth: at most the number of devices.
  bool Place(size_t i) {
    for (const uint32_t candidate : candidates_[i]) {
      if (!seen_.insert(candidate).second) continue;
      const auto owner = owners_.find(candidate);
      if (owner != owners_.end() && !Place(owner->second)) continue;
      owners_[candidate] = i;
      return true;
    }
    return false;
  }

  const std::vector<std::vector<uint32_t>>& candidates_;
  std::map<uint32_t, size_t> owners_;
  std::set<uint32_t> seen_;
};

}  // namespace

uint64_t DeviceShares::CapOf(const std::string& uuid) const {
  const auto found = caps.find(uuid);
  if (found != caps.end()) return found->second;
  return cap == 0 ? UINT64_MAX : cap;
}

uint64_t DeviceShares::OutOn(uint32_t ordinal) const {
  const auto found = out.find(ordinal);
  return found == out.end() ? 0 : found->second;
}

void Placement::Update(uint32_t ordinal, const State& state) {
  ++version_;
  State& before = At(ordinal).state;
  // Less capacity matters, too: a waiter that the pool was held for may be skipped now.
  changes_.verdicts =
      changes_.verdicts || state.ledger != before.ledger || state.in_service != before.in_service;
  // A request that names the device cannot be granted any more.
  changes_.never = changes_.never || (state.dropped && !before.dropped) ||
                   (!state.stopped.empty() && before.stopped.empty()) ||
                   (!state.draining.empty() && before.draining.empty());
  before = state;
}

Bytes Placement::NeedOf(const Device& device, const DeviceConstraint& constraint) {
  if (constraint.declared == Bytes()) return constraint.min_free;
  return std::max(constraint.min_free, SaturatingAdd(constraint.declared, device.facts.context));
}

Bytes Placement::ChargeOf(const Device& device, const Share& share) {
  uint64_t contexts = 0;
  if (__builtin_mul_overflow(share.declaring, device.facts.context.count(), &contexts)) {
    contexts = std::numeric_limits<uint64_t>::max();
  }
  return std::max(SaturatingAdd(share.declared, Bytes(contexts)), share.used);
}

void Placement::Recount(Device* device) {
  device->charged = device->loose = Bytes();
  for (const auto& [session, share] : device->shares) {
    device->charged = SaturatingAdd(device->charged, ChargeOf(*device, share));
    if (share.declaring == 0) device->loose = SaturatingAdd(device->loose, share.used);
  }
}

Bytes Placement::FreeOf(const Device& device) {
  return SaturatingSub(CapacityOf(device),
                       SaturatingAdd(SaturatingAdd(device.state.ledger, OthersOf(device)), device.charged));
}

Bytes Placement::FreeWithoutPermits(const Device& device) {
  return SaturatingSub(CapacityOf(device),
                       SaturatingAdd(SaturatingAdd(device.state.ledger, OthersOf(device)), device.loose));
}

bool Placement::TooOld(const Device& device, const DeviceConstraint& constraint) {
  return !device.fresh && (constraint.declared > Bytes() || constraint.min_free > Bytes());
}

Bytes Placement::CapacityOf(const Device& device) {
  return SaturatingSub(device.facts.total, device.facts.reserve);
}

double Placement::ScoreOf(const Device& device) { return device.facts.facts.ScoreWith(FreeOf(device)); }

std::tuple<uint64_t, uint64_t> Placement::RankOf(uint32_t ordinal, const Device& device,
                                                 DevicePick pick) const {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  const uint64_t fullness = kMost - FreeOf(device).count();
  switch (pick) {
    case DevicePick::kBest:
      return {0, fullness};
    case DevicePick::kHighestScore:
      // Rounds the score to a millionth: smaller differences count as equal.
      return {kMost - static_cast<uint64_t>(ScoreOf(device) * 1e6), 0};
    case DevicePick::kRoundRobin:
      return {(ordinal + kMaxDeviceOrdinals - turn_ - 1) % kMaxDeviceOrdinals, 0};
    case DevicePick::kNone:
    case DevicePick::kAny:
    case DevicePick::kNamed:
      break;
  }
  return {device.permits, fullness};
}

const Placement::Device* Placement::FindByUuid(absl::string_view uuid) const {
  for (const auto& [ordinal, device] : devices_) {
    if (device.facts.uuid == uuid) return &device;
  }
  return nullptr;
}

std::vector<DeviceLabel> Placement::Labels() const {
  std::vector<DeviceLabel> labels;
  for (const auto& [ordinal, device] : devices_) labels.emplace_back(ordinal, device.facts.uuid);
  return labels;
}

absl::StatusOr<uint32_t> Placement::Find(absl::string_view name) const { return FindDeviceByName(Labels(), name); }

absl::StatusOr<std::vector<std::string>> Placement::Among(const std::vector<std::string>& names,
                                                          const std::optional<std::string>& visible) const {
  std::vector<std::string> among;
  BERTH_ASSIGN_OR_RETURN(const std::vector<DeviceLabel> chosen, DevicesAmong(Labels(), names, visible));
  const auto is_cuda = [](const auto& entry) { return IsCudaDevice(entry.second.facts.uuid); };
  if (names.empty() && !(visible.has_value() && absl::c_any_of(devices_, is_cuda))) return among;
  // A list of all devices is still a list: AwayFor() must not depend on the number of other devices.
  for (const auto& [ordinal, uuid] : chosen) among.emplace_back(uuid);
  std::sort(among.begin(), among.end());
  return among;
}

absl::Status Placement::Resolve(DeviceConstraint* constraint) const {
  for (std::string* const name : {&constraint->uuid, &constraint->island_of}) {
    if (name->empty()) continue;
    BERTH_ASSIGN_OR_RETURN(const uint32_t ordinal, Find(*name));
    *name = At(ordinal).facts.uuid;
  }
  const std::optional<std::string> visible = std::exchange(constraint->visible, std::nullopt);
  if (constraint->pick == DevicePick::kNone || (constraint->among.empty() && !visible.has_value()))
    return absl::OkStatus();
  const std::vector<std::string> names = std::move(constraint->among);
  BERTH_ASSIGN_OR_RETURN(constraint->among, Among(names, visible));
  if (constraint->pick != DevicePick::kNamed) return absl::OkStatus();
  const auto excludes = [&](const std::vector<std::string>& among) {
    return !among.empty() && !std::binary_search(among.begin(), among.end(), constraint->uuid);
  };
  if (!excludes(constraint->among)) return absl::OkStatus();
  BERTH_ASSIGN_OR_RETURN(const std::vector<std::string> listed, Among(names, std::nullopt));
  const std::string why = excludes(listed)
                              ? absl::StrCat("it is none of ", absl::StrJoin(listed, ", "))
                              : absl::StrCat("the caller's CUDA_VISIBLE_DEVICES=\"",
                                             visible.value_or("").substr(0, kShownVisible), "\" excludes it");
  return Refuse(Reason::kNoDevice, "no eligible device: asked {asked}; {lacking}",
                {{"asked", absl::StrCat("device ", constraint->uuid)}, {"lacking", why}});
}

bool Placement::Asks(const Device& device, const DeviceConstraint& constraint) {
  if (constraint.pick == DevicePick::kNamed && device.facts.uuid != constraint.uuid) return false;
  return constraint.among.empty() ||
         std::binary_search(constraint.among.begin(), constraint.among.end(), device.facts.uuid);
}

bool Placement::Suits(const Device& device, const DeviceConstraint& constraint) const {
  if (!Asks(device, constraint)) return false;
  if (device.facts.facts.capability() < constraint.min_capability) return false;
  if (constraint.island_of.empty()) return true;
  const Device* const of = FindByUuid(constraint.island_of);
  return of != nullptr && of->island == device.island;
}

void Placement::SetIsland(uint32_t ordinal, uint32_t island) {
  Device& device = At(ordinal);
  changes_.verdicts = changes_.verdicts || device.island != island;
  // No device may be left in the island that a constraint names.
  changes_.never = changes_.never || device.island != island;
  shape_ += device.island != island ? 1 : 0;
  device.island = island;
}

std::string Placement::LackOf(uint32_t ordinal, const Device& device, const Ask& ask) const {
  if (device.state.dropped) return "gone from the node";
  if (!device.state.draining.empty()) return absl::StrCat("being drained: ", device.state.draining);
  if (!device.state.stopped.empty()) return absl::StrCat("out of service: ", device.state.stopped);
  if (!device.state.in_service) return "out of service";
  const DeviceConstraint& constraint = ask.constraint;
  const uint32_t capability = device.facts.facts.capability();
  if (capability < constraint.min_capability)
    return absl::StrCat("of compute capability ", CapabilityText(capability));
  if (!Asks(device, constraint)) return "not requested";
  if (!Suits(device, constraint)) return "in another island";
  if (TooOld(device, constraint)) return "last read too long ago";
  const Bytes need = NeedOf(device, constraint);
  if (need > FreeOf(device))
    return absl::StrCat("short of bytes: ", FreeOf(device).count(), " free of ", need.count());
  const uint64_t cap = ask.shares == nullptr ? UINT64_MAX : ask.shares->CapOf(device.facts.uuid);
  if (cap != UINT64_MAX && (ask.units > cap || ask.shares->OutOn(ordinal) > cap - ask.units)) {
    return absl::StrCat("at its cap in the pool: ", ask.shares->OutOn(ordinal), " of ", cap, " units out");
  }
  const Load alone;
  if (Judge(ordinal, device, ask, alone) != Verdict::kFits) return "without capacity in the pool";
  return "";
}

std::string Placement::Lacking(const Ask& ask) const {
  std::string text;
  size_t named = 0;
  // Lists devices that the constraint does not name only if it names none.
  const bool any_asked = std::any_of(devices_.begin(), devices_.end(),
                                     [&](const auto& each) { return Asks(each.second, ask.constraint); });
  for (const auto& [ordinal, device] : devices_) {
    if (any_asked && !Asks(device, ask.constraint)) continue;
    const std::string lack = LackOf(ordinal, device, ask);
    if (lack.empty()) continue;
    if (++named > kNamedDevices) continue;
    absl::StrAppend(&text, text.empty() ? "" : "; ", "device ", ordinal, " is ", lack);
  }
  if (named > kNamedDevices) absl::StrAppend(&text, "; and ", named - kNamedDevices, " more");
  if (!text.empty()) return text;
  return devices_.empty() ? "the node has no devices" : "each device has enough for one permit alone";
}

absl::Status Placement::CheckConstraint(const DeviceConstraint& constraint) const {
  const auto unknown = [](absl::string_view uuid) {
    return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "device"}, {"id", uuid}});
  };
  const auto refuse = [](Reason reason, absl::string_view device, absl::string_view how, absl::string_view why) {
    return Refuse(reason, "device {device} is {how}: {why}", {{"device", device}, {"how", how}, {"why", why}});
  };
  if (!constraint.island_of.empty() && FindByUuid(constraint.island_of) == nullptr)
    return unknown(constraint.island_of);
  const bool named = constraint.pick == DevicePick::kNamed;
  if (named && FindByUuid(constraint.uuid) == nullptr) return unknown(constraint.uuid);
  if (devices_.empty()) return unknown("of any kind");
  // Collects why none of the suitable devices serves.
  std::string why;
  bool all_drained = true;
  for (const auto& [ordinal, device] : devices_) {
    if (!Suits(device, constraint)) continue;
    const State& state = device.state;
    const Away away = AwayFor(device, constraint);
    if (!state.dropped && away == Away::kNot) return absl::OkStatus();
    const bool drained = !state.dropped && away == Away::kDrained;
    all_drained = all_drained && drained;
    absl::StrAppend(&why, why.empty() ? "" : "; ", named ? "" : absl::StrCat("device ", ordinal, ": "),
                    state.dropped ? "gone from the node" : drained ? state.draining : state.stopped);
  }
  if (!why.empty()) {
    const bool narrowed = constraint.min_capability > 0 || !constraint.island_of.empty();
    const absl::string_view device = named                       ? absl::string_view(constraint.uuid)
                                     : !constraint.among.empty() ? "of the list"
                                     : narrowed                  ? "of the requested kind"
                                                                 : "of any kind";
    return all_drained ? refuse(Reason::kDeviceDraining, device, "being drained", why)
                       : refuse(Reason::kDeviceStopped, device, "out of service", why);
  }
  return Refuse(Reason::kNoDevice, "no eligible device: asked {asked}; {lacking}",
                {{"asked", Describe(constraint)}, {"lacking", Lacking({.constraint = constraint})}});
}

std::string Placement::Describe(const DeviceConstraint& constraint) {
  const bool named = constraint.pick == DevicePick::kNamed;
  std::string asked = named ? absl::StrCat("device ", constraint.uuid) : "any device";
  if (!named && !constraint.among.empty()) asked = absl::StrCat("one of ", absl::StrJoin(constraint.among, ", "));
  if (constraint.min_capability > 0) {
    absl::StrAppend(&asked, " of compute capability ", CapabilityText(constraint.min_capability), " or more");
  }
  if (!constraint.island_of.empty()) absl::StrAppend(&asked, " in the island of ", constraint.island_of);
  return asked;
}

std::vector<uint32_t> Placement::Fitting(const Ask& ask) const {
  return Candidates(ask, {}, {}, Verdict::kFits,
                    [this](uint32_t ordinal, const Device& device, const Ask& one, const Load& load) {
                      return Judge(ordinal, device, one, load);
                    });
}

Placement::Verdict Placement::Judge(uint32_t ordinal, const Device& device, const Ask& ask,
                                    const Load& load) const {
  if (!device.state.in_service || !Suits(device, ask.constraint)) return Verdict::kSkipped;
  const Bytes need = SaturatingAdd(NeedOf(device, ask.constraint), load.bytes);
  // Bytes that the same gang reserves there count, too.
  if (!device.fresh && need > Bytes()) return Verdict::kSkipped;
  if (need > FreeWithoutPermits(device)) return Verdict::kSkipped;
  if (ask.shares != nullptr) {
    const uint64_t cap = ask.shares->CapOf(device.facts.uuid);
    const uint64_t units = ask.units + UnitsIn(load.units, ask.shares);
    if (units > cap) return Verdict::kSkipped;
    if (ask.shares->OutOn(ordinal) > cap - units) return Verdict::kWaits;
  }
  return need <= FreeOf(device) ? Verdict::kFits : Verdict::kWaits;
}

Placement::Verdict Placement::JudgeEmpty(uint32_t, const Device& device, const Ask& ask,
                                         const Load& load) const {
  if (device.state.dropped || !Suits(device, ask.constraint)) return Verdict::kSkipped;
  if (SaturatingAdd(NeedOf(device, ask.constraint), load.bytes) > CapacityOf(device)) return Verdict::kSkipped;
  if (ask.shares == nullptr) return Verdict::kFits;
  const uint64_t units = ask.units + UnitsIn(load.units, ask.shares);
  return units <= ask.shares->CapOf(device.facts.uuid) ? Verdict::kFits : Verdict::kSkipped;
}

Placement::Away Placement::AwayFor(const Device& device, const DeviceConstraint& constraint) {
  if (constraint.wait_for_device) return Away::kNot;
  // A request for any device waits for drained devices, as it waits for devices that are in use.
  const bool lists = constraint.pick == DevicePick::kNamed || !constraint.among.empty();
  if (lists && !device.state.draining.empty()) return Away::kDrained;
  return device.state.stopped.empty() ? Away::kNot : Away::kStopped;
}

Placement::Choice Placement::Choose(const Ask& ask) const {
  Choice best{.verdict = Verdict::kSkipped};
  std::tuple<uint64_t, uint64_t> best_rank;
  const Load alone;
  for (const auto& [ordinal, device] : devices_) {
    const Verdict verdict = Judge(ordinal, device, ask, alone);
    if (verdict != Verdict::kFits) {
      if (best.verdict == Verdict::kSkipped) best.verdict = verdict;
      continue;
    }
    const std::tuple<uint64_t, uint64_t> rank = RankOf(ordinal, device, ask.constraint.pick);
    if (best.verdict == Verdict::kFits && best_rank <= rank) continue;
    best = {.verdict = verdict, .ordinal = ordinal};
    best_rank = rank;
  }
  return best;
}

std::vector<uint32_t> Placement::Candidates(const Ask& ask, const Loads& loads,
                                            const std::set<uint32_t>& taken, Verdict worst,
                                            JudgeOne judge) const {
  std::vector<std::tuple<std::tuple<uint64_t, uint64_t>, uint32_t>> ranked;
  const Load none;
  for (const auto& [ordinal, device] : devices_) {
    if (taken.contains(ordinal)) continue;
    const auto load = loads.find(ordinal);
    if (judge(ordinal, device, ask, load == loads.end() ? none : load->second) > worst) continue;
    ranked.emplace_back(RankOf(ordinal, device, ask.constraint.pick), ordinal);
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<uint32_t> ordinals;
  for (const auto& [rank, ordinal] : ranked) ordinals.push_back(ordinal);
  return ordinals;
}

Placement::Choices Placement::Assign(const std::vector<Ask>& asks, const BytesByDevice& besides,
                                     JudgeOne judge) const {
  Choices choices{.verdict = Verdict::kFits, .ordinals = std::vector<uint32_t>(asks.size())};
  Loads loads;
  for (const auto& [ordinal, bytes] : besides) loads[ordinal].bytes = bytes;
  // Asks for a named device may share it; they come first and exclude it for the other asks.
  std::set<uint32_t> taken;
  std::vector<size_t> open;
  for (size_t i = 0; i < asks.size(); ++i) {
    if (asks[i].constraint.pick != DevicePick::kNamed) {
      open.push_back(i);
      continue;
    }
    Verdict verdict = Verdict::kSkipped;
    for (const auto& [ordinal, device] : devices_) {
      if (!Suits(device, asks[i].constraint)) continue;
      Load& load = loads[ordinal];
      verdict = judge(ordinal, device, asks[i], load);
      load.bytes = SaturatingAdd(load.bytes, NeedOf(device, {.declared = asks[i].constraint.declared}));
      load.units[asks[i].shares] += asks[i].units;
      taken.insert(ordinal);
      choices.ordinals[i] = ordinal;
    }
    choices.verdict = std::max(choices.verdict, verdict);
  }
  for (const Verdict worst : {Verdict::kFits, Verdict::kWaits}) {
    std::vector<std::vector<uint32_t>> candidates;
    for (const size_t i : open) candidates.push_back(Candidates(asks[i], loads, taken, worst, judge));
    const std::optional<std::vector<uint32_t>> found = Matching(candidates).Find();
    if (!found.has_value()) continue;
    for (size_t i = 0; i < open.size(); ++i) choices.ordinals[open[i]] = (*found)[i];
    choices.verdict = std::max(choices.verdict, worst);
    return choices;
  }
  choices.verdict = Verdict::kSkipped;
  return choices;
}

Placement::Choices Placement::ChooseAll(const std::vector<Ask>& asks, const BytesByDevice& besides) const {
  return Assign(asks, besides,
                [this](uint32_t ordinal, const Device& device, const Ask& ask, const Load& load) {
                  return Judge(ordinal, device, ask, load);
                });
}

void Placement::Take(uint32_t ordinal, SessionId session, Bytes declared) {
  Device& device = At(ordinal);
  turn_ = ordinal;
  ++device.permits;
  if (declared == Bytes()) return;
  ++version_;
  device.declared = SaturatingAdd(device.declared, declared);
  Share& share = device.shares[session];
  const Bytes before = ChargeOf(device, share);
  if (share.declaring == 0) device.loose = SaturatingSub(device.loose, share.used);
  share.declared = SaturatingAdd(share.declared, declared);
  ++share.declaring;
  device.charged = SaturatingAdd(SaturatingSub(device.charged, before), ChargeOf(device, share));
}

void Placement::Give(uint32_t ordinal, SessionId session, Bytes declared) {
  Device& device = At(ordinal);
  BERTH_INVARIANT(device.permits > 0);
  --device.permits;
  changes_.verdicts = true;
  if (declared == Bytes()) return;
  ++version_;
  device.declared = SaturatingSub(device.declared, declared);
  const auto share = device.shares.find(session);
  BERTH_INVARIANT(share != device.shares.end() && share->second.declaring > 0);
  const Bytes before = ChargeOf(device, share->second);
  share->second.declared = SaturatingSub(share->second.declared, declared);
  --share->second.declaring;
  device.charged = SaturatingAdd(SaturatingSub(device.charged, before), ChargeOf(device, share->second));
  if (share->second.declaring == 0) device.loose = SaturatingAdd(device.loose, share->second.used);
  if (share->second.declaring == 0 && share->second.used == Bytes()) device.shares.erase(share);
}

void Placement::Measure(uint32_t ordinal, Usage usage) {
  Device& device = At(ordinal);
  const Bytes before = FreeOf(device), without = FreeWithoutPermits(device);
  ++version_;
  device.read_at = usage.taken;
  fresh_until_ = absl::InfinitePast();
  device.others = usage.others;
  for (auto it = device.shares.begin(); it != device.shares.end();) {
    const auto share = it++;
    share->second.used = Bytes();
    if (share->second.declaring == 0) device.shares.erase(share);
  }
  for (const auto& [session, used] : usage.sessions) {
    if (used > Bytes()) device.shares[session].used = used;
  }
  Recount(&device);
  changes_.verdicts = changes_.verdicts || FreeOf(device) != before || FreeWithoutPermits(device) != without;
}

void Placement::SetContext(uint32_t ordinal, Bytes context) {
  Device& device = At(ordinal);
  changes_.verdicts = changes_.verdicts || device.facts.context != context;
  // Declared bytes and the context may no longer fit on any device together.
  changes_.never = changes_.never || device.facts.context < context;
  shape_ += device.facts.context != context ? 1 : 0;
  ++version_;
  device.facts.context = context;
  Recount(&device);
}

void Placement::SetNow(absl::Time now) {
  if (now <= fresh_until_) return;
  fresh_until_ = absl::InfiniteFuture();
  for (auto& [ordinal, device] : devices_) {
    const bool fresh = !device.read_at.has_value() || now - *device.read_at <= kFresh;
    changes_.verdicts = changes_.verdicts || fresh != device.fresh;
    version_ += fresh != device.fresh ? 1 : 0;
    device.fresh = fresh;
    if (device.read_at.has_value() && fresh) fresh_until_ = std::min(fresh_until_, *device.read_at + kFresh);
  }
}

bool Placement::OnlyOld(const DeviceConstraint& constraint) const {
  bool any = false;
  for (const auto& [ordinal, device] : devices_) {
    if (!device.state.in_service || !Suits(device, constraint)) continue;
    if (!TooOld(device, constraint)) return false;
    any = true;
  }
  return any;
}

PlacedDevice Placement::Describe(uint32_t ordinal) const {
  const Device& device = At(ordinal);
  return {.ordinal = ordinal,
          .uuid = device.facts.uuid,
          .kind = device.facts.kind,
          .generation = device.state.generation};
}

Bytes Placement::FreeOn(uint32_t ordinal) const { return FreeOf(At(ordinal)); }

double Placement::ScoreOn(uint32_t ordinal) const { return ScoreOf(At(ordinal)); }

bool Placement::AnyServes(const DeviceConstraint& constraint) const {
  return std::any_of(devices_.begin(), devices_.end(), [&](const auto& each) {
    return each.second.state.in_service && Suits(each.second, constraint);
  });
}

Bytes Placement::MostFree(const DeviceConstraint& constraint) const {
  Bytes most;
  for (const auto& [ordinal, device] : devices_) {
    if (!device.state.in_service || !Suits(device, constraint)) continue;
    most = std::max(most, FreeOf(device));
  }
  return most;
}

Bytes Placement::DeclaredOn(uint32_t ordinal) const { return At(ordinal).declared; }

uint64_t Placement::PermitsOn(uint32_t ordinal) const { return At(ordinal).permits; }

}  // namespace berth::core
