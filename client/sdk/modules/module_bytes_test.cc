#include "client/sdk/modules/module_bytes.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "common/os/memfd.h"
#include "common/sha256.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

UniqueFd MemoryOf(const std::string& text, bool sealed) {
  UniqueFd fd = *CreateMemfd("test", 0);
  EXPECT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  EXPECT_TRUE(!sealed || SealMemfd(fd.get(), F_SEAL_WRITE).ok());
  return *ReopenReadOnly(fd.get());
}

TEST(ModuleBytesTest, OwnBytesAreReturned) { EXPECT_EQ(ModuleBytes("mine").bytes(), "mine"); }

TEST(ModuleBytesTest, SealedMatchingModuleIsMapped) {
  const auto bytes = ModuleBytes::Map(MemoryOf("module", true), 6, Sha256Of("module"));
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ((*bytes)->bytes(), "module");
}

TEST(ModuleBytesTest, WritableModuleMemoryIsRejected) {
  EXPECT_TRUE(absl::IsDataLoss(ModuleBytes::Map(MemoryOf("module", false), 6, Sha256Of("module")).status()));
}

TEST(ModuleBytesTest, WrongSizeOrContentIsRejected) {
  const UniqueFd fd = MemoryOf("module", true);
  EXPECT_TRUE(absl::IsDataLoss(ModuleBytes::Map(fd, 5, Sha256Of("modul")).status()));
  EXPECT_TRUE(absl::IsDataLoss(ModuleBytes::Map(fd, 7, Sha256Of("module")).status()));
  EXPECT_TRUE(absl::IsDataLoss(ModuleBytes::Map(fd, 6, Sha256Of("nodule")).status()));
  EXPECT_TRUE(absl::IsDataLoss(ModuleBytes::Map(UniqueFd(), 6, Sha256Of("module")).status()));
  EXPECT_TRUE(absl::IsDataLoss(ModuleBytes::Map(MemoryOf("", true), 0, Sha256Of("")).status()));
}

}  // namespace
}  // namespace berth::internal
