#include "daemon/core/placement.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/invariant.h"

namespace berth::core {
namespace {

Bytes SaturatingAdd(Bytes a, Bytes b) {
  return CheckedAdd(a, b).value_or(Bytes(std::numeric_limits<uint64_t>::max()));
}

// Devices whose lack is told.
constexpr size_t kToldDevices = 16;

// "9.0".
std::string CapabilityText(uint32_t capability) {
  return absl::StrCat(capability / 10, ".", capability % 10);
}

uint64_t UnitsIn(const std::map<const DeviceShares*, uint64_t>& units, const DeviceShares* shares) {
  const auto found = units.find(shares);
  return found == units.end() ? 0 : found->second;
}

// Gives each of several a candidate of its own (augmenting paths), its first choice where that can be.
class Matching {
 public:
  explicit Matching(const std::vector<std::vector<uint32_t>>& candidates) : candidates_(candidates) {}

  // Nothing where not all can have one.
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
  // Who has a candidate may be moved to another one. As deep as there are devices at most.
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
  State& before = At(ordinal).state;
  // Less room counts as well: whom the pool was held for may stand aside now.
  changes_.verdicts =
      changes_.verdicts || state.ledger != before.ledger || state.in_service != before.in_service;
  // Whoever wishes for that one by name will not get it.
  changes_.never = changes_.never || (state.dropped && !before.dropped) ||
                   (!state.draining.empty() && before.draining.empty());
  before = state;
}

Bytes Placement::NeedOf(const Device& device, const DeviceWish& wish) {
  if (wish.declared == Bytes()) return wish.min_free;
  return std::max(wish.min_free, SaturatingAdd(wish.declared, device.facts.context));
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
  return SaturatingSub(RoomOf(device),
                       SaturatingAdd(SaturatingAdd(device.state.ledger, OthersOf(device)), device.charged));
}

Bytes Placement::FreeWithoutPermits(const Device& device) {
  return SaturatingSub(RoomOf(device),
                       SaturatingAdd(SaturatingAdd(device.state.ledger, OthersOf(device)), device.loose));
}

bool Placement::TooOld(const Device& device, const DeviceWish& wish) {
  return !device.fresh && (wish.declared > Bytes() || wish.min_free > Bytes());
}

Bytes Placement::RoomOf(const Device& device) {
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
      // To a millionth: what lies closer together is alike.
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

bool Placement::Suits(const Device& device, const DeviceWish& wish) const {
  if (wish.pick == DevicePick::kNamed && device.facts.uuid != wish.uuid) return false;
  if (device.facts.facts.capability() < wish.min_capability) return false;
  if (wish.island_of.empty()) return true;
  const Device* const of = FindByUuid(wish.island_of);
  return of != nullptr && of->island == device.island;
}

void Placement::SetIsland(uint32_t ordinal, uint32_t island) {
  Device& device = At(ordinal);
  changes_.verdicts = changes_.verdicts || device.island != island;
  // No device may be in that one's any more.
  changes_.never = changes_.never || device.island != island;
  device.island = island;
}

std::string Placement::LackOf(uint32_t ordinal, const Device& device, const Ask& ask) const {
  if (device.state.dropped) return "gone from the node";
  if (!device.state.draining.empty()) return absl::StrCat("being drained: ", device.state.draining);
  if (!device.state.in_service) return "out of service";
  const DeviceWish& wish = ask.wish;
  const uint32_t capability = device.facts.facts.capability();
  if (capability < wish.min_capability)
    return absl::StrCat("of compute capability ", CapabilityText(capability));
  if (!Suits(device, wish)) return wish.island_of.empty() ? "another device" : "in another island";
  if (TooOld(device, wish)) return "last read too long ago";
  const Bytes need = NeedOf(device, wish);
  if (need > FreeOf(device))
    return absl::StrCat("short of bytes: ", FreeOf(device).count(), " free of ", need.count());
  const Load alone;
  if (Judge(ordinal, device, ask, alone) != Verdict::kFits) return "without room in the pool";
  return "";
}

std::string Placement::Lacking(const Ask& ask) const {
  std::string text;
  size_t told = 0;
  for (const auto& [ordinal, device] : devices_) {
    const std::string lack = LackOf(ordinal, device, ask);
    if (lack.empty()) continue;
    if (++told > kToldDevices) continue;
    absl::StrAppend(&text, text.empty() ? "" : "; ", "device ", ordinal, " is ", lack);
  }
  if (told > kToldDevices) absl::StrAppend(&text, "; and ", told - kToldDevices, " more");
  return text.empty() ? "there are no devices" : text;
}

absl::Status Placement::CheckWish(const DeviceWish& wish) const {
  const auto unknown = [](absl::string_view uuid) {
    return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "device"}, {"id", uuid}});
  };
  if (!wish.island_of.empty() && FindByUuid(wish.island_of) == nullptr) return unknown(wish.island_of);
  if (wish.pick == DevicePick::kNamed) {
    const Device* const named = FindByUuid(wish.uuid);
    if (named == nullptr) return unknown(wish.uuid);
    const auto refuse = [&](Reason reason, absl::string_view how, absl::string_view why) {
      return Refuse(reason, "device {device} is {how}: {why}",
                    {{"device", wish.uuid}, {"how", how}, {"why", why}});
    };
    if (named->state.dropped) return refuse(Reason::kDeviceStopped, "out of service", "gone from the node");
    if (!named->state.draining.empty()) {
      return refuse(Reason::kDeviceDraining, "being drained", named->state.draining);
    }
  }
  if (devices_.empty()) return unknown("of any kind");
  bool suits = false;
  for (const auto& [ordinal, device] : devices_) {
    if (!Suits(device, wish)) continue;
    if (!device.state.dropped) return absl::OkStatus();
    suits = true;
  }
  if (suits) {
    return Refuse(Reason::kDeviceStopped, "device {device} is out of service: {why}",
                  {{"device", "of any kind"}, {"why", "gone from the node"}});
  }
  std::string asked = wish.pick == DevicePick::kNamed ? absl::StrCat("device ", wish.uuid) : "any device";
  if (wish.min_capability > 0) {
    absl::StrAppend(&asked, " of compute capability ", CapabilityText(wish.min_capability), " or more");
  }
  if (!wish.island_of.empty()) absl::StrAppend(&asked, " in the island of ", wish.island_of);
  return Refuse(Reason::kNoDevice, "no eligible device: asked {asked}; {lacking}",
                {{"asked", asked}, {"lacking", Lacking({.wish = wish})}});
}

