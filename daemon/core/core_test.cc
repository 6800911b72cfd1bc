// Requests: who may send them, what a retry gets, how calls end.

#include "daemon/core/core.h"

#include <functional>

#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

AcquireRequest One(const std::string& key) { return {.pool = "gpu-tests", .holder_key = key}; }

CallId AcquireAs(CoreHarness& h, const Caller& caller, const RequestTag& tag, const AcquireRequest& request) {
  return h.Ask([&](Core& core, CallId call, Effects* effects) {
    core.Acquire(h.now, call, caller, tag, request, effects);
  });
}

TEST(CoreTest, WrongSecretTenantOrSessionIsRejectedAlike) {
  CoreHarness h;
  Peer a = h.Open();
  const std::string before = h.Accounts();
  Caller wrong = a.caller();
  wrong.credentials.secret.bits[15] ^= 1;
  Caller other = a.caller();
  other.tenant.uid = 7;
  Caller contained = a.caller();
  contained.tenant.container = "/docker/x";
  Caller unknown = a.caller();
  unknown.credentials.session = SessionId(a.session.value() + 1'000);
  std::set<std::string> texts;
  for (const Caller& caller : {wrong, other, contained}) {
    const CallId call = AcquireAs(h, caller, {.sequence = 1}, One("1"));
    EXPECT_TRUE(h.Refused(call, Reason::kBadCredentials));
    texts.insert(std::string(h.StatusOf(call).message()));
    EXPECT_TRUE(IsRefusal(h.core->Authenticate(caller), Reason::kBadCredentials));
  }
  EXPECT_EQ(texts.size(), 1);
  EXPECT_TRUE(h.Refused(AcquireAs(h, unknown, {.sequence = 1}, One("1")), Reason::kBadCredentials));
  EXPECT_TRUE(h.core->Authenticate(a.caller()).ok());
  EXPECT_EQ(h.Accounts(), before);
}

TEST(CoreTest, RequestNeedsOpenChannelOfItsSession) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  Caller none = a.caller();
  none.credentials.channel = ChannelId();
  Caller others = a.caller();
  others.credentials.channel = b.channel;
  EXPECT_TRUE(h.Refused(AcquireAs(h, none, {.sequence = 1}, One("1")), Reason::kNotJoined));
  EXPECT_TRUE(h.Refused(AcquireAs(h, others, {.sequence = 1}, One("1")), Reason::kNotJoined));
  h.Do([&](Core& core, Effects* effects) { core.ChannelHungUp(h.now, a.channel, effects); });
  EXPECT_TRUE(h.Refused(h.Acquire(a, One("1")), Reason::kNotJoined));
  EXPECT_TRUE(h.Refused(h.Forget(a, 1), Reason::kNotJoined));
}

TEST(CoreTest, RepeatedRequestGetsSameAnswer) {
  CoreHarness h;
  Peer a = h.Open();
  const AcquireResult first = h.MustAcquire(a, One("1"));
  const CallId again = AcquireAs(h, a.caller(), a.Again(), One("1"));
  EXPECT_EQ(h.Get<AcquireResult>(again).acquisition, first.acquisition);
  EXPECT_FALSE(h.Get<AcquireResult>(again).nested);
  EXPECT_EQ(h.core->ListPermits(a.caller(), "")[0].depth, 1);
}

TEST(CoreTest, RefusalIsRepeatedToRetry) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  const AcquireResult held = h.MustAcquire(b, One("1"));
  h.MustAcquire(b, One("2"));
  AcquireRequest impatient = One("1");
  impatient.wait = false;
  EXPECT_TRUE(h.Refused(h.Acquire(a, impatient), Reason::kNoPermit));
  h.Release(b, held.acquisition);
  EXPECT_TRUE(h.Refused(AcquireAs(h, a.caller(), a.Again(), impatient), Reason::kNoPermit));
  EXPECT_EQ(h.Pool().out, 1);
}

TEST(CoreTest, RepeatWithOtherPayloadIsRejected) {
  CoreHarness h;
  Peer a = h.Open();
  h.MustAcquire(a, One("1"));
  const std::string before = h.Accounts();
  EXPECT_TRUE(h.Refused(AcquireAs(h, a.caller(), a.Again(), One("2")), Reason::kRequestReused));
  const CallId other_kind = h.Ask([&](Core& core, CallId call, Effects* effects) {
    core.Release(h.now, call, a.caller(), a.Again(), AcquisitionId(1), effects);
  });
  EXPECT_TRUE(h.Refused(other_kind, Reason::kRequestReused));
  EXPECT_EQ(h.Accounts(), before);
}

TEST(CoreTest, RepeatOfWaitingRequestTakesItsPlace) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  const AcquireResult held = h.MustAcquire(a, One("1"));
  h.MustAcquire(a, One("2"));
  AcquireRequest timed = One("1");
  timed.deadline = h.now + absl::Seconds(1);
  const CallId first = h.Acquire(b, timed);
  timed.deadline = h.now + absl::Seconds(9);
  const CallId second = AcquireAs(h, b.caller(), b.Again(), timed);
  EXPECT_TRUE(h.Refused(first, Reason::kCancelled));
  EXPECT_EQ(h.Pool().waiters, 1);
  EXPECT_EQ(h.core->next_deadline(), timed.deadline);
  // The replaced call has no effect any more.
  h.Do([&](Core& core, Effects* effects) { core.CancelCall(h.now, first, effects); });
  EXPECT_FALSE(h.Answered(second));
  h.Release(a, held.acquisition);
  EXPECT_TRUE(h.StatusOf(second).ok());
}

