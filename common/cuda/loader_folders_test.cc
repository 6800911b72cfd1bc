#include "common/cuda/loader_folders.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>

#include "gtest/gtest.h"

namespace berth::cuda {
namespace {

// Distributions install the driver's libraries beside the C library, in a folder that depends on the processor.
TEST(LoaderFoldersTest, FolderOfCLibraryIsListed) {
  Dl_info library = {};
  ASSERT_NE(::dladdr(reinterpret_cast<void*>(&::abort), &library), 0);
  const std::filesystem::path folder = std::filesystem::canonical(library.dli_fname).parent_path();
  const std::vector<std::string> folders = LoaderFolders();
  EXPECT_TRUE(std::any_of(folders.begin(), folders.end(), [&](const std::string& listed) {
    std::error_code error;
    return std::filesystem::equivalent(listed, folder, error);
  })) << folder;
}

}  // namespace
}  // namespace berth::cuda
