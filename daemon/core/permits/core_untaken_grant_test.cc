// A grant that is not taken up leaves no trace in the order of the pool: its charge, passes and hold time are undone.
// And looks at waiting processes, which find the stopped ones.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

using Taking = TakeUpWords::Taking;

constexpr absl::Duration kPatience = absl::Milliseconds(500);
// Users of the late processes, of others, and of the holder.
constexpr uint32_t kLate = 1001;
constexpr uint32_t kOther = 1002;
constexpr uint32_t kHolder = 1003;

AcquireRequest Ask(const std::string& key, uint64_t units = 1) {
  return {.pool = "gpu-tests", .units = units, .holder_key = key};
}

class CoreUntakenGrantTest : public testing::Test {
 protected:
  explicit CoreUntakenGrantTest(const Config& config = CoreHarness::DefaultConfig()) : h_(config) {}

  void SetPool(uint64_t cap, const std::map<uint32_t, uint32_t>& weights = {}) {
    h_.Do([&](Core& core, Effects* effects) {
      EXPECT_TRUE(core.SetPool(h_.now, "gpu-tests", {.cap = cap, .weights = weights}, effects).ok());
    });
  }
  // Opens a process that takes grants up. `receives`: it has acknowledged its page.
  Peer OpenTaker(uint32_t uid = kLate, bool receives = true) {
    Peer peer = h_.Open(uid);
    peer.takes_up = true;
    if (!receives) return peer;
    EXPECT_TRUE(h_.StatusOf(h_.KeepPermits(peer)).ok());
    for (const Deliver& deliver : h_.deliveries) {
      if (deliver.channel == peer.channel) h_.Acknowledge(peer, deliver.delivery.number);
    }
    return peer;
  }
  CallId AskAgain(const Peer& peer, const AcquireRequest& request) {
    return h_.Ask([&](Core& core, CallId call, Effects* effects) {
      core.Acquire(h_.now, call, peer.caller(), peer.Again(), request, effects);
    });
  }
  // The process finds its grant withdrawn.
  bool WasWithdrawn(const Peer& peer) {
    TakeUpWords& words = h_.take_up_words[peer.channel];
    return words.IsWithdrawn(peer.sequence) && words.Take(peer.sequence) == Taking::kWithdrawn;
  }
  void Pass(absl::Duration time) {
    h_.now += time;
    h_.Tick();
  }
  bool Granted(CallId call) const { return h_.Answered(call) && h_.StatusOf(call).ok(); }
  // Returns the keys of the waiters that run, in the order of the queue.
  std::string Order() const {
    std::vector<std::string> keys;
    for (const WaiterView& waiter : h_.core->ListWaiters(h_.Admin(), "gpu-tests")) {
      if (!waiter.stopped) keys.push_back(waiter.holder_key);
    }
    return absl::StrJoin(keys, " ");
  }
  uint64_t PassesOf(const std::string& pool, const std::string& key) const {
    for (const WaiterView& waiter : h_.core->ListWaiters(h_.Admin(), pool)) {
      if (waiter.holder_key == key) return h_.core->ExplainWait(h_.Admin(), waiter.number)->passes;
    }
    ADD_FAILURE() << key << " does not wait";
    return 0;
  }

  CoreHarness h_;
};

TEST_F(CoreUntakenGrantTest, ManyUntakenGrantsLeaveNextWaiterInItsTurn) {
  SetPool(1);
  Peer holder = h_.Open(kHolder), able = h_.Open(kLate), other = h_.Open(kOther);
  const AcquireResult held = h_.MustAcquire(holder, Ask("h"));
  std::vector<Peer> late;
  for (int i = 0; i < 10; ++i) {
    late.push_back(OpenTaker());
    h_.Acquire(late.back(), Ask("late"));
  }
  const CallId next = h_.Acquire(able, Ask("a"));
  const CallId last = h_.Acquire(other, Ask("b"));
  h_.Release(holder, held.acquisition);
  for (size_t i = 0; i < late.size(); ++i) {
    EXPECT_FALSE(h_.Answered(next)) << i;
    Pass(kPatience);
  }
  EXPECT_TRUE(Granted(next)) << "its user has used nothing";
  EXPECT_FALSE(h_.Answered(last));
}

