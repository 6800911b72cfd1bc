// Gangs that wait for bytes to reserve: warm blocks give way, limits end the wait, and freed bytes end it whichever
// device they are of.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

// Two devices of 16 MiB budget each, with a warm block of each size that was requested.
Config WarmConfig() {
  Config config = CoreHarness::DefaultConfig();
  config.warm_blocks_per_size = 1;
  config.warm_refill_delay = absl::ZeroDuration();
  return config;
}

class CoreGangBytesTest : public ::testing::Test {
 protected:
  CallId Request(std::vector<ReserveItem> reserve) {
    return h_.AcquireGang(peer_, {.members = {{.pool = "wide"}},
                                  .reserve = std::move(reserve),
                                  .holder_key = absl::StrCat("g", ++last_key_)});
  }
  void Free(const AllocateResult& block) {
    h_.Free(holder_, block.block.handle, {block.import});
    h_.WorkAll();
  }
  bool Granted(CallId call) {
    h_.WorkAll();
    return h_.Answered(call) && h_.StatusOf(call).ok();
  }

  CoreHarness h_{WarmConfig()};
  Peer holder_ = h_.Open(1), peer_ = h_.Open(2);
  uint64_t last_key_ = 0;
};

TEST_F(CoreGangBytesTest, WarmBlocksGiveWayOnceTheRestIsFree) {
  const AllocateResult small = h_.MustAllocate(holder_, MiB(2)), large = h_.MustAllocate(holder_, MiB(8));
  h_.WorkAll();
  ASSERT_GT(h_.BytesOf(0).warm, Bytes());
  const CallId all = Request({{.device = 0, .bytes = MiB(16)}});
  const CallId most = Request({{.device = 0, .bytes = MiB(14)}});
  EXPECT_FALSE(h_.Answered(all));
  EXPECT_FALSE(h_.Answered(most));
  Free(large);
  EXPECT_TRUE(Granted(most)) << "2 MiB are held";
  EXPECT_FALSE(h_.Answered(all));
  EXPECT_EQ(h_.BytesOf(0).warm, Bytes());
}

TEST_F(CoreGangBytesTest, WarmBlocksGiveWayWhenAnotherDeviceFreesBytes) {
  h_.MustAllocate(holder_, MiB(2), 0);
  const AllocateResult other = h_.MustAllocate(holder_, MiB(8), 1);
  h_.WorkAll();
  ASSERT_GT(h_.BytesOf(0).warm, Bytes());
  const CallId gang = Request({{.device = 0, .bytes = MiB(14)}, {.device = 1, .bytes = MiB(16)}});
  EXPECT_FALSE(h_.Answered(gang));
  EXPECT_GT(h_.BytesOf(0).warm, Bytes()) << "the gang lacks bytes of another device";
  Free(other);
  EXPECT_TRUE(Granted(gang));
}

TEST_F(CoreGangBytesTest, WarmBlocksGiveWayToRestoredGang) {
  const AllocateResult block = h_.MustAllocate(holder_, MiB(8));
  h_.WorkAll();
  ASSERT_GT(h_.BytesOf(0).warm, Bytes());
  Request({{.device = 0, .bytes = MiB(16)}});
  h_.Restart();
  const CallId again = h_.Ask([&](Core& core, CallId call, Effects* effects) {
    core.AcquireGang(h_.now, call, peer_.caller(), peer_.Again(),
                     {.members = {{.pool = "wide"}},
                      .reserve = {{.device = 0, .bytes = MiB(16)}},
                      .holder_key = absl::StrCat("g", last_key_)},
                     effects);
  });
  EXPECT_FALSE(h_.Answered(again)) << h_.StatusOf(again);
  Free(block);
  EXPECT_TRUE(Granted(again));
}

TEST_F(CoreGangBytesTest, LoweredLimitRefusesOnlyLargerGangs) {
  h_.MustAllocate(holder_, MiB(4));
  const CallId small = Request({{.device = 0, .bytes = MiB(14)}}), large = Request({{.device = 0, .bytes = MiB(16)}});
  h_.Do([&](Core& core, Effects* effects) { core.ConfigureBudget(h_.now, 0, MiB(14), effects); });
  EXPECT_TRUE(h_.Refused(large, Reason::kOverBudget)) << h_.StatusOf(large);
  EXPECT_FALSE(h_.Answered(small));
}

TEST_F(CoreGangBytesTest, StoppedOrDrainedDeviceRefusesGang) {
  h_.MustAllocate(holder_, MiB(4), 0);
  h_.MustAllocate(holder_, MiB(4), 1);
  const CallId first = Request({{.device = 0, .bytes = MiB(14)}}), second = Request({{.device = 1, .bytes = MiB(14)}});
  h_.StopDevice(1);
  EXPECT_TRUE(h_.Refused(second, Reason::kDeviceStopped)) << h_.StatusOf(second);
  EXPECT_FALSE(h_.Answered(first));
  h_.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.DrainDevice(h_.now, 0, "loud", effects).ok()); });
  EXPECT_TRUE(h_.Refused(first, Reason::kDeviceDraining)) << h_.StatusOf(first);
}

}  // namespace
}  // namespace berth::core
