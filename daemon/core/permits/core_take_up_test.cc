// Grants that a process must take up, and waiters whose processes are stopped.

#include <string>
#include <vector>

#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

using Taking = TakeUpWords::Taking;

constexpr absl::Duration kPatience = absl::Milliseconds(500);

AcquireRequest Ask(const std::string& key) { return {.pool = "gpu-tests", .holder_key = key}; }

class CoreTakeUpTest : public testing::Test {
 protected:
  CoreTakeUpTest() { SetCap(1); }

  void SetCap(uint64_t cap) {
    h_.Do([&](Core& core, Effects* effects) {
      EXPECT_TRUE(core.SetPool(h_.now, "gpu-tests", {.cap = cap}, effects).ok());
    });
  }
  Peer Open() {
    Peer peer = h_.Open();
    peer.takes_up = true;
    return peer;
  }
  // A process that has its page, as after its first wait.
  Peer OpenWithPage() {
    Peer peer = Open();
    EXPECT_TRUE(h_.StatusOf(h_.KeepPermits(peer)).ok());
    Receive(peer);
    return peer;
  }
  // The process maps and acknowledges what it was sent.
  void Receive(const Peer& peer) {
    for (const Deliver& deliver : h_.deliveries) {
      if (deliver.channel == peer.channel) h_.Acknowledge(peer, deliver.delivery.number);
    }
  }
  CallId AskAgain(const Peer& peer, const AcquireRequest& request) {
    return h_.Ask([&](Core& core, CallId call, Effects* effects) {
      core.Acquire(h_.now, call, peer.caller(), peer.Again(), request, effects);
    });
  }
  Taking Take(const Peer& peer) { return h_.take_up_words[peer.channel].Take(peer.sequence); }
  void Stop(const Peer& peer) {
    h_.Do([&](Core& core, Effects* effects) { core.ProcessesStopped(h_.now, {peer.channel}, effects); });
  }
  void Pass(absl::Duration time) {
    h_.now += time;
    h_.Tick();
  }
  bool Granted(CallId call) const { return h_.Answered(call) && h_.StatusOf(call).ok(); }
  std::vector<WaiterView> Waiters() const { return h_.core->ListWaiters(h_.Admin(), "gpu-tests"); }

  CoreHarness h_;
};

TEST_F(CoreTakeUpTest, UntakenGrantPassesOnAndWaiterKeepsPlace) {
  Peer a = Open(), b = Open(), c = Open(), d = Open();
  const AcquireResult held = h_.MustAcquire(a, Ask("a"));
  const CallId first = h_.Acquire(b, Ask("b"));
  Receive(b);
  const CallId second = h_.Acquire(c, Ask("c"));
  Receive(c);
  const CallId third = h_.Acquire(d, Ask("d"));
  Receive(d);
  h_.Release(a, held.acquisition);
  ASSERT_TRUE(Granted(first));
  EXPECT_EQ(h_.core->next_deadline(), h_.now + absl::Milliseconds(250));
  Pass(kPatience - absl::Milliseconds(1));
  EXPECT_FALSE(Granted(second));
  Pass(absl::Milliseconds(1));
  ASSERT_TRUE(Granted(second));
  EXPECT_EQ(h_.Pool().out, 1u);
  EXPECT_EQ(Take(c), Taking::kTaken);
  EXPECT_TRUE(Waiters()[0].stopped);
  EXPECT_EQ(h_.core->ExplainWait(h_.Admin(), Waiters()[0].number)->cause, WaitCause::kStopped);
  // The late process is refused its grant, and waits before those that came after it.
  EXPECT_EQ(Take(b), Taking::kWithdrawn);
  const CallId again = AskAgain(b, Ask("b"));
  EXPECT_FALSE(h_.Answered(again));
  EXPECT_FALSE(Waiters()[0].stopped);
  EXPECT_EQ(Waiters()[0].session, b.session);
  h_.Release(c, h_.Get<AcquireResult>(second).acquisition);
  ASSERT_TRUE(Granted(again));
  EXPECT_FALSE(h_.Answered(third));
  EXPECT_EQ(Take(b), Taking::kTaken);
}

