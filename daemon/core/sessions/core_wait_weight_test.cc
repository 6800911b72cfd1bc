// The bytes of waiting requests: a user's share holds few large requests or many small ones, and is whole again when
// they end.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

// 32 devices, and 256 KiB for the waiting requests.
Config ManyDevices() {
  Config config = CoreHarness::DefaultConfig();
  config.devices.clear();
  for (uint32_t i = 0; i < 32; ++i) {
    config.devices.push_back(
        {.ordinal = i, .uuid = absl::StrCat("GPU-0123456789abcdef-", 10 + i), .total = MiB(64), .budget = MiB(16)});
  }
  config.limits.waiting_bytes = Bytes(256 * 1'024);
  config.limits.operator_waiting_bytes = Bytes(8 * 1'024);
  return config;
}

class CoreWaitWeightTest : public ::testing::Test {
 protected:
  CoreWaitWeightTest() { held_ = h_.MustAcquire(holder_, {.pool = "wide", .units = 8, .holder_key = "h"}); }

  // Requests a gang of two devices that CUDA_VISIBLE_DEVICES names.
  CallId RequestGang(Peer& peer, const std::string& visible) {
    const GangMember member{.pool = "wide", .device = {.pick = DevicePick::kAny, .visible = visible}};
    return h_.AcquireGang(peer, {.members = {member, member}, .holder_key = absl::StrCat("k", ++last_key_)});
  }
  // Adds waiting requests until the first refusal.
  std::vector<CallId> Fill(Peer& peer, const std::string& visible) {
    std::vector<CallId> waiting;
    for (CallId call = RequestGang(peer, visible); !h_.Answered(call); call = RequestGang(peer, visible)) {
      waiting.push_back(call);
    }
    refused_ = CallId(waiting.empty() ? 0 : waiting.back().value() + 1);
    return waiting;
  }

  CoreHarness h_{ManyDevices()};
  Peer holder_ = h_.Open(1), user_ = h_.Open(2), other_ = h_.Open(3);
  AcquireResult held_;
  CallId refused_;
  // All keys have the same length, so that equal requests weigh the same.
  uint64_t last_key_ = 1'000;
};

TEST_F(CoreWaitWeightTest, ExpandedDeviceListsCount) {
  std::string most = "0";
  for (int i = 1; i < 31; ++i) absl::StrAppend(&most, ",", i);
  const size_t large = Fill(user_, most).size();
  h_.Gone(user_);
  Peer again = h_.Open(2);
  const size_t small = Fill(again, "0,1").size();
  EXPECT_GE(large, 2u);
  EXPECT_GE(small, 3 * large) << "each waits with a list of 31 names, twice and in its text";
  ASSERT_TRUE(h_.Refused(refused_, Reason::kLimit)) << h_.StatusOf(refused_);
  EXPECT_EQ(h_.NamedValue(refused_, "what"), "waiting_bytes");
  EXPECT_EQ(h_.NamedValue(refused_, "limit"), std::to_string(128 * 1'024));
  EXPECT_GT(std::stoull(h_.NamedValue(refused_, "current")), 100u * 1'024);
  EXPECT_NE(h_.StatusOf(refused_).message().find("end some of them"), std::string::npos) << h_.StatusOf(refused_);
}

TEST_F(CoreWaitWeightTest, EndOfEachKindFreesItsWeight) {
  const auto cancel = [&](CallId call) {
    h_.Do([&](Core& core, Effects* effects) { core.CancelCall(h_.now, call, effects); });
  };
  const std::vector<CallId> all = Fill(user_, "0,1");
  ASSERT_GT(all.size(), 8u);
  cancel(all.front());
  EXPECT_FALSE(h_.Answered(RequestGang(user_, "0,1"))) << "in the place of the cancelled request";
  EXPECT_TRUE(h_.Answered(RequestGang(user_, "0,1")));
  EXPECT_LT(Fill(other_, "0,1").size(), all.size()) << "a part of what the first user leaves";
  // Grants free weight, too.
  h_.Release(holder_, held_.acquisition);
  EXPECT_TRUE(h_.StatusOf(all[1]).ok()) << h_.StatusOf(all[1]);
  EXPECT_FALSE(h_.Answered(RequestGang(other_, "0,1")));
  // The end of both processes leaves nothing: a third user has as much as the first had.
  for (Peer* const peer : {&user_, &other_}) {
    h_.Gone(*peer);
    h_.HangUp(*peer);
  }
  Peer last = h_.Open(4);
  h_.MustAcquire(last, {.pool = "wide", .units = 8, .holder_key = "h"});
  EXPECT_EQ(Fill(last, "0,1").size(), all.size());
}

TEST_F(CoreWaitWeightTest, WaitingPlanCountsWithItsDraft) {
  const auto plan = [&] { return h_.MakePlan(user_, {.units = 320, .max_devices = 8, .pool = "wide"}); };
  size_t plans = 0;
  CallId call = plan();
  for (; !h_.Answered(call); call = plan()) ++plans;
  EXPECT_TRUE(h_.Refused(call, Reason::kLimit)) << h_.StatusOf(call);
  EXPECT_EQ(h_.NamedValue(call, "what"), "waiting_bytes");
  EXPECT_GE(plans, 1u);
  EXPECT_LT(plans, 20u) << "each has a draft of 32 devices";
}

}  // namespace
}  // namespace berth::core
