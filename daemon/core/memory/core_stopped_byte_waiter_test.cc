// Requests for bytes whose processes may be stopped: no bytes are reserved for a stopped process.

#include <vector>

#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

// As in byte_queue.cc.
constexpr absl::Duration kInvitation = absl::Milliseconds(500);

class CoreStoppedByteWaiterTest : public ::testing::Test {
 protected:
  // Another process holds all bytes of the device.
  CoreStoppedByteWaiterTest() : holder_(h_.Open(1001)), held_(h_.MustAllocate(holder_, MiB(16))) {}

  Peer Open() {
    Peer peer = h_.Open();
    peer.takes_up = true;
    return peer;
  }
  static AllocateRequest Ask(Bytes bytes = MiB(16)) { return {.bytes = bytes, .wait = true}; }
  CallId AskAgain(const Peer& peer, const AllocateRequest& request = Ask()) {
    const CallId call = h_.Ask([&](Core& core, CallId id, Effects* effects) {
      core.Allocate(h_.now, id, peer.caller(), peer.Again(), request, effects);
    });
    h_.WorkAll();
    return call;
  }
  void Stop(const std::vector<Peer>& peers) {
    std::vector<ChannelId> channels;
    for (const Peer& peer : peers) channels.push_back(peer.channel);
    h_.Do([&](Core& core, Effects* effects) { core.ProcessesStopped(h_.now, channels, effects); });
    h_.WorkAll();
  }
  void Pass(absl::Duration time) {
    h_.now += time;
    h_.Tick();
    h_.WorkAll();
  }
  void FreeHeld() {
    h_.Free(holder_, held_.block.handle, {held_.import});
    h_.WorkAll();
  }
  bool Granted(CallId call) const { return h_.Answered(call) && h_.StatusOf(call).ok(); }
  bool MustCallAgain(CallId call) const { return h_.Answered(call) && h_.Refused(call, Reason::kProcessStopped); }

  CoreHarness h_;
  Peer holder_;
  AllocateResult held_;
};

TEST_F(CoreStoppedByteWaiterTest, FreeBytesAreGrantedToCallAsItArrives) {
  FreeHeld();
  Peer a = Open();
  const CallId call = h_.Allocate(a, Ask());
  h_.WorkAll();
  EXPECT_TRUE(Granted(call));
}

TEST_F(CoreStoppedByteWaiterTest, WaiterCallsAgainBeforeItIsServed) {
  Peer a = Open(), b = Open();
  const CallId first = h_.Allocate(a, Ask()), second = h_.Allocate(b, Ask(MiB(4)));
  h_.now += absl::Milliseconds(100);
  FreeHeld();
  EXPECT_TRUE(MustCallAgain(first));
  EXPECT_FALSE(h_.Answered(second)) << "the bytes are reserved for the first";
  const CallId again = AskAgain(a);
  EXPECT_TRUE(Granted(again));
  EXPECT_FALSE(h_.Answered(second));
  h_.Free(a, h_.Get<AllocateResult>(again).block.handle, {h_.Get<AllocateResult>(again).import});
  h_.WorkAll();
  EXPECT_TRUE(MustCallAgain(second));
  EXPECT_TRUE(Granted(AskAgain(b, Ask(MiB(4)))));
}

TEST_F(CoreStoppedByteWaiterTest, UnansweredInvitationPassesOnAndWaiterKeepsPlace) {
  Peer a = Open(), b = Open(), c = Open();
  const CallId first = h_.Allocate(a, Ask()), second = h_.Allocate(b, Ask()), third = h_.Allocate(c, Ask());
  h_.now += absl::Milliseconds(100);
  FreeHeld();
  EXPECT_TRUE(MustCallAgain(first));
  Pass(kInvitation - absl::Milliseconds(1));
  EXPECT_FALSE(h_.Answered(second));
  Pass(absl::Milliseconds(1));
  EXPECT_TRUE(MustCallAgain(second));
  const CallId granted = AskAgain(b);
  ASSERT_TRUE(Granted(granted));
  // The late one waits on in its old place.
  const CallId late = AskAgain(a);
  EXPECT_FALSE(h_.Answered(late));
  h_.now += absl::Milliseconds(100);
  const AllocateResult result = h_.Get<AllocateResult>(granted);
  h_.Free(b, result.block.handle, {result.import});
  h_.WorkAll();
  EXPECT_TRUE(MustCallAgain(late));
  EXPECT_FALSE(h_.Answered(third));
  EXPECT_TRUE(Granted(AskAgain(a)));
}

