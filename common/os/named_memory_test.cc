#include "common/os/named_memory.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include <berth/error.h>

namespace berth {
namespace {

// daemon/device/memory/named_memory_server_test covers the server.
class NamedMemoryTest : public ::testing::Test {
 protected:
  NamedMemoryTest() { EXPECT_NE(::mkdtemp(folder_.data()), nullptr); }
  ~NamedMemoryTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_ = "/tmp/berth-named-XXXXXX";
};

TEST_F(NamedMemoryTest, HandleContainsDeviceAndKey) {
  const Secret key = RandomSecret();
  const auto named = ReadNamedHandle(MakeNamedHandle(63, key));
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->device, 63u);
  EXPECT_TRUE(named->key == key);
}

TEST_F(NamedMemoryTest, HandleOfOtherKindIsRejectedUnshown) {
  IpcHandle handle;
  EXPECT_TRUE(IsRefusal(OpenNamedMemory(folder_, handle).status(), Reason::kInvalidField));
  handle.bytes.fill(std::byte{'/'});
  const absl::Status refused = OpenNamedMemory(folder_, handle).status();
  EXPECT_TRUE(IsRefusal(refused, Reason::kInvalidField));
  EXPECT_EQ(refused.message().find("//"), absl::string_view::npos);
}

TEST_F(NamedMemoryTest, HandleWithoutServerIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(OpenNamedMemory(folder_, MakeNamedHandle(0, RandomSecret())).status()));
}

TEST_F(NamedMemoryTest, OnlyLeftoversOfGivenDeviceAreRemoved) {
  std::filesystem::create_directory(NamedMemoryFolder(folder_));
  for (const uint32_t device : {1u, 11u}) std::ofstream(NamedMemorySocket(folder_, device)) << "left";
  RemoveNamedMemory(folder_, 1);
  EXPECT_FALSE(std::filesystem::exists(NamedMemorySocket(folder_, 1)));
  EXPECT_TRUE(std::filesystem::exists(NamedMemorySocket(folder_, 11)));
  RemoveAllNamedMemory(folder_);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  // A folder that is not there has nothing to remove.
  RemoveNamedMemory(folder_ + "/none", 1);
}

}  // namespace
}  // namespace berth
