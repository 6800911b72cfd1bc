// Compares the order of byte requests with a plain model that judges every request at every step, over many random
// histories.

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

constexpr uint32_t kDevices = 2;
// Peers 0 and 1 belong to one tenant.
constexpr std::array<uint32_t, 4> kUids = {1000, 1000, 1001, 1002};

// Amounts are in MiB.
struct PlainBudget {
  std::optional<uint64_t> limit;
  uint64_t held = 0;
  uint64_t coming = 0;
  // Grants of the budget since the last reservation of its capacity, while requests wait for it.
  uint64_t since_reserved = kLong;

  static constexpr uint64_t kLong = uint64_t{1} << 60;
  uint64_t Without(uint64_t used) const {
    if (!limit.has_value()) return UINT64_MAX;
    return *limit - std::min(*limit, used);
  }
  bool HasNow(uint64_t bytes) const { return bytes <= Without(held + coming); }
  bool HasAfterReclaim(uint64_t bytes) const { return bytes <= Without(held); }
  bool IsTooSmallFor(uint64_t bytes) const { return limit.has_value() && bytes > *limit; }
};

struct PlainRequest {
  enum class State { kWaits, kMade, kAnswered, kFreed, kRefused, kTimedOut, kCancelled };
  uint64_t number = 0;
  CallId call;
  uint64_t tag = 0;
  uint32_t peer = 0;
  uint32_t device = 0;
  uint64_t bytes = 0;
  bool patient = false;
  absl::Time deadline = absl::InfiniteFuture();
  State state = State::kWaits;
  // Innermost layer first.
  std::array<PlainBudget*, 3> layers = {};
  // The budget that the request waits for, and the number of its grants since.
  PlainBudget* waits_on = nullptr;
  uint64_t passes = 0;
  // The budget that reserves capacity for the request.
  PlainBudget* reserves = nullptr;
  absl::Time reserved_since;
};

// The rules in their plainest form.
class PlainCapacity {
 public:
  using State = PlainRequest::State;
  struct Job {
    bool create = false;
    PlainRequest* of = nullptr;
  };

  PlainCapacity(uint64_t passes_before_reserve, absl::Duration reserve_time, absl::Time now)
      : passes_before_reserve_(passes_before_reserve), reserve_time_(reserve_time) {
    for (uint32_t device = 0; device < kDevices; ++device) Device(device).limit = 16;
    Tick(now);
  }

  PlainBudget& Device(uint32_t device) { return budgets_[{0, 0, device}]; }
  PlainBudget& Tenant(uint32_t uid, uint32_t device) { return budgets_[{1, uid, device}]; }
  PlainBudget& Session(uint32_t peer, uint32_t device) { return budgets_[{2, peer, device}]; }

  PlainRequest& Ask(PlainRequest asked) {
    asked.number = ++last_;
    asked.layers = {&Session(asked.peer, asked.device), &Tenant(kUids.at(asked.peer), asked.device),
                    &Device(asked.device)};
    PlainRequest& request = requests_.emplace(last_, std::move(asked)).first->second;
    if (IsTooLarge(request) || (LacksWhatOthersHold(request) && !request.patient)) {
      request.state = State::kRefused;
    } else {
      Serve();
    }
    return request;
  }
  void Free(PlainRequest& request) {
    request.state = State::kFreed;
    for (PlainBudget* const layer : request.layers) {
      layer->held -= request.bytes;
      layer->coming += request.bytes;
    }
    jobs.push_back({.create = false, .of = &request});
    Wake();
  }
  void Work() {
    const Job job = jobs.front();
    jobs.pop_front();
    if (job.create) {
      job.of->state = State::kAnswered;
    } else {
      for (PlainBudget* const layer : job.of->layers) layer->coming -= job.of->bytes;
    }
    Serve();
  }
  void Cancel(PlainRequest& request) {
    Leave(request, State::kCancelled);
    Serve();
  }
  void Tick(absl::Time now) {
    now_ = now;
    bool due = false;
    for (auto& [number, request] : requests_) {
      if (request.state != State::kWaits) continue;
      if (request.patient && request.deadline <= now) {
        Leave(request, State::kTimedOut);
        due = true;
      } else if (request.reserves != nullptr && request.reserved_since + reserve_time_ <= now) {
        EndReserve(request);
        due = true;
      }
    }
    if (due) Serve();
  }
  // Judges each request once.
  void Serve() {
    Wake();
    std::set<PlainBudget*> reserved_budgets;
    for (auto& [number, request] : requests_) {
      if (request.state != State::kWaits || request.waits_on != nullptr) continue;
      Consider(request, &reserved_budgets);
      Wake();
    }
  }
  std::map<uint64_t, PlainRequest>& requests() { return requests_; }
  uint64_t reserves() const { return reserves_; }