TEST_F(CoreStoppedByteWaiterTest, HundredStoppedWaitersAreSkippedInOneLook) {
  std::vector<Peer> stopped;
  std::vector<CallId> calls;
  for (int i = 0; i < 100; ++i) {
    stopped.push_back(Open());
    calls.push_back(h_.Allocate(stopped.back(), Ask()));
  }
  Peer runs = Open();
  const CallId next = h_.Allocate(runs, Ask());
  EXPECT_EQ(h_.core->next_deadline(), h_.now + absl::Milliseconds(250));
  Pass(absl::Milliseconds(250));
  EXPECT_EQ(h_.looked_at.size(), 101u);
  Stop(stopped);
  for (const CallId call : calls) EXPECT_TRUE(MustCallAgain(call));
  EXPECT_FALSE(h_.Answered(next));
  FreeHeld();
  EXPECT_TRUE(MustCallAgain(next));
  EXPECT_TRUE(Granted(AskAgain(runs)));
}

TEST_F(CoreStoppedByteWaiterTest, StopEndsInvitationAtOnce) {
  Peer a = Open(), b = Open();
  const CallId first = h_.Allocate(a, Ask()), second = h_.Allocate(b, Ask());
  h_.now += absl::Milliseconds(100);
  FreeHeld();
  ASSERT_TRUE(MustCallAgain(first));
  Stop({a});
  EXPECT_TRUE(MustCallAgain(second));
  EXPECT_TRUE(Granted(AskAgain(b)));
}

TEST_F(CoreStoppedByteWaiterTest, StopEndsCapacityReservedForWaiter) {
  Peer large = Open(), small = Open();
  FreeHeld();
  const AllocateResult half = h_.MustAllocate(holder_, MiB(8));
  const CallId waits = h_.Allocate(large, Ask(MiB(16)));
  // Grants of smaller requests pass the large one, until capacity is reserved for it.
  CallId behind = h_.Allocate(small, Ask(MiB(8)));
  h_.WorkAll();
  for (int passes = 0; passes < 100 && Granted(behind); ++passes) {
    const AllocateResult result = h_.Get<AllocateResult>(behind);
    h_.Free(small, result.block.handle, {result.import});
    h_.WorkAll();
    behind = h_.Allocate(small, Ask(MiB(8)));
    h_.WorkAll();
  }
  ASSERT_FALSE(h_.Answered(behind));
  Stop({large});
  EXPECT_TRUE(MustCallAgain(waits));
  EXPECT_TRUE(Granted(behind));
  h_.Free(holder_, half.block.handle, {half.import});
  h_.WorkAll();
  EXPECT_FALSE(h_.Answered(AskAgain(large, Ask(MiB(16)))));
}

TEST_F(CoreStoppedByteWaiterTest, UnansweredInvitationEndsCapacityReservation) {
  Peer large = Open(), small = Open();
  FreeHeld();
  const AllocateResult half = h_.MustAllocate(holder_, MiB(8));
  const CallId waits = h_.Allocate(large, Ask(MiB(16)));
  const auto free = [&](Peer& peer, CallId call) {
    const AllocateResult result = h_.Get<AllocateResult>(call);
    h_.Free(peer, result.block.handle, {result.import});
    h_.WorkAll();
  };
  // Grants of smaller requests pass the large one, until capacity is reserved for it.
  CallId call;
  for (int passes = 0; passes < 100; ++passes) {
    call = h_.Allocate(small, Ask(MiB(8)));
    h_.WorkAll();
    if (!h_.Answered(call)) break;
    free(small, call);
  }
  h_.Forget(small, small.sequence);
  h_.now += absl::Milliseconds(100);
  h_.Free(holder_, half.block.handle, {half.import});
  h_.WorkAll();
  ASSERT_TRUE(MustCallAgain(waits));
  Pass(kInvitation);
  // The bytes that others return serve the next waiter.
  const CallId first = h_.Allocate(small, Ask(MiB(8)));
  h_.WorkAll();
  h_.MustAllocate(small, MiB(8));
  const CallId next = h_.Allocate(small, Ask(MiB(8)));
  EXPECT_FALSE(h_.Answered(next));
  free(small, first);
  EXPECT_TRUE(Granted(next));
}

