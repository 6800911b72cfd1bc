#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

uint64_t Charged(const BudgetView& view) { return view.bytes.charged().count(); }

TEST(CoreBudgetTest, FullLayerRejectsAndIsNamed) {
  CoreHarness h;
  Peer a = h.Open(1000), b = h.Open(1000);
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = a.session, .limit = MiB(4)}).ok());
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = a.tenant, .limit = MiB(8)}).ok());
  h.MustAllocate(a, MiB(2));
  h.MustAllocate(b, MiB(2));
  std::string before = h.Accounts();
  const CallId session = h.Allocate(a, MiB(4));
  EXPECT_TRUE(h.Refused(session, Reason::kOverBudget));
  EXPECT_EQ(h.NamedValue(session, "layer"), "session");
  EXPECT_EQ(h.NamedValue(session, "requested"), std::to_string(MiB(4).count()));
  EXPECT_EQ(h.NamedValue(session, "current"), std::to_string(MiB(2).count()));
  EXPECT_EQ(h.NamedValue(session, "remaining"), std::to_string(MiB(2).count()));
  EXPECT_EQ(h.NamedValue(session, "limit"), std::to_string(MiB(4).count()));
  const CallId tenant = h.Allocate(b, MiB(6));
  EXPECT_TRUE(h.Refused(tenant, Reason::kOverBudget));
  EXPECT_EQ(h.NamedValue(tenant, "layer"), "tenant");
  EXPECT_EQ(h.NamedValue(tenant, "current"), std::to_string(MiB(4).count()));
  EXPECT_EQ(h.NamedValue(tenant, "remaining"), std::to_string(MiB(4).count()));
  EXPECT_EQ(h.Accounts(), before);
  h.MustAllocate(a, MiB(2));
  h.MustAllocate(b, MiB(2));
  before = h.Accounts();
  EXPECT_EQ(h.NamedValue(h.Allocate(b, Bytes(1)), "layer"), "tenant");
  EXPECT_EQ(h.NamedValue(h.Allocate(a, Bytes(1)), "layer"), "session");
  EXPECT_EQ(h.Accounts(), before);
  EXPECT_EQ(h.Budget(Layer::kSession, 0, a).refusals, 2);
  EXPECT_EQ(h.Budget(Layer::kTenant, 0, a).refusals, 2);
  // Another device and another tenant have their own budgets.
  h.MustAllocate(a, MiB(16), 1);
  Peer c = h.Open(1001);
  h.MustAllocate(c, MiB(8));
  EXPECT_EQ(h.NamedValue(h.Allocate(c, Bytes(1)), "layer"), "device");
}

TEST(CoreBudgetTest, DefaultBudgetsBindEveryTenantAndSession) {
  Config config = CoreHarness::DefaultConfig();
  config.tenant_budget = MiB(6);
  config.session_budget = MiB(4);
  CoreHarness h(config);
  Peer a = h.Open(), b = h.Open();
  h.MustAllocate(a, MiB(4));
  EXPECT_EQ(h.NamedValue(h.Allocate(a, MiB(2)), "layer"), "session");
  EXPECT_EQ(h.NamedValue(h.Allocate(b, MiB(4)), "layer"), "tenant");
  // Sets an explicit limit, then returns to the default.
  ASSERT_TRUE(h.SetBudget({.of = a.session, .limit = MiB(6)}).ok());
  h.MustAllocate(a, MiB(2));
  const auto views = h.SetBudget({.of = a.session});
  ASSERT_EQ(views->size(), 2);
  EXPECT_EQ(views->at(0).limit, MiB(4));
  EXPECT_EQ(Charged(views->at(0)), MiB(6).count());
}

TEST(CoreBudgetTest, LoweredBudgetRevokesNothing) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult block = h.MustAllocate(a, MiB(8));
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = a.tenant, .limit = MiB(2)}).ok());
  EXPECT_EQ(h.BytesOf(0).live, MiB(8));
  const CallId refused = h.Allocate(a, MiB(2));
  EXPECT_EQ(h.NamedValue(refused, "layer"), "tenant");
  EXPECT_EQ(h.NamedValue(refused, "remaining"), "0");
  h.Free(a, block.block.handle, {block.import});
  h.WorkAll();
  h.MustAllocate(a, MiB(2));
  EXPECT_TRUE(h.Refused(h.Allocate(a, MiB(2)), Reason::kOverBudget));
}

TEST(CoreBudgetTest, InnerLayerWaitsForItsBytesBeforeRejecting) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = a.session, .limit = MiB(4)}).ok());
  const AllocateResult block = h.MustAllocate(a, MiB(4));
  h.Free(a, block.block.handle, {block.import});
  const CallId waiting = h.Allocate(a, MiB(4));
  EXPECT_FALSE(h.Answered(waiting));
  // Another session has capacity and does not wait behind it.
  const CallId other = h.Allocate(b, MiB(2));
  EXPECT_EQ(h.last_effects, "create");
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(waiting).ok());
  EXPECT_TRUE(h.StatusOf(other).ok());
}