std::vector<uint32_t> Placement::Fitting(const Ask& ask) const {
  return Candidates(ask, {}, {}, Verdict::kFits,
                    [this](uint32_t ordinal, const Device& device, const Ask& one, const Load& load) {
                      return Judge(ordinal, device, one, load);
                    });
}

absl::Status Placement::Check(absl::string_view pool, const Ask& ask) const {
  const DeviceWish& wish = ask.wish;
  BERTH_RETURN_IF_ERROR(CheckWish(wish));
  const Device* largest = nullptr;
  uint64_t most_units = 0;
  for (const auto& [ordinal, device] : devices_) {
    if (!Suits(device, wish) || device.state.dropped) continue;
    const uint64_t cap = ask.shares == nullptr ? UINT64_MAX : ask.shares->CapOf(device.facts.uuid);
    most_units = std::max(most_units, cap);
    // The largest of those that may have the units.
    if (largest == nullptr || (ask.units <= cap && RoomOf(*largest) < RoomOf(device))) largest = &device;
  }
  const std::string name = wish.pick == DevicePick::kNamed ? wish.uuid : "of any kind";
  if (ask.units > most_units) {
    return Refuse(Reason::kOverCap,
                  "permit pool {pool}: asked {asked} units on device {device}, cap there {cap}",
                  {{"pool", pool}, {"asked", ask.units}, {"device", name}, {"cap", most_units}});
  }
  if (const Bytes need = NeedOf(*largest, wish); need > RoomOf(*largest)) {
    return Refuse(Reason::kOverCap, "permit pool {pool}: asked {asked} bytes of a device, the most is {cap}",
                  {{"pool", pool}, {"asked", need.count()}, {"cap", RoomOf(*largest).count()}});
  }
  return absl::OkStatus();
}

Placement::Verdict Placement::Judge(uint32_t ordinal, const Device& device, const Ask& ask,
                                    const Load& load) const {
  if (!device.state.in_service || !Suits(device, ask.wish)) return Verdict::kAside;
  if (TooOld(device, ask.wish)) return Verdict::kAside;
  const Bytes need = SaturatingAdd(NeedOf(device, ask.wish), load.bytes);
  if (need > FreeWithoutPermits(device)) return Verdict::kAside;
  if (ask.shares != nullptr) {
    const uint64_t cap = ask.shares->CapOf(device.facts.uuid);
    const uint64_t units = ask.units + UnitsIn(load.units, ask.shares);
    if (units > cap) return Verdict::kAside;
    if (ask.shares->OutOn(ordinal) > cap - units) return Verdict::kWaits;
  }
  return need <= FreeOf(device) ? Verdict::kFits : Verdict::kWaits;
}

