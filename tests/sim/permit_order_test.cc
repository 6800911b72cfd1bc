// The order in a pool that docs/concepts/fairness.md promises, over many random runs. BERTH_SIM_SEED replays one.

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <berth/error.h>
#include <berth/ids.h>

#include "absl/strings/str_cat.h"
#include "daemon/core/permits/permit_pool.h"
#include "daemon/core/types/permit_types.h"
#include "gtest/gtest.h"
#include "tests/sim/fair_share.h"
#include "tests/sim/seeds.h"

namespace berth::core {
namespace {

using sim::ExpectItsShareAndNoBurst;
using sim::Seeds;

struct Ask {
  uint32_t uid = 1;
  uint64_t units = 1;
  int32_t priority = 0;
  bool exclusive = false;
  absl::Time deadline = absl::InfiniteFuture();
};

// One pool with all its requests. Each request has a separate holder.
class Market {
 public:
  struct Held {
    uint64_t number;
    Ask ask;
    AcquisitionId acquisition;
  };

  explicit Market(PoolConfig config, uint64_t passes_before_hold = 16)
      : pool_({.config = std::move(config), .max_waiters = 100'000, .passes_before_hold = passes_before_hold},
              &ids_, &placement_, &journal_) {}

  // Returns the request's number, which is also the waiter's.
  uint64_t Request(const Ask& ask) {
    const uint64_t number = ++last_;
    asked_.emplace(number, ask);
    AcquireOutcomes outcomes;
    const Waiter* const waiter = pool_.Acquire({now, &outcomes}, {ChannelId(1), number},
                                               {.session = SessionId(number), .tenant = {.uid = ask.uid}},
                                               {.units = ask.units,
                                                .holder_key = "h",
                                                .deadline = ask.deadline,
                                                .priority = ask.priority,
                                                .exclusive = ask.exclusive});
    EXPECT_TRUE(waiter == nullptr || waiter->number == number);
    Take(outcomes);
    return number;
  }
  void Cancel(uint64_t number) {
    AcquireOutcomes outcomes;
    pool_.Leave(number);
    pool_.Serve({now, &outcomes});
    asked_.erase(number);
    Take(outcomes);
  }
  void Release(size_t index) {
    AcquireOutcomes outcomes;
    pool_.Release({now, &outcomes}, held[index].acquisition);
    held.erase(held.begin() + index);
    Take(outcomes);
  }
  void Expire() {
    AcquireOutcomes outcomes;
    std::vector<PermitView> revoked, overdue;
    pool_.Expire({now, &outcomes}, &revoked, &overdue);
    for (const PermitView& permit : revoked) {
      std::erase_if(held, [&](const Held& one) { return one.number == permit.session.value(); });
    }
    Take(outcomes);
  }
  void SetCap(uint64_t cap) {
    AcquireOutcomes outcomes;
    pool_.Change({now, &outcomes}, {.cap = cap});
    Take(outcomes);
  }
  const Ask& AskOf(uint64_t number) const { return asked_.at(number); }
  bool Waits(uint64_t number) const { return pool_.FindWaiter(number) != nullptr; }
  const PermitPool& pool() const { return pool_; }

  absl::Time now = absl::UnixEpoch();
  std::vector<Held> held;
  // All grants ever made, in order.
  std::vector<Held> granted;
  uint64_t refused = 0;

 private:
  void Take(const AcquireOutcomes& outcomes) {
    for (const AcquireOutcome& outcome : outcomes) {
      const uint64_t number = outcome.request.sequence;
      const auto asked = asked_.find(number);
      ASSERT_NE(asked, asked_.end()) << "somebody is told twice, or after it left";
      if (outcome.result.ok()) {
        held.push_back({number, asked->second, std::get<AcquireResult>(*outcome.result).acquisition});
        granted.push_back(held.back());
      } else {
        ++refused;
      }
      asked_.erase(asked);
    }
  }

  PermitIds ids_;
  Placement placement_;
  Journal journal_;
  PermitPool pool_;
  uint64_t last_ = 0;
  // Requests neither granted nor refused yet.
  std::map<uint64_t, Ask> asked_;
};

TEST(PermitOrderTest, BackloggedTenantSharesMatchWeightsWithin5Percent) {
  Seeds(20, [](auto draw) {
    const uint64_t cap = 1 + draw(8);
    const bool mixed = draw(2) == 0;
    const uint32_t tenants = 2 + draw(4);
    PoolConfig config{.name = "p", .cap = cap, .ageing = absl::Seconds(1 + draw(100))};
    double weights = 0;
    for (uint32_t uid = 0; uid < tenants; ++uid) {
      config.weights[uid] = 1 + draw(8);
      weights += config.weights[uid];
    }
    const std::map<uint32_t, uint32_t> weight_of = config.weights;
    Market market(std::move(config));
    const auto ask = [&](uint32_t uid) {
      return Ask{.uid = uid, .units = mixed ? 1 + draw(std::min<uint64_t>(cap, 3)) : 1};
    };
    for (uint32_t uid = 0; uid < tenants; ++uid) {
      for (int i = 0; i < 20; ++i) market.Request(ask(uid));
    }
    std::map<uint32_t, double> had;
    double all = 0;
    size_t counted = 0;
    while (market.granted.size() < 10'000) {
      market.now += absl::Milliseconds(draw(200));
      market.Release(draw(market.held.size()));
      // Each tenant always has twenty requests waiting.
      for (; counted < market.granted.size(); ++counted) {
        const Ask& got = market.granted[counted].ask;
        had[got.uid] += got.units;
        all += got.units;
        market.Request(ask(got.uid));
      }
    }
    for (const auto& [uid, units] : had) {
      const double due = weight_of.at(uid) / weights;
      EXPECT_NEAR(units / all, due, 0.05 * due) << "uid " << uid << ", cap " << cap << ", mixed " << mixed;
    }
  });
}

TEST(PermitOrderTest, ReturningTenantGetsShareWithoutBurst) {
  Seeds(20, [](auto draw) {
    const uint32_t weight = 1 + draw(4);
    Market market({.name = "p", .cap = 1 + draw(4), .weights = {{1, weight}}});
    for (int i = 0; i < 5'000; ++i) market.Request({.uid = 2 + static_cast<uint32_t>(i % 2)});
    if (draw(2) == 0) market.Request({.uid = 1});
    while (market.granted.size() < 1'000 + draw(1'000)) market.Release(0);
    for (int i = 0; i < 500; ++i) market.Request({.uid = 1});
    ExpectItsShareAndNoBurst(&market, 1, weight, draw);
  });
}

TEST(PermitOrderTest, LowestRequestIsServedWithinAgeingTime) {
  Seeds(40, [](auto draw) {
    const uint64_t cap = 1 + draw(8);
    const uint64_t passes = draw(20);
    const uint32_t tenants = 1 + draw(5);
    const absl::Duration ageing = absl::Seconds(1 + draw(60));
    // Where all requests take the whole cap, none fits past another.
    const bool alike = draw(2) == 0;
    Market market({.name = "p", .cap = cap, .ageing = ageing}, passes);
    const auto others = [&] {
      market.Request({.uid = static_cast<uint32_t>(draw(tenants)),
                      .units = alike ? cap : 1 + draw(cap),
                      .priority = static_cast<int32_t>(1 + draw(10))});
    };
    for (int i = 0; i < 50; ++i) others();
    // The request belongs to a tenant that has other requests, and needs the whole cap.
    const uint64_t least = market.Request({.uid = 0, .units = cap, .priority = -10});
    const absl::Time aged = market.now + ageing;
    uint64_t after = 0;
    // Earlier requests of its own tenant that are not granted when it has aged.
    std::optional<uint64_t> own;
    uint64_t own_units = 0;
    // How many more requests, and units, its tenant has had than each tenant that is behind.
    uint64_t ahead = 0;
    uint64_t ahead_units = 0;
    while (market.Waits(least)) {
      market.now += absl::Milliseconds(1 + draw(50));
      if (market.now >= aged && !own.has_value()) {
        own = 0;
        for (uint64_t i = 1; i < least; ++i) {
          if (!market.Waits(i) || market.AskOf(i).uid != 0) continue;
          ++*own;
          own_units += market.AskOf(i).units;
        }
        std::map<uint32_t, std::pair<uint64_t, uint64_t>> had;
        for (const auto& one : market.granted) {
          ++had[one.ask.uid].first;
          had[one.ask.uid].second += one.ask.units;
        }
        for (uint32_t uid = 1; uid < tenants; ++uid) {
          ahead += had[0].first - std::min(had[0].first, had[uid].first);
          ahead_units += had[0].second - std::min(had[0].second, had[uid].second);
        }
      }
      const size_t before = market.granted.size();
      market.Release(draw(market.held.size()));
      if (market.now >= aged) after += market.granted.size() - before;
      for (uint64_t i = draw(4); i > 0; --i) others();
      if (!own.has_value()) continue;
      // In its tenant, only earlier requests go first. Another tenant goes first until it has had as much in all, plus
      // one request (two, as it may have been one behind). Past each of these, and past the request itself, which is
      // first but does not fit, at most `passes` requests go.
      const uint64_t each = alike ? *own + 2 : own_units + 2 * cap;
      const uint64_t before_it = *own + (tenants - 1) * each + (alike ? ahead : ahead_units);
      // Including its own turn.
      const uint64_t turns = before_it + 1;
      ASSERT_LE(after, alike ? turns : turns + turns * passes) << "cap " << cap << ", tenants " << tenants;
    }
  });
}

TEST(PermitOrderTest, WaiterIsPassedNoMoreThanLimit) {
  Seeds(40, [](auto draw) {
    const uint64_t cap = 2 + draw(7);
    const uint64_t passes = draw(20);
    Market market({.name = "p", .cap = cap}, passes);
    market.Request({.units = cap - 1});
    const uint64_t big = market.Request({.units = cap});
    uint64_t passed = 0;
    while (market.Waits(big)) {
      const size_t before = market.granted.size();
      if (draw(2) == 0) {
        market.Request({.units = 1, .priority = static_cast<int32_t>(draw(2)) - 1});
      } else {
        market.Release(draw(market.held.size()));
      }
      for (size_t i = before; i < market.granted.size(); ++i)
        passed += market.granted[i].number > big ? 1 : 0;
      ASSERT_LE(passed, passes);
    }
    EXPECT_EQ(market.held.size(), 1u);
  });
}

TEST(PermitOrderTest, WakeUpSurvivesRacesWithGrants) {
  Seeds(60, [](auto draw) {
    PoolConfig config{.name = "p",
                      .cap = 1 + draw(8),
                      .ageing = absl::Milliseconds(draw(500)),
                      .tenant_cap = draw(2) == 0 ? 0 : 1 + draw(6),
                      .weights = {{0, 5}},
                      .hold_limit = draw(2) == 0 ? absl::InfiniteDuration() : absl::Milliseconds(500)};
    Market market(std::move(config), draw(6));
    std::vector<uint64_t> numbers;
    for (int step = 0; step < 400; ++step) {
      market.now += absl::Milliseconds(draw(20));
      market.Expire();
      const uint64_t die = draw(100);
      if (die < 50) {
        numbers.push_back(
            market.Request({.uid = static_cast<uint32_t>(draw(4)),
                            .units = 1 + draw(5),
                            .priority = static_cast<int32_t>(draw(5)) - 2,
                            .exclusive = draw(10) == 0,
                            .deadline = draw(3) == 0 ? market.now + absl::Milliseconds(draw(300))
                                                     : absl::InfiniteFuture()}));
      } else if (die < 70 && !numbers.empty()) {
        const uint64_t number = numbers[draw(numbers.size())];
        if (market.Waits(number)) market.Cancel(number);
      } else if (die < 95 && !market.held.empty()) {
        market.Release(draw(market.held.size()));
      } else if (die >= 95) {
        market.SetCap(1 + draw(9));
      }
      // Among other invariants: no request waits that could be granted.
      ASSERT_TRUE(market.pool().CheckInvariants().ok()) << market.pool().CheckInvariants();
    }
    // Releases alone serve every remaining waiter.
    while (!market.held.empty()) market.Release(draw(market.held.size()));
    EXPECT_EQ(market.pool().View().waiters, 0u);
    EXPECT_EQ(market.pool().View().out, 0u);
  });
}

}  // namespace
}  // namespace berth::core