// A gang that reserves bytes does not overtake a waiter that has to call again, but follows one that does not.
TEST_F(CoreStoppedByteWaiterTest, GangTakesNoBytesDuringInvitation) {
  Peer a = Open(), b = Open(), g = h_.Open();
  const CallId first = h_.Allocate(a, Ask());
  const CallId second = h_.Allocate(b, Ask());
  const CallId gang = h_.AcquireGang(
      g, {.members = {{.pool = "wide"}}, .reserve = {{.device = 0, .bytes = MiB(16)}}, .holder_key = "g"});
  h_.now += absl::Milliseconds(100);
  FreeHeld();
  ASSERT_TRUE(MustCallAgain(first));
  EXPECT_FALSE(h_.Answered(gang));
  const CallId again = AskAgain(a);
  ASSERT_TRUE(Granted(again));
  h_.now += absl::Milliseconds(100);
  const AllocateResult result = h_.Get<AllocateResult>(again);
  h_.Free(a, result.block.handle, {result.import});
  h_.WorkAll();
  ASSERT_TRUE(MustCallAgain(second));
  EXPECT_FALSE(h_.Answered(gang));
  Pass(kInvitation);
  EXPECT_TRUE(Granted(gang));
}

TEST_F(CoreStoppedByteWaiterTest, RestoredWaiterIsLookedAt) {
  Peer a = Open();
  h_.Allocate(a, Ask());
  h_.Restart();
  EXPECT_FALSE(h_.Answered(AskAgain(a)));
  Pass(absl::Milliseconds(250));
  EXPECT_EQ(h_.looked_at, std::vector<ChannelId>{a.channel});
}

// How an invited request may leave.
TEST_F(CoreStoppedByteWaiterTest, InvitedWaiterLeavesNoTrace) {
  FreeHeld();
  using Leaves = void (*)(CoreHarness&, const Peer&);
  const Leaves ways[] = {
      [](CoreHarness& h, const Peer& a) { h.Forget(a, a.sequence); },
      [](CoreHarness& h, const Peer& a) { h.HangUp(a); },
      [](CoreHarness& h, const Peer& a) { h.Gone(a); },
  };
  for (const Leaves leave : ways) {
    const AllocateResult held = h_.MustAllocate(holder_, MiB(16));
    Peer a = Open();
    const CallId waits = h_.Allocate(a, Ask());
    h_.now += absl::Milliseconds(100);
    h_.Free(holder_, held.block.handle, {held.import});
    h_.WorkAll();
    ASSERT_TRUE(MustCallAgain(waits));
    leave(h_, a);
    h_.WorkAll();
    const AllocateResult rest = h_.MustAllocate(holder_, MiB(16));
    h_.Free(holder_, rest.block.handle, {rest.import});
    h_.WorkAll();
  }
}

TEST_F(CoreStoppedByteWaiterTest, InvitedWaiterSurvivesBrokersDeath) {
  Peer a = Open();
  const CallId waits = h_.Allocate(a, Ask());
  h_.now += absl::Milliseconds(100);
  FreeHeld();
  ASSERT_TRUE(MustCallAgain(waits));
  h_.Restart();
  EXPECT_TRUE(Granted(AskAgain(a)));
}

TEST_F(CoreStoppedByteWaiterTest, WaitOfStoppedProcessTimesOut) {
  Peer a = Open();
  AllocateRequest request = Ask();
  request.deadline = h_.now + absl::Seconds(2);
  const CallId waits = h_.Allocate(a, request);
  Pass(absl::Milliseconds(250));
  Stop({a});
  EXPECT_TRUE(MustCallAgain(waits));
  Pass(absl::Seconds(2));
  EXPECT_TRUE(h_.Refused(AskAgain(a, request), Reason::kWaitTimedOut));
}

TEST_F(CoreStoppedByteWaiterTest, ProcessesOfEarlierReleasesAreServedAsBefore) {
  Peer a = h_.Open();
  const CallId waits = h_.Allocate(a, Ask());
  EXPECT_EQ(h_.core->next_deadline(), absl::InfiniteFuture());
  Stop({a});
  EXPECT_FALSE(h_.Answered(waits));
  h_.now += absl::Milliseconds(100);
  FreeHeld();
  EXPECT_TRUE(Granted(waits));
}

}  // namespace
}  // namespace berth::core
