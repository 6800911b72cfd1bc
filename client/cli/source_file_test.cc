#include "client/cli/source_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace berth::cli {
namespace {

class SourceFileTest : public ::testing::Test {
 protected:
  SourceFileTest() : folder_(absl::StrCat(::testing::TempDir(), "/source-", ::getpid())) {
    std::filesystem::create_directories(folder_);
    Write("w", "eight by");
  }
  ~SourceFileTest() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void Write(const std::string& name, const std::string& content) const {
    std::ofstream(Path(name), std::ios::binary) << content;
  }

  const std::string folder_;
};

TEST_F(SourceFileTest, ChangeDuringReadIsNamed) {
  struct Case {
    const char* what;
    std::function<void(const std::string& path)> change;
    // Part of the error; empty if the file counts as unchanged.
    const char* says;
  };
  const Case cases[] = {
      {"nothing", [](const std::string&) {}, ""},
      {"append", [](const std::string& path) { std::ofstream(path, std::ios::app) << "more"; },
       "was 8 bytes and is 12"},
      {"truncate", [](const std::string& path) { EXPECT_EQ(::truncate(path.c_str(), 3), 0); }, "was 8 bytes and is 3"},
      {"write in place", [](const std::string& path) { std::fstream(path, std::ios::in | std::ios::out) << "E"; },
       "wrote to it (mtime)"},
      {"write in place and set mtime back",
       [](const std::string& path) {
         struct stat before;
         EXPECT_EQ(::stat(path.c_str(), &before), 0);
         std::fstream(path, std::ios::in | std::ios::out) << "E";
         const timespec times[] = {before.st_atim, before.st_mtim};
         EXPECT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
       },
       "(ctime)"},
      {"chmod", [](const std::string& path) { EXPECT_EQ(::chmod(path.c_str(), 0600), 0); }, "(ctime)"},
      {"rename another over it",
       [](const std::string& path) {
         std::ofstream(path + ".new") << "another";
         EXPECT_EQ(::rename((path + ".new").c_str(), path.c_str()), 0);
       },
       ""},
      {"unlink", [](const std::string& path) { EXPECT_EQ(::unlink(path.c_str()), 0); }, ""},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.what);
    std::filesystem::remove(Path("w"));
    Write("w", "eight by");
    const absl::StatusOr<SourceFile> file = SourceFile::Open(Path("w"));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->size(), Bytes(8));
    each.change(Path("w"));
    const absl::Status status = file->CheckUnchanged();
    EXPECT_EQ(status.ok(), *each.says == '\0') << status;
    EXPECT_TRUE(absl::StrContains(status.message(), each.says)) << status;
  }
}

TEST_F(SourceFileTest, OnlyRegularFileIsOpened) {
  EXPECT_EQ(::mkfifo(Path("fifo").c_str(), 0600), 0);
  Write("empty", "");
  const struct {
    std::string path;
    const char* says;
  } cases[] = {{Path("fifo"), "is a FIFO"},     {folder_, "is a directory"},
               {"/dev/zero", "is a device"},    {Path("empty"), "is empty"},
               {"/proc/version", "the kernel"}, {Path("none"), "No such file"}};
  for (const auto& each : cases) {
    const absl::StatusOr<SourceFile> file = SourceFile::Open(each.path);
    ASSERT_FALSE(file.ok()) << each.path;
    EXPECT_TRUE(absl::StrContains(file.status().message(), each.says)) << file.status();
  }
}

TEST_F(SourceFileTest, FileOpenForWritingIsRejectedUntilClosed) {
  const int writer = ::open(Path("w").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  ASSERT_GE(writer, 0);
  const absl::Status refused = SourceFile::Open(Path("w")).status();
  ::close(writer);
  if (refused.ok()) GTEST_SKIP() << "this file system has no leases";
  EXPECT_TRUE(absl::StrContains(refused.message(), "open for writing")) << refused;
  EXPECT_TRUE(SourceFile::Open(Path("w")).ok());
}

}  // namespace
}  // namespace berth::cli
