// Compares the queue's order with a plain queue that judges every waiter at every search, over many random histories.

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/permits/wait_queue.h"
#include "gtest/gtest.h"
#include "tests/support/environment.h"

namespace berth::core {
namespace {

using Verdict = WaitQueue::Verdict;

constexpr uint64_t kCap = 6;
constexpr size_t kDevices = 3;
constexpr uint32_t kTenants = 4;

// The state that verdicts depend on. A waiter's devices are the bits of its constraint's capability; none means no
// constraint.
class World final : public WaitQueue::Arbiter {
 public:
  uint64_t out = 0;
  std::array<uint64_t, kTenants> capacities = {};
  std::array<uint64_t, kDevices> now = {};
  std::array<uint64_t, kDevices> ever = {};

  Verdict Judge(const Waiter& waiter) override {
    if (waiter.detached || waiter.what.units > capacities[waiter.requester.tenant.uid]) return Verdict::kSkipped;
    if (out > MostOut(waiter)) return Verdict::kWaits;
    if (Fits(waiter, now)) return Verdict::kFits;
    return Fits(waiter, ever) ? Verdict::kWaits : Verdict::kSkipped;
  }
  Stalls WhyNot(const Waiter& waiter, Verdict goal) override {
    if (waiter.detached) return StalledForGood();
    const bool going = goal == Verdict::kFits;
    const uint64_t capacity = capacities[waiter.requester.tenant.uid];
    if (!Fits(waiter, going ? now : ever)) {
      Stalls stalls;
      const auto kind = going ? Gauge::Kind::kDeviceNow : Gauge::Kind::kDeviceEver;
      // Alternates between one stall for all devices and one stall for each.
      if (waiter.number % 2 == 0) {
        stalls.push_back({{.kind = kind, .which = waiter.what.device.min_capability}, BytesOf(waiter)});
      } else {
        for (size_t device = 0; device < kDevices; ++device) {
          const Gauge gauge = {.kind = kind, .which = uint64_t{1} << device};
          if (Suits(waiter, device)) stalls.push_back({gauge, BytesOf(waiter)});
        }
      }
      if (going) return stalls;
      if (out <= MostOut(waiter)) {
        stalls.push_back({{.kind = Gauge::Kind::kOut}, MostOut(waiter) + 1});
        return stalls;
      }
    }
    if (waiter.what.units > capacity) return {{{.kind = Gauge::Kind::kTenantUnits}, waiter.what.units}};
    return {{{.kind = Gauge::Kind::kUnits}, UINT64_MAX - MostOut(waiter)}};
  }
  uint64_t Read(const Account& tenant, const Gauge& gauge) override {
    switch (gauge.kind) {
      case Gauge::Kind::kOut:
        return out;
      case Gauge::Kind::kUnits:
        return UINT64_MAX - out;
      case Gauge::Kind::kTenantUnits:
        return capacities[tenant.uid];
      case Gauge::Kind::kNever:
        return 0;
      default:
        break;
    }
    uint64_t best = 0;
    for (size_t device = 0; device < kDevices; ++device) {
      if ((gauge.which >> device) % 2 == 0) continue;
      best = std::max(best, gauge.kind == Gauge::Kind::kDeviceNow ? now[device] : ever[device]);
    }
    return best;
  }
  uint64_t VersionOf(Gauge::Kind kind) override {
    if (kind != Gauge::Kind::kDeviceNow && kind != Gauge::Kind::kDeviceEver) return StallBoard::kUnknown;
    const std::pair devices(now, ever);
    if (std::exchange(versioned_, devices) != devices) ++version_;
    return version_;
  }

