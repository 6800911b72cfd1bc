// No user takes all of a shared count: later users find places, and so do operators. One row for each shared count of
// the core (docs/concepts/limits.md).

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

// Limits of each count: for all users together, and for operators.
constexpr uint64_t kAll = 8;
constexpr uint64_t kReserve = 2;

// A user, or an operator, with one process.
struct Member {
  Peer peer;
  bool of_operator = false;
  std::optional<BlockHandle> block = std::nullopt;
};

struct Shared {
  const char* name;
  // Name of the count in refusals.
  const char* what;
  std::function<void(Limits*)> bound;
  // Takes one place; returns OK, or the refusal.
  std::function<absl::Status(CoreHarness&, Member&)> take;
  // Operators have a reserve of the count.
  bool reserve = true;
  // A later broker restores the taken places.
  bool persists = true;
  // The count belongs to a block that another member holds.
  bool of_held = false;
};
void PrintTo(const Shared& shared, std::ostream* out) { *out << shared.name; }

absl::Status OutcomeOf(const CoreHarness& h, CallId call) {
  return h.Answered(call) ? h.StatusOf(call) : absl::OkStatus();
}

// Returns a number that was not returned before.
uint64_t Fresh() {
  static uint64_t last = 0;
  return ++last;
}

absl::Status OpenOne(CoreHarness& h, Member& member) {
  const absl::Status status =
      h.core->OpenSession(h.now, Secret(), member.peer.tenant, "", ProcessInfo(), member.of_operator).status();
  // The next step persists the session.
  h.Tick();
  return status;
}

absl::Status WaitForPermit(CoreHarness& h, Member& member) {
  return OutcomeOf(h, h.Acquire(member.peer, {.pool = "wide", .units = 8, .holder_key = absl::StrCat(Fresh())}));
}

absl::Status WaitInGang(CoreHarness& h, Member& member) {
  return OutcomeOf(h, h.AcquireGang(member.peer, {.members = {{.pool = "wide", .units = 8}},
                                                  .holder_key = absl::StrCat(Fresh())}));
}

absl::Status AllocateOne(CoreHarness& h, Member& member) {
  const CallId call = h.Allocate(member.peer, MiB(2));
  h.WorkAll();
  return OutcomeOf(h, call);
}

// The worker makes no block meanwhile.
absl::Status CreateOne(CoreHarness& h, Member& member) { return OutcomeOf(h, h.Allocate(member.peer, MiB(2))); }

absl::Status WaitForBytes(CoreHarness& h, Member& member) {
  return OutcomeOf(h, h.Allocate(member.peer, AllocateRequest{.bytes = MiB(64), .wait = true}));
}

absl::Status Compile(CoreHarness& h, Member& member) {
  Digest key;
  key.bits[0] = static_cast<uint8_t>(Fresh());
  return OutcomeOf(h, h.ObtainModule(member.peer, {.key = key, .architecture = "compute_90"}));
}

absl::Status ReserveOne(CoreHarness& h, Member& member) {
  return OutcomeOf(h, h.Reserve(member.peer, {.items = {{.bytes = MiB(2)}}, .ttl = absl::InfiniteDuration()}));
}

absl::Status PlanOne(CoreHarness& h, Member& member) {
  return OutcomeOf(h, h.MakePlan(member.peer, {.units = 4}));
}

absl::Status ImportOne(CoreHarness& h, Member& member) {
  return OutcomeOf(h, h.Import(member.peer, *member.block));
}

// Grants each user's own block to session ids that may exist.
absl::Status GrantOne(CoreHarness& h, Member& member) {
  if (!member.block.has_value()) member.block = h.MustAllocate(member.peer, MiB(2)).block.handle;
  return OutcomeOf(h, h.Grant(member.peer, *member.block, SessionId(1'000'000 + Fresh())));
}

// A refusal counts as an answer, too.
absl::Status BeAnswered(CoreHarness& h, Member& member) {
  const absl::Status status = OutcomeOf(h, h.Acquire(member.peer, {.pool = "none"}));
  return IsRefusal(status, Reason::kLimit) ? status : absl::OkStatus();
}

