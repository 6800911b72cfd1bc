#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

// A block mapped by its owner and by a guest of another tenant.
struct Shared : CoreHarness {
  Shared() {
    owner = Open(1000);
    guest = Open(1001);
    made = MustAllocate(owner, MiB(4));
    Grant(owner, made.block.handle, guest.tenant);
    guests = Get<ImportResult>(Import(guest, made.block.handle)).import;
    for (const Deliver& deliver : std::exchange(deliveries, {})) {
      Acknowledge(deliver.channel == owner.channel ? owner : guest, deliver.delivery.number);
    }
  }
  absl::StatusOr<BlockView> Recall(const Caller& caller) {
    absl::StatusOr<BlockView> view;
    Do([&](Core& core, Effects* effects) {
      view = core.Recall(now, caller, made.block.handle.block, effects);
    });
    return view;
  }
  absl::StatusOr<BlockView> FreeById(const Caller& caller) {
    absl::StatusOr<BlockView> view;
    Do([&](Core& core, Effects* effects) {
      view = core.FreeById(now, caller, made.block.handle.block, effects);
    });
    return view;
  }
  Caller Operator(const Peer& peer) {
    Caller caller = peer.caller();
    caller.admin = true;
    return caller;
  }
  CallId Reap(const Caller& caller) {
    return Ask([&](Core& core, CallId call, Effects* effects) { core.Reap(now, call, caller, effects); });
  }
  Peer owner, guest;
  AllocateResult made;
  ImportId guests;
};

TEST(CoreRecallTest, ImportersAreRecalledOnceAndBlockStaysLive) {
  Shared h;
  Peer sibling = h.Open(1000);
  const absl::StatusOr<BlockView> view = h.Recall(sibling.caller());
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(view->state, BlockState::kLive);
  EXPECT_TRUE(view->imports.at(0).recalled && view->imports.at(1).recalled);
  EXPECT_EQ(h.last_effects, "ask-back ask-back");
  EXPECT_TRUE(h.Recall(sibling.caller()).ok());
  EXPECT_EQ(h.last_effects, "");
  h.LetGo(h.guest, h.guests);
  EXPECT_EQ(h.BytesOf(0).live, MiB(4));
  // A later import has not been asked yet.
  h.Get<ImportResult>(h.Import(h.guest, h.made.block.handle));
  EXPECT_TRUE(h.Recall(sibling.caller()).ok());
  EXPECT_EQ(h.last_effects, "ask-back");
}

TEST(CoreRecallTest, OnlyTenantOrOperatorFreesBlockById) {
  Shared h;
  EXPECT_TRUE(IsRefusal(h.FreeById(h.guest.caller()).status(), Reason::kNotFound));
  EXPECT_TRUE(IsRefusal(h.Recall(h.guest.caller()).status(), Reason::kNotFound));
  Peer sibling = h.Open(1000);
  const absl::StatusOr<BlockView> freed = h.FreeById(sibling.caller());
  ASSERT_TRUE(freed.ok());
  EXPECT_EQ(freed->state, BlockState::kQuarantined);
  EXPECT_EQ(h.last_effects, "recall recall");
  EXPECT_TRUE(IsRefusal(h.FreeById(h.Operator(h.guest)).status(), Reason::kStale));
  // The owner's request to free it comes too late.
  EXPECT_TRUE(h.Refused(h.Free(h.owner, h.made.block.handle, {h.made.import}), Reason::kStale));
  h.LetGo(h.owner, h.made.import);
  h.LetGo(h.guest, h.guests);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0).charged(), Bytes(0));
  EXPECT_TRUE(IsRefusal(h.FreeById(h.Operator(h.guest)).status(), Reason::kNotFound));
}