 private:
  static uint64_t BytesOf(const Waiter& waiter) { return waiter.what.device.min_free.count(); }
  static bool Suits(const Waiter& waiter, size_t device) {
    return (waiter.what.device.min_capability >> device) % 2 == 1;
  }
  static uint64_t MostOut(const Waiter& waiter) {
    const uint64_t most = waiter.what.exclusive ? 0 : kCap - waiter.what.units;
    return waiter.what.client_cap == 0 ? most : std::min(most, waiter.what.client_cap - 1);
  }
  static bool Fits(const Waiter& waiter, const std::array<uint64_t, kDevices>& free) {
    if (waiter.what.device.min_capability == 0) return true;
    for (size_t device = 0; device < kDevices; ++device) {
      if (Suits(waiter, device) && BytesOf(waiter) <= free[device]) return true;
    }
    return false;
  }

  std::pair<std::array<uint64_t, kDevices>, std::array<uint64_t, kDevices>> versioned_ = {};
  uint64_t version_ = 1;
};

// The order in its plainest form.
class PlainQueue {
 public:
  struct Turn {
    uint64_t number = 0;
    uint64_t passed = 0;
  };

  WaitQueue::Options options;

  void Push(const Waiter& waiter) {
    now_ = std::max(now_, waiter.since);
    const Tenant& tenant = waiter.requester.tenant;
    if (!clocks_.contains(tenant)) clocks_[tenant] = clock_.Enter(tenant).value();
    waiters_.emplace(waiter.number, waiter);
  }
  Waiter Take(uint64_t number) {
    const Waiter waiter = waiters_.extract(number).mapped();
    held_.erase(number);
    const auto waits = [&](const auto& other) { return other.second.requester.tenant == waiter.requester.tenant; };
    if (std::none_of(waiters_.begin(), waiters_.end(), waits)) {
      clock_.Leave(waiter.requester.tenant, OwnClock(clocks_.at(waiter.requester.tenant)));
      clocks_.erase(waiter.requester.tenant);
    }
    return waiter;
  }
  Waiter Take(const Turn& turn) {
    if (turn.passed != 0) ++waiters_.at(turn.passed).passes;
    return Take(turn.number);
  }
  void Hold(uint64_t number) { held_.insert(number); }
  void Attach(uint64_t number) { waiters_.at(number).detached = false; }
  void Charge(const Tenant& tenant, uint64_t units) {
    const auto found = clocks_.find(tenant);
    const double start = found == clocks_.end() ? clock_.Enter(tenant).value() : found->second;
    clock_.Advance(start);
    if (found == clocks_.end()) {
      clock_.Leave(tenant, OwnClock(start + CostOf(tenant, units)));
    } else {
      found->second += CostOf(tenant, units);
    }
  }
  std::optional<Turn> Search(absl::Time now, World& world, std::optional<uint64_t> only) {
    now_ = std::max(now_, now);
    for (const uint64_t number : held_) {
      if (only == number) return Turn{.number = number};
      const Verdict verdict = world.Judge(waiters_.at(number));
      if (verdict == Verdict::kFits && !only.has_value()) return Turn{.number = number};
      if (verdict != Verdict::kSkipped) return std::nullopt;
    }
    int32_t top = std::numeric_limits<int32_t>::min();
    std::set<Tenant> racing;
    for (const auto& [number, waiter] : waiters_) {
      if (world.Judge(waiter) == Verdict::kSkipped) continue;
      racing.insert(waiter.requester.tenant);
      top = std::max(top, waiter.what.priority);
    }
    for (auto& [tenant, clock] : clocks_) {
      if (!racing.contains(tenant)) clock = std::max(clock, clock_.now());
    }
    const auto first = [&](Verdict worst) {
      const Waiter* best = nullptr;
      for (const auto& [number, waiter] : waiters_) {
        if (world.Judge(waiter) > worst) continue;
        if (best == nullptr || RankOf(waiter, clocks_, top) < RankOf(*best, clocks_, top)) best = &waiter;
      }
      return best;
    };
    const Waiter* const next = first(Verdict::kFits);
    const Waiter* const head = first(Verdict::kWaits);
    if (next == nullptr && !only.has_value()) return std::nullopt;
    const uint64_t going = only.has_value() ? *only : next->number;
    if (head == nullptr || head->number == going) return Turn{.number = going};
    if (head->passes >= options.passes_before_hold) {
      held_.insert(head->number);
      return std::nullopt;
    }
    return Turn{.number = going, .passed = head->number};
  }
  std::string Walked() const {
    std::string order;
    for (const uint64_t number : held_) absl::StrAppend(&order, number, " ");
    std::map<Tenant, double> clocks = clocks_;
    std::map<uint64_t, const Waiter*> left;
    int32_t top = std::numeric_limits<int32_t>::min();
    for (const auto& [number, waiter] : waiters_) {
      top = std::max(top, waiter.what.priority);
      if (!held_.contains(number)) left.emplace(number, &waiter);
    }
    while (!left.empty()) {
      const auto next = std::min_element(left.begin(), left.end(), [&](const auto& a, const auto& b) {
        return RankOf(*a.second, clocks, top) < RankOf(*b.second, clocks, top);
      });
      absl::StrAppend(&order, next->first, " ");
      clocks[next->second->requester.tenant] += CostOf(next->second->requester.tenant, next->second->charge);
      left.erase(next);
    }
    return order;
  }
  const std::map<uint64_t, Waiter>& waiters() const { return waiters_; }

