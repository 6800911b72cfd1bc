// Tenants of one account: shared quotas, and separate ownership.

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

constexpr uint32_t kUser = 1000;
constexpr uint32_t kNeighbour = 1001;

// Tenants that a user can create: containers of its own, and a subordinate uid.
const std::vector<Tenant> kTenants = {
    {.uid = kUser},
    {.uid = kUser, .container = "/user/a", .charged_account = Account{.uid = kUser}},
    {.uid = kUser, .container = "/user/b", .charged_account = Account{.uid = kUser}},
    {.uid = 100'000, .charged_account = Account{.uid = kUser}},
};

AcquireRequest Ask(const std::string& key, bool wait = true) {
  return {.pool = "wide", .holder_key = key, .wait = wait};
}

// A resource under a quota of 2: `take` takes one for a tenant and returns whether it was granted.
struct Bounded {
  const char* name;
  TenantQuota quota;
  std::function<bool(CoreHarness&, const Tenant&)> take;
};

const std::vector<Bounded>& AllBounded() {
  static const auto* const all = new std::vector<Bounded>{
      {"permits", {.permits = 2},
       [](CoreHarness& h, const Tenant& tenant) {
         Peer peer = h.Open(tenant);
         return h.StatusOf(h.Acquire(peer, Ask("k", /*wait=*/false))).ok();
       }},
      {"waiters", {.waiters = 2},
       [](CoreHarness& h, const Tenant& tenant) {
         Peer peer = h.Open(tenant);
         return !h.Answered(h.Acquire(peer, {.pool = "gpu-tests", .holder_key = "k"}));
       }},
      {"sessions", {.sessions = 2},
       [](CoreHarness& h, const Tenant& tenant) {
         const bool opened =
             h.core->OpenSession(h.now, Secret(), tenant, "s", {.pid = 1, .uid = tenant.uid}).ok();
         h.Tick();
         return opened;
       }},
      {"blocks", {.blocks = 2},
       [](CoreHarness& h, const Tenant& tenant) {
         Peer peer = h.Open(tenant);
         return !h.Answered(h.Allocate(peer, MiB(2)));
       }},
      {"names", {.names = 2},
       [](CoreHarness& h, const Tenant& tenant) {
         static int last = 0;
         Peer peer = h.Open(tenant);
         const AllocateResult block = h.MustAllocate(peer, MiB(2));
         const bool published =
             h.StatusOf(h.Publish(peer, block.block.handle, std::to_string(++last), {block.import})).ok();
         if (!published) h.Free(peer, block.block.handle, {block.import});
         return published;
       }},
  };
  return *all;
}

TEST(CoreAccountTest, TenantsShareQuotaOfTheirAccount) {
  for (const Bounded& bounded : AllBounded()) {
    SCOPED_TRACE(bounded.name);
    Config config = CoreHarness::DefaultConfig();
    config.quotas.all = bounded.quota;
    CoreHarness h(config);
    Peer holder = h.Open({.uid = kNeighbour + 1});
    if (bounded.quota.waiters.has_value()) {
      h.MustAcquire(holder, {.pool = "gpu-tests", .units = 2, .holder_key = "all"});
    }
    int taken = 0;
    for (const Tenant& tenant : kTenants) taken += bounded.take(h, tenant) ? 1 : 0;
    EXPECT_EQ(taken, 2);
    EXPECT_TRUE(bounded.take(h, {.uid = kNeighbour})) << "another user has its own";
    EXPECT_TRUE(bounded.take(h, {.uid = kUser, .container = "/pod", .charged_account = Account{kUser, "pid:7"}}))
        << "and so has a container that root made";
    if (bounded.quota.waiters.has_value() || bounded.quota.blocks.has_value()) continue;
    h.Restart();
    for (const Tenant& tenant : kTenants) EXPECT_FALSE(bounded.take(h, tenant)) << tenant.uid << tenant.container;
  }
}

TEST(CoreAccountTest, TenantsOfAccountShareBudget) {
  CoreHarness h;
  std::vector<Peer> peers;
  for (const Tenant& tenant : kTenants) peers.push_back(h.Open(tenant));
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = Account{.uid = kUser}, .limit = MiB(4)}).ok());
  h.MustAllocate(peers[1], MiB(2));
  h.MustAllocate(peers[2], MiB(2));
  for (Peer& peer : peers) {
    const CallId over = h.Allocate(peer, MiB(2));
    EXPECT_TRUE(h.Refused(over, Reason::kOverBudget)) << h.StatusOf(over);
    EXPECT_EQ(h.NamedValue(over, "layer"), "tenant");
  }
  Peer neighbour = h.Open(kNeighbour);
  h.MustAllocate(neighbour, MiB(2));
}