TEST_F(CoreTakeUpTest, TakenGrantIsNeverWithdrawn) {
  Peer a = OpenWithPage(), b = Open();
  const CallId first = h_.Acquire(a, Ask("a"));
  EXPECT_EQ(Take(a), Taking::kTaken);
  const CallId second = h_.Acquire(b, Ask("b"));
  for (int i = 0; i < 20; ++i) Pass(absl::Milliseconds(300));
  Stop(a);
  EXPECT_TRUE(Granted(first));
  EXPECT_FALSE(h_.Answered(second));
  EXPECT_EQ(h_.Pool().out, 1u);
}

TEST_F(CoreTakeUpTest, GrantWaitsForItsProcessWithoutOtherWaiters) {
  Peer a = OpenWithPage(), b = Open();
  h_.Acquire(a, Ask("a"));
  Pass(absl::Hours(1));
  EXPECT_EQ(h_.Pool().out, 1u);
  // The next request gets what was not taken up for so long.
  const CallId second = h_.Acquire(b, Ask("b"));
  Pass(absl::ZeroDuration());
  EXPECT_TRUE(Granted(second));
  EXPECT_EQ(Take(a), Taking::kWithdrawn);
}

TEST_F(CoreTakeUpTest, WaiterThatOwesItsPageMustCallAgain) {
  Peer a = Open(), b = Open(), c = Open();
  const AcquireResult held = h_.MustAcquire(a, Ask("a"));
  const CallId first = h_.Acquire(b, Ask("b"));
  const CallId second = h_.Acquire(c, Ask("c"));
  Receive(c);
  Pass(absl::Milliseconds(1));
  h_.Release(a, held.acquisition);
  EXPECT_TRUE(h_.Refused(first, Reason::kProcessStopped));
  ASSERT_TRUE(Granted(second));
  EXPECT_EQ(Take(c), Taking::kTaken);
  // Its place is the first, and a call after the refusal is proof enough.
  Peer d = OpenWithPage();
  const CallId third = h_.Acquire(d, Ask("d"));
  const CallId again = AskAgain(b, Ask("b"));
  EXPECT_FALSE(h_.Answered(again));
  Pass(absl::Milliseconds(1));
  h_.Release(c, h_.Get<AcquireResult>(second).acquisition);
  EXPECT_TRUE(Granted(again));
  EXPECT_FALSE(h_.Answered(third));
  EXPECT_EQ(Take(b), Taking::kNotOffered);
  EXPECT_EQ(h_.Pool().out, 1u);
}

TEST_F(CoreTakeUpTest, WaiterThatOwesItsPageGetsTheIdleUnitByItsNextCall) {
  Peer a = Open(), b = Open();
  const AcquireResult held = h_.MustAcquire(a, Ask("a"));
  const CallId first = h_.Acquire(b, Ask("b"));
  Pass(absl::Milliseconds(1));
  h_.Release(a, held.acquisition);
  EXPECT_TRUE(h_.Refused(first, Reason::kProcessStopped));
  EXPECT_EQ(h_.Pool().out, 0u);
  EXPECT_EQ(h_.Pool().granted_total, 1u);
  EXPECT_TRUE(Granted(AskAgain(b, Ask("b"))));
  EXPECT_EQ(h_.Pool().granted_total, 2u);
}

TEST_F(CoreTakeUpTest, GangOrPlanThatOwesItsPageMustCallAgain) {
  for (const bool plan : {false, true}) {
    SCOPED_TRACE(plan);
    Peer a = Open(), b = Open(), c = OpenWithPage();
    const AcquireResult held = h_.MustAcquire(a, Ask("a"));
    const auto ask = [&](const RequestTag& tag) {
      return h_.Ask([&](Core& core, CallId call, Effects* effects) {
        if (plan) {
          core.MakePlan(h_.now, call, b.caller(), tag, {.units = 4, .max_devices = 1, .pool = "gpu-tests"}, effects);
        } else {
          core.AcquireGang(h_.now, call, b.caller(), tag,
                           {.members = {{.pool = "gpu-tests"}, {.pool = "wide"}}, .holder_key = "gang"}, effects);
        }
      });
    };
    const CallId first = ask(b.Next());
    EXPECT_FALSE(h_.Answered(first));
    const CallId next = h_.Acquire(c, Ask("c"));
    Pass(absl::Milliseconds(1));
    h_.Release(a, held.acquisition);
    EXPECT_TRUE(h_.Refused(first, Reason::kProcessStopped));
    ASSERT_TRUE(Granted(next)) << "the unit is not lost meanwhile";
    EXPECT_EQ(Take(c), Taking::kTaken);
    EXPECT_EQ(h_.Pool("wide").out, 0u);
    EXPECT_TRUE(h_.core->ListPlans(h_.Admin()).empty());
    // A call after the refusal is proof enough.
    const CallId again = ask(b.Again());
    EXPECT_FALSE(h_.Answered(again));
    Pass(absl::Milliseconds(1));
    h_.Release(c, h_.Get<AcquireResult>(next).acquisition);
    EXPECT_TRUE(Granted(again));
    EXPECT_EQ(Take(b), Taking::kNotOffered);
    EXPECT_EQ(h_.Pool().out, 1u);
    h_.HangUp(b);
    h_.Gone(b);
    ASSERT_EQ(h_.Pool().out, 0u);
  }
}