  std::deque<Job> jobs;

 private:
  static bool IsTooLarge(const PlainRequest& request) {
    return std::any_of(request.layers.begin(), request.layers.end(),
                       [&](const PlainBudget* layer) { return layer->IsTooSmallFor(request.bytes); });
  }
  static bool LacksWhatOthersHold(const PlainRequest& request) {
    return std::any_of(request.layers.begin(), request.layers.end(),
                       [&](const PlainBudget* layer) { return !layer->HasAfterReclaim(request.bytes); });
  }
  // Returns whether the budget's capacity is reserved for an earlier request.
  bool IsReservedFrom(const PlainRequest& request, const PlainBudget* budget) const {
    for (const auto& [number, other] : requests_) {
      if (other.reserves == budget && number < request.number && !budget->HasNow(other.bytes)) return true;
    }
    return false;
  }
  // Ends the wait for a budget if the request fits and no other request has the capacity reserved.
  void Wake() {
    for (auto& [number, request] : requests_) {
      if (request.waits_on == nullptr) continue;
      const bool lacks = !request.waits_on->HasAfterReclaim(request.bytes) || IsReservedFrom(request, request.waits_on);
      if (!lacks || IsTooLarge(request)) StopWaiting(request);
    }
  }
  void StopWaiting(PlainRequest& request) {
    PlainBudget* const budget = std::exchange(request.waits_on, nullptr);
    request.passes = std::min({request.passes, budget->since_reserved, passes_before_reserve_});
    Forget(budget);
  }
  // Resets a budget that no request waits for.
  void Forget(PlainBudget* budget) {
    const bool wanted = std::any_of(requests_.begin(), requests_.end(), [&](const auto& numbered) {
      return numbered.second.waits_on == budget || numbered.second.reserves == budget;
    });
    if (!wanted) budget->since_reserved = PlainBudget::kLong;
  }
  void Leave(PlainRequest& request, State state) {
    if (request.reserves != nullptr) EndReserve(request);
    if (request.waits_on != nullptr) StopWaiting(request);
    request.state = state;
  }
  // Restarts the pass counts of all requests that wait for the budget.
  void EndReserve(PlainRequest& request) {
    PlainBudget* const budget = std::exchange(request.reserves, nullptr);
    request.passes = 0;
    budget->since_reserved = 0;
    Forget(budget);
  }
  void Consider(PlainRequest& request, std::set<PlainBudget*>* reserved_budgets) {
    if (IsTooLarge(request)) return Leave(request, State::kRefused);
    std::vector<PlainBudget*> lacking;
    PlainBudget* held = nullptr;
    PlainBudget* others = nullptr;
    for (PlainBudget* const layer : request.layers) {
      if (!layer->HasNow(request.bytes)) lacking.push_back(layer);
      if (!layer->HasAfterReclaim(request.bytes)) held = layer;
      if (layer->HasNow(request.bytes) && reserved_budgets->contains(layer)) others = layer;
    }
    if (lacking.empty() && others == nullptr) return Grant(request, reserved_budgets);
    if (held != nullptr && !request.patient) return Leave(request, State::kRefused);
    if (held == nullptr || request.reserves != nullptr) reserved_budgets->insert(lacking.begin(), lacking.end());
    if (!request.patient || request.reserves != nullptr) return;
    if (held != nullptr) {
      request.waits_on = held;
    } else if (lacking.empty() && IsReservedFrom(request, others)) {
      request.waits_on = others;
    }
  }
  void Grant(PlainRequest& request, std::set<PlainBudget*>* reserved_budgets) {
    for (PlainBudget* const layer : request.layers) {
      PlainRequest* oldest = nullptr;
      bool reserves = false;
      ++layer->since_reserved;
      for (auto& [number, other] : requests_) {
        reserves = reserves || other.reserves == layer;
        if (other.waits_on != layer) continue;
        ++other.passes;
        if (oldest == nullptr) oldest = &other;
      }
      if (reserves || oldest == nullptr) continue;
      if (std::min(oldest->passes, layer->since_reserved) < passes_before_reserve_) continue;
      oldest->reserves = layer;
      StopWaiting(*oldest);
      oldest->reserved_since = now_;
      ++reserves_;
      if (oldest->number > request.number) continue;
      for (PlainBudget* const lacking : oldest->layers) {
        if (!lacking->HasNow(oldest->bytes)) reserved_budgets->insert(lacking);
      }
    }
    Leave(request, State::kMade);
    for (PlainBudget* const layer : request.layers) layer->held += request.bytes;
    jobs.push_back({.create = true, .of = &request});
  }

