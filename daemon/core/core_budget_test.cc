#include "daemon/core/core_harness.h"

namespace berth::core {
namespace {

uint64_t Charged(const BudgetView& view) { return view.bytes.charged().count(); }

TEST(CoreBudgetTest, EachLayerFitsExactlyAndNamesItselfWhenItDoesNot) {
  CoreHarness h;
  Peer a = h.Open(1000), b = h.Open(1000);
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = a.session, .limit = MiB(4)}).ok());
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = a.tenant, .limit = MiB(8)}).ok());
  h.MustAllocate(a, MiB(2));
  h.MustAllocate(b, MiB(2));
  std::string before = h.Books();
  const CallId session = h.Allocate(a, MiB(4));
  EXPECT_TRUE(h.Refused(session, Reason::kOverBudget));
  EXPECT_EQ(h.Figure(session, "layer"), "session");
  EXPECT_EQ(h.Figure(session, "requested"), std::to_string(MiB(4).count()));
  EXPECT_EQ(h.Figure(session, "current"), std::to_string(MiB(2).count()));
  EXPECT_EQ(h.Figure(session, "remaining"), std::to_string(MiB(2).count()));
  EXPECT_EQ(h.Figure(session, "limit"), std::to_string(MiB(4).count()));
  const CallId tenant = h.Allocate(b, MiB(6));
  EXPECT_TRUE(h.Refused(tenant, Reason::kOverBudget));
  EXPECT_EQ(h.Figure(tenant, "layer"), "tenant");
  EXPECT_EQ(h.Figure(tenant, "current"), std::to_string(MiB(4).count()));
  EXPECT_EQ(h.Figure(tenant, "remaining"), std::to_string(MiB(4).count()));
  EXPECT_EQ(h.Books(), before);
  h.MustAllocate(a, MiB(2));
  h.MustAllocate(b, MiB(2));
  before = h.Books();
  EXPECT_EQ(h.Figure(h.Allocate(b, Bytes(1)), "layer"), "tenant");
  EXPECT_EQ(h.Figure(h.Allocate(a, Bytes(1)), "layer"), "session");
  EXPECT_EQ(h.Books(), before);
  EXPECT_EQ(h.Budget(Layer::kSession, 0, a).refusals, 2);
  EXPECT_EQ(h.Budget(Layer::kTenant, 0, a).refusals, 2);
  // Another device, and another tenant, have their own.
  h.MustAllocate(a, MiB(16), 1);
  Peer c = h.Open(1001);
  h.MustAllocate(c, MiB(8));
  EXPECT_EQ(h.Figure(h.Allocate(c, Bytes(1)), "layer"), "device");
}

TEST(CoreBudgetTest, TheConfiguredDefaultsBindEverybody) {
  Config config = CoreHarness::DefaultConfig();
  config.tenant_budget = MiB(6);
  config.session_budget = MiB(4);
  CoreHarness h(config);
  Peer a = h.Open(), b = h.Open();
  h.MustAllocate(a, MiB(4));
  EXPECT_EQ(h.Figure(h.Allocate(a, MiB(2)), "layer"), "session");
  EXPECT_EQ(h.Figure(h.Allocate(b, MiB(4)), "layer"), "tenant");
  // One of one's own, and back to the default.
  ASSERT_TRUE(h.SetBudget({.of = a.session, .limit = MiB(6)}).ok());
  h.MustAllocate(a, MiB(2));
  const auto views = h.SetBudget({.of = a.session});
  ASSERT_EQ(views->size(), 2);
  EXPECT_EQ(views->at(0).limit, MiB(4));
  EXPECT_EQ(Charged(views->at(0)), MiB(6).count());
}

TEST(CoreBudgetTest, LoweringDrainsAndRevokesNothing) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult block = h.MustAllocate(a, MiB(8));
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = a.tenant, .limit = MiB(2)}).ok());
  EXPECT_EQ(h.BytesOf(0).live, MiB(8));
  const CallId refused = h.Allocate(a, MiB(2));
  EXPECT_EQ(h.Figure(refused, "layer"), "tenant");
  EXPECT_EQ(h.Figure(refused, "remaining"), "0");
  h.Free(a, block.block.handle, {block.import});
  h.WorkAll();
  h.MustAllocate(a, MiB(2));
  EXPECT_TRUE(h.Refused(h.Allocate(a, MiB(2)), Reason::kOverBudget));
}