TEST_F(CoreUntakenGrantTest, WeightedChargeIsTakenBackAfterGrantsOfOthers) {
  SetPool(2, {{kLate, 2}});
  Peer holder = h_.Open(kHolder), late = OpenTaker(), able = h_.Open(kLate), other = h_.Open(kOther);
  const AcquireResult held = h_.MustAcquire(holder, Ask("h", 2));
  h_.Acquire(late, Ask("late"));
  const CallId b0 = h_.Acquire(other, Ask("b0"));
  h_.Acquire(other, Ask("b1"));
  std::vector<CallId> a;
  for (int i = 1; i <= 6; ++i) a.push_back(h_.Acquire(able, Ask(absl::StrCat("a", i))));
  for (const char* const key : {"b2", "b3"}) h_.Acquire(other, Ask(key));
  h_.Release(holder, held.acquisition);
  // The clocks are at 1/2, with the untaken grant, and at 1.
  ASSERT_TRUE(Granted(b0));
  h_.Release(other, h_.Get<AcquireResult>(b0).acquisition);
  ASSERT_TRUE(Granted(a[0]));
  EXPECT_EQ(Order(), "b1 a2 a3 a4 b2 a5 a6 b3");
  // Both are at 1, and the withdrawal takes 1/2 back.
  Pass(kPatience);
  EXPECT_TRUE(Granted(a[1]));
  EXPECT_TRUE(WasWithdrawn(late));
  EXPECT_FALSE(h_.Answered(AskAgain(late, Ask("late"))));
  EXPECT_EQ(Order(), "late b1 a3 a4 b2 a5 a6 b3");
}

TEST_F(CoreUntakenGrantTest, ChargeIsTakenBackAsItWasMade) {
  SetPool(4, {{kLate, 4}});
  Peer holder = h_.Open(kHolder), late = OpenTaker(), able = h_.Open(kLate), other = h_.Open(kOther);
  const AcquireResult held = h_.MustAcquire(holder, Ask("h", 4));
  AcquireRequest exclusive = Ask("late");
  exclusive.exclusive = true;
  h_.Acquire(late, exclusive);
  const CallId next = h_.Acquire(able, Ask("a1", 2));
  h_.Acquire(able, Ask("a2", 2));
  h_.Acquire(other, Ask("b1", 2));
  h_.Acquire(other, Ask("b2", 2));
  h_.Release(holder, held.acquisition);
  // The charge was 4/4; the same request would be charged 2/1 now.
  SetPool(2, {{kLate, 1}});
  Pass(kPatience);
  EXPECT_TRUE(Granted(next));
  h_.Forget(late, late.sequence);
  EXPECT_EQ(Order(), "b1 a2 b2") << "the clocks are at 2 and 0";
}

TEST_F(CoreUntakenGrantTest, UntakenGrantIsNoCreditForUserThatWasAway) {
  SetPool(2);
  Peer late = OpenTaker(), other = h_.Open(kOther), able = h_.Open(kLate);
  h_.Acquire(late, Ask("late"));
  // Meanwhile the other user has three units, and the common clock passes that of the late one.
  for (int i = 0; i < 3; ++i) h_.Release(other, h_.MustAcquire(other, Ask("b")).acquisition);
  const AcquireResult held = h_.MustAcquire(other, Ask("b"));
  Pass(kPatience);
  h_.Acquire(other, Ask("b1"));
  Pass(absl::ZeroDuration());
  EXPECT_TRUE(WasWithdrawn(late));
  h_.Acquire(other, Ask("b2"));
  for (const char* const key : {"a1", "a2", "a3", "a4"}) h_.Acquire(able, Ask(key));
  h_.Acquire(other, Ask("b3"));
  // The late user came back when the common clock was at 3, and its first waiter is stopped. The other user is at 5.
  EXPECT_EQ(Order(), "a1 b2 a2 a3 b3 a4");
  h_.Release(other, held.acquisition);
  EXPECT_EQ(Order(), "b2 a2 a3 b3 a4");
}

TEST_F(CoreUntakenGrantTest, NextBrokerTakesChargeBack) {
  SetPool(1, {{kLate, 2}});
  Peer holder = h_.Open(kHolder), late = OpenTaker(), able = h_.Open(kLate), other = h_.Open(kOther);
  const AcquireResult held = h_.MustAcquire(holder, Ask("h"));
  h_.Acquire(late, Ask("late"));
  h_.Acquire(able, Ask("a"));
  h_.Acquire(other, Ask("b"));
  h_.Release(holder, held.acquisition);
  h_.Restart();
  const CallId next = AskAgain(able, Ask("a"));
  EXPECT_FALSE(h_.Answered(AskAgain(other, Ask("b"))));
  Pass(kPatience);
  EXPECT_TRUE(WasWithdrawn(late));
  EXPECT_TRUE(Granted(next));
}

