#include <berth/block_handle.h>

#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(BlockHandleTest, HandleRoundTripsThroughText) {
  const BlockHandle handle = {.node = 0xabc,
                              .incarnation = 2,
                              .device_uuid = "GPU-8f3f9c1e-0000-4a5b-9c1e-8f3f9c1e0000",
                              .block = BlockId(UINT64_MAX),
                              .generation = 1,
                              .block_generation = 77};
  const std::string text = FormatHandle(handle);
  EXPECT_EQ(text, "berth2:2748:2:GPU-8f3f9c1e-0000-4a5b-9c1e-8f3f9c1e0000:18446744073709551615:1:77");
  EXPECT_EQ(*ParseHandle(text), handle);
}

TEST(BlockHandleTest, InvalidHandleTextIsRejected) {
  for (const char* const text : {"", "berth2", "berth1:1:1:u:1:1:1", "berth2:1:1::1:1:1",
                                 "berth2:1:1:u:a:1:1", "berth2:1:1:u:1:1:1:1"}) {
    EXPECT_EQ(ParseHandle(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace berth