TEST_F(CoreTakeUpTest, GangOfProcessThatTakesNothingUpIsWithheld) {
  SetCap(100);
  Peer a = OpenWithPage();
  for (size_t i = 0; i < TakeUpWords::kWords; ++i) EXPECT_TRUE(Granted(h_.Acquire(a, Ask(std::to_string(i)))));
  for (const bool wait : {true, false}) {
    SCOPED_TRACE(wait);
    const CallId gang = h_.AcquireGang(
        a, {.members = {{.pool = "gpu-tests"}, {.pool = "wide"}}, .holder_key = "gang", .wait = wait});
    EXPECT_TRUE(h_.Refused(gang, Reason::kProcessStopped)) << h_.StatusOf(gang);
    EXPECT_EQ(h_.Pool("wide").out, 0u);
    EXPECT_EQ(h_.Pool("wide").waiters, wait ? 1u : 0u);
    if (wait) h_.Forget(a, a.sequence);
  }
}

TEST_F(CoreTakeUpTest, NoWaiterNestsInGrantThatIsWithheld) {
  SetCap(2);
  Peer a = Open(), b = Open(), c = OpenWithPage();
  Peer sibling = h_.JoinTo(b);
  sibling.takes_up = true;
  AcquireRequest two = Ask("a");
  two.units = 2;
  const AcquireResult held = h_.MustAcquire(a, two);
  two.holder_key = "same";
  const CallId first = h_.Acquire(b, two);
  EXPECT_TRUE(h_.StatusOf(h_.KeepPermits(sibling)).ok());
  Receive(sibling);
  const CallId second = h_.Acquire(sibling, Ask("same"));
  const CallId third = h_.Acquire(c, Ask("c"));
  Pass(absl::Milliseconds(1));
  h_.Release(a, held.acquisition);
  EXPECT_TRUE(h_.Refused(first, Reason::kProcessStopped));
  ASSERT_TRUE(Granted(second));
  EXPECT_FALSE(h_.Get<AcquireResult>(second).nested);
  EXPECT_TRUE(Granted(third)) << "the permit is the sibling's, of one unit";
  EXPECT_EQ(h_.Pool().out, 2u);
  EXPECT_EQ(h_.Pool().granted_total, 3u);
}

TEST_F(CoreTakeUpTest, OnlyOwnSessionReleasesUntakenGrant) {
  Peer a = OpenWithPage(), b = OpenWithPage(), c = Open();
  const AcquireResult untaken = h_.MustAcquire(a, Ask("a"));
  const CallId next = h_.Acquire(b, Ask("b"));
  EXPECT_TRUE(h_.Refused(h_.Release(c, untaken.acquisition), Reason::kNotFound));
  Pass(kPatience);
  EXPECT_TRUE(Granted(next));
  EXPECT_EQ(Take(a), Taking::kWithdrawn);
}