TEST_F(CoreUntakenGrantTest, UsedPermitStaysCharged) {
  SetPool(1);
  Peer late = OpenTaker(), other = h_.Open(kOther), able = h_.Open(kLate);
  Peer sibling = h_.JoinTo(late);
  ASSERT_TRUE(Granted(h_.Acquire(late, Ask("late"))));
  const AcquireResult nested = h_.MustAcquire(sibling, Ask("late"));
  ASSERT_TRUE(nested.nested);
  h_.Acquire(able, Ask("a"));
  const CallId next = h_.Acquire(other, Ask("b"));
  h_.now += absl::Milliseconds(100);
  h_.Release(sibling, nested.acquisition);
  Pass(kPatience);
  EXPECT_TRUE(WasWithdrawn(late));
  EXPECT_TRUE(Granted(next));
}

TEST_F(CoreUntakenGrantTest, UntakenGangLeavesNoCharge) {
  SetPool(1);
  Peer late = OpenTaker(), able = h_.Open(kLate), other = h_.Open(kOther);
  ASSERT_TRUE(Granted(h_.AcquireGang(
      late, {.members = {{.pool = "gpu-tests"}, {.pool = "wide", .units = 8}}, .holder_key = "gang"})));
  const CallId next = h_.Acquire(able, Ask("a"));
  h_.Acquire(other, Ask("b"));
  const CallId in_wide = h_.Acquire(able, {.pool = "wide", .units = 8, .holder_key = "w"});
  h_.Acquire(other, {.pool = "wide", .units = 8, .holder_key = "w"});
  Pass(kPatience);
  EXPECT_TRUE(WasWithdrawn(late));
  EXPECT_TRUE(Granted(next));
  EXPECT_TRUE(Granted(in_wide));
  for (const char* const pool : {"gpu-tests", "wide"}) EXPECT_EQ(h_.Pool(pool).mean_hold, absl::ZeroDuration());
  uint64_t untaken = 0;
  for (const LeaseRecord& lease : h_.leases) untaken += lease.end == LeaseEnd::kNotTakenUp ? 1 : 0;
  EXPECT_EQ(untaken, 2u);
}

TEST_F(CoreUntakenGrantTest, UntakenPlanLeavesNoCharge) {
  SetPool(1);
  Peer late = OpenTaker(), able = h_.Open(kLate), other = h_.Open(kOther);
  h_.MakePlan(late, {.units = 4, .max_devices = 1, .pool = "gpu-tests"});
  ASSERT_EQ(h_.Pool().out, 1u);
  const CallId next = h_.Acquire(able, Ask("a"));
  h_.Acquire(other, Ask("b"));
  Pass(kPatience);
  EXPECT_TRUE(WasWithdrawn(late));
  EXPECT_TRUE(Granted(next));
  EXPECT_EQ(h_.Pool().mean_hold, absl::ZeroDuration());
}

TEST_F(CoreUntakenGrantTest, GangReturnsWithItsPasses) {
  Peer holder = h_.Open(kHolder), late = OpenTaker(), other = h_.Open(kOther);
  const auto wide = [](const std::string& key, uint64_t units) {
    return AcquireRequest{.pool = "wide", .units = units, .holder_key = key};
  };
  const AcquireResult held = h_.MustAcquire(holder, wide("h", 4));
  h_.AcquireGang(late, {.members = {{.pool = "wide", .units = 8}}, .holder_key = "gang"});
  for (int i = 0; i < 3; ++i) h_.Release(other, h_.MustAcquire(other, wide("b", 1)).acquisition);
  EXPECT_EQ(PassesOf("wide", "gang"), 3u);
  h_.Release(holder, held.acquisition);
  ASSERT_EQ(h_.Pool("wide").out, 8u);
  const CallId next = h_.Acquire(other, wide("b", 8));
  Pass(kPatience);
  EXPECT_TRUE(Granted(next));
  EXPECT_EQ(PassesOf("wide", "gang"), 3u);
}

TEST_F(CoreUntakenGrantTest, WithheldGrantPassesNoWaiter) {
  SetPool(2);
  Peer holder = h_.Open(kHolder), other = h_.Open(kOther), owes = OpenTaker(kLate, /*receives=*/false);
  const AcquireResult held = h_.MustAcquire(holder, Ask("h1"));
  h_.MustAcquire(holder, Ask("h2"));
  h_.Acquire(other, Ask("big", 2));
  const CallId call = h_.Acquire(owes, Ask("a"));
  Pass(absl::Milliseconds(1));
  h_.Release(holder, held.acquisition);
  ASSERT_TRUE(h_.Refused(call, Reason::kProcessStopped));
  EXPECT_EQ(PassesOf("gpu-tests", "big"), 0u);
  EXPECT_TRUE(Granted(AskAgain(owes, Ask("a"))));
  EXPECT_EQ(PassesOf("gpu-tests", "big"), 1u);
}

