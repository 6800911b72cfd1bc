// The daemon's paths, by option, variable and setting: a relative path is one of the folder in which the daemon starts;
// a path that cannot be meant is refused at the start, by name.

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class PathOptionsTest : public ::testing::Test {
 protected:
  PathOptionsTest() {
    EXPECT_NE(::mkdtemp(parent_.data()), nullptr);
    std::ofstream(parent_ + "/file") << "text\n";
    fs::create_directory_symlink(parent_, parent_ + "/link");
    fs::create_symlink(parent_ + "/none", parent_ + "/dangling");
    std::ofstream(parent_ + "/sparse").close();
    fs::resize_file(parent_ + "/sparse", 1ULL << 32);
    EXPECT_EQ(::mkfifo((parent_ + "/fifo").c_str(), 0600), 0);
    std::ofstream(parent_ + "/settings") << "[pools.extra]\ncap = 3\n";
    std::ofstream(parent_ + "/devices") << "[[device]]\nuuid = \"GPU-1\"\nname = \"one\"\nmemory = \"1GiB\"\n";
  }
  ~PathOptionsTest() override { fs::remove_all(parent_); }

  // Starts a daemon in `parent_` with these options; "@" stands for `parent_`. Prints stderr to stdout.
  Subprocess Start(const Words& options, const Words& environment = {}) const {
    Words argv = {"/bin/sh", "-c", "cd \"$0\" && exec \"$@\" 2>&1", parent_,
                  fs::canonical(ProgramPath("daemon/berthd")).string(), "--backend=host", "--ready-fd=1"};
    for (const std::string& option : options) argv.push_back(absl::StrReplaceAll(option, {{"@", parent_}}));
    Words changes = {"BERTH_SESSION", "BERTH_FOLDER", "BERTH_STATE", "STATE_DIRECTORY"};
    changes.insert(changes.end(), environment.begin(), environment.end());
    return Subprocess::Start({.argv = argv, .environment = changes, .of_operator = true});
  }

  std::string parent_ = "/tmp/berth-paths-XXXXXX";
};

TEST_F(PathOptionsTest, RelativePathsAreOfTheStartingFolder) {
  const struct {
    Words options;
    Words environment;
    // Paths that exist once the daemon serves.
    Words paths;
  } rows[] = {
      {{"--folder=run"}, {}, {"run/berthd.sock", "run/state"}},
      {{"--folder=./a/../run"}, {}, {"run/berthd.sock"}},
      {{"--folder=@/run", "--state=kept"}, {}, {"kept"}},
      {{}, {"BERTH_FOLDER=run", "BERTH_STATE=kept"}, {"run/berthd.sock", "kept"}},
      {{"--folder=@/run", "--config=settings", "--host-devices-file=devices"}, {}, {"run/berthd.sock"}},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(absl::StrJoin(row.options, " "));
    fs::create_directory(parent_ + "/a");
    Subprocess daemon = Start(row.options, row.environment);
    std::string said;
    for (std::string line; line != "ready" && !daemon.IsGone();) {
      const absl::StatusOr<std::string> read = daemon.ReadLine();
      if (!read.ok()) break;
      line = *read;
      absl::StrAppend(&said, line, "\n");
    }
    ASSERT_TRUE(absl::StrContains(said, "ready\n")) << said;
    for (const std::string& path : row.paths) EXPECT_TRUE(fs::exists(absl::StrCat(parent_, "/", path))) << path;
    daemon.Signal(SIGTERM);
    EXPECT_EQ(daemon.Wait(), 0) << daemon.ReadAll();
    for (const char* const made : {"/run", "/kept"}) fs::remove_all(parent_ + made);
  }
}

