#include "daemon/device/memory/named_backend.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>

#include <berth/error.h>

#include "common/os/named_memory.h"

namespace berth {
namespace {

std::unique_ptr<NamedBackend> OpenIn(const std::string& folder) {
  auto backend = NamedBackend::Open(folder, 0, "HOST-0", MiB(64));
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

// A temporary folder, removed on destruction.
class Folder {
 public:
  Folder() { EXPECT_NE(::mkdtemp(path_.data()), nullptr); }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/berth-named-XXXXXX";
};

TEST(NamedBackendTest, DeallocatedMemoryCannotBeOpened) {
  const Folder folder;
  const auto backend = OpenIn(folder.path());
  absl::StatusOr<MemoryBlock> block = backend->Allocate(MiB(2), "");
  ASSERT_TRUE(block.ok()) << block.status();
  const IpcHandle handle = *block->handle;
  EXPECT_TRUE(OpenNamedMemory(folder.path(), handle).ok());
  EXPECT_TRUE(backend->Deallocate(*block).ok());
  EXPECT_TRUE(absl::IsNotFound(OpenNamedMemory(folder.path(), handle).status()));
}

TEST(NamedBackendTest, OutstandingMemoryEndsWithBackend) {
  const Folder folder;
  IpcHandle handle;
  {
    const auto backend = OpenIn(folder.path());
    handle = *backend->Allocate(MiB(2), "")->handle;
  }
  EXPECT_TRUE(absl::IsNotFound(OpenNamedMemory(folder.path(), handle).status()));
}

TEST(NamedBackendTest, BlockIsLimitedByTotal) {
  const Folder folder;
  const auto backend = OpenIn(folder.path());
  EXPECT_TRUE(IsRefusal(backend->Allocate(MiB(66), "").status(), Reason::kOutOfMemory));
  EXPECT_EQ(backend->outstanding(), Bytes(0));
}

TEST(NamedBackendTest, MissingFolderIsAnError) {
  EXPECT_FALSE(NamedBackend::Open("/nowhere/at/all", 0, "HOST-0", MiB(64)).ok());
}

}  // namespace
}  // namespace berth
