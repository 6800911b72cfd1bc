// Log files are moved away under the daemon, as by logrotate, and a reload opens new ones.

#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/admin.pb.h"
#include "client/sdk/admin/inspector.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

std::string Read(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

bool ComesToHave(const std::string& path, const std::string& text) {
  return Eventually([&] { return absl::StrContains(Read(path), text); });
}

// A daemon with both logs, and a block as a subject of records.
class LogRotationTest : public ::testing::Test {
 protected:
  std::string MakeFolder() {
    std::string path = ::testing::TempDir() + "/rotation-XXXXXX";
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
    return path;
  }
  ~LogRotationTest() override { std::filesystem::remove_all(folder_); }

  std::string Config() const { return absl::StrCat("[log]\nfile = \"", folder_, "/memory.jsonl\"\n"); }
  std::vector<std::string> paths() const {
    return {folder_ + "/memory.jsonl", daemon_.folder() + "/state/audit.jsonl"};
  }
  // Returns a part of the line that both logs have about an allocation of this many bytes, which are whole granules.
  static std::string LineOf(uint64_t bytes) {
    return absl::StrCat("\"bytes\":\"", bytes, "\"");
  }

  const std::string folder_ = MakeFolder();
  TestDaemon daemon_{{.config = Config()}};
};

TEST_F(LogRotationTest, MovedFilesAreNotWrittenAfterReload) {
  const auto signal = [&] { daemon_.supervisor().Signal(SIGHUP); };
  const auto remove = [&] {
    for (const std::string& path : paths()) std::filesystem::remove(path);
  };
  // The tool makes the next file itself.
  const auto create = [&] {
    for (const std::string& path : paths()) {
      std::filesystem::rename(path, path + ".old");
      std::ofstream(path).close();
      std::filesystem::permissions(path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    }
  };
  const auto command = [&] {
    Subprocess reload = Subprocess::Start({.argv = {ProgramPath("client/cli/berth"),
                                                    absl::StrCat("--folder=", daemon_.folder()), "--admin", "config",
                                                    "reload"},
                                           .environment = {"BERTH_SESSION"}});
    reload.ReadAll();
    return reload.Wait();
  };
  const struct {
    const char* name;
    std::function<void()> move;
    std::function<void()> reload;
    bool mistake;
  } cases[] = {
      {"renamed, SIGHUP", nullptr, signal, false},
      {"renamed, config reload", nullptr, [&] { EXPECT_EQ(command(), 0); }, false},
      {"renamed, SIGHUP, mistake in the configuration", nullptr, signal, true},
      {"renamed, config reload, mistake in the configuration", nullptr, [&] { EXPECT_EQ(command(), 1); }, true},
      {"deleted, SIGHUP", remove, signal, false},
      {"renamed and made anew, SIGHUP", create, signal, false},
  };
  uint64_t bytes = 2 << 20;
  int turn = 0;
  for (const auto& [name, move, reload, mistake] : cases) {
    SCOPED_TRACE(name);
    Actor actor(daemon_);
    const uint64_t before = bytes += 2 << 20;
    actor.Do(absl::StrCat("allocate a ", before));
    for (const std::string& path : paths()) ASSERT_TRUE(ComesToHave(path, LineOf(before))) << path;
    const std::string suffix = absl::StrCat(".", ++turn);
    if (move) {
      move();
    } else {
      for (const std::string& path : paths()) std::filesystem::rename(path, path + suffix);
    }
    if (mistake) std::ofstream(daemon_.config_path()) << "[log]\nfil = 1\n";
    reload();
    // The record of the reload ("reload", or the verb "ReloadConfig") comes after the files were opened.
    ASSERT_TRUE(ComesToHave(paths()[1], "eload"));
    std::vector<std::string> earlier;
    for (const std::string& path : paths()) earlier.push_back(Read(path + suffix));
    const uint64_t after = bytes += 2 << 20;
    actor.Do(absl::StrCat("allocate b ", after));
    for (const std::string& path : paths()) EXPECT_TRUE(ComesToHave(path, LineOf(after))) << path;
    for (size_t i = 0; i < paths().size(); ++i) EXPECT_EQ(Read(paths()[i] + suffix), earlier[i]) << paths()[i];
    std::ofstream(daemon_.config_path()) << Config();
    actor.Quit();
  }
  daemon_.ExpectAccountsBack();
}

// As logrotate's copytruncate: without a reload the records go on at the start of the file, not behind a hole.
TEST_F(LogRotationTest, TruncatedFileIsAppendedTo) {
  Actor actor(daemon_);
  const std::string path = paths()[0];
  actor.Do(absl::StrCat("allocate a ", 2 << 20));
  ASSERT_TRUE(ComesToHave(path, LineOf(2 << 20)));
  std::filesystem::copy_file(path, path + ".1");
  std::filesystem::resize_file(path, 0);
  actor.Do(absl::StrCat("allocate b ", 4 << 20));
  ASSERT_TRUE(ComesToHave(path, LineOf(4 << 20)));
  EXPECT_EQ(Read(path).substr(0, 1), "{");
  EXPECT_FALSE(absl::StrContains(Read(path), LineOf(2 << 20)));
  actor.Quit();
  daemon_.ExpectAccountsBack();
}

TEST_F(LogRotationTest, FailedReopenKeepsEarlierFile) {
  Actor actor(daemon_);
  uint64_t bytes = 2 << 20;
  for (const std::string& path : paths()) {
    SCOPED_TRACE(path);
    actor.Do(absl::StrCat("allocate a", bytes, " ", bytes));
    ASSERT_TRUE(ComesToHave(path, LineOf(bytes)));
    bytes += 2 << 20;
    std::filesystem::rename(path, path + ".moved");
    std::filesystem::create_directory(path);
    const absl::Status status = daemon_.inspector().ReloadConfig().status();
    EXPECT_TRUE(IsRefusal(status, Reason::kInvalidField)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), path)) << status;
    actor.Do(absl::StrCat("allocate a", bytes, " ", bytes));
    EXPECT_TRUE(ComesToHave(path + ".moved", LineOf(bytes)));
    bytes += 2 << 20;
    std::filesystem::remove(path);
    Must(daemon_.inspector().ReloadConfig(), "a reload once the path is free");
    EXPECT_TRUE(std::filesystem::is_regular_file(path));
  }
  actor.Quit();
  daemon_.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