TEST_F(PathOptionsTest, PathOfAnotherKindIsRefusedByName) {
  const struct {
    Words options;
    Words says;
  } rows[] = {
      {{"--folder=@/file"}, {"@/file is not a folder"}},
      {{"--folder=@/file/below"}, {"@/file/below"}},
      {{"--folder=/dev/null"}, {"/dev/null is not a folder"}},
      {{"--folder=@/link"}, {"folder @/link is a symbolic link; name its target"}},
      {{"--folder=@/dangling"}, {"folder @/dangling is a symbolic link; name its target"}},
      {{"--folder= "}, {"--folder: the value is blank"}},
      {{"--folder=@/run", "--state=@/file"}, {"--state: @/file is no folder"}},
      {{"--folder=@/run", "--state=@/file/below"}, {"--state: @/file/below is no folder, or is below a file"}},
      {{"--folder=@/run", "--state=/dev/null"}, {"--state: /dev/null is no folder"}},
      {{"--folder=@/run", "--state= "}, {"--state: the value is blank"}},
      {{"--folder=@/run", "--config=@/none"}, {"@/none: No such file"}},
      {{"--folder=@/run", "--config=/dev/null"}, {"/dev/null is not a regular file"}},
      {{"--folder=@/run", "--config=@"}, {"@ is not a regular file"}},
      {{"--folder=@/run", "--config="}, {"--config: the value is empty"}},
      {{"--folder=@/run", "--host-devices-file=@/none"}, {"@/none: No such file"}},
      {{"--folder=@/run", "--host-devices-file=@"}, {"@ is not a regular file"}},
      {{"--folder=@/run", "--host-devices-file=/dev/null"}, {"/dev/null is not a regular file"}},
      {{"--folder=@/run", "--host-devices-file=/dev/zero"}, {"/dev/zero is not a regular file"}},
      {{"--folder=@/run", "--host-devices-file=@/fifo"}, {"@/fifo is not a regular file"}},
      {{"--folder=@/run", "--host-devices-file=@/sparse"}, {"@/sparse has more than 4 MiB"}},
      {{"--folder=@/run", "--config=@/fifo"}, {"@/fifo is not a regular file"}},
      {{"--folder=@/run", "--host-devices-file= "}, {"--host-devices-file: the value is blank"}},
      {{"--folder=@/run", "--version=x"}, {"--version: \"x\" is not a value: it is a flag"}},
      {{"--folder=@/run", "--clears-check="}, {"--clears-check: the value is empty: it is a flag"}},
  };
  std::vector<Subprocess> daemons;
  for (const auto& row : rows) {
    Words options = row.options;
    // A folder for each daemon.
    const std::string folder = absl::StrCat("@/run", daemons.size());
    for (std::string& option : options) absl::StrReplaceAll({{"@/run", folder}}, &option);
    daemons.push_back(Start(options));
  }
  for (size_t i = 0; i < daemons.size(); ++i) {
    const auto& row = rows[i];
    Subprocess& daemon = daemons[i];
    SCOPED_TRACE(absl::StrJoin(row.options, " "));
    const std::string said = daemon.ReadAll();
    EXPECT_NE(daemon.Wait(), 0) << said;
    for (const std::string& part : row.says) {
      EXPECT_TRUE(absl::StrContains(said, absl::StrReplaceAll(part, {{"@", parent_}}))) << said;
    }
    EXPECT_FALSE(absl::StrContains(said, "ready\n")) << said;
  }
}

TEST_F(PathOptionsTest, RelativePathInSettingsIsRefusedByName) {
  Words lines;
  for (const char* const key : {"log.file", "log.audit_folder"}) {
    for (const char* const value : {"relative", "./x", "", " ", "~/x"}) {
      lines.push_back(absl::StrCat(key, " = \"", value, "\""));
    }
  }
  std::vector<Subprocess> daemons;
  for (size_t i = 0; i < lines.size(); ++i) {
    std::ofstream(absl::StrCat(parent_, "/settings", i)) << lines[i] << "\n";
    daemons.push_back(Start({absl::StrCat("--folder=@/run", i), absl::StrCat("--config=@/settings", i)}));
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    SCOPED_TRACE(lines[i]);
    const std::string said = daemons[i].ReadAll();
    EXPECT_NE(daemons[i].Wait(), 0) << said;
    const std::string key = lines[i].substr(0, lines[i].find(' '));
    const std::string refusal = absl::StrCat(parent_, "/settings", i, ":1: ", key, ": expected an absolute path");
    EXPECT_TRUE(absl::StrContains(said, refusal)) << said;
  }
}

}  // namespace
}  // namespace berth::testing