TEST_F(CoreUntakenGrantTest, UserThatTakesNothingUpIsLateAfter16Grants) {
  SetPool(1);
  Peer other = h_.Open(kOther);
  std::vector<Peer> late = {OpenTaker(), OpenTaker()};
  for (Peer& peer : late) h_.Acquire(peer, Ask("late"));
  for (int round = 0; round < 2; ++round) {
    const CallId next = h_.Acquire(other, Ask("b"));
    int untaken = 0;
    for (; !h_.Answered(next) && untaken < 100; ++untaken) {
      Pass(kPatience);
      for (const Peer& peer : late) {
        if (WasWithdrawn(peer)) AskAgain(peer, Ask("late"));
      }
    }
    EXPECT_EQ(untaken, 16) << round;
    EXPECT_EQ(h_.core->ListPermits(h_.Admin(), "gpu-tests").at(0).session, other.session);
    h_.Release(other, h_.Get<AcquireResult>(next).acquisition);
    ASSERT_EQ(h_.Pool().out, 1u);
  }
}

// ---- Looks at waiting processes ------------------------------------------------------------------------------

// A look takes 16 processes: 4 with untaken grants, 2 at the head of each pool, and others in turn.
Config ShortLooks() {
  Config config = CoreHarness::DefaultConfig();
  config.pools[0].cap = 1;
  config.limits.processes_per_look = 16;
  return config;
}

class CoreLookTest : public CoreUntakenGrantTest {
 protected:
  CoreLookTest() : CoreUntakenGrantTest(ShortLooks()) {
    held_ = h_.MustAcquire(holder_, Ask("h"));
    whole_ = h_.MustAcquire(holder_, Whole());
  }
  static AcquireRequest Whole() { return {.pool = "wide", .units = 8}; }
  // Returns the processes of this step's look.
  std::set<ChannelId> LookAfter(absl::Duration time) {
    h_.looked_at.clear();
    Pass(time);
    EXPECT_LE(h_.looked_at.size(), 16u);
    return {h_.looked_at.begin(), h_.looked_at.end()};
  }

  Peer holder_ = h_.Open(kHolder);
  AcquireResult held_;
  AcquireResult whole_;
};

TEST_F(CoreLookTest, EachWaiterIsLookedAtInItsTurn) {
  std::set<ChannelId> waiting;
  for (int i = 0; i < 50; ++i) {
    Peer peer = OpenTaker();
    h_.Acquire(peer, i < 40 ? Ask("a") : Whole());
    waiting.insert(peer.channel);
  }
  for (int round = 0; round < 3; ++round) {
    std::set<ChannelId> looked;
    for (int i = 0; i < 4; ++i) looked.merge(LookAfter(absl::Milliseconds(250)));
    EXPECT_EQ(looked, waiting) << "50 processes, of which at least 12 a look";
  }
}

TEST_F(CoreLookTest, StoppedWaitersBehindRunningOnesCostNextWaiterOneLimit) {
  for (int i = 0; i < 30; ++i) {
    Peer peer = OpenTaker();
    h_.Acquire(peer, Ask("a"));
  }
  std::set<ChannelId> stopped;
  for (int i = 0; i < 30; ++i) {
    Peer peer = OpenTaker();
    h_.Acquire(peer, Whole());
    stopped.insert(peer.channel);
  }
  Peer runs = OpenTaker();
  const CallId next = h_.Acquire(runs, Whole());
  h_.Release(holder_, whole_.acquisition);
  const absl::Time released = h_.now;
  while (!h_.Answered(next) && h_.now - released < absl::Seconds(10)) {
    std::vector<ChannelId> seen;
    for (const ChannelId channel : LookAfter(absl::Milliseconds(5))) {
      if (stopped.contains(channel)) seen.push_back(channel);
    }
    if (seen.empty()) continue;
    h_.Do([&](Core& core, Effects* effects) { core.ProcessesStopped(h_.now, seen, effects); });
  }
  EXPECT_TRUE(Granted(next));
  // Each later look takes 10 ms, for 12 processes or more.
  EXPECT_LE(h_.now - released, kPatience + absl::Milliseconds(60));
}

}  // namespace
}  // namespace berth::core
