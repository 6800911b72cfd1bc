// What docs/fairness.md promises of order where gangs and wishes for devices wait among others, in two pools of a whole
// node, over many random runs. BERTH_SIM_SEED replays one.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/ids.h"
#include "daemon/core/core.h"
#include "daemon/core/effects.h"
#include "gtest/gtest.h"
#include "tests/sim/seeds.h"

namespace berth::core {
namespace {

using sim::Seeds;

constexpr int kPools = 2;
const char* const kPool[kPools] = {"a", "b"};
constexpr uint64_t kDevices = 4;
constexpr Bytes kOnADevice = GiB(8);

struct Ask {
  uint32_t uid = 0;
  int32_t priority = 0;
  // One is an ordinary acquire, more are a gang.
  std::vector<GangMember> members;

  uint64_t UnitsOf(const std::string& pool) const {
    uint64_t units = 0;
    for (const GangMember& member : members) units += member.pool == pool ? member.units : 0;
    return units;
  }
};

// A node of two pools and four devices, and everybody at it. Each request is of a holder of its own.
class Market {
 public:
  struct Held {
    uint64_t number;
    Ask ask;
    std::vector<AcquisitionId> acquisitions;
  };

  Market(const PoolConfig& a, const PoolConfig& b, uint64_t passes_before_hold = 16)
      : core_(
            ConfigOf(a, b, passes_before_hold), [this] { return ++last_id_; },
            [](StreamKey) { return StreamWords(); }) {
    for (uint32_t ordinal = 0; ordinal < kDevices; ++ordinal) {
      Do([&](Effects* effects) { core_.WorkerUp(now, ordinal, Lane::kMain, effects); });
    }
  }

  // Returns the request's number.
  uint64_t Request(const Ask& ask) {
    const uint64_t number = ++last_;
    asked_.emplace(number, ask);
    const Caller& caller = Of(ask.uid);
    const RequestTag tag = {.sequence = number};
    const GangMember& first = ask.members.front();
    Do([&](Effects* effects) {
      if (ask.members.size() > 1) {
        core_.AcquireGang(now, CallId(number), caller, tag,
                          {.members = ask.members, .holder_key = absl::StrCat(number), .priority = ask.priority},
                          effects);
      } else {
        core_.Acquire(now, CallId(number), caller, tag,
                      {.pool = first.pool,
                       .units = first.units,
                       .holder_key = absl::StrCat(number),
                       .priority = ask.priority,
                       .device = first.device},
                      effects);
      }
    });
    return number;
  }
  // Gives back all that one request was granted.
  void Release(size_t index) {
    const Held one = held[index];
    held.erase(held.begin() + static_cast<int64_t>(index));
    for (const AcquisitionId acquisition : one.acquisitions) {
      Do([&](Effects* effects) {
        core_.Release(now, CallId(++last_call_), Of(one.ask.uid), {.sequence = ++last_}, acquisition, effects);
      });
    }
  }
  const Ask& AskOf(uint64_t number) const { return asked_.at(number); }
  bool Waits(uint64_t number) const { return asked_.contains(number); }
  absl::Status CheckBooks() const { return core_.CheckBooks(); }

  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  std::vector<Held> held;
  // Everybody ever granted, in order.
  std::vector<Held> granted;

 private:
  static Config ConfigOf(const PoolConfig& a, const PoolConfig& b, uint64_t passes_before_hold) {
    Config config{.node = 1, .incarnation = 1, .pools = {a, b}, .warm_blocks_per_size = 0};
    config.limits.passes_before_hold = passes_before_hold;
    config.limits.answers_per_channel = 10'000'000;
    for (uint32_t ordinal = 0; ordinal < kDevices; ++ordinal) {
      config.devices.push_back({.ordinal = ordinal,
                                .uuid = absl::StrCat("DEVICE-", ordinal),
                                .total = kOnADevice,
                                .budget = kOnADevice});
    }
    return config;
  }

