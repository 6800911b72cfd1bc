// Compiled modules in the core: the right to compile, waiting, and results.

#include <string>
#include <vector>

#include "daemon/core/testing/core_harness.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

using What = ModuleWork::What;

Digest DigestOf(uint8_t name) {
  Digest digest;
  digest.bits[0] = name;
  return digest;
}

class CoreModuleTest : public ::testing::Test {
 protected:
  CoreModuleTest() : harness_(MakeConfig()), one_(harness_.Open(1000)), two_(harness_.Open(1000)) {}

  static Config MakeConfig() {
    Config config = CoreHarness::DefaultConfig();
    config.limits.modules = {.largest = Bytes(40),
                             .total = Bytes(100),
                             .tenant = Bytes(60),
                             .modules = 5,
                             .compiles_per_user = 3,
                             .waiters_per_user = 4,
                             .compile_patience = absl::Seconds(10)};
    return config;
  }

  CallId Obtain(Peer& peer, uint8_t key, absl::Duration patience = absl::InfiniteDuration()) {
    return harness_.ObtainModule(
        peer, {.key = DigestOf(key), .architecture = "compute_90", .deadline = harness_.now + patience});
  }
  ObtainModuleResult ResultOf(CallId call) { return harness_.Get<ObtainModuleResult>(call); }
  // Obtains the right to compile a module that is not stored.
  CompileId MustCompile(Peer& peer, uint8_t key) {
    const ObtainModuleResult result = ResultOf(Obtain(peer, key));
    EXPECT_TRUE(result.compile);
    return result.compile;
  }
  CallId Store(Peer& peer, CompileId compile, uint64_t bytes, uint8_t content) {
    return harness_.StoreModule(peer,
                                {.compile = compile, .bytes = Bytes(bytes), .content = DigestOf(content)});
  }
  // The module store does its next work.
  ModuleWork Work(const absl::Status& status = absl::OkStatus()) {
    EXPECT_FALSE(harness_.module_work.empty());
    const ModuleWork work = harness_.module_work.front();
    harness_.module_work.pop_front();
    harness_.Do([&](Core& core, Effects* effects) {
      if (work.what == What::kStore) {
        core.ModuleStored(harness_.now, work.module, work.compile, status, effects);
      } else if (work.what == What::kLoad) {
        core.ModuleLoaded(harness_.now, work.module, status, effects);
      }
    });
    return work;
  }
  void WorkAll() {
    while (!harness_.module_work.empty()) Work();
  }
  void MustStore(Peer& peer, uint8_t key, uint64_t bytes = 10) {
    const CallId stored = Store(peer, MustCompile(peer, key), bytes, key);
    WorkAll();
    EXPECT_TRUE(harness_.StatusOf(stored).ok()) << harness_.StatusOf(stored);
  }
  bool Hit(Peer& peer, uint8_t key) {
    const CallId call = Obtain(peer, key);
    const bool hit = harness_.Answered(call) && !ResultOf(call).compile;
    EXPECT_TRUE(!hit || ResultOf(call).content == DigestOf(key));
    return hit;
  }
  ModuleCounts Counts() { return harness_.core->GetModuleUsage(CoreHarness::Admin()).counts; }
  // Counts the deliveries of that kind to the process.
  int Deliveries(const Peer& peer, attach::DeliveryKind what) {
    int count = 0;
    for (const Deliver& deliver : harness_.deliveries) {
      count += deliver.channel == peer.channel && deliver.delivery.what == what ? 1 : 0;
    }
    return count;
  }

  CoreHarness harness_;
  Peer one_;
  Peer two_;
};