TEST(CoreRecallTest, ReapReportsReleasedBytesAfterAllRetries) {
  Shared h;
  const AllocateResult second = h.MustAllocate(h.owner, MiB(2));
  h.Free(h.owner, second.block.handle, {second.import});
  h.WorkOnce(Refuse(Reason::kDriver, "no"));
  h.LetGo(h.guest, h.guests);
  h.Free(h.owner, h.made.block.handle, {h.made.import});
  h.WorkOnce(Refuse(Reason::kDriver, "no"));
  EXPECT_EQ(h.Budget(Layer::kDevice, 0, h.owner).stuck, MiB(6));
  EXPECT_TRUE(h.Refused(h.Reap(h.owner.caller()), Reason::kAdminOnly));
  const CallId call = h.Reap(h.Operator(h.owner));
  EXPECT_EQ(h.last_effects, "release release");
  h.WorkOnce();
  EXPECT_FALSE(h.Answered(call));
  h.WorkOnce(Refuse(Reason::kDriver, "no"));
  const ReapResult result = h.Get<ReapResult>(call);
  EXPECT_EQ(result.tried, 2);
  EXPECT_EQ(result.tried_bytes, MiB(6));
  EXPECT_EQ(result.back, 1);
  EXPECT_EQ(h.Budget(Layer::kDevice, 0, h.owner).stuck, h.BytesOf(0).retired);
  EXPECT_EQ(Bytes(result.back_bytes.count() + h.BytesOf(0).retired.count()), MiB(6));
  // The worker's death also ends the request, and the next worker gets the releases.
  const CallId interrupted = h.Reap(h.Operator(h.owner));
  h.DropWorker();
  EXPECT_EQ(h.Get<ReapResult>(interrupted).back, 0);
  h.RaiseWorker();
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0).charged(), Bytes(0));
  EXPECT_EQ(h.Get<ReapResult>(h.Reap(h.Operator(h.owner))).tried, 0);
}

TEST(CoreRecallTest, CancelledReapIsAnsweredOnce) {
  Shared h;
  h.LetGo(h.guest, h.guests);
  h.Free(h.owner, h.made.block.handle, {h.made.import});
  h.WorkOnce(Refuse(Reason::kDriver, "no"));
  const CallId call = h.Reap(h.Operator(h.owner));
  h.Do([&](Core& core, Effects* effects) { core.CancelCall(h.now, call, effects); });
  EXPECT_TRUE(h.Refused(call, Reason::kCancelled));
  h.WorkOnce(Refuse(Reason::kDriver, "no"));
  const CallId stopped = h.Reap(h.Operator(h.owner));
  h.Do([&](Core& core, Effects* effects) { core.ShutDown(h.now, effects); });
  EXPECT_TRUE(h.Refused(stopped, Reason::kShuttingDown));
}

TEST(CoreRecallTest, AllocationDoesNotWaitForFreedMemoryInUse) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  const AllocateResult made = h.MustAllocate(a, MiB(16));
  const StreamKey stream = h.Get<OpenStreamResult>(h.OpenStream(a)).stream;
  h.Grant(a, made.block.handle, b.session);
  // The daemon tracks the block from now on, because a second process maps it.
  const CallId imported = h.Import(b, made.block.handle);
  h.HandOver(a, made.block.handle.block);
  const ImportId other = h.Get<ImportResult>(imported).import;
  const Prepared used =
      h.Get<Prepared>(h.Prepare(a, stream.slot, {{made.block.handle.block, Access::kWrite}}));
  h.Finish(a, used.use, 1);
  h.LetGo(b, other);
  h.Free(a, made.block.handle, {made.import});
  EXPECT_EQ(h.Budget(Layer::kDevice, 0, a).busy, MiB(16));
  EXPECT_EQ(h.Budget(Layer::kSession, 0, a).busy, MiB(16));
  EXPECT_TRUE(h.Refused(h.Allocate(b, MiB(2)), Reason::kOverBudget));
  const CallId waiting = h.Allocate(b, {.bytes = MiB(2), .wait = true});
  h.fence_values[stream] = {.done = 1, .begun = 1};
  h.now += absl::Seconds(1);
  h.Tick();
  EXPECT_EQ(h.Budget(Layer::kDevice, 0, a).busy, Bytes(0));
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(waiting).ok());
}

}  // namespace
}  // namespace berth::core