TEST(CoreBudgetTest, AnInnerLayerWaitsForItsOwnBytesToBeBackBeforeItRefuses) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = a.session, .limit = MiB(4)}).ok());
  const AllocateResult block = h.MustAllocate(a, MiB(4));
  h.Free(a, block.block.handle, {block.import});
  const CallId waiting = h.Allocate(a, MiB(4));
  EXPECT_FALSE(h.Answered(waiting));
  // Others have room and don't wait for it.
  const CallId other = h.Allocate(b, MiB(2));
  EXPECT_EQ(h.last_effects, "create");
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(waiting).ok());
  EXPECT_TRUE(h.StatusOf(other).ok());
}

TEST(CoreBudgetTest, AFailedReleaseStaysChargedInEveryLayer) {
  CoreHarness h;
  Peer a = h.Open();
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = a.session, .limit = MiB(4)}).ok());
  const AllocateResult block = h.MustAllocate(a, MiB(4));
  h.Free(a, block.block.handle, {block.import});
  const CallId waiting = h.Allocate(a, MiB(2));
  h.WorkOnce(absl::InternalError("no"));
  EXPECT_EQ(h.Figure(waiting, "layer"), "session");
  for (const Layer layer : {Layer::kSession, Layer::kTenant, Layer::kDevice}) {
    const BudgetView view = h.Budget(layer, 0, a);
    EXPECT_EQ(view.failed_releases, 1);
    EXPECT_EQ(view.stuck, MiB(4));
    EXPECT_EQ(Charged(view), MiB(4).count());
  }
  // The session's end leaves them to its tenant.
  h.HangUp(a);
  h.Gone(a);
  EXPECT_EQ(h.Budget(Layer::kTenant, 0, a).stuck, MiB(4));
}

TEST(CoreBudgetTest, QuarantinedBytesAreTheImportersTenantsAndNoLongerTheOwners) {
  CoreHarness h;
  Peer a = h.Open(1000), b = h.Open(1001), c = h.Open(1002);
  const AllocateResult block = h.MustAllocate(a, MiB(4));
  h.Grant(a, block.block.handle, b.tenant);
  h.Grant(a, block.block.handle, c.tenant);
  const auto of_b = h.Get<ImportResult>(h.Import(b, block.block.handle));
  const auto of_c = h.Get<ImportResult>(h.Import(c, block.block.handle));
  EXPECT_EQ(Charged(h.Budget(Layer::kTenant, 0, b)), 0);
  h.Free(a, block.block.handle, {block.import});
  EXPECT_EQ(Charged(h.Budget(Layer::kSession, 0, a)), 0);
  EXPECT_EQ(Charged(h.Budget(Layer::kTenant, 0, a)), 0);
  EXPECT_EQ(Charged(h.Budget(Layer::kTenant, 0, b)), MiB(4).count());
  EXPECT_EQ(Charged(h.Budget(Layer::kTenant, 0, c)), MiB(4).count());
  EXPECT_EQ(Charged(h.Budget(Layer::kSession, 0, b)), 0);
  EXPECT_EQ(h.BytesOf(0).quarantined, MiB(4));
  h.LetGo(b, of_b.import);
  EXPECT_EQ(Charged(h.Budget(Layer::kTenant, 0, b)), 0);
  h.LetGo(c, of_c.import);
  // On its way back it is still somebody's.
  EXPECT_EQ(h.Budget(Layer::kTenant, 0, c).bytes.retired, MiB(4));
  h.WorkAll();
  EXPECT_EQ(Charged(h.Budget(Layer::kTenant, 0, c)), 0);
}