TEST_F(CoreModuleTest, FirstRequesterCompilesOthersWait) {
  const CompileId compile = MustCompile(one_, 1);
  EXPECT_EQ(Deliveries(one_, attach::DeliveryKind::kModulePlace), 1);
  const CallId second = Obtain(two_, 1);
  const CallId third = Obtain(two_, 1);
  EXPECT_FALSE(harness_.Answered(second));
  const CallId stored = Store(one_, compile, 10, 7);
  EXPECT_FALSE(harness_.Answered(stored)) << "it is not there yet";
  EXPECT_EQ(Work().what, What::kMakePlace);
  const ModuleWork store = Work();
  EXPECT_EQ(store.what, What::kStore);
  EXPECT_EQ(store.record.tenant.uid, 1000u);
  EXPECT_EQ(store.record.bytes, Bytes(10));
  EXPECT_EQ(Work().what, What::kEndPlace);
  harness_.Get<StoreModuleResult>(stored);
  for (const CallId call : {second, third}) {
    EXPECT_FALSE(ResultOf(call).compile);
    EXPECT_EQ(ResultOf(call).content, DigestOf(7));
    EXPECT_EQ(ResultOf(call).bytes, Bytes(10));
  }
  EXPECT_EQ(Deliveries(two_, attach::DeliveryKind::kModule), 2);
  EXPECT_EQ(Counts(), (ModuleCounts{.hits = 2, .misses = 1, .waits = 2, .stored = 1}));
}

TEST_F(CoreModuleTest, DeliveryPrecedesAnswer) {
  Obtain(one_, 1);
  EXPECT_EQ(harness_.last_effects, "module-work deliver reply");
  WorkAll();
}

TEST_F(CoreModuleTest, OtherTenantCompilesSeparately) {
  MustStore(one_, 1);
  Peer other = harness_.Open(1001);
  EXPECT_TRUE(ResultOf(Obtain(other, 1)).compile);
  EXPECT_TRUE(Hit(two_, 1));
  EXPECT_EQ(harness_.core->ListModules(other.caller()).size(), 1u);
  EXPECT_EQ(harness_.core->ListModules(CoreHarness::Admin()).size(), 2u);
}

TEST_F(CoreModuleTest, DeadCompilerIsReplacedByLongestWaiter) {
  const CompileId first = MustCompile(one_, 1);
  const CallId second = Obtain(two_, 1);
  Peer third_peer = harness_.Open(1000);
  const CallId third = Obtain(third_peer, 1);
  harness_.Gone(one_);
  const CompileId next = ResultOf(second).compile;
  EXPECT_TRUE(next && next != first);
  EXPECT_FALSE(harness_.Answered(third));
  harness_.HangUpChannel(two_);
  EXPECT_TRUE(ResultOf(third).compile);
  EXPECT_EQ(Counts().failed, 2u);
}

TEST_F(CoreModuleTest, EndedSessionStopsCompiling) {
  MustCompile(one_, 1);
  const CallId waiting = Obtain(two_, 1);
  harness_.HangUp(one_);
  EXPECT_TRUE(ResultOf(waiting).compile);
}

TEST_F(CoreModuleTest, LateCompilerIsReplacedAndItsModuleRejected) {
  const CompileId late = MustCompile(one_, 1);
  const CallId waiting = Obtain(two_, 1);
  harness_.now += absl::Seconds(9);
  harness_.Tick();
  EXPECT_FALSE(harness_.Answered(waiting));
  harness_.now += absl::Seconds(1);
  harness_.Tick();
  EXPECT_TRUE(ResultOf(waiting).compile);
  EXPECT_TRUE(harness_.Refused(Store(one_, late, 10, 1), Reason::kNotFound));
  EXPECT_TRUE(harness_.Refused(harness_.AbandonModule(one_, late), Reason::kNotFound));
}

TEST_F(CoreModuleTest, ExpiredCompileWithoutWaiterLeavesNothing) {
  MustCompile(one_, 1);
  harness_.now += absl::Seconds(10);
  harness_.Tick();
  EXPECT_TRUE(harness_.core->ListModules(CoreHarness::Admin()).empty());
}

TEST_F(CoreModuleTest, ForeignCompileRightIsRejected) {
  const CompileId compile = MustCompile(one_, 1);
  EXPECT_TRUE(harness_.Refused(Store(two_, compile, 10, 1), Reason::kNotFound));
  EXPECT_TRUE(harness_.Refused(harness_.AbandonModule(two_, compile), Reason::kNotFound));
}

