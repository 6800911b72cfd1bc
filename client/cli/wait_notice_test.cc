#include "client/cli/wait_notice.h"

#include "gtest/gtest.h"

namespace berth::cli {
namespace {

class DescribeWaitTest : public testing::Test {
 protected:
  DescribeWaitTest() {
    v1::Pool* const pool = wait_.mutable_pool();
    pool->set_name("gpu-tests");
    pool->set_cap(2);
    pool->set_out(2);
    pool->set_holders(2);
    pool->set_waiters(1);
    wait_.mutable_waiter()->set_number(17);
    wait_.mutable_waiter()->set_position(1);
    wait_.set_cause(v1::WaitExplanation::UNITS);
  }
  void AddHolder(uint64_t id, const std::string& name, int64_t seconds_ago) {
    v1::Permit* const permit = wait_.add_holders();
    permit->set_id(id);
    permit->mutable_process()->set_name(name);
    permit->mutable_process()->set_pid(static_cast<int>(id));
    permit->mutable_grant_time()->set_seconds(1000 - seconds_ago);
  }
  std::string Describe() const { return DescribeWait(wait_, absl::FromUnixSeconds(1000)); }

  v1::WaitExplanation wait_;
};

TEST_F(DescribeWaitTest, HoldersAreNamedWithTheirAge) {
  AddHolder(11, "train", 192);
  AddHolder(13, "eval", 10);
  EXPECT_EQ(
      Describe(),
      "waiting for pool gpu-tests: 0 of 2 free, place 1 of 1; held by train(11) for 3m12s, eval(13) for 10s; "
      "see berth explain 17");
}

TEST_F(DescribeWaitTest, OtherTenantsAreNotNamed) {
  AddHolder(11, "train", 1);
  AddHolder(0, "", 5);
  wait_.mutable_pool()->set_waiters(3);
  EXPECT_EQ(Describe(),
            "waiting for pool gpu-tests: 0 of 2 free, place 1 of 3; held by train(11) for 1s, another tenant "
            "for 5s; "
            "see berth explain 17");
}

TEST_F(DescribeWaitTest, ManyHoldersAreCutShort) {
  wait_.mutable_pool()->set_holders(9);
  for (uint64_t id = 1; id <= 8; ++id) AddHolder(id, "t", 1);
  EXPECT_EQ(
      Describe(),
      "waiting for pool gpu-tests: 0 of 2 free, place 1 of 1; held by t(1) for 1s, t(2) for 1s, t(3) for 1s, "
      "t(4) for 1s, 5 more; see berth explain 17");
}

TEST_F(DescribeWaitTest, OfACrowdItSaysHowMany) {
  wait_.mutable_pool()->set_waiters(4711);
  EXPECT_EQ(DescribeCrowd(wait_.pool()), "waiting for pool gpu-tests: 2 of 2 out, 4711 wait");
}

TEST_F(DescribeWaitTest, WhatIsInTheWayIsNotAlwaysUnits) {
  wait_.mutable_pool()->set_out(1);
  wait_.mutable_pool()->set_holders(1);
  wait_.set_cause(v1::WaitExplanation::DEVICE);
  wait_.mutable_waiter()->set_device("any");
  wait_.mutable_waiter()->set_declared_bytes(uint64_t{20} << 30);
  AddHolder(11, "train", 1);
  EXPECT_EQ(
      Describe(),
      "waiting for pool gpu-tests: device any has not 20 GiB free, or does not serve, place 1 of 1; held by "
      "train(11) for 1s; see berth explain 17");
}

}  // namespace
}  // namespace berth::cli
