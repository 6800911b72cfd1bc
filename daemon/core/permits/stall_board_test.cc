#include "daemon/core/permits/stall_board.h"

#include <algorithm>
#include <cstdint>
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

}  // namespace
}  // namespace berth::core
