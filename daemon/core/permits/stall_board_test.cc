#include "daemon/core/permits/stall_board.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace berth::core {
namespace {

// Compares with a plain map over random histories.
TEST(ThresholdListTest, FirstEqualsPlainSearch) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&](uint64_t below) { return random() % below; };
    ThresholdList list;
    std::map<uint64_t, uint64_t> plain;
    uint64_t last = 0;
    // Insertions prevail first, erasures later.
    for (int step = 0; step < 6'000; ++step) {
      const bool comes = draw(10) < (step % 3'000 < 1'500 ? 8u : 3u);
      if (comes) {
        // Most insertions come last.
        const uint64_t ticket = draw(4) == 0 ? 1 + draw(last + 1) : ++last;
        if (!plain.emplace(ticket, draw(50)).second) continue;
        list.Insert(ticket, plain.at(ticket));
      } else if (!plain.empty()) {
        auto at = plain.lower_bound(draw(last + 1));
        if (at == plain.end()) at = plain.begin();
        list.Erase(at->first);
        plain.erase(at);
      }
      ASSERT_EQ(list.empty(), plain.empty());
      if (plain.empty()) continue;
      const uint64_t after = draw(last + 1), value = draw(50);
      uint64_t expected = 0, least = UINT64_MAX;
      for (const auto& [ticket, threshold] : plain) {
        least = std::min(least, threshold);
        if (expected == 0 && ticket > after && threshold <= value) expected = ticket;
      }
      ASSERT_EQ(list.First(after, value), expected) << "seed " << seed << ", step " << step;
      ASSERT_EQ(list.Least(), least);
    }
  }
}

// Compares bundles with a plain search over random histories.
TEST(StallBoardBundlesTest, FirstEqualsPlainSearch) {
  constexpr uint64_t kBudgets = 4, kMost = 8;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&](uint64_t below) { return random() % below; };
    StallBoard board;
    std::vector<uint64_t> values(kBudgets, 0);
    uint64_t version = 1;
    const auto value_of = [&](const Gauge& gauge) { return values[gauge.which]; };
    const auto read = [&](uint64_t, const Gauge& gauge) { return value_of(gauge); };
    const auto version_of = [&](Gauge::Kind) { return version; };
    std::map<std::pair<StallBoard::Class, uint64_t>, Stalls> plain;
    const auto find = [&](StallBoard::Class of, uint64_t after) -> uint64_t {
      for (const auto& [line, stalls] : plain) {
        const auto blocks = [&](const Stall& stall) { return stall.Blocks(value_of); };
        if (line.first == of && line.second > after && !std::all_of(stalls.begin(), stalls.end(), blocks)) {
          return line.second;
        }
      }
      return 0;
    };
    uint64_t last = 0;
    for (int step = 0; step < 3'000; ++step) {
      if (draw(3) == 0) {
        values[draw(kBudgets)] = draw(kMost + 1);
        ++version;
      }
      if (draw(100) < (step % 1'000 < 500 ? 60u : 40u)) {
        Stalls stalls;
        for (uint64_t n = 1 + draw(2); n > 0; --n) {
          Stall stall;
          for (uint64_t which = draw(kBudgets); which < kBudgets; which += 1 + draw(2)) {
            const Gauge gauge = {.kind = draw(4) == 0 ? Gauge::Kind::kReserved : Gauge::Kind::kBytes, .which = which};
            if (stall.threshold == 0) {
              stall = {.gauge = gauge, .threshold = 1 + draw(kMost)};
            } else {
              stall.also.push_back({.gauge = gauge, .threshold = 1 + draw(kMost)});
            }
          }
          // A line is in each bundle once.
          if (stalls.empty() || stalls.front().also.empty() || stall.also.empty()) stalls.push_back(stall);
        }
        if (stalls.size() == 2 && stalls[0].also.empty() && stalls[1].also.empty()) stalls.pop_back();
        const StallBoard::Class of = {.tenant = 1 + draw(2)};
        plain.emplace(std::pair(of, ++last), stalls);
        board.Enter(of, last, stalls);
      } else if (!plain.empty()) {
        const auto at = std::next(plain.begin(), static_cast<int64_t>(draw(plain.size())));
        board.Leave(at->first.first, at->first.second, at->second);
        plain.erase(at);
      }
      board.Refresh(read, version_of);
      ASSERT_TRUE(board.IsCurrent(read, version_of)) << "seed " << seed << ", step " << step;
      for (const uint64_t tenant : {1, 2}) {
        const uint64_t after = draw(2) == 0 ? 0 : draw(last + 1);
        ASSERT_EQ(board.First({.tenant = tenant}, after), find({.tenant = tenant}, after))
            << "seed " << seed << ", step " << step;
      }
    }
  }
}

