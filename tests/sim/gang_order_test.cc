// The order that docs/concepts/fairness.md promises where gangs and device constraints wait among others, in two pools
// of a whole node, over many random runs. BERTH_SIM_SEED replays one. The cases that take minutes are a separate
// target, gang_order_soak_test.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/strings/str_cat.h"
#include "daemon/core/core.h"
#include "daemon/core/types/effects.h"
#include "gtest/gtest.h"
#include "tests/sim/fair_share.h"
#include "tests/sim/seeds.h"

namespace berth::core {
namespace {

using sim::ExpectItsShareAndNoBurst;
using sim::Seeds;

constexpr int kPools = 2;
const char* const kPool[kPools] = {"a", "b"};
constexpr uint64_t kDevices = 4;
constexpr Bytes kOnADevice = GiB(8);

struct Ask {
  uint32_t uid = 0;
  int32_t priority = 0;
  // One member is an ordinary acquire, several are a gang.
  std::vector<GangMember> members;

  uint64_t UnitsOf(const std::string& pool) const {
    uint64_t units = 0;
    for (const GangMember& member : members) units += member.pool == pool ? member.units : 0;
    return units;
  }
};

// A node of two pools and four devices, with all its requests. Each request has a separate holder.
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
            [](StreamKey) { return FenceValues(); }) {
    for (uint32_t ordinal = 0; ordinal < kDevices; ++ordinal) {
      Do([&](Effects* effects) { core_.WorkerUp(now, ordinal, WorkerKind::kMain, effects); });
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
  // Releases all permits of one request.
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
  absl::Status CheckInvariants() const { return core_.CheckInvariants(); }

  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  std::vector<Held> held;
  // All grants ever made, in order.
  std::vector<Held> granted;

 private:
  static Config ConfigOf(const PoolConfig& a, const PoolConfig& b, uint64_t passes_before_hold) {
    Config config{.node = 1, .incarnation = 1, .pools = {a, b}, .warm_blocks_per_size = 0};
    config.limits.passes_before_hold = passes_before_hold;
    config.limits.answers = {
        .per_channel = 10'000'000, .bytes_per_channel = GiB(64), .bytes_per_session = GiB(64)};
    config.limits.answer_bytes = GiB(128);
    for (uint32_t ordinal = 0; ordinal < kDevices; ++ordinal) {
      config.devices.push_back({.ordinal = ordinal,
                                .uuid = absl::StrCat("DEVICE-", ordinal),
                                .total = kOnADevice,
                                .budget = kOnADevice});
    }
    return config;
  }

  // Returns the session of a user, opened at the user's first request.
  const Caller& Of(uint32_t uid) {
    const auto found = callers_.find(uid);
    if (found != callers_.end()) return found->second;
    const Tenant tenant = {.uid = uid};
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
    RecordBatch changes;
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
  // Sessions by user.
  std::map<uint32_t, Caller> callers_;
  uint64_t last_ = 0;
  // Call ids of releases, whose answers are ignored.
  uint64_t last_call_ = uint64_t{1} << 40;
  // Requests that are not granted yet.
  std::map<uint64_t, Ask> asked_;
};

using Draw = std::function<uint64_t(uint64_t)>;

DeviceConstraint AnyDevice(const Draw& draw) {
  DeviceConstraint constraint = {.pick = DevicePick::kAny, .declared = draw(2) == 0 ? Bytes() : GiB(1 + draw(4))};
  if (draw(2) == 0) return constraint;
  constraint.pick = DevicePick::kNamed;
  constraint.uuid = absl::StrCat("DEVICE-", draw(kDevices));
  return constraint;
}

// Returns a possible request of one pool, with and without devices and their bytes; at most `most` units, of which
// there are two.
constexpr uint64_t kKinds = 4;
std::vector<GangMember> GangMembersOf(uint64_t kind, const std::string& pool, uint64_t most, const Draw& draw) {
  const GangMember with_any = {.pool = pool, .device = {.pick = DevicePick::kAny, .declared = GiB(draw(4))}};
  switch (kind) {
    case 0:
      return {{.pool = pool, .units = 1 + draw(most)}};
    case 1:
      return {{.pool = pool, .units = 1 + draw(most), .device = AnyDevice(draw)}};
    case 2:
      return {with_any, with_any};
    default:
      return {{.pool = pool, .units = 1}, with_any};
  }
}

// As above, for either pool, or for both.
std::vector<GangMember> AnyMembers(uint64_t most, const Draw& draw) {
  const uint64_t kind = draw(kKinds + 2);
  if (kind < kKinds) return GangMembersOf(kind, kPool[draw(kPools)], most, draw);
  const bool placed = kind == kKinds;
  const DeviceConstraint constraint =
      placed ? DeviceConstraint{.pick = DevicePick::kAny, .declared = GiB(draw(4))} : DeviceConstraint();
  return {{.pool = "a", .units = 1 + draw(most), .device = constraint},
          {.pool = "b", .units = 1 + draw(most), .device = constraint}};
}

// Lets every tenant have equally many waiters at all times, until 10,000 requests were granted. Expects each tenant to
// get the units of its weight, within a tolerance of `part`, in each pool that it requests.
void ExpectShares(Market* market, const std::map<uint32_t, uint32_t>& weights, double part,
                  const std::function<void(uint32_t)>& ask, const Draw& draw) {
  double all_weights = 0;
  for (const auto& [uid, weight] : weights) all_weights += weight;
  for (int i = 0; i < 30; ++i) {
    for (const auto& [uid, weight] : weights) ask(uid);
  }
  std::map<uint32_t, double> had[kPools];
  double all[kPools] = {};
  size_t counted = 0;
  while (market->granted.size() < 10'000) {
    market->now += absl::Milliseconds(draw(50));
    market->Release(draw(market->held.size()));
    for (; counted < market->granted.size(); ++counted) {
      const Ask got = market->granted[counted].ask;
      for (int pool = 0; pool < kPools; ++pool) {
        had[pool][got.uid] += got.UnitsOf(kPool[pool]);
        all[pool] += got.UnitsOf(kPool[pool]);
      }
      ask(got.uid);
    }
  }
  for (int pool = 0; pool < kPools; ++pool) {
    if (all[pool] == 0) continue;
    for (const auto& [uid, weight] : weights) {
      const double due = weight / all_weights;
      EXPECT_NEAR(had[pool][uid] / all[pool], due, part * due) << "uid " << uid << " in pool " << kPool[pool];
    }
  }
  EXPECT_TRUE(market->CheckInvariants().ok()) << market->CheckInvariants();
}

std::map<uint32_t, uint32_t> SomeWeights(const Draw& draw) {
  std::map<uint32_t, uint32_t> weights;
  for (uint64_t tenants = 2 + draw(3); weights.size() < tenants;) weights[weights.size()] = 1 + draw(4);
  return weights;
}

TEST(GangOrderTest, PoolSharesFollowWeightsForMixedRequests) {
  Seeds(3, [](auto draw) {
    const std::map<uint32_t, uint32_t> weights = SomeWeights(draw);
    const uint64_t cap = 2 + draw(7);
    Market market({.name = "a", .cap = cap, .weights = weights}, {.name = "b", .cap = 1});
    // Some tenants request gangs, others single permits.
    std::map<uint32_t, std::vector<uint64_t>> kinds;
    for (const auto& [uid, weight] : weights) {
      for (uint64_t i = 1 + draw(2); i > 0; --i) kinds[uid].push_back(draw(kKinds));
    }
    const auto ask = [&](uint32_t uid) {
      const uint64_t kind = kinds[uid][draw(kinds[uid].size())];
      market.Request({.uid = uid, .members = GangMembersOf(kind, "a", std::min<uint64_t>(cap, 3), draw)});
    };
    ExpectShares(&market, weights, 0.05, ask, draw);
  });
}

TEST(GangOrderTest, SharesFollowWeightsInBothPools) {
  Seeds(1, [](auto draw) {
    const std::map<uint32_t, uint32_t> weights = SomeWeights(draw);
    const uint64_t cap[kPools] = {2 + draw(7), 2 + draw(7)};
    const uint64_t most = std::min<uint64_t>({cap[0], cap[1], 3});
    Market market({.name = "a", .cap = cap[0], .weights = weights}, {.name = "b", .cap = cap[1], .weights = weights});
    const auto ask = [&](uint32_t uid) { market.Request({.uid = uid, .members = AnyMembers(most, draw)}); };
    ExpectShares(&market, weights, 0.1, ask, draw);
  });
}

TEST(GangOrderTest, LowestGangIsServedWithinAgeingTime) {
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
                      .members = AnyMembers(most, draw)});
    };
    for (int i = 0; i < 40; ++i) others();
    // The request belongs to a tenant that has other requests. It needs all of both pools, and half of the devices.
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
        // Served before it, in each pool: the earlier requests of its own tenant. Each other tenant goes first until it
        // has had as much, plus one request (two, as it may have been one behind). Then its own turn.
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

TEST(GangOrderTest, LargeGangIsPassedNoMoreThanLimit) {
  const DeviceConstraint whole = {.pick = DevicePick::kNamed, .uuid = "DEVICE-0", .declared = kOnADevice};
  Seeds(60, [&](auto draw) {
    const uint64_t cap = 2 + draw(7);
    const uint64_t passes = draw(20);
    Market market({.name = "a", .cap = cap}, {.name = "b", .cap = cap}, passes);
    // A holder in one pool that has a part of everything that the large request needs.
    market.Request({.members = {{.pool = kPool[draw(kPools)],
                                 .units = cap - 1,
                                 .device = {.pick = DevicePick::kNamed, .uuid = "DEVICE-0", .declared = GiB(1)}}}});
    const std::vector<std::vector<GangMember>> constraints = {
        {{.pool = "a", .units = cap}, {.pool = "b", .units = cap}},
        {{.pool = "a", .device = whole}, {.pool = "b", .units = cap}},
        {{.pool = "a", .device = whole}},
        {{.pool = "b", .units = cap, .device = whole}}};
    const Ask asked = {.members = constraints[draw(constraints.size())]};
    const uint64_t large = market.Request(asked);
    uint64_t passed[kPools] = {};
    while (market.Waits(large)) {
      const size_t before = market.granted.size();
      if (draw(2) == 0) {
        market.Request({.priority = static_cast<int32_t>(draw(2)) - 1, .members = AnyMembers(1, draw)});
      } else {
        market.Release(draw(market.held.size()));
      }
      // Counts until its own turn: requests granted after it in the same step did not pass it.
      for (size_t i = before; i < market.granted.size() && market.granted[i].number != large; ++i) {
        for (int pool = 0; pool < kPools; ++pool) {
          const bool later = market.granted[i].number > large;
          const bool both_want =
              market.granted[i].ask.UnitsOf(kPool[pool]) > 0 && asked.UnitsOf(kPool[pool]) > 0;
          passed[pool] += later && both_want ? 1 : 0;
        }
      }
      for (const uint64_t in_pool : passed) ASSERT_LE(in_pool, passes);
    }
    ASSERT_TRUE(market.CheckInvariants().ok()) << market.CheckInvariants();
  });
}

TEST(GangOrderTest, ReturningGangTenantGetsShareWithoutBurst) {
  Seeds(4, [](auto draw) {
    const uint32_t weight = 1 + draw(4);
    const std::map<uint32_t, uint32_t> weights = {{1, weight}};
    const uint64_t cap = 1 + draw(8);
    // With more than half of a device's bytes each, the four devices are the scarce resource where the cap is higher.
    const Bytes declared = GiB(1 + draw(6));
    Market market({.name = "a", .cap = cap, .weights = weights}, {.name = "b", .cap = cap, .weights = weights});
    const auto ask = [&](uint32_t uid) {
      market.Request({.uid = uid,
                      .members = {{.pool = "a", .device = {.pick = DevicePick::kAny, .declared = declared}},
                                  {.pool = "b"}}});
    };
    for (int i = 0; i < 2'000; ++i) ask(2 + static_cast<uint32_t>(i % 2));
    if (draw(2) == 0) ask(1);
    while (market.granted.size() < 300 + draw(300)) market.Release(0);
    for (int i = 0; i < 500; ++i) ask(1);
    ExpectItsShareAndNoBurst(&market, 1, weight, draw);
  });
}

}  // namespace
}  // namespace berth::core