TEST(CoreBudgetTest, ThePeakKnowsNeitherWhatWasRefusedNorWhatWasOnlyBeingMade) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult block = h.MustAllocate(a, MiB(4));
  h.Allocate(a, MiB(16));
  h.Allocate(a, MiB(8));
  h.WorkOnce(Refuse(Reason::kDriver, "no"));
  h.Free(a, block.block.handle, {block.import});
  h.WorkAll();
  for (const Layer layer : {Layer::kSession, Layer::kTenant, Layer::kDevice}) {
    const BudgetView view = h.Budget(layer, 0, a);
    EXPECT_EQ(view.peak, MiB(4)) << LayerName(layer);
    EXPECT_EQ(view.allocations, 1);
    EXPECT_EQ(Charged(view), 0);
  }
}

TEST(CoreBudgetTest, ASessionMayLowerItsOwnAndNothingElse) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  const auto refused = [&](const SetBudgetRequest& request) {
    return IsRefusal(h.SetBudget(request, &a).status(), Reason::kAdminOnly);
  };
  EXPECT_TRUE(h.SetBudget({.of = a.session, .limit = MiB(8)}, &a).ok());
  EXPECT_TRUE(h.SetBudget({.device = 1, .of = a.session, .limit = MiB(4)}, &a).ok());
  const std::string before = h.Books();
  EXPECT_TRUE(refused({.of = a.session, .limit = MiB(6)}));
  EXPECT_TRUE(refused({.of = a.session}));
  EXPECT_TRUE(refused({.of = b.session, .limit = MiB(1)}));
  EXPECT_TRUE(refused({.of = SessionId(4711), .limit = MiB(1)}));
  EXPECT_TRUE(refused({.of = a.tenant, .limit = MiB(1)}));
  EXPECT_TRUE(refused({.device = 0, .limit = MiB(1)}));
  EXPECT_EQ(h.Books(), before);
  EXPECT_EQ(h.Budget(Layer::kSession, 0, a).limit, MiB(8));
  EXPECT_EQ(h.Budget(Layer::kSession, 1, a).limit, MiB(4));
}

TEST(CoreBudgetTest, LimitsThatCannotBeAreRefused) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.absent_tenants = 1;
  CoreHarness h(config);
  const auto refused = [&](const SetBudgetRequest& request, Reason reason) {
    return IsRefusal(h.SetBudget(request).status(), reason);
  };
  EXPECT_TRUE(refused({.device = 0}, Reason::kInvalidField));
  EXPECT_TRUE(refused({.device = 0, .limit = MiB(65)}, Reason::kOutOfRange));
  EXPECT_TRUE(refused({.of = Tenant{.uid = 1}, .limit = MiB(65)}, Reason::kOutOfRange));
  EXPECT_TRUE(refused({.device = 70, .limit = MiB(1)}, Reason::kOutOfRange));
  EXPECT_TRUE(refused({.device = 5, .limit = MiB(1)}, Reason::kNotFound));
  EXPECT_TRUE(refused({.of = SessionId(4711), .limit = MiB(1)}, Reason::kNotFound));
  // A tenant that has nothing yet may be limited; only so many are remembered.
  EXPECT_TRUE(h.SetBudget({.of = Tenant{.uid = 1}, .limit = MiB(4)}).ok());
  EXPECT_TRUE(refused({.of = Tenant{.uid = 2}, .limit = MiB(4)}, Reason::kLimit));
  EXPECT_TRUE(h.SetBudget({.of = Tenant{.uid = 1}}).ok());
  EXPECT_TRUE(h.SetBudget({.of = Tenant{.uid = 2}, .limit = MiB(4)}).ok());
  Peer peer = h.Open(2);
  EXPECT_EQ(h.Figure(h.Allocate(peer, MiB(6)), "layer"), "tenant");
}

TEST(CoreBudgetTest, ATenantSeesItsOwnLayersAndTheDevices) {
  CoreHarness h;
  Peer a = h.Open(1000), b = h.Open(1001);
  h.MustAllocate(a, MiB(2));
  h.MustAllocate(b, MiB(2));
  int devices = 0;
  for (const BudgetView& view : h.core->ListBudgets(a.caller())) {
    devices += view.layer == Layer::kDevice ? 1 : 0;
    if (view.layer != Layer::kDevice) {
      EXPECT_EQ(view.tenant, a.tenant);
    }
  }
  EXPECT_EQ(devices, 2);
}

}  // namespace
}  // namespace berth::core