 private:
  double CostOf(const Tenant& tenant, uint64_t units) const {
    const auto weight = options.weights.find(tenant.uid);
    return static_cast<double>(units) / (weight == options.weights.end() ? 1 : weight->second);
  }
  std::tuple<int32_t, double, uint64_t> RankOf(const Waiter& waiter, const std::map<Tenant, double>& clocks,
                                               int32_t top) const {
    const bool aged = now_ - waiter.since >= options.ageing;
    return {aged ? 0 : top - waiter.what.priority, clocks.at(waiter.requester.tenant), waiter.number};
  }

  std::map<uint64_t, Waiter> waiters_;
  std::set<uint64_t> held_;
  std::map<Tenant, double> clocks_;
  VirtualClock clock_;
  absl::Time now_ = absl::InfinitePast();
};

class History {
 public:
  explicit History(uint64_t seed) : random_(seed) {
    options_.passes_before_hold = Draw(5);
    options_.ageing = absl::Milliseconds(Draw(400));
    options_.weights = {{0, 3}, {1, 1 + static_cast<uint32_t>(Draw(3))}};
    SetOptions();
    for (uint32_t tenant = 0; tenant < kTenants; ++tenant) world_.capacities[tenant] = Draw(8);
  }

  void Step() {
    now_ += absl::Milliseconds(Draw(20));
    const uint64_t die = Draw(100);
    if (die < 35) {
      Push();
    } else if (die < 45) {
      SetNow(20);
    } else if (die < 50) {
      const size_t device = Draw(kDevices);
      world_.ever[device] = Draw(20);
      world_.now[device] = std::min(world_.now[device], world_.ever[device]);
    } else if (die < 60) {
      world_.out = Draw(kCap + 1);
    } else if (die < 68) {
      world_.capacities[Draw(kTenants)] = Draw(8);
    } else if (die < 74 && !plain_.waiters().empty()) {
      const uint64_t number = Any();
      plain_.Take(number);
      EXPECT_TRUE(queue_.Remove(number));
    } else if (die < 78 && !plain_.waiters().empty()) {
      const uint64_t number = Any();
      plain_.Hold(number);
      queue_.Hold(number);
    } else if (die < 82 && !plain_.waiters().empty()) {
      const uint64_t number = Any();
      plain_.Attach(number);
      queue_.Attach(number);
    } else if (die < 84) {
      options_.ageing = absl::Milliseconds(Draw(400));
      SetOptions();
    } else if (die < 88) {
      const Tenant tenant = {.uid = static_cast<uint32_t>(Draw(kTenants))};
      plain_.Charge(tenant, 2);
      queue_.Charge(tenant, 2);
    } else if (die < 92 && !plain_.waiters().empty()) {
      // A gang that is granted at its turn in another pool.
      const uint64_t number = Any();
      if (world_.Judge(plain_.waiters().at(number)) == Verdict::kFits) Serve(number);
    }
    // Most steps serve the queue, but not all.
    if (Draw(4) > 0) {
      while (Serve(std::nullopt)) {
      }
    }
    Compare();
  }

