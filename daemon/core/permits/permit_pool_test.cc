// Tests the pool alone; core_permit_test.cc tests it through the core.

#include "daemon/core/permits/permit_pool.h"

#include <berth/error.h>

#include "gtest/gtest.h"

namespace berth::core {
namespace {

class PermitPoolTest : public ::testing::Test {
 protected:
  // Returns the outcome of the request itself, or null while it waits.
  const AcquireOutcome* Acquire(uint64_t session, const std::string& key, uint64_t units = 1) {
    const RequestId request{ChannelId(session), ++sequence_};
    outcomes_.clear();
    pool_.Acquire(Step(), request, {.session = SessionId(session)}, {.units = units, .holder_key = key});
    EXPECT_TRUE(pool_.CheckInvariants().ok()) << pool_.CheckInvariants();
    return !outcomes_.empty() && outcomes_[0].request == request ? &outcomes_[0] : nullptr;
  }

  PoolStep Step() { return {.now = now_, .outcomes = &outcomes_}; }
  static AcquisitionId AcquisitionOf(const AcquireOutcome* outcome) {
    return std::get<AcquireResult>(*outcome->result).acquisition;
  }

  PermitIds ids_;
  Placement placement_;
  Journal journal_;
  PermitPool pool_{{.config = {.name = "p", .cap = 4}, .max_waiters = 100, .passes_before_hold = 2},
                   &ids_,
                   &placement_,
                   &journal_};
  absl::Time now_ = absl::UnixEpoch();
  uint64_t sequence_ = 0;
  AcquireOutcomes outcomes_;
};

TEST_F(PermitPoolTest, SingleReleaseServesAllFittingWaiters) {
  const AcquisitionId all = AcquisitionOf(Acquire(1, "a", 4));
  EXPECT_EQ(Acquire(2, "b", 2), nullptr);
  EXPECT_EQ(Acquire(3, "c", 2), nullptr);
  EXPECT_EQ(Acquire(4, "d", 1), nullptr);
  outcomes_.clear();
  EXPECT_TRUE(pool_.Release(Step(), all).returned);
  ASSERT_EQ(outcomes_.size(), 2);
  EXPECT_EQ(pool_.View().out, 4);
  EXPECT_EQ(pool_.View().waiters, 1);
  EXPECT_EQ(pool_.View().granted_total, 3);
}

TEST_F(PermitPoolTest, ReturnAllReturnsPermitsOfSessionOnly) {
  Acquire(1, "a");
  const AcquisitionId nested = AcquisitionOf(Acquire(1, "a"));
  Acquire(1, "b", 2);
  const AcquisitionId other = AcquisitionOf(Acquire(2, "a"));
  EXPECT_EQ(pool_.UnitsOf(SessionId(1)), 3);
  outcomes_.clear();
  pool_.ReturnAll(Step(), SessionId(1));
  EXPECT_EQ(pool_.View().out, 1);
  EXPECT_FALSE(pool_.Holds(SessionId(1), nested));
  EXPECT_TRUE(pool_.Holds(SessionId(2), other));
  EXPECT_FALSE(pool_.Holds(SessionId(1), other));
  EXPECT_TRUE(pool_.CheckInvariants().ok());
}

TEST_F(PermitPoolTest, JointLeaveDoesNotServeLeavingWaiters) {
  Acquire(1, "a", 3);
  EXPECT_EQ(Acquire(2, "big", 4), nullptr);
  const uint64_t big = ids_.last_waiter;
  EXPECT_NE(Acquire(3, "x"), nullptr);
  EXPECT_EQ(Acquire(2, "small", 2), nullptr);
  const uint64_t small = ids_.last_waiter;
  pool_.Leave(big);
  pool_.Leave(small);
  outcomes_.clear();
  pool_.Serve(Step());
  EXPECT_TRUE(outcomes_.empty());
  EXPECT_EQ(pool_.FindWaiter(big), nullptr);
  EXPECT_EQ(pool_.View().waiters, 0);
}

TEST_F(PermitPoolTest, HeldUnitsAreNotGrantedToNewcomers) {
  const AcquisitionId held = AcquisitionOf(Acquire(1, "a", 2));
  EXPECT_EQ(Acquire(2, "big", 4), nullptr);
  const AcquisitionId x = AcquisitionOf(Acquire(3, "x"));
  const AcquisitionId y = AcquisitionOf(Acquire(3, "y"));
  outcomes_.clear();
  pool_.Release(Step(), x);
  EXPECT_TRUE(outcomes_.empty());
  EXPECT_EQ(Acquire(4, "new"), nullptr);
  pool_.Release(Step(), y);
  pool_.Release(Step(), held);
  ASSERT_EQ(outcomes_.size(), 1);
  EXPECT_EQ(outcomes_[0].request.channel, ChannelId(2));
}

TEST_F(PermitPoolTest, UnitsNearMaximumDoNotWrap) {
  Acquire(1, "a");
  const AcquireOutcome* const outcome = Acquire(2, "b", UINT64_MAX);
  ASSERT_NE(outcome, nullptr);
  EXPECT_TRUE(IsRefusal(outcome->result.status(), Reason::kOverCap));
  pool_.Change(Step(), {.cap = UINT64_MAX});
  EXPECT_EQ(Acquire(2, "b", UINT64_MAX), nullptr);
  EXPECT_NE(Acquire(2, "c", UINT64_MAX - 1), nullptr);
  EXPECT_EQ(pool_.View().out, UINT64_MAX);
}

}  // namespace
}  // namespace berth::core