TEST(CoreAccountTest, OperatorNamesAccountByItsTenant) {
  CoreHarness h;
  Peer contained = h.Open(kTenants[1]);
  Peer outside = h.Open(kTenants[0]);
  const auto set =
      h.SetBudget({.device = 0, .of = Account{.uid = kUser, .container = "/user/a"}, .limit = MiB(2)});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->at(0).tenant, Tenant{.uid = kUser});
  h.MustAllocate(outside, MiB(2));
  EXPECT_TRUE(h.Refused(h.Allocate(contained, MiB(2)), Reason::kOverBudget));
}

TEST(CoreAccountTest, QuarantinedBlockIsChargedOncePerAccount) {
  CoreHarness h;
  Peer owner = h.Open(kNeighbour);
  const AllocateResult block = h.MustAllocate(owner, MiB(2));
  std::vector<Peer> importers;
  for (const Tenant& tenant : kTenants) {
    Peer& importer = importers.emplace_back(h.Open(tenant));
    h.Get<GrantResult>(h.Grant(owner, block.block.handle, tenant));
    h.Get<ImportResult>(h.Import(importer, block.block.handle, /*read_only=*/true));
  }
  h.Free(owner, block.block.handle, {block.import});
  EXPECT_EQ(h.Budget(Layer::kTenant, 0, importers[0]).bytes.charged(), MiB(2));
}

TEST(CoreAccountTest, TenantsOfAccountShareItsPoolShare) {
  Config config = CoreHarness::DefaultConfig();
  CoreHarness h(config);
  Peer holder = h.Open(kNeighbour + 1);
  std::vector<AcquisitionId> held;
  for (int i = 0; i < 8; ++i) held.push_back(h.MustAcquire(holder, Ask(std::to_string(i))).acquisition);
  std::vector<Peer> users;
  std::vector<CallId> of_user, of_neighbour;
  for (const Tenant& tenant : kTenants) users.push_back(h.Open(tenant));
  Peer neighbour = h.Open(kNeighbour);
  for (int i = 0; i < 4; ++i) {
    for (Peer& user : users) of_user.push_back(h.Acquire(user, Ask(std::to_string(i))));
    of_neighbour.push_back(h.Acquire(neighbour, Ask(std::to_string(i))));
  }
  for (const AcquisitionId acquisition : held) h.Release(holder, acquisition);
  const auto granted = [&](const std::vector<CallId>& calls) {
    return std::count_if(calls.begin(), calls.end(), [&](CallId call) { return h.Answered(call); });
  };
  EXPECT_EQ(granted(of_user), 4);
  EXPECT_EQ(granted(of_neighbour), 4);
}

TEST(CoreAccountTest, TenantCannotReachOtherTenantOfAccount) {
  CoreHarness h;
  Peer a = h.Open(kTenants[1]), b = h.Open(kTenants[2]);
  const AllocateResult block = h.MustAllocate(a, MiB(2));
  ASSERT_TRUE(h.StatusOf(h.Publish(a, block.block.handle, "weights", {block.import})).ok());
  EXPECT_TRUE(h.Refused(h.ImportNamed(b, "weights"), Reason::kDenied));
  EXPECT_TRUE(h.Refused(h.Unpublish(b, "weights"), Reason::kNotFound));
  EXPECT_EQ(h.core->ListSessions(b.caller()).size(), 1u);
  EXPECT_TRUE(h.core->ListBlocks(b.caller()).empty());
  EXPECT_EQ(h.core->ListBudgets(b.caller()).size(), h.core->ListBudgets(a.caller()).size() - 1)
      << "of sessions each has its own; the account's is both's";
}

}  // namespace
}  // namespace berth::core