TEST_F(CoreTakeUpTest, WithdrawnGangIsRefusedWhileSiblingNestsInItsPermit) {
  Peer a = OpenWithPage(), b = Open();
  Peer sibling = h_.JoinTo(a);
  const GangRequest gang = {.members = {{.pool = "gpu-tests"}, {.pool = "wide"}}, .holder_key = "gang"};
  ASSERT_TRUE(Granted(h_.AcquireGang(a, gang)));
  const AcquireResult nested = h_.MustAcquire(sibling, Ask("gang"));
  EXPECT_TRUE(nested.nested);
  h_.Acquire(b, Ask("b"));
  Pass(kPatience);
  EXPECT_EQ(Take(a), Taking::kWithdrawn);
  EXPECT_EQ(h_.Pool().out, 1u) << "the sibling's";
  const auto ask_again = [&] {
    return h_.Ask([&](Core& core, CallId call, Effects* effects) {
      core.AcquireGang(h_.now, call, a.caller(), a.Again(), gang, effects);
    });
  };
  EXPECT_TRUE(h_.Refused(ask_again(), Reason::kAlreadyHeld));
  EXPECT_EQ(Waiters().size(), 1u);
}

TEST_F(CoreTakeUpTest, WithdrawnGrantIsNotAwaitedOnceItCannotBeGranted) {
  SetCap(2);
  Peer a = OpenWithPage(), b = OpenWithPage(), c = Open();
  AcquireRequest two = Ask("a");
  two.units = 2;
  h_.Acquire(a, two);
  ASSERT_EQ(h_.Pool().out, 2u);
  SetCap(1);
  const CallId next = h_.Acquire(b, Ask("b"));
  Pass(kPatience);
  EXPECT_TRUE(Granted(next));
  EXPECT_TRUE(Waiters().empty());
  EXPECT_EQ(Take(a), Taking::kWithdrawn);
  EXPECT_TRUE(h_.Refused(AskAgain(a, two), Reason::kOverCap));
}

TEST_F(CoreTakeUpTest, ProcessesOfEarlierReleasesAreNotSkipped) {
  Peer a = h_.Open(), b = h_.Open();
  h_.MustAcquire(a, Ask("a"));
  const CallId waits = h_.Acquire(b, Ask("b"));
  Stop(b);
  EXPECT_FALSE(h_.Answered(waits));
  EXPECT_TRUE(h_.pages.empty());
  EXPECT_EQ(h_.core->next_deadline(), absl::InfiniteFuture());
}

TEST_F(CoreTakeUpTest, StoppedWaitersAreSkippedUntilTheySpeak) {
  Peer a = Open();
  const AcquireResult held = h_.MustAcquire(a, Ask("a"));
  std::vector<Peer> stopped;
  std::vector<CallId> calls;
  for (int i = 0; i < 100; ++i) {
    stopped.push_back(Open());
    calls.push_back(h_.Acquire(stopped.back(), Ask("s")));
    Receive(stopped.back());
  }
  Peer runs = OpenWithPage();
  const CallId next = h_.Acquire(runs, Ask("r"));
  Pass(absl::Milliseconds(250));
  ASSERT_EQ(h_.looked_at.size(), 101u);
  std::vector<ChannelId> channels;
  for (const Peer& peer : stopped) channels.push_back(peer.channel);
  h_.Do([&](Core& core, Effects* effects) { core.ProcessesStopped(h_.now, channels, effects); });
  for (const CallId call : calls) EXPECT_TRUE(h_.Refused(call, Reason::kProcessStopped));
  EXPECT_EQ(h_.Pool().waiters, 101u);
  EXPECT_EQ(h_.Pool().stopped, 100u);
  const CallId again = AskAgain(stopped[7], Ask("s"));
  EXPECT_EQ(h_.Pool().stopped, 99u);
  h_.Release(a, held.acquisition);
  EXPECT_TRUE(Granted(again));
  EXPECT_FALSE(h_.Answered(next));
  EXPECT_EQ(Take(stopped[7]), Taking::kTaken);
  h_.Release(stopped[7], h_.Get<AcquireResult>(again).acquisition);
  EXPECT_TRUE(Granted(next));
}

TEST_F(CoreTakeUpTest, StopLosesGrantThatWasNotTakenUp) {
  Peer a = OpenWithPage(), b = OpenWithPage();
  h_.Acquire(a, Ask("a"));
  const CallId next = h_.Acquire(b, Ask("b"));
  Stop(a);
  EXPECT_TRUE(Granted(next));
  EXPECT_EQ(Take(a), Taking::kWithdrawn);
  EXPECT_FALSE(h_.Answered(AskAgain(a, Ask("a"))));
}