class StallBoardTest : public ::testing::Test {
 protected:
  const Gauge units_ = {.kind = Gauge::Kind::kUnits};
  const Gauge quota_ = {.kind = Gauge::Kind::kQuota};
  const Gauge device_ = {.kind = Gauge::Kind::kDeviceNow, .which = 1};
  const StallBoard::Class low_ = {.tenant = 1, .priority = 0};
  const StallBoard::Class high_ = {.tenant = 1, .priority = 1};
  const StallBoard::Class other_ = {.tenant = 2, .priority = 0};

  void Set(const Gauge& gauge, uint64_t value, uint64_t tenant = 0) { values_[{gauge, tenant}] = value; }
  uint64_t First(StallBoard::Class of, uint64_t after = 0) {
    const auto read = [&](uint64_t tenant, const Gauge& gauge) {
      ++reads_;
      return values_.at({gauge, tenant});
    };
    const auto version = [&](Gauge::Kind kind) {
      return kind == device_.kind ? device_version_ : StallBoard::kUnknown;
    };
    board_.Refresh(read, version);
    EXPECT_TRUE(board_.IsCurrent(read, version));
    return board_.First(of, after);
  }
  uint64_t CountReads() {
    reads_ = 0;
    First(low_);
    // IsCurrent() reads only gauges that Refresh() did not read.
    return reads_;
  }

  StallBoard board_;
  uint64_t device_version_ = 1;

 private:
  std::map<std::pair<Gauge, uint64_t>, uint64_t> values_;
  uint64_t reads_ = 0;
};

TEST_F(StallBoardTest, FirstLineIsOpenOrReachedByGauge) {
  Set(units_, 3);
  Set(device_, 10);
  board_.Enter(low_, 1, {{units_, 4}});
  board_.Enter(low_, 2, {{units_, 9}, {device_, 11}});
  board_.Enter(low_, 3, {});
  board_.Enter(high_, 4, {{device_, 12}});
  EXPECT_EQ(First(low_), 3u);
  EXPECT_EQ(First(high_), 0u);
  EXPECT_EQ(board_.Live(), std::vector({low_}));
  // One of two gauges suffices.
  Set(device_, 11);
  ++device_version_;
  EXPECT_EQ(First(low_), 2u);
  Set(units_, 4);
  EXPECT_EQ(First(low_), 1u);
  EXPECT_EQ(First(low_, 1), 2u);
  EXPECT_EQ(First(low_, 3), 0u);
  Set(device_, 12);
  ++device_version_;
  EXPECT_EQ(First(high_), 4u);
  EXPECT_EQ(board_.Live(), std::vector({low_, high_}));
  board_.Leave(low_, 1, {{units_, 4}});
  board_.Leave(low_, 2, {{units_, 9}, {device_, 11}});
  board_.Leave(low_, 3, {});
  EXPECT_EQ(First(low_), 0u);
  EXPECT_EQ(First(high_), 4u);
  EXPECT_EQ(board_.Live(), std::vector({high_}));
}