Placement::Verdict Placement::JudgeEmpty(uint32_t, const Device& device, const Ask& ask,
                                         const Load& load) const {
  if (device.state.dropped || !Suits(device, ask.wish)) return Verdict::kAside;
  if (SaturatingAdd(NeedOf(device, ask.wish), load.bytes) > RoomOf(device)) return Verdict::kAside;
  if (ask.shares == nullptr) return Verdict::kFits;
  const uint64_t units = ask.units + UnitsIn(load.units, ask.shares);
  return units <= ask.shares->CapOf(device.facts.uuid) ? Verdict::kFits : Verdict::kAside;
}

Placement::Choice Placement::Choose(const Ask& ask) const {
  Choice best{.verdict = Verdict::kAside};
  std::tuple<uint64_t, uint64_t> best_rank;
  const Load alone;
  for (const auto& [ordinal, device] : devices_) {
    const Verdict verdict = Judge(ordinal, device, ask, alone);
    if (verdict != Verdict::kFits) {
      if (best.verdict == Verdict::kAside) best.verdict = verdict;
      continue;
    }
    const std::tuple<uint64_t, uint64_t> rank = RankOf(ordinal, device, ask.wish.pick);
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
    ranked.emplace_back(RankOf(ordinal, device, ask.wish.pick), ordinal);
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
  // Those that say which may share it; they come first, and take it from the others.
  std::set<uint32_t> taken;
  std::vector<size_t> open;
  for (size_t i = 0; i < asks.size(); ++i) {
    if (asks[i].wish.pick != DevicePick::kNamed) {
      open.push_back(i);
      continue;
    }
    Verdict verdict = Verdict::kAside;
    for (const auto& [ordinal, device] : devices_) {
      if (!Suits(device, asks[i].wish)) continue;
      Load& load = loads[ordinal];
      verdict = judge(ordinal, device, asks[i], load);
      load.bytes = SaturatingAdd(load.bytes, NeedOf(device, {.declared = asks[i].wish.declared}));
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
  choices.verdict = Verdict::kAside;
  return choices;
}

Placement::Choices Placement::ChooseAll(const std::vector<Ask>& asks, const BytesByDevice& besides) const {
  return Assign(asks, besides,
                [this](uint32_t ordinal, const Device& device, const Ask& ask, const Load& load) {
                  return Judge(ordinal, device, ask, load);
                });
}

absl::Status Placement::CheckAll(absl::string_view pool, const std::vector<Ask>& asks,
                                 const BytesByDevice& besides) const {
  const auto judge = [this](uint32_t ordinal, const Device& device, const Ask& ask, const Load& load) {
    return JudgeEmpty(ordinal, device, ask, load);
  };
  if (Assign(asks, besides, judge).verdict == Verdict::kFits) return absl::OkStatus();
  const uint64_t there = std::count_if(devices_.begin(), devices_.end(),
                                       [](const auto& device) { return !device.second.state.dropped; });
  return Refuse(
      Reason::kOverCap,
      "permit pool {pool}: {asked} devices are asked together, with their bytes and units; of the {cap} that "
      "the node has not enough would do, were they empty: ask for fewer, or for less of each",
      {{"pool", pool}, {"asked", asks.size()}, {"cap", there}});
}

void Placement::Take(uint32_t ordinal, SessionId session, Bytes declared) {
  Device& device = At(ordinal);
  turn_ = ordinal;
  ++device.permits;
  if (declared == Bytes()) return;
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
  // What is declared may not fit beside it on any device.
  changes_.never = changes_.never || device.facts.context < context;
  device.facts.context = context;
  Recount(&device);
}

void Placement::SetNow(absl::Time now) {
  if (now <= fresh_until_) return;
  fresh_until_ = absl::InfiniteFuture();
  for (auto& [ordinal, device] : devices_) {
    const bool fresh = !device.read_at.has_value() || now - *device.read_at <= kFresh;
    changes_.verdicts = changes_.verdicts || fresh != device.fresh;
    device.fresh = fresh;
    if (device.read_at.has_value() && fresh) fresh_until_ = std::min(fresh_until_, *device.read_at + kFresh);
  }
}

bool Placement::OnlyOld(const DeviceWish& wish) const {
  bool any = false;
  for (const auto& [ordinal, device] : devices_) {
    if (!device.state.in_service || !Suits(device, wish)) continue;
    if (!TooOld(device, wish)) return false;
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

Bytes Placement::MostFree(const DeviceWish& wish) const {
  Bytes most;
  for (const auto& [ordinal, device] : devices_) {
    if (!device.state.in_service || !Suits(device, wish)) continue;
    most = std::max(most, FreeOf(device));
  }
  return most;
}

Bytes Placement::DeclaredOn(uint32_t ordinal) const { return At(ordinal).declared; }

uint64_t Placement::PermitsOn(uint32_t ordinal) const { return At(ordinal).permits; }

}  // namespace berth::core