TEST_F(CoreTakeUpTest, StoppedGangIsSkippedInAllItsPools) {
  Peer a = Open(), b = Open(), c = Open();
  const AcquireResult held = h_.MustAcquire(a, Ask("a"));
  const GangRequest gang = {.members = {{.pool = "gpu-tests"}, {.pool = "wide"}}, .holder_key = "gang"};
  const CallId waits = h_.AcquireGang(b, gang);
  const CallId next = h_.Acquire(c, Ask("c"));
  Stop(b);
  EXPECT_TRUE(h_.Refused(waits, Reason::kProcessStopped));
  h_.Release(a, held.acquisition);
  EXPECT_TRUE(Granted(next));
  const CallId again = h_.Ask([&](Core& core, CallId call, Effects* effects) {
    core.AcquireGang(h_.now, call, b.caller(), b.Again(), gang, effects);
  });
  EXPECT_FALSE(h_.Answered(again));
  h_.Release(c, h_.Get<AcquireResult>(next).acquisition);
  EXPECT_TRUE(Granted(again));
}

TEST_F(CoreTakeUpTest, UntakenGangReturnsToItsPlaceInAllPools) {
  Peer a = OpenWithPage(), b = OpenWithPage(), c = Open();
  const GangRequest gang = {.members = {{.pool = "gpu-tests"}, {.pool = "wide"}}, .holder_key = "gang"};
  const CallId first = h_.AcquireGang(a, gang);
  ASSERT_TRUE(Granted(first));
  const CallId next = h_.Acquire(b, Ask("b"));
  const CallId last = h_.Acquire(c, Ask("c"));
  Pass(kPatience);
  ASSERT_TRUE(Granted(next));
  EXPECT_EQ(h_.Pool("wide").out, 0u);
  EXPECT_EQ(Take(a), Taking::kWithdrawn);
  const CallId again = h_.Ask([&](Core& core, CallId call, Effects* effects) {
    core.AcquireGang(h_.now, call, a.caller(), a.Again(), gang, effects);
  });
  EXPECT_FALSE(h_.Answered(again));
  h_.Release(b, h_.Get<AcquireResult>(next).acquisition);
  EXPECT_TRUE(Granted(again));
  EXPECT_FALSE(h_.Answered(last));
  EXPECT_EQ(Take(a), Taking::kTaken);
}

TEST_F(CoreTakeUpTest, UntakenGangReturnsItsBytesToByteWaiter) {
  Peer a = OpenWithPage(), b = Open();
  h_.AcquireGang(a, {.members = {{.pool = "wide"}}, .reserve = {{.device = 0, .bytes = MiB(16)}}});
  const AllocateRequest bytes = {.bytes = MiB(16), .wait = true};
  const CallId waits = h_.Allocate(b, bytes);
  ASSERT_FALSE(h_.Answered(waits));
  Pass(kPatience);
  ASSERT_TRUE(h_.Refused(waits, Reason::kProcessStopped)) << "the process has to call again";
  const CallId again = h_.Ask([&](Core& core, CallId call, Effects* effects) {
    core.Allocate(h_.now, call, b.caller(), b.Again(), bytes, effects);
  });
  h_.WorkAll();
  EXPECT_TRUE(Granted(again));
  EXPECT_EQ(Take(a), Taking::kWithdrawn);
  EXPECT_EQ(h_.Pool("wide").out, 0u);
}

TEST_F(CoreTakeUpTest, UntakenPlanEndsAndIsMadeAnew) {
  Peer a = OpenWithPage(), b = OpenWithPage();
  const PlanRequest request = {.units = 4, .max_devices = 1, .pool = "gpu-tests"};
  h_.MakePlan(a, request);
  ASSERT_EQ(h_.Pool().out, 1u);
  const CallId next = h_.Acquire(b, Ask("b"));
  Pass(kPatience);
  EXPECT_TRUE(Granted(next));
  EXPECT_TRUE(h_.core->ListPlans(h_.Admin()).empty());
  EXPECT_EQ(Take(a), Taking::kWithdrawn);
}