  // The session of a user, opened when it first asks.
  const Caller& Of(uint32_t uid) {
    const auto found = callers_.find(uid);
    if (found != callers_.end()) return found->second;
    const Tenant tenant = {.uid = 1'000 + uid};
    const Secret secret = {};
    const SessionId session = *core_.OpenSession(now, secret, tenant, "test", {.pid = 1, .uid = tenant.uid});
    const ChannelId channel =
        *core_.JoinSession(now, session, secret, tenant, {.pid = static_cast<int32_t>(++last_id_)});
    const Caller caller = {.credentials = {.session = session, .channel = channel, .secret = secret}, .tenant = tenant};
    return callers_.emplace(uid, caller).first->second;
  }

  void Do(const std::function<void(Effects*)>& act) {
    Effects effects;
    act(&effects);
    RowBatch changes;
    core_.TakeChanges(&changes);
    for (const auto& effect : effects) {
      const auto* const reply = std::get_if<Reply>(&effect.what);
      if (reply == nullptr || !asked_.contains(reply->call.value())) continue;
      ASSERT_TRUE(reply->response.ok()) << reply->response.status();
      Take(reply->call.value(), *reply->response);
    }
  }
  void Take(uint64_t number, const Response& response) {
    Held one = {.number = number, .ask = asked_.extract(number).mapped()};
    if (const auto* const gang = std::get_if<GangResult>(&response)) {
      for (const AcquireResult& permit : gang->permits) one.acquisitions.push_back(permit.acquisition);
    } else {
      one.acquisitions.push_back(std::get<AcquireResult>(response).acquisition);
    }
    held.push_back(one);
    granted.push_back(std::move(one));
  }

  uint64_t last_id_ = 0;
  Core core_;
  // By user.
  std::map<uint32_t, Caller> callers_;
  uint64_t last_ = 0;
  // Of releases, whose answers nobody looks at.
  uint64_t last_call_ = uint64_t{1} << 40;
  // Not granted yet.
  std::map<uint64_t, Ask> asked_;
};

// What somebody may want of one pool or both, with and without devices and their bytes; at most `most` units of each.
std::vector<GangMember> AnyWish(uint64_t most, const std::function<uint64_t(uint64_t)>& draw) {
  const auto units = [&] { return 1 + draw(most); };
  const auto on_a_device = [&](DevicePick pick) {
    DeviceWish wish = {.pick = pick, .declared = draw(2) == 0 ? Bytes() : GiB(1 + draw(4))};
    if (pick == DevicePick::kNamed) wish.uuid = absl::StrCat("DEVICE-", draw(kDevices));
    return wish;
  };
  const std::string pool = kPool[draw(kPools)];
  switch (draw(5)) {
    case 0:
      return {{.pool = pool, .units = units(), .device = on_a_device(DevicePick::kAny)}};
    case 1:
      return {{.pool = pool, .units = units(), .device = on_a_device(DevicePick::kNamed)}};
    case 2:
      return {{.pool = "a", .units = units()}, {.pool = "b", .units = units()}};
    case 3:
      return {{.pool = "a", .units = 1, .device = on_a_device(DevicePick::kAny)},
              {.pool = "b", .units = 1, .device = on_a_device(DevicePick::kAny)}};
    default:
      return {{.pool = pool, .units = units()}};
  }
}

TEST(GangOrderTest, SharesOfBackloggedTenantsAreWithinFivePercentInEachPool) {
  Seeds(3, [](auto draw) {
    const uint64_t cap[kPools] = {2 + draw(7), 2 + draw(7)};
    const uint64_t most = std::min<uint64_t>({cap[0], cap[1], 3});
    const uint32_t tenants = 2 + draw(3);
    std::map<uint32_t, uint32_t> weights;
    double all_weights = 0;
    for (uint32_t uid = 0; uid < tenants; ++uid) {
      weights[1'000 + uid] = 1 + draw(4);
      all_weights += weights[1'000 + uid];
    }
    Market market({.name = "a", .cap = cap[0], .weights = weights}, {.name = "b", .cap = cap[1], .weights = weights});
    const auto ask = [&](uint32_t uid) { market.Request({.uid = uid, .members = AnyWish(most, draw)}); };
    for (int i = 0; i < 30; ++i) {
      for (uint32_t uid = 0; uid < tenants; ++uid) ask(uid);
    }
    std::map<uint32_t, double> had[kPools];
    double all[kPools] = {};
    size_t counted = 0;
    while (market.granted.size() < 10'000) {
      market.now += absl::Milliseconds(draw(50));
      market.Release(draw(market.held.size()));
      // Each tenant always has as many at it.
      for (; counted < market.granted.size(); ++counted) {
        const Ask got = market.granted[counted].ask;
        for (int pool = 0; pool < kPools; ++pool) {
          had[pool][got.uid] += got.UnitsOf(kPool[pool]);
          all[pool] += got.UnitsOf(kPool[pool]);
        }
        ask(got.uid);
      }
    }
    for (int pool = 0; pool < kPools; ++pool) {
      for (const auto& [uid, units] : had[pool]) {
        const double due = weights.at(1'000 + uid) / all_weights;
        EXPECT_NEAR(units / all[pool], due, 0.05 * due) << "uid " << uid << " in pool " << kPool[pool];
      }
    }
    EXPECT_TRUE(market.CheckBooks().ok()) << market.CheckBooks();
  });
}

TEST(GangOrderTest, TheLeastGangOfAllIsServedWithinTheAgeingTimeAndABoundedNumberOfGrants) {
  Seeds(8, [](auto draw) {
    const uint64_t cap[kPools] = {2 + draw(6), 2 + draw(6)};
    const uint64_t most = std::min(cap[0], cap[1]);
    const uint64_t passes = draw(20);
    const uint32_t tenants = 1 + draw(4);
    const absl::Duration ageing = absl::Seconds(1 + draw(30));
    Market market({.name = "a", .cap = cap[0], .ageing = ageing}, {.name = "b", .cap = cap[1], .ageing = ageing},
                  passes);
    const auto others = [&] {
      market.Request({.uid = static_cast<uint32_t>(draw(tenants)),
                      .priority = static_cast<int32_t>(1 + draw(10)),
                      .members = AnyWish(most, draw)});
    };
    for (int i = 0; i < 40; ++i) others();
    // It is of one of the others' tenants, and wants all of both pools, and half of the devices.
    const uint64_t least = market.Request(
        {.uid = 0,
         .priority = -10,
         .members = {{.pool = "a", .units = cap[0], .device = {.pick = DevicePick::kAny, .declared = kOnADevice}},
                     {.pool = "b", .units = cap[1], .device = {.pick = DevicePick::kAny, .declared = kOnADevice}}}});
    const absl::Time aged = market.now + ageing;
    uint64_t after = 0;
    uint64_t bound = 0;
    while (market.Waits(least)) {
      market.now += absl::Milliseconds(1 + draw(50));
      if (market.now >= aged && bound == 0) {
        // Before it, in each pool: what its own tenant asked for earlier; what each other tenant may have until it
        // has had as much, and a request more (two, as it may have been one behind). Then its own turn.
        uint64_t turns = 0;
        for (int pool = 0; pool < kPools; ++pool) {
          uint64_t own = 0;
          for (uint64_t i = 1; i < least; ++i) {
            if (market.Waits(i) && market.AskOf(i).uid == 0) own += market.AskOf(i).UnitsOf(kPool[pool]);
          }
          std::map<uint32_t, uint64_t> had;
          for (const auto& one : market.granted) had[one.ask.uid] += one.ask.UnitsOf(kPool[pool]);
          turns += own + 1;
          for (uint32_t uid = 1; uid < tenants; ++uid) {
            turns += own + 2 * cap[pool] + had[0] - std::min(had[0], had[uid]);
          }
        }
        bound = turns + turns * passes;
      }
      const size_t before = market.granted.size();
      market.Release(draw(market.held.size()));
      if (market.now >= aged) after += market.granted.size() - before;
      for (uint64_t i = draw(4); i > 0; --i) others();
      ASSERT_TRUE(bound == 0 || after <= bound)
          << after << " of " << bound << ", tenants " << tenants << ", passes " << passes;
    }
  });
}

TEST(GangOrderTest, AGangIsPassedInEachPoolNoMoreThanTheStatedNumberOfTimes) {
  Seeds(30, [](auto draw) {
    const uint64_t cap = 2 + draw(7);
    const uint64_t passes = draw(20);
    Market market({.name = "a", .cap = cap}, {.name = "b", .cap = cap}, passes);
    // In the way of the gang, in one pool or both.
    market.Request({.members = {{.pool = kPool[draw(kPools)], .units = cap - 1}}});
    const uint64_t gang = market.Request({.members = {{.pool = "a", .units = cap}, {.pool = "b", .units = cap}}});
    uint64_t passed[kPools] = {};
    while (market.Waits(gang)) {
      const size_t before = market.granted.size();
      if (draw(2) == 0) {
        market.Request({.priority = static_cast<int32_t>(draw(2)) - 1, .members = AnyWish(1, draw)});
      } else {
        market.Release(draw(market.held.size()));
      }
      for (size_t i = before; i < market.granted.size(); ++i) {
        for (int pool = 0; pool < kPools; ++pool) {
          const bool later = market.granted[i].number > gang;
          passed[pool] += later && market.granted[i].ask.UnitsOf(kPool[pool]) > 0 ? 1 : 0;
        }
      }
      for (const uint64_t in_pool : passed) ASSERT_LE(in_pool, passes);
    }
    EXPECT_EQ(market.held.size(), 1u);
  });
}

TEST(GangOrderTest, ATenantOfGangsThatComesBackGetsItsShareAndNoBurst) {
  Seeds(4, [](auto draw) {
    const uint32_t weight = 1 + draw(4);
    const std::map<uint32_t, uint32_t> weights = {{1'001, weight}};
    const uint64_t cap = 1 + draw(4);
    Market market({.name = "a", .cap = cap, .weights = weights}, {.name = "b", .cap = cap, .weights = weights});
    const auto ask = [&](uint32_t uid) {
      market.Request({.uid = uid,
                      .members = {{.pool = "a", .device = {.pick = DevicePick::kAny, .declared = GiB(1)}},
                                  {.pool = "b"}}});
    };
    for (int i = 0; i < 2'000; ++i) ask(2 + static_cast<uint32_t>(i % 2));
    if (draw(2) == 0) ask(1);
    while (market.granted.size() < 300 + draw(300)) market.Release(0);
    for (int i = 0; i < 500; ++i) ask(1);
    const size_t from = market.granted.size();
    double had = 0;
    for (size_t i = from; i < from + 400; ++i) {
      market.Release(draw(market.held.size()));
      had += market.granted[i].ask.uid == 1 ? 1 : 0;
      EXPECT_NEAR(had, (i + 1 - from) * weight / (weight + 2.0), 3);
    }
  });
}

}  // namespace
}  // namespace berth::core
