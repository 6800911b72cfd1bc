#include "common/os/whole_file.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "common/os/file_io.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

namespace fs = std::filesystem;

std::string Read(const fs::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Creates a temporary folder for the test.
class WholeFileTest : public ::testing::Test {
 protected:
  WholeFileTest() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream(Path("another")) << "precious";
  }
  std::string Path(const std::string& name) const { return folder_ / name; }
  size_t CountFiles() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  const fs::path folder_ = fs::path(::testing::TempDir()) / "whole_file_test";
};

TEST_F(WholeFileTest, WriteCreatesOrReplacesRegularFile) {
  ASSERT_TRUE(WriteWholeFile(Path("f"), "one", 0640).ok());
  EXPECT_EQ(Read(Path("f")), "one");
  ASSERT_TRUE(WriteWholeFile(Path("f"), "two", 0640).ok());
  EXPECT_EQ(Read(Path("f")), "two");
  EXPECT_EQ(CountFiles(), 2u) << "nothing is left beside it";
}

// The file beside the path has another name, which the file system must accept, too.
TEST_F(WholeFileTest, EveryNameOfTheFileSystemCanBeWritten) {
  std::string greek;
  while (greek.size() < NAME_MAX - 1) greek += "\u03b1";
  for (const std::string& name : {std::string("a"), std::string(NAME_MAX - 20, 'a'), std::string(NAME_MAX, 'a'),
                                  std::string(NAME_MAX, '\x80'), greek, greek + "a"}) {
    SCOPED_TRACE(name);
    const size_t before = CountFiles();
    for (const char* const text : {"one", "two"}) {
      const absl::Status written = WriteWholeFile(Path(name), text, 0640);
      EXPECT_TRUE(written.ok()) << written;
      EXPECT_EQ(Read(Path(name)), text);
    }
    EXPECT_EQ(CountFiles(), before + 1);
  }
  const size_t before = CountFiles();
  EXPECT_FALSE(WriteWholeFile(Path(std::string(NAME_MAX + 1, 'a')), "text", 0640).ok());
  EXPECT_EQ(CountFiles(), before);
}

TEST_F(WholeFileTest, NonRegularTargetsAreRejected) {
  const struct {
    const char* name;
    int (*make)(const std::string& place, const std::string& another);
  } rows[] = {
      {"link", [](const auto& place, const auto& another) { return ::symlink(another.c_str(), place.c_str()); }},
      {"dangling_link", [](const auto& place, const auto&) { return ::symlink("nothing", place.c_str()); }},
      {"fifo", [](const auto& place, const auto&) { return ::mkfifo(place.c_str(), 0600); }},
      {"folder", [](const auto& place, const auto&) { return ::mkdir(place.c_str(), 0700); }},
  };
  for (const auto& row : rows) {
    ASSERT_EQ(row.make(Path(row.name), Path("another")), 0) << row.name;
    const size_t before = CountFiles();
    const absl::Status refused = WriteWholeFile(Path(row.name), "text", 0640);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << row.name << ": " << refused;
    EXPECT_NE(refused.message().find(Path(row.name)), std::string::npos) << refused;
    EXPECT_EQ(CountFiles(), before) << row.name;
  }
  EXPECT_EQ(Read(Path("another")), "precious");
}

TEST_F(WholeFileTest, LinkPlantedMeanwhileIsNotFollowed) {
  absl::StatusOr<WholeFile> file = WholeFile::Create(Path("f"), 0640);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(::symlink(Path("another").c_str(), Path("f").c_str()), 0);
  ASSERT_TRUE(WriteAll(file->fd(), "text", "f").ok());
  ASSERT_TRUE(file->Commit().ok());
  EXPECT_EQ(Read(Path("another")), "precious");
  EXPECT_EQ(Read(Path("f")), "text");
}

TEST_F(WholeFileTest, UncommittedFileLeavesNothing) {
  std::ofstream(Path("f")) << "old";
  { ASSERT_TRUE(WholeFile::Create(Path("f"), 0640).ok()); }
  EXPECT_EQ(Read(Path("f")), "old");
  EXPECT_EQ(CountFiles(), 2u);
}

}  // namespace
}  // namespace berth