void BoundWeight(Limits* limits) {
  limits->waiting_bytes = Bytes(64'000);
  limits->operator_waiting_bytes = Bytes(8'000);
}

std::vector<Shared> Counts() {
  return {
      {.name = "Sessions", .what = "sessions", .bound = [](Limits* limits) { limits->sessions = kAll + 5; },
       .take = OpenOne},
      {.name = "Waiters",
       .what = "waiters_per_pool",
       .bound =
           [](Limits* limits) {
             limits->waiters_per_pool = kAll;
             limits->operator_waiters_per_pool = kReserve;
           },
       .take = WaitForPermit},
      {.name = "WaitersInGangs",
       .what = "waiters_per_pool",
       .bound =
           [](Limits* limits) {
             limits->waiters_per_pool = kAll;
             limits->operator_waiters_per_pool = kReserve;
           },
       .take = WaitInGang},
      {.name = "WeightOfWaiters", .what = "waiting_bytes", .bound = BoundWeight, .take = WaitForPermit},
      {.name = "WeightOfGangs", .what = "waiting_bytes", .bound = BoundWeight, .take = WaitInGang},
      {.name = "WeightOfWaitersForBytes", .what = "waiting_bytes", .bound = BoundWeight, .take = WaitForBytes},
      {.name = "Blocks",
       .what = "blocks",
       .bound =
           [](Limits* limits) {
             limits->blocks = kAll;
             limits->operator_blocks = kReserve;
           },
       .take = AllocateOne},
      {.name = "Creates",
       .what = "creates_per_worker",
       .bound =
           [](Limits* limits) {
             limits->creates_per_worker = kAll;
             limits->operator_creates_per_worker = kReserve;
           },
       .take = CreateOne},
      {.name = "WaitersForBytes",
       .what = "waiting_allocations_per_device",
       .bound =
           [](Limits* limits) {
             limits->waiting_allocations_per_device = kAll;
             limits->operator_allocations_per_device = kReserve;
           },
       .take = WaitForBytes},
      {.name = "Reservations",
       .what = "reservations",
       .bound =
           [](Limits* limits) {
             limits->reservations = kAll;
             limits->operator_reservations = kReserve;
           },
       .take = ReserveOne},
      {.name = "Plans",
       .what = "plans",
       .bound =
           [](Limits* limits) {
             limits->plans = kAll;
             limits->operator_plans = kReserve;
           },
       .take = PlanOne},
      {.name = "Grants",
       .what = "grants",
       .bound = [](Limits* limits) { limits->grants = kAll; },
       .take = GrantOne,
       .reserve = false},
      {.name = "Imports",
       .what = "imports",
       .bound =
           [](Limits* limits) {
             // The holder takes one place.
             limits->imports = kAll + 1;
             limits->operator_imports = kReserve;
           },
       .take = ImportOne,
       .of_held = true},
      {.name = "Compiles",
       .what = "compiles",
       .bound = [](Limits* limits) { limits->modules.compiles = kAll; },
       .take = Compile,
       .reserve = false,
       .persists = false},
      {.name = "Answers",
       .what = "answer_bytes",
       .bound =
           [](Limits* limits) {
             limits->answer_bytes = Bytes(8'000);
             limits->operator_answer_bytes = Bytes(1'000);
           },
       .take = BeAnswered},
  };
}

class SharedCountsTest : public ::testing::TestWithParam<Shared> {
 protected:
  static Config ConfigOf(const Shared& shared) {
    Config config = CoreHarness::DefaultConfig();
    for (DeviceConfig& device : config.devices) device.budget = MiB(64);
    shared.bound(&config.limits);
    return config;
  }

  SharedCountsTest() : h_(ConfigOf(GetParam())) {
    // Takes a part of the units and bytes.
    holder_ = h_.Open(1);
    h_.MustAcquire(holder_, {.pool = "wide", .holder_key = "held"});
    held_ = h_.MustAllocate(holder_, MiB(2)).block.handle;
  }

  Member User(uint32_t uid, bool of_operator = false) { return User(Tenant{.uid = uid}, of_operator); }
  Member User(const Tenant& tenant, bool of_operator = false) {
    Member member{.peer = h_.Open(tenant, of_operator), .of_operator = of_operator};
    if (GetParam().of_held) {
      EXPECT_TRUE(h_.StatusOf(h_.Grant(holder_, held_, member.peer.tenant)).ok());
      member.block = held_;
    }
    return member;
  }
  // Takes places until a refusal, which must name the count.
  uint64_t TakeAll(Member& member) {
    for (uint64_t taken = 0; taken < 100; ++taken) {
      const std::string before = h_.Accounts();
      const absl::Status status = GetParam().take(h_, member);
      if (status.ok()) continue;
      EXPECT_TRUE(IsRefusal(status, Reason::kLimit)) << status;
      EXPECT_EQ(NamedValueOf(status, "what"), GetParam().what) << status;
      EXPECT_EQ(h_.Accounts(), before) << "a refusal changes nothing";
      return taken;
    }
    ADD_FAILURE() << GetParam().name << " has no bound";
    return 100;
  }

  CoreHarness h_;
  Peer holder_;
  BlockHandle held_;
};

TEST_P(SharedCountsTest, FloodingUserLeavesShareToOthers) {
  Member a = User(1000), b = User(1001), c = User(1002);
  Member op = User(0, /*of_operator=*/true);
  const uint64_t of_a = TakeAll(a);
  const uint64_t of_b = TakeAll(b);
  const uint64_t of_c = TakeAll(c);
  EXPECT_GE(of_a, of_b);
  EXPECT_GE(of_b, 1u) << "of " << of_a;
  EXPECT_GE(of_c, 1u) << "of " << of_a << " and " << of_b;
  EXPECT_EQ(TakeAll(a), 0u) << "nothing more comes of asking again";
  if (GetParam().reserve) {
    EXPECT_TRUE(GetParam().take(h_, op).ok());
  }
}

TEST_P(SharedCountsTest, TenantsOfUserHaveOneShare) {
  Member a = User(1000), b = User(1001);
  Member in_cgroup = User(Tenant{.uid = 1000, .container = "/delegated", .charged_account = Account{.uid = 1000}});
  Member subordinate = User(Tenant{.uid = 100'000, .charged_account = Account{.uid = 1000}});
  EXPECT_GE(TakeAll(a), 1u);
  for (Member* const tenant : {&in_cgroup, &subordinate}) {
    EXPECT_TRUE(IsRefusal(GetParam().take(h_, *tenant), Reason::kLimit)) << tenant->peer.tenant.uid;
  }
  EXPECT_GE(TakeAll(b), 1u);
}

TEST_P(SharedCountsTest, NextBrokerCountsSameShares) {
  if (!GetParam().persists) GTEST_SKIP();
  Member a = User(1000), b = User(1001);
  TakeAll(a);
  h_.Restart();
  EXPECT_EQ(TakeAll(a), 0u);
  EXPECT_GE(TakeAll(b), 1u);
}

INSTANTIATE_TEST_SUITE_P(Counts, SharedCountsTest, ::testing::ValuesIn(Counts()),
                         [](const ::testing::TestParamInfo<Shared>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace berth::core
