#include "client/cli/wait_notice.h"

#include "gtest/gtest.h"

namespace berth::cli {
namespace {

class DescribeWaitTest : public testing::Test {
 protected:
  DescribeWaitTest() {
    pool_.set_name("gpu-tests");
    pool_.set_cap(2);
    pool_.set_out(2);
    pool_.set_holders(2);
    pool_.set_waiters(1);
  }
  void AddHolder(const std::string& pool, const std::string& name, int pid, int64_t seconds_ago) {
    v1::Permit* const permit = permits_.add_permits();
    permit->set_pool(pool);
    permit->mutable_process()->set_name(name);
    permit->mutable_process()->set_pid(pid);
    permit->mutable_grant_time()->set_seconds(1000 - seconds_ago);
  }
  std::string Describe() const { return DescribeWait(pool_, permits_, absl::FromUnixSeconds(1000)); }

  v1::Pool pool_;
  v1::ListPermitsResponse permits_;
};

TEST_F(DescribeWaitTest, HoldersOfThePoolAreNamedWithTheirAge) {
  AddHolder("gpu-tests", "train", 11, 192);
  AddHolder("elsewhere", "other", 12, 5);
  AddHolder("gpu-tests", "eval", 13, 10);
  EXPECT_EQ(Describe(),
            "waiting for pool gpu-tests: 2 of 2 out, 1 waits; held by train(11) for 3m12s, eval(13) for 10s");
}

TEST_F(DescribeWaitTest, HoldersOfOtherTenantsAreCounted) {
  AddHolder("gpu-tests", "train", 11, 1);
  pool_.set_waiters(3);
  EXPECT_EQ(Describe(), "waiting for pool gpu-tests: 2 of 2 out, 3 wait; held by train(11) for 1s, 1 more");
}

TEST_F(DescribeWaitTest, ManyHoldersAreCutShort) {
  pool_.set_holders(9);
  for (int pid = 1; pid <= 9; ++pid) AddHolder("gpu-tests", "t", pid, 1);
  EXPECT_EQ(Describe(),
            "waiting for pool gpu-tests: 2 of 2 out, 1 waits; held by t(1) for 1s, t(2) for 1s, t(3) for 1s, "
            "t(4) for 1s, "
            "5 more");
}

}  // namespace
}  // namespace berth::cli