TEST_F(StallBoardTest, EachTenantHasItsOwnGauge) {
  Set(quota_, 3, /*tenant=*/1);
  Set(quota_, 5, /*tenant=*/2);
  Set(device_, 10);
  board_.Enter(low_, 1, {{quota_, 4}});
  board_.Enter(other_, 2, {{quota_, 4}});
  board_.Enter(low_, 3, {{device_, 11}});
  board_.Enter(other_, 4, {{device_, 11}});
  EXPECT_EQ(First(low_), 0u);
  EXPECT_EQ(First(other_), 2u);
  EXPECT_EQ(board_.Live(), std::vector({other_}));
  Set(device_, 11);
  ++device_version_;
  EXPECT_EQ(First(low_), 3u);
  EXPECT_EQ(First(other_, 2), 4u);
}

TEST_F(StallBoardTest, GaugeOfUnchangedVersionIsReadOnlyWhereReached) {
  Set(device_, 10);
  for (uint64_t ticket = 1; ticket <= 100; ++ticket) {
    board_.Enter(ticket % 2 == 0 ? low_ : other_, ticket, {{device_, 10 + ticket}});
  }
  EXPECT_EQ(First(low_), 0u);
  // Only IsCurrent() reads a gauge.
  EXPECT_EQ(CountReads(), 1u);
  Set(device_, 12);
  ++device_version_;
  EXPECT_EQ(First(low_), 2u);
  // The line may be granted or not: the gauge stays reached.
  EXPECT_EQ(First(low_), 2u);
  board_.Leave(low_, 2, {{device_, 12}});
  EXPECT_EQ(First(low_), 0u);
  EXPECT_EQ(First(other_), 1u);
  board_.Leave(other_, 1, {{device_, 11}});
  EXPECT_EQ(First(other_), 0u);
  // A line with a lesser threshold enters.
  board_.Enter(low_, 101, {{device_, 12}});
  EXPECT_EQ(First(low_), 101u);
  // The gauge's last line leaves, and another line enters.
  for (uint64_t ticket = 3; ticket <= 100; ++ticket) {
    board_.Leave(ticket % 2 == 0 ? low_ : other_, ticket, {{device_, 10 + ticket}});
  }
  board_.Leave(low_, 101, {{device_, 12}});
  EXPECT_EQ(CountReads(), 0u);
  board_.Enter(low_, 102, {{device_, 12}});
  EXPECT_EQ(First(low_), 102u);
}

TEST_F(StallBoardTest, BundleReadsOneGaugeAfterChange) {
  const Gauge bytes = {.kind = Gauge::Kind::kBytes, .which = 1}, others = {.kind = Gauge::Kind::kBytes, .which = 2};
  std::map<Gauge, uint64_t> values = {{bytes, 0}, {others, 0}};
  uint64_t version = 1, reads = 0;
  const auto refresh = [&] {
    reads = 0;
    const auto read = [&](uint64_t, const Gauge& gauge) {
      ++reads;
      return values.at(gauge);
    };
    board_.Refresh(read, [&](Gauge::Kind) { return version; });
    return reads;
  };
  for (uint64_t ticket = 1; ticket <= 100; ++ticket) {
    board_.Enter(ticket % 2 == 0 ? low_ : other_, ticket,
                 {{.gauge = bytes, .threshold = 10 + ticket, .also = {{.gauge = others, .threshold = 10}}}});
  }
  EXPECT_EQ(refresh(), 1u);
  EXPECT_EQ(refresh(), 0u);
  // The bundle moves to the other gauge and back.
  for (int round = 0; round < 4; ++round) {
    values = {{bytes, round % 2 == 0 ? 200 : 0}, {others, round % 2 == 0 ? 0 : 200}};
    ++version;
    EXPECT_LE(refresh(), 3u) << round;
    EXPECT_EQ(board_.Live(), std::vector<StallBoard::Class>());
    EXPECT_EQ(refresh(), 0u);
  }
  values = {{bytes, 12}, {others, 10}};
  ++version;
  refresh();
  EXPECT_EQ(board_.Live(), std::vector({low_, other_}));
  EXPECT_EQ(board_.First(low_, 0), 2u);
  EXPECT_EQ(board_.First(low_, 2), 0u);
  EXPECT_EQ(board_.First(other_, 0), 1u);
}

}  // namespace
}  // namespace berth::core