TEST(CoreTest, RepeatWithPassedDeadlineEndsWait) {
  using Send = std::function<CallId(CoreHarness&, const Peer&, const RequestTag&, absl::Time)>;
  const Send acquire = [](CoreHarness& h, const Peer& peer, const RequestTag& tag, absl::Time deadline) {
    AcquireRequest request = One("1");
    request.deadline = deadline;
    return AcquireAs(h, peer.caller(), tag, request);
  };
  const Send gang = [](CoreHarness& h, const Peer& peer, const RequestTag& tag, absl::Time deadline) {
    const GangRequest request = {.members = {{.pool = "gpu-tests"}}, .deadline = deadline};
    return h.Ask([&](Core& core, CallId call, Effects* effects) {
      core.AcquireGang(h.now, call, peer.caller(), tag, request, effects);
    });
  };
  for (const Send& send : {acquire, gang}) {
    CoreHarness h;
    Peer a = h.Open(), b = h.Open();
    h.MustAcquire(a, One("1"));
    h.MustAcquire(a, One("2"));
    const std::string before = h.Accounts();
    const CallId first = send(h, b, b.Next(), absl::InfiniteFuture());
    EXPECT_FALSE(h.Answered(first));
    const CallId second = send(h, b, b.Again(), h.now);
    EXPECT_TRUE(h.Refused(first, Reason::kCancelled));
    EXPECT_TRUE(h.Refused(second, Reason::kWaitTimedOut));
    EXPECT_EQ(h.Accounts(), before);
  }
}

TEST(CoreTest, CancelledWaiterLeavesNoTrace) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  h.MustAcquire(a, One("1"));
  h.MustAcquire(a, One("2"));
  const std::string before = h.Accounts();
  const CallId call = h.Acquire(b, One("1"));
  h.Do([&](Core& core, Effects* effects) { core.CancelCall(h.now, call, effects); });
  EXPECT_TRUE(h.Refused(call, Reason::kCancelled));
  EXPECT_EQ(h.Accounts(), before);
  const CallId retry = AcquireAs(h, b.caller(), b.Again(), One("1"));
  EXPECT_FALSE(h.Answered(retry));
  EXPECT_EQ(h.Pool().waiters, 1);
  h.Do([&](Core& core, Effects* effects) { core.CancelCall(h.now, CallId(999'999), effects); });
}

TEST(CoreTest, SequenceZeroIsRejectedSettledIsForgotten) {
  CoreHarness h;
  Peer a = h.Open();
  EXPECT_TRUE(h.Refused(AcquireAs(h, a.caller(), {.sequence = 0}, One("1")), Reason::kInvalidField));
  AcquireAs(h, a.caller(), {.sequence = 5, .answered_below = 5}, One("1"));
  EXPECT_TRUE(h.Refused(AcquireAs(h, a.caller(), {.sequence = 4}, One("2")), Reason::kRequestForgotten));
  EXPECT_EQ(h.Pool().out, 1);
}

TEST(CoreTest, AnswersAreLimitedAndReleasedByAnsweredBelow) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.answers.per_channel = 3;
  CoreHarness h(config);
  Peer a = h.Open();
  for (uint64_t i = 1; i <= 3; ++i) AcquireAs(h, a.caller(), {.sequence = i}, One("1"));
  const CallId full = AcquireAs(h, a.caller(), {.sequence = 4}, One("1"));
  EXPECT_TRUE(h.Refused(full, Reason::kLimit));
  EXPECT_EQ(h.NamedValue(full, "what"), "answers_per_channel");
  EXPECT_EQ(h.core->ListPermits(a.caller(), "")[0].depth, 3);
  const CallId pruned = AcquireAs(h, a.caller(), {.sequence = 4, .answered_below = 3}, One("1"));
  EXPECT_TRUE(h.StatusOf(pruned).ok());
  EXPECT_TRUE(h.Refused(AcquireAs(h, a.caller(), {.sequence = 2}, One("1")), Reason::kRequestForgotten));
}

TEST(CoreTest, ShutdownRejectsWaitingAndNewRequests) {
  CoreHarness h;
  Peer a = h.Open();
  const AcquireResult held = h.MustAcquire(a, One("1"));
  h.MustAcquire(a, One("2"));
  const CallId waiting = h.Acquire(a, One("3"));
  const CallId making = h.Allocate(a, MiB(2));
  h.Do([&](Core& core, Effects* effects) { core.ShutDown(h.now, effects); });
  EXPECT_TRUE(h.Refused(waiting, Reason::kShuttingDown));
  EXPECT_TRUE(h.Refused(making, Reason::kShuttingDown));
  EXPECT_TRUE(h.Refused(h.Release(a, held.acquisition), Reason::kShuttingDown));
  EXPECT_TRUE(IsRefusal(h.core->OpenSession(h.now, {}, {}, "", {}).status(), Reason::kShuttingDown));
  EXPECT_TRUE(IsRefusal(h.core->JoinSession(h.now, a.session, a.secret, a.tenant, {}).status(),
                        Reason::kShuttingDown));
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CoreTest, SameInputsGiveSameEffects) {
  std::string runs[2];
  for (std::string& transaction : runs) {
    CoreHarness h;
    Peer a = h.Open(), b = h.Open();
    h.MustAcquire(a, One("1"));
    h.MustAllocate(b, MiB(2));
    h.Acquire(b, One("1"));
    h.Acquire(b, One("2"));
    h.HangUp(a);
    h.Gone(a);
    transaction = h.last_effects + h.Accounts();
  }
  EXPECT_EQ(runs[0], runs[1]);
}

}  // namespace
}  // namespace berth::core