TEST_F(CoreTakeUpTest, WithdrawnCachedPermitIsNotCached) {
  Peer a = OpenWithPage(), b = OpenWithPage();
  AcquireRequest keep = Ask("a");
  keep.keep = true;
  const AcquireResult granted = h_.Get<AcquireResult>(h_.Acquire(a, keep));
  EXPECT_TRUE(granted.cached);
  const CallId next = h_.Acquire(b, Ask("b"));
  Pass(kPatience);
  EXPECT_TRUE(Granted(next));
  EXPECT_EQ(Take(a), Taking::kWithdrawn);
  EXPECT_EQ(h_.permit_slots.at(a.channel).Put(granted.permit.value()), PermitSlot::PutBack::kNotOurs);
  EXPECT_FALSE(h_.permit_slots.at(a.channel).Take(granted.permit.value()));
}

TEST_F(CoreTakeUpTest, ProcessThatTakesNothingUpGetsNoMore) {
  SetCap(100);
  Peer a = OpenWithPage();
  std::vector<CallId> calls;
  for (size_t i = 0; i <= TakeUpWords::kWords; ++i) calls.push_back(h_.Acquire(a, Ask(std::to_string(i))));
  const CallId last = calls.back();
  calls.pop_back();
  for (const CallId call : calls) EXPECT_TRUE(Granted(call));
  EXPECT_TRUE(h_.Refused(last, Reason::kProcessStopped));
  EXPECT_EQ(h_.Pool().out, TakeUpWords::kWords);
  EXPECT_FALSE(Granted(AskAgain(a, Ask(std::to_string(TakeUpWords::kWords)))));
  EXPECT_EQ(h_.take_up_words[a.channel].Take(a.sequence - 1), Taking::kTaken);
  EXPECT_TRUE(Granted(AskAgain(a, Ask(std::to_string(TakeUpWords::kWords)))));
}

TEST_F(CoreTakeUpTest, RequestThatDoesNotWaitIsAskedAnew) {
  Peer a = OpenWithPage(), b = OpenWithPage();
  AcquireRequest now = Ask("a");
  now.wait = false;
  h_.Acquire(a, now);
  const CallId next = h_.Acquire(b, Ask("b"));
  Pass(kPatience);
  EXPECT_TRUE(Granted(next));
  EXPECT_EQ(Take(a), Taking::kWithdrawn);
  EXPECT_TRUE(h_.Refused(AskAgain(a, now), Reason::kNoPermit));
}

TEST_F(CoreTakeUpTest, WaitOfStoppedProcessEndsAtItsDeadline) {
  Peer a = Open(), b = Open();
  h_.MustAcquire(a, Ask("a"));
  AcquireRequest soon = Ask("b");
  soon.deadline = h_.now + absl::Seconds(3);
  h_.Acquire(b, soon);
  Stop(b);
  Pass(absl::Seconds(2));
  // A later attempt does not prolong the wait.
  soon.deadline = h_.now + absl::Seconds(3);
  const CallId again = AskAgain(b, soon);
  EXPECT_FALSE(h_.Answered(again));
  Stop(b);
  Pass(absl::Seconds(2));
  EXPECT_TRUE(h_.Refused(AskAgain(b, soon), Reason::kWaitTimedOut));
  EXPECT_EQ(h_.Pool().waiters, 0u);
}

TEST_F(CoreTakeUpTest, RequestsOfStoppedProcessCanBeForgotten) {
  Peer a = OpenWithPage(), b = Open(), c = OpenWithPage();
  h_.Acquire(a, Ask("a"));
  h_.Acquire(b, Ask("b"));
  Stop(b);
  h_.Forget(b, b.sequence);
  EXPECT_EQ(h_.Pool().waiters, 0u);
  const CallId next = h_.Acquire(c, Ask("c"));
  Pass(kPatience);
  EXPECT_TRUE(Granted(next));
  EXPECT_EQ(h_.Pool().stopped, 1u);
  h_.HangUpChannel(a);
  EXPECT_EQ(h_.Pool().waiters, 0u);
}

TEST_F(CoreTakeUpTest, NextBrokerWithdrawsGrantOfEarlierBroker) {
  Peer a = OpenWithPage(), b = OpenWithPage();
  h_.Acquire(a, Ask("a"));
  h_.Acquire(b, Ask("b"));
  h_.Restart();
  const CallId next = AskAgain(b, Ask("b"));
  EXPECT_FALSE(h_.Answered(next));
  Pass(kPatience);
  EXPECT_TRUE(Granted(next));
  EXPECT_EQ(Take(b), Taking::kTaken);
  EXPECT_EQ(Take(a), Taking::kWithdrawn);
  EXPECT_FALSE(h_.Answered(AskAgain(a, Ask("a"))));
}

