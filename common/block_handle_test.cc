#include "common/block_handle.h"

#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(BlockHandleTest, SurvivesBeingText) {
  const BlockHandle handle = {.node = 0xabc,
                              .incarnation = 2,
                              .device_uuid = "GPU-8f3f9c1e-0000-4a5b-9c1e-8f3f9c1e0000",
                              .block = BlockId(UINT64_MAX),
                              .generation = 1,
                              .block_generation = 77};
  const std::string text = FormatHandle(handle);
  EXPECT_EQ(text, "berth1:abc:2:GPU-8f3f9c1e-0000-4a5b-9c1e-8f3f9c1e0000:ffffffffffffffff:1:4d");
  EXPECT_EQ(*ParseHandle(text), handle);
}

TEST(BlockHandleTest, RefusesWhatIsNoHandle) {
  for (const char* const text : {"", "berth1", "berth2:1:1:u:1:1:1", "berth1:1:1::1:1:1",
                                 "berth1:1:1:u:x:1:1", "berth1:1:1:u:1:1:1:1"}) {
    EXPECT_EQ(ParseHandle(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace berth