TEST_F(CoreModuleTest, FailingSourceIsCompiledOnce) {
  const CompileId compile = MustCompile(one_, 1);
  const CallId waiting = Obtain(two_, 1);
  harness_.Get<AbandonModuleResult>(harness_.AbandonModule(one_, compile, "line 3: no"));
  EXPECT_TRUE(harness_.Refused(waiting, Reason::kInvalidField));
  EXPECT_EQ(harness_.NamedValue(waiting, "value"), "line 3: no");
  EXPECT_EQ(harness_.NamedValue(waiting, "limit"), "compute_90");
  EXPECT_TRUE(harness_.core->ListModules(CoreHarness::Admin()).empty()) << "it is not stored";
}

TEST_F(CoreModuleTest, AbandonedCompileGoesToWaiter) {
  const CompileId compile = MustCompile(one_, 1);
  const CallId waiting = Obtain(two_, 1);
  harness_.AbandonModule(one_, compile);
  EXPECT_TRUE(ResultOf(waiting).compile);
}

TEST_F(CoreModuleTest, ModuleWithWrongContentIsNotStored) {
  const CallId stored = Store(one_, MustCompile(one_, 1), 10, 7);
  const CallId waiting = Obtain(two_, 1);
  Work();
  Work(Refuse(Reason::kInvalidField, "it is another"));
  EXPECT_TRUE(harness_.Refused(stored, Reason::kInvalidField));
  EXPECT_TRUE(ResultOf(waiting).compile);
}

TEST_F(CoreModuleTest, OversizedModuleIsRejectedToAllWaiters) {
  const CompileId compile = MustCompile(one_, 1);
  const CallId waiting = Obtain(two_, 1);
  const CallId stored = Store(one_, compile, 41, 7);
  EXPECT_TRUE(harness_.Refused(stored, Reason::kLimit));
  EXPECT_EQ(harness_.NamedValue(stored, "what"), "bytes_per_module");
  EXPECT_TRUE(harness_.Refused(waiting, Reason::kLimit));
}

TEST_F(CoreModuleTest, LeastRecentlyUsedModuleIsEvicted) {
  for (const uint8_t key : {1, 2, 3}) MustStore(one_, key, 20);
  EXPECT_TRUE(Hit(one_, 1));
  MustStore(one_, 4, 10);
  EXPECT_TRUE(Hit(one_, 1) && Hit(one_, 3) && Hit(one_, 4));
  EXPECT_FALSE(Hit(one_, 2));
  EXPECT_EQ(Counts().evicted, 1u);
}

TEST_F(CoreModuleTest, UserShareDoesNotGrowAtOthersCost) {
  MustStore(one_, 1, 40);
  MustStore(one_, 2, 20);
  Peer other = harness_.Open(1001);
  MustStore(other, 3, 40);
  MustStore(one_, 4, 30);
  EXPECT_TRUE(Hit(other, 3));
  EXPECT_FALSE(Hit(one_, 1));
}

TEST_F(CoreModuleTest, ModuleWaitTimesOut) {
  MustCompile(one_, 1);
  const CallId call = Obtain(two_, 1, absl::Seconds(1));
  EXPECT_TRUE(harness_.Refused(Obtain(two_, 1, absl::ZeroDuration()), Reason::kWaitTimedOut));
  harness_.now += absl::Seconds(1);
  harness_.Tick();
  EXPECT_TRUE(harness_.Refused(call, Reason::kWaitTimedOut));
}

TEST_F(CoreModuleTest, CancelledModuleWaiterLeavesQueue) {
  const CompileId compile = MustCompile(one_, 1);
  const CallId gone = Obtain(two_, 1);
  const uint64_t sequence = two_.sequence;
  const CallId cancelled = Obtain(two_, 1);
  harness_.Do([&](Core& core, Effects* effects) { core.CancelCall(harness_.now, cancelled, effects); });
  EXPECT_TRUE(harness_.Refused(cancelled, Reason::kCancelled));
  harness_.Forget(two_, sequence);
  EXPECT_TRUE(harness_.Refused(gone, Reason::kCancelled));
  harness_.Get<AbandonModuleResult>(harness_.AbandonModule(one_, compile));
  EXPECT_TRUE(harness_.core->ListModules(CoreHarness::Admin()).empty());
}

