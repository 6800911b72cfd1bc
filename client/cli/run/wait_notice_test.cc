#include "client/cli/run/wait_notice.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "client/cli/run/wait_cause.h"
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

TEST_F(DescribeWaitTest, HoldersAreShownWithAge) {
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

TEST_F(DescribeWaitTest, AncestorHolderIsNamed) {
  struct Row {
    const char* name;
    // The pid of the only named holder; 0 is a holder of another tenant.
    uint64_t holder;
    std::vector<Ancestor> ancestors;
    // How the sentence begins; empty for no sentence.
    std::string begins;
    Owners owners = {};
  };
  const Ancestor shell = {.pid = 20, .name = "sh"};
  const Ancestor run = {.pid = 11, .name = "berth", .runs = true};
  const Ancestor member = {.pid = 21, .name = "sudo", .in_session = true};
  const std::vector<Row> rows = {
      {"told", 11, {shell, run}, "the holder berth(11) is an ancestor of this process"},
      {"told, by exec", 20, {shell}, "the holder berth(20) is an ancestor of this process"},
      {"told, a stranger", 12, {shell, run}, ""},
      {"not told", 0, {shell, run}, "a holder may be berth(11), an ancestor of this process"},
      {"not told, outermost", 0, {shell}, ""},
      {"not told, in a session", 0, {shell, member}, "a holder may be the session of sudo(21), an ancestor of this"},
      {"not told, in a session below a run", 0, {member, run}, "a holder may be berth(11), an ancestor of this"},
      {"told, in a session", 12, {member}, ""},
      {"told, no ancestors", 11, {}, ""},
      {"told, for a shell", 12, {run, shell}, "the holder berth(12) holds for sh(20), which is an ancestor of this",
       {{12, 20}}},
      {"told, for another shell", 12, {run, shell}, "", {{12, 21}}}};
  wait_.mutable_pool()->set_holders(1);
  for (const Row& row : rows) {
    wait_.clear_holders();
    AddHolder(row.holder, "berth", 1);
    const std::string said = DescribeAncestor(wait_, row.ancestors, row.owners);
    EXPECT_EQ(said.substr(0, row.begins.empty() ? said.size() : row.begins.size()), row.begins) << row.name;
  }
  const std::vector<Ancestor> own = ReadAncestors();
  ASSERT_FALSE(own.empty());
  EXPECT_EQ(own[0].pid, ::getppid());
}

TEST_F(DescribeWaitTest, HolderListIsTruncated) {
  wait_.mutable_pool()->set_holders(9);
  for (uint64_t id = 1; id <= 8; ++id) AddHolder(id, "t", 1);
  EXPECT_EQ(
      Describe(),
      "waiting for pool gpu-tests: 0 of 2 free, place 1 of 1; held by t(1) for 1s, t(2) for 1s, t(3) for 1s, "
      "t(4) for 1s, 5 more; see berth explain 17");
}

TEST_F(DescribeWaitTest, CrowdShowsWaiterCount) {
  wait_.mutable_pool()->set_waiters(4711);
  EXPECT_EQ(DescribeCrowd(wait_.pool()), "waiting for pool gpu-tests: 2 of 2 out, 4711 wait");
}

TEST_F(DescribeWaitTest, DeviceCauseIsDescribed) {
  wait_.mutable_pool()->set_out(1);
  wait_.mutable_pool()->set_holders(1);
  wait_.set_cause(v1::WaitExplanation::DEVICE);
  wait_.mutable_waiter()->set_device("any");
  AddHolder(11, "train", 1);
  const std::string rest = ", place 1 of 1; held by train(11) for 1s; see berth explain 17";
  EXPECT_EQ(Describe(),
            "waiting for pool gpu-tests: no eligible device serves and has capacity for the request" + rest);
  wait_.set_lacking("device 0 is short of bytes: 5 free of 20; device 1 is being drained: fans");
  EXPECT_EQ(Describe(), "waiting for pool gpu-tests: device 0 is short of bytes: 5 free of 20; device 1 is being "
                        "drained: fans" + rest);
}

}  // namespace
}  // namespace berth::cli