  const uint64_t passes_before_reserve_;
  const absl::Duration reserve_time_;
  absl::Time now_;
  uint64_t last_ = 0;
  uint64_t reserves_ = 0;
  // Key: layer, owner, device.
  std::map<std::tuple<int, uint32_t, uint32_t>, PlainBudget> budgets_;
  std::map<uint64_t, PlainRequest> requests_;
};

class History {
 public:
  using State = PlainRequest::State;

  History(uint64_t seed, uint64_t passes_before_reserve)
      : random_(seed),
        harness_(ConfigWith(passes_before_reserve)),
        plain_(passes_before_reserve, kKeep, harness_.now) {
    for (const uint32_t uid : kUids) peers_.push_back(harness_.Open(uid));
    // An operator sets a limit first.
    SetBudget(/*layer=*/0);
  }

  void Step() {
    const uint64_t die = Draw(100);
    if (die < 40) {
      Allocate();
    } else if (die < 70) {
      if (PlainRequest* const request = Any(State::kAnswered)) Free(*request);
    } else if (die < 85) {
      if (!plain_.jobs.empty()) Work();
    } else if (die < 90) {
      SetBudget(Draw(3));
    } else if (die < 93) {
      if (PlainRequest* const request = Any(State::kWaits)) Cancel(*request);
    } else {
      Tick();
    }
    // Most workers are fast.
    while (Draw(4) > 0 && !plain_.jobs.empty()) Work();
    Compare();
  }
  uint64_t reserves() const { return plain_.reserves(); }

 private:
  static constexpr absl::Duration kKeep = absl::Milliseconds(60);

  static Config ConfigWith(uint64_t passes_before_reserve) {
    Config config = CoreHarness::DefaultConfig();
    config.limits.passes_before_reserve = passes_before_reserve;
    config.limits.longest_reserve = kKeep;
    for (DeviceConfig& device : config.devices) {
      device.kind = MemoryKind::kHost;
      device.granularity = MiB(1);
    }
    return config;
  }
  uint64_t Draw(uint64_t below) { return random_() % below; }
  PlainRequest* Any(State state) {
    std::vector<PlainRequest*> found;
    for (auto& [number, request] : plain_.requests()) {
      if (request.state == state) found.push_back(&request);
    }
    return found.empty() ? nullptr : found[Draw(found.size())];
  }