TEST_F(CoreModuleTest, ForgottenCompileRightGoesToWaiter) {
  MustCompile(one_, 1);
  const uint64_t sequence = one_.sequence;
  const CallId waiting = Obtain(two_, 1);
  EXPECT_EQ(harness_.Get<ForgetResult>(harness_.Forget(one_, sequence)).outcome, ForgetOutcome::kUndone);
  EXPECT_TRUE(ResultOf(waiting).compile);
}

TEST_F(CoreModuleTest, CancelledStoreIsAnsweredOnRetry) {
  const CompileId compile = MustCompile(one_, 1);
  const StoreModuleRequest request = {.compile = compile, .bytes = Bytes(10), .content = DigestOf(1)};
  const CallId call = harness_.StoreModule(one_, request);
  harness_.Do([&](Core& core, Effects* effects) { core.CancelCall(harness_.now, call, effects); });
  const CallId again = harness_.Ask([&](Core& core, CallId id, Effects* effects) {
    core.StoreModule(harness_.now, id, one_.caller(), one_.Again(), request, effects);
  });
  WorkAll();
  harness_.Get<StoreModuleResult>(again);
  EXPECT_TRUE(Hit(two_, 1));
}

TEST_F(CoreModuleTest, StoreFinishesWithoutItsProcess) {
  Store(one_, MustCompile(one_, 1), 10, 1);
  harness_.Gone(one_);
  WorkAll();
  EXPECT_TRUE(Hit(two_, 1));
}

TEST_F(CoreModuleTest, ModuleOnDiskIsLoadedOnce) {
  const ModuleRecord record = {
      .tenant = {.uid = 1000}, .key = DigestOf(1), .bytes = Bytes(10), .content = DigestOf(1)};
  harness_.Do([&](Core& core, Effects* effects) { core.RestoreModule(harness_.now, record, effects); });
  const CallId first = Obtain(one_, 1, absl::ZeroDuration());
  const CallId second = Obtain(two_, 1);
  EXPECT_FALSE(harness_.Answered(first));
  EXPECT_EQ(Work().what, What::kLoad);
  EXPECT_TRUE(harness_.module_work.empty()) << "it is read once";
  EXPECT_EQ(ResultOf(first).content, DigestOf(1));
  EXPECT_EQ(ResultOf(second).content, DigestOf(1));
  EXPECT_EQ(Counts(), (ModuleCounts{.hits = 2}));
}

TEST_F(CoreModuleTest, CorruptModuleIsDroppedAndCompiledAnew) {
  const ModuleRecord record = {
      .tenant = {.uid = 1000}, .key = DigestOf(1), .bytes = Bytes(10), .content = DigestOf(1)};
  harness_.Do([&](Core& core, Effects* effects) { core.RestoreModule(harness_.now, record, effects); });
  const CallId first = Obtain(one_, 1);
  Work(absl::DataLossError("another hash"));
  EXPECT_EQ(Work().what, What::kDrop);
  const CompileId compile = ResultOf(first).compile;
  EXPECT_TRUE(compile);
  EXPECT_EQ(Counts().corrupt, 1u);
  Store(one_, compile, 12, 2);
  WorkAll();
  EXPECT_EQ(ResultOf(Obtain(two_, 1)).content, DigestOf(2));
}

TEST_F(CoreModuleTest, UnreadableModuleIsRetriedLater) {
  const ModuleRecord record = {
      .tenant = {.uid = 1000}, .key = DigestOf(1), .bytes = Bytes(10), .content = DigestOf(1)};
  harness_.Do([&](Core& core, Effects* effects) { core.RestoreModule(harness_.now, record, effects); });
  const CallId first = Obtain(one_, 1);
  Work(absl::ResourceExhaustedError("no fd"));
  EXPECT_TRUE(absl::IsResourceExhausted(harness_.StatusOf(first)));
  EXPECT_EQ(Counts().corrupt, 0u);
  const CallId second = Obtain(one_, 1);
  Work();
  EXPECT_EQ(ResultOf(second).content, DigestOf(1));
}