TEST_F(CoreTakeUpTest, NextBrokerDoesNotRepeatAnswerOfPermitThatEnded) {
  h_.Do([&](Core& core, Effects* effects) {
    EXPECT_TRUE(core.SetPool(h_.now, "gpu-tests", {.hold_limit = absl::Seconds(5)}, effects).ok());
  });
  Peer a = OpenWithPage(), b = OpenWithPage();
  EXPECT_TRUE(Granted(h_.Acquire(a, Ask("a"))));
  h_.Acquire(b, Ask("b"));
  const LedgerRecords persisted = h_.records;
  Pass(kPatience);
  // The broker dies before it has persisted the withdrawal, and the next one starts after the permit's hold limit.
  h_.records = persisted;
  h_.now += absl::Seconds(10);
  h_.Restart();
  const CallId next = AskAgain(b, Ask("b"));
  EXPECT_TRUE(Granted(next));
  EXPECT_EQ(Take(a), Taking::kWithdrawn);
  EXPECT_FALSE(h_.Answered(AskAgain(a, Ask("a"))));
  EXPECT_EQ(h_.Pool().out, 1u);
}

TEST_F(CoreTakeUpTest, NextBrokerRetractsGrantThatWasNotPersisted) {
  Peer a = OpenWithPage(), b = OpenWithPage();
  const AcquireResult held = h_.MustAcquire(a, Ask("a"));
  EXPECT_EQ(Take(a), Taking::kTaken);
  const CallId waits = h_.Acquire(b, Ask("b"));
  const LedgerRecords persisted = h_.records;
  h_.Release(a, held.acquisition);
  EXPECT_TRUE(Granted(waits));
  h_.records = persisted;
  h_.Restart();
  EXPECT_EQ(Take(b), Taking::kNotOffered);
  EXPECT_EQ(h_.Pool().out, 1u);
}

TEST_F(CoreTakeUpTest, EndOfProcessReturnsWhatItDidNotTakeUp) {
  for (const bool takes : {false, true}) {
    SetCap(2);
    Peer a = Open(), b = OpenWithPage();
    Peer sibling = h_.JoinTo(a);
    sibling.takes_up = true;
    EXPECT_TRUE(h_.StatusOf(h_.KeepPermits(sibling)).ok());
    Receive(sibling);
    ASSERT_TRUE(Granted(h_.Acquire(sibling, Ask("one"))));
    if (takes) EXPECT_EQ(Take(sibling), Taking::kTaken);
    AcquireRequest two = Ask("b");
    two.units = 2;
    const CallId next = h_.Acquire(b, two);
    h_.Gone(sibling);
    EXPECT_EQ(Granted(next), !takes);
    EXPECT_EQ(h_.Pool().out, takes ? 1u : 2u);
    h_.Gone(a);
    h_.HangUp(a);
    h_.Gone(b);
    h_.HangUp(b);
    EXPECT_EQ(h_.Pool().out, 0u);
  }
}

TEST_F(CoreTakeUpTest, ThousandStopsGrantNothingTwice) {
  Peer a = OpenWithPage(), b = OpenWithPage();
  CallId waits = h_.Acquire(a, Ask("a"));
  CallId others = h_.Acquire(b, Ask("b"));
  for (int i = 0; i < 1'000; ++i) {
    Stop(i % 2 == 0 ? a : b);
    Pass(absl::Milliseconds(1));
    EXPECT_LE(h_.Pool().out, 1u);
    if (Take(a) == Taking::kWithdrawn || h_.Refused(waits, Reason::kProcessStopped)) waits = AskAgain(a, Ask("a"));
    if (Granted(waits)) break;
    if (Take(b) == Taking::kWithdrawn || h_.Refused(others, Reason::kProcessStopped)) others = AskAgain(b, Ask("b"));
    if (Granted(others)) break;
  }
  EXPECT_EQ(h_.Pool().out, 1u);
  EXPECT_EQ(h_.Pool().waiters, 1u);
}

}  // namespace
}  // namespace berth::core