  void Allocate() {
    PlainRequest request;
    request.peer = static_cast<uint32_t>(Draw(kUids.size()));
    request.device = Draw(3) == 0 ? 1 : 0;
    request.bytes = Draw(6) == 0 ? 8 + Draw(9) : 1 + Draw(3);
    request.patient = Draw(5) > 0;
    if (Draw(3) == 0) request.deadline = harness_.now + absl::Milliseconds(1 + Draw(200));
    Peer& peer = peers_.at(request.peer);
    request.call = harness_.Allocate(peer, {.device = request.device,
                                            .bytes = MiB(request.bytes),
                                            .wait = request.patient,
                                            .deadline = request.deadline});
    plain_.Ask(std::move(request));
  }
  void Free(PlainRequest& request) {
    const AllocateResult result = harness_.Get<AllocateResult>(request.call);
    harness_.Free(peers_.at(request.peer), result.block.handle, {result.import});
    plain_.Free(request);
  }
  void Work() {
    harness_.WorkOnce();
    plain_.Work();
  }
  void Cancel(PlainRequest& request) {
    harness_.Do([&](Core& core, Effects* effects) { core.CancelCall(harness_.now, request.call, effects); });
    plain_.Cancel(request);
  }
  void Tick() {
    harness_.now += absl::Milliseconds(Draw(40));
    harness_.Tick();
    plain_.Tick(harness_.now);
  }
  void SetBudget(uint64_t layer) {
    const auto device = static_cast<uint32_t>(Draw(kDevices));
    const uint64_t peer = Draw(kUids.size());
    SetBudgetRequest request{.device = device};
    PlainBudget* budget = &plain_.Device(device);
    std::optional<uint64_t> limit = 8 + Draw(12);
    if (layer > 0) {
      limit = Draw(3) > 0 ? std::nullopt : std::optional(4 + Draw(12));
      budget = layer == 1 ? &plain_.Tenant(kUids.at(peer), device)
                          : &plain_.Session(static_cast<uint32_t>(peer), device);
      if (layer == 1) request.of = Account(peers_[peer].tenant);
      if (layer == 2) request.of = peers_[peer].session;
    }
    if (limit.has_value()) request.limit = MiB(*limit);
    EXPECT_TRUE(harness_.SetBudget(request).ok());
    budget->limit = limit;
    plain_.Serve();
  }

  static std::string NameOf(State state) {
    switch (state) {
      case State::kWaits:
      case State::kMade:
        return "waits";
      case State::kAnswered:
      case State::kFreed:
        return "granted";
      case State::kRefused:
        return "refused";
      case State::kTimedOut:
        return "timed out";
      case State::kCancelled:
        break;
    }
    return "cancelled";
  }
  std::string Found(CallId call) const {
    if (!harness_.Answered(call)) return "waits";
    if (harness_.StatusOf(call).ok()) return "granted";
    if (harness_.Refused(call, Reason::kOverBudget)) return "refused";
    if (harness_.Refused(call, Reason::kWaitTimedOut)) return "timed out";
    return harness_.Refused(call, Reason::kCancelled) ? "cancelled" : harness_.StatusOf(call).ToString();
  }
  void Compare() {
    // Blocks are created in the order of their grants.
    std::string expected, found;
    for (const PlainCapacity::Job& job : plain_.jobs) {
      absl::StrAppend(&expected, job.of->device, job.create ? absl::StrCat(":", job.of->bytes) : ":free", " ");
    }
    for (const auto& job : harness_.jobs) {
      const auto* const create = std::get_if<CreateBlock>(&job);
      if (create != nullptr) {
        absl::StrAppend(&found, create->device, ":", create->bytes.count() / MiB(1).count(), " ");
      } else {
        absl::StrAppend(&found, std::get<ReleaseBlock>(job).device, ":free ");
      }
    }
    EXPECT_EQ(found, expected);
    for (const auto& [number, request] : plain_.requests()) {
      EXPECT_EQ(Found(request.call), NameOf(request.state)) << "request " << number;
    }
  }

  std::mt19937_64 random_;
  CoreHarness harness_;
  PlainCapacity plain_;
  std::vector<Peer> peers_;
};

void RunHistories(uint64_t passes_before_reserve, uint64_t* reserves) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", kept after ", passes_before_reserve, " grants"));
    History history(seed, passes_before_reserve);
    for (int step = 0; step < 130; ++step) {
      history.Step();
      ASSERT_FALSE(::testing::Test::HasFailure()) << "step " << step;
    }
    *reserves += history.reserves();
  }
}

TEST(ByteWaitOrderTest, GrantsMatchFullSearch) {
  uint64_t reserves = 0;
  RunHistories(/*passes_before_reserve=*/1'000'000, &reserves);
  EXPECT_EQ(reserves, 0);
}

TEST(ByteWaitOrderTest, CapacityHeldForOldestMatchesFullSearch) {
  for (const uint64_t passes_before_reserve : {1, 3}) {
    uint64_t reserves = 0;
    RunHistories(passes_before_reserve, &reserves);
    EXPECT_GT(reserves, 10);
  }
}

}  // namespace
}  // namespace berth::core