// Modules are restored least recently used first.
TEST_F(CoreModuleTest, RestoreBeyondLimitsEvictsLeastRecentlyUsed) {
  const auto restore = [&](uint8_t key, uint64_t bytes) {
    const ModuleRecord record = {
        .tenant = {.uid = 1000}, .key = DigestOf(key), .bytes = Bytes(bytes), .content = DigestOf(key)};
    harness_.Do([&](Core& core, Effects* effects) { core.RestoreModule(harness_.now, record, effects); });
  };
  for (uint8_t key = 1; key <= 4; ++key) restore(key, 30);
  // A module above the total limit evicts no other module.
  restore(5, 61);
  for (const uint8_t dropped : {1, 2, 5}) {
    const ModuleWork work = Work();
    EXPECT_EQ(work.what, What::kDrop);
    EXPECT_EQ(work.record.key, DigestOf(dropped));
  }
  EXPECT_TRUE(harness_.module_work.empty());
  std::vector<Digest> stored;
  for (const ModuleView& module : harness_.core->ListModules(CoreHarness::Admin())) stored.push_back(module.record.key);
  EXPECT_EQ(stored, (std::vector<Digest>{DigestOf(3), DigestOf(4)}));
}

TEST_F(CoreModuleTest, DistrustedModuleIsCompiledAnew) {
  MustStore(one_, 1);
  const CallId again =
      harness_.ObtainModule(two_, {.key = DigestOf(1), .distrusted = DigestOf(1)});
  EXPECT_TRUE(ResultOf(again).compile);
  EXPECT_EQ(Counts().corrupt, 1u);
  // A process that distrusts content that is not stored gets the stored content.
  MustStore(one_, 2);
  EXPECT_FALSE(ResultOf(harness_.ObtainModule(two_, {.key = DigestOf(2), .distrusted = DigestOf(9)})).compile);
}

TEST_F(CoreModuleTest, EachModuleLimitIsNamed) {
  for (const uint8_t key : {1, 2, 3}) MustCompile(one_, key);
  const CallId fourth = Obtain(one_, 4);
  EXPECT_EQ(harness_.NamedValue(fourth, "what"), "compiles_per_user");
  for (int i = 0; i < 4; ++i) Obtain(two_, 1);
  EXPECT_EQ(harness_.NamedValue(Obtain(two_, 1), "what"), "module_waiters_per_user");
}

TEST_F(CoreModuleTest, CacheOfZeroBytesIsUnsupported) {
  Config config = MakeConfig();
  config.limits.modules.total = Bytes(0);
  CoreHarness harness(config);
  Peer peer = harness.Open();
  EXPECT_TRUE(harness.Refused(harness.ObtainModule(peer, {.key = DigestOf(1)}), Reason::kUnsupported));
}

TEST_F(CoreModuleTest, CompilerAndWaiterCountAreShown) {
  MustCompile(one_, 1);
  Obtain(two_, 1);
  const ModuleView view = harness_.core->ListModules(two_.caller()).at(0);
  EXPECT_EQ(view.state, ModuleState::kCompiling);
  EXPECT_EQ(view.waiters, 1u);
  EXPECT_EQ(view.compiling.name, "tester");
  EXPECT_EQ(view.expires, harness_.now + absl::Seconds(10));
  EXPECT_EQ(view.record.architecture, "compute_90");
}

TEST_F(CoreModuleTest, ShutdownRejectsModuleWaiters) {
  MustCompile(one_, 1);
  const CallId waiting = Obtain(two_, 1);
  harness_.Do([&](Core& core, Effects* effects) { core.ShutDown(harness_.now, effects); });
  EXPECT_TRUE(harness_.Refused(waiting, Reason::kShuttingDown));
}

}  // namespace
}  // namespace berth::core
