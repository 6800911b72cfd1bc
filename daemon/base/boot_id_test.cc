#include "daemon/base/boot_id.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

TEST(BootIdTest, BootIdIsStable) {
  const absl::StatusOr<std::string> boot = ReadBootId();
  ASSERT_TRUE(boot.ok()) << boot.status();
  EXPECT_EQ(boot->size(), 36u);
  EXPECT_EQ(*boot, *ReadBootId());
}

}  // namespace
}  // namespace berth
