#include "daemon/device/named_backend.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>

#include "common/named_memory.h"

namespace berth {
namespace {

// A folder of its own, which goes with it.
class Folder {
 public:
  Folder() { EXPECT_NE(::mkdtemp(path_.data()), nullptr); }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/berth-named-XXXXXX";
};

TEST(NamedBackendTest, MemoryThatIsDeallocatedCannotBeOpenedAnyMore) {
  const Folder folder;
  NamedBackend backend(folder.path(), 0, "HOST-0", MiB(64));
  absl::StatusOr<MemoryBlock> block = backend.Allocate(MiB(2), "");
  ASSERT_TRUE(block.ok()) << block.status();
  const IpcHandle handle = *block->handle;
  EXPECT_TRUE(OpenNamedMemory(folder.path(), handle).ok());
  EXPECT_TRUE(backend.Deallocate(*block).ok());
  EXPECT_TRUE(absl::IsNotFound(OpenNamedMemory(folder.path(), handle).status()));
}

TEST(NamedBackendTest, WhatIsOutstandingGoesWithTheBackend) {
  const Folder folder;
  IpcHandle handle;
  {
    NamedBackend backend(folder.path(), 0, "HOST-0", MiB(64));
    handle = *backend.Allocate(MiB(2), "")->handle;
  }
  EXPECT_TRUE(absl::IsNotFound(OpenNamedMemory(folder.path(), handle).status()));
}

TEST(NamedBackendTest, ABlockThatSomebodyTidiedUpIsDeallocatedAllTheSame) {
  const Folder folder;
  NamedBackend backend(folder.path(), 0, "HOST-0", MiB(64));
  absl::StatusOr<MemoryBlock> block = backend.Allocate(MiB(2), "");
  ASSERT_TRUE(block.ok()) << block.status();
  RemoveAllNamedMemory(folder.path());
  EXPECT_TRUE(backend.Deallocate(*block).ok());
  EXPECT_EQ(backend.outstanding(), Bytes(0));
}

}  // namespace
}  // namespace berth