 private:
  uint64_t Draw(uint64_t below) { return random_() % below; }
  uint64_t Any() {
    auto at = plain_.waiters().begin();
    std::advance(at, Draw(plain_.waiters().size()));
    return at->first;
  }
  void SetOptions() {
    plain_.options = options_;
    queue_.SetOptions(options_);
  }
  void Push() {
    Waiter waiter;
    waiter.number = ++last_;
    waiter.request = {ChannelId(1), last_};
    waiter.requester = {.session = SessionId(Draw(3)), .tenant = {.uid = static_cast<uint32_t>(Draw(kTenants))}};
    waiter.what.units = 1 + Draw(3);
    waiter.what.client_cap = Draw(3) == 0 ? 1 + Draw(5) : 0;
    waiter.what.priority = static_cast<int32_t>(Draw(3)) - 1;
    waiter.what.exclusive = Draw(12) == 0;
    waiter.what.device.min_capability = static_cast<uint32_t>(Draw(2) * Draw(1 << kDevices));
    waiter.what.device.min_free = Bytes(Draw(20));
    waiter.charge = waiter.what.exclusive ? kCap : waiter.what.units;
    waiter.since = now_;
    waiter.detached = Draw(10) == 0;
    plain_.Push(waiter);
    queue_.Push(std::move(waiter));
  }
  bool Serve(std::optional<uint64_t> only) {
    const auto expected = plain_.Search(now_, world_, only);
    const auto turn = only.has_value() ? queue_.NextIf(now_, world_, *only) : queue_.Next(now_, world_);
    EXPECT_EQ(turn.has_value(), expected.has_value());
    if (!turn.has_value() || !expected.has_value()) return false;
    EXPECT_EQ(turn->number, expected->number);
    EXPECT_EQ(turn->passed, expected->passed);
    if (turn->number != expected->number) return false;
    const Waiter waiter = plain_.Take(*expected);
    queue_.Take(*turn);
    plain_.Charge(waiter.requester.tenant, waiter.charge);
    queue_.Charge(waiter.requester.tenant, waiter.charge);
    // The grant takes something of everything that the verdict depends on.
    world_.out += waiter.what.units;
    uint64_t& capacity = world_.capacities[waiter.requester.tenant.uid];
    capacity -= std::min(capacity, waiter.what.units);
    SetNow(10);
    return true;
  }
  // Sets the free bytes of a device, at most its free bytes after the release of all permits.
  void SetNow(uint64_t below) {
    const size_t device = Draw(kDevices);
    world_.now[device] = std::min(Draw(below), world_.ever[device]);
  }
  void Compare() {
    std::string order;
    queue_.Walk([&](const Waiter& waiter) {
      absl::StrAppend(&order, waiter.number, " ");
      return true;
    });
    EXPECT_EQ(order, plain_.Walked());
    EXPECT_TRUE(queue_.CheckInvariants().ok()) << queue_.CheckInvariants();
    EXPECT_TRUE(queue_.CheckStalls(world_).ok()) << queue_.CheckStalls(world_);
  }

  std::mt19937_64 random_;
  Journal journal_;
  WaitQueue::Options options_;
  World world_;
  PlainQueue plain_;
  WaitQueue queue_{{}, &journal_};
  absl::Time now_ = absl::UnixEpoch();
  uint64_t last_ = 0;
};

TEST(WaitQueueOrderTest, QueueOrderMatchesFullSearch) {
  const uint64_t seeds = testing::GateOrSoak(8, 100);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    History history(seed);
    for (int step = 0; step < 250; ++step) {
      history.Step();
      ASSERT_FALSE(::testing::Test::HasFailure()) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace berth::core