TEST(CoreBudgetTest, FailedReleaseStaysChargedInEveryLayer) {
  CoreHarness h;
  Peer a = h.Open();
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = a.session, .limit = MiB(4)}).ok());
  const AllocateResult block = h.MustAllocate(a, MiB(4));
  h.Free(a, block.block.handle, {block.import});
  const CallId waiting = h.Allocate(a, MiB(2));
  h.WorkOnce(absl::InternalError("no"));
  EXPECT_EQ(h.NamedValue(waiting, "layer"), "session");
  for (const Layer layer : {Layer::kSession, Layer::kTenant, Layer::kDevice}) {
    const BudgetView view = h.Budget(layer, 0, a);
    EXPECT_EQ(view.failed_releases, 1);
    EXPECT_EQ(view.stuck, MiB(4));
    EXPECT_EQ(Charged(view), MiB(4).count());
  }
  // After the session's end the bytes stay charged to its tenant.
  h.HangUp(a);
  h.Gone(a);
  EXPECT_EQ(h.Budget(Layer::kTenant, 0, a).stuck, MiB(4));
}

TEST(CoreBudgetTest, QuarantinedBytesAreChargedToImporters) {
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
  // A block under release is still charged.
  EXPECT_EQ(h.Budget(Layer::kTenant, 0, c).bytes.retired, MiB(4));
  h.WorkAll();
  EXPECT_EQ(Charged(h.Budget(Layer::kTenant, 0, c)), 0);
}

TEST(CoreBudgetTest, PeakOmitsRefusedAndFailedBlocks) {
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

TEST(CoreBudgetTest, SessionLowersOnlyItsOwnBudget) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  const auto refused = [&](const SetBudgetRequest& request) {
    return IsRefusal(h.SetBudget(request, &a).status(), Reason::kAdminOnly);
  };
  EXPECT_TRUE(h.SetBudget({.of = a.session, .limit = MiB(8)}, &a).ok());
  EXPECT_TRUE(h.SetBudget({.device = 1, .of = a.session, .limit = MiB(4)}, &a).ok());
  const std::string before = h.Accounts();
  EXPECT_TRUE(refused({.of = a.session, .limit = MiB(6)}));
  EXPECT_TRUE(refused({.of = a.session}));
  EXPECT_TRUE(refused({.of = b.session, .limit = MiB(1)}));
  EXPECT_TRUE(refused({.of = SessionId(4711), .limit = MiB(1)}));
  EXPECT_TRUE(refused({.of = a.tenant, .limit = MiB(1)}));
  EXPECT_TRUE(refused({.device = 0, .limit = MiB(1)}));
  EXPECT_EQ(h.Accounts(), before);
  EXPECT_EQ(h.Budget(Layer::kSession, 0, a).limit, MiB(8));
  EXPECT_EQ(h.Budget(Layer::kSession, 1, a).limit, MiB(4));
}

TEST(CoreBudgetTest, ImpossibleLimitsAreRejected) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.detached_tenants = 1;
  CoreHarness h(config);
  const auto refused = [&](const SetBudgetRequest& request, Reason reason) {
    return IsRefusal(h.SetBudget(request).status(), reason);
  };
  EXPECT_TRUE(refused({.device = 0, .limit = MiB(65)}, Reason::kOutOfRange));
  EXPECT_TRUE(refused({.of = Tenant{.uid = 1}, .limit = MiB(65)}, Reason::kOutOfRange));
  EXPECT_TRUE(refused({.device = 70, .limit = MiB(1)}, Reason::kOutOfRange));
  EXPECT_TRUE(refused({.device = 5, .limit = MiB(1)}, Reason::kNotFound));
  EXPECT_TRUE(refused({.of = SessionId(4711), .limit = MiB(1)}, Reason::kNotFound));
  // A tenant without bytes may have a limit; the number of such tenants is bounded.
  EXPECT_TRUE(h.SetBudget({.of = Tenant{.uid = 1}, .limit = MiB(4)}).ok());
  EXPECT_TRUE(refused({.of = Tenant{.uid = 2}, .limit = MiB(4)}, Reason::kLimit));
  EXPECT_TRUE(h.SetBudget({.of = Tenant{.uid = 1}}).ok());
  EXPECT_TRUE(h.SetBudget({.of = Tenant{.uid = 2}, .limit = MiB(4)}).ok());
  Peer peer = h.Open(2);
  EXPECT_EQ(h.NamedValue(h.Allocate(peer, MiB(6)), "layer"), "tenant");
}

TEST(CoreBudgetTest, TenantSeesItsLayersAndDevices) {
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
