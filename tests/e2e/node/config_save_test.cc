// The configuration file while it is being saved: the daemon applies no part of it, whenever it reads the file.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/device.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/os/file_writers.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/installed.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// The two halves of a file; each ends at a line's end.
constexpr char kFirstHalf[] = "# .\n[pools.gpu-tests]\ncap = 3\n";
std::string SecondHalf(int number) {
  return absl::StrCat("[pools.b]\ncap = ", number, "\n[tenants]\npermits = ", number, "\n");
}
std::string WholeText(int number) { return absl::StrCat(kFirstHalf, SecondHalf(number)); }

// A process that saves a file in place and pauses after the first half, for as long as the test wants. The file changes
// meanwhile, less often than a daemon looks that waits for 50 ms without a change.
class PausedSave {
 public:
  explicit PausedSave(const std::string& path)
      : file_(::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC)), touches_([this](std::stop_token stop) {
          Write(kFirstHalf);
          for (int i = 0; !stop.stop_requested(); ++i) {
            ::pwrite(file_.get(), i % 2 == 0 ? ":" : ".", 1, /*offset=*/2);
            ::poll(nullptr, 0, 200);
          }
        }) {}
  // The rest of the file, and its end.
  void Finish(const std::string& rest) {
    touches_.request_stop();
    touches_.join();
    Write(rest);
    file_.reset();
  }

 private:
  void Write(const std::string& text) const {
    EXPECT_EQ(::write(file_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  UniqueFd file_;
  std::jthread touches_;
};

class ConfigSaveTest : public ::testing::Test {
 protected:
  ConfigSaveTest()
      : errors_(NewLog()), daemon_({.program = installed_.path(), .config = WholeText(1), .errors = errors_}) {}

  void SetUp() override {
    const UniqueFd file(::open(path().c_str(), O_RDONLY | O_CLOEXEC));
    if (FindWriters(file.get()) != FileWriters::kUnknown) return;
    GTEST_SKIP() << "no leases on the file system of " << path();
  }

  std::string path() const { return daemon_.config_path(); }
  void Write(const std::string& text) const { std::ofstream(path()) << text; }
  // Returns the values of the file's second half as they are in effect; "0" for a pool that is not there.
  std::pair<std::string, std::string> Values() {
    std::pair<std::string, std::string> values = {"0", "0"};
    const v1::Config config = Must(daemon_.inspector().GetConfig());
    for (const v1::ConfigValue& value : config.values()) {
      if (value.key() == "pools.b.cap") values.first = value.value();
      if (value.key() == "tenants.permits") values.second = value.value();
    }
    return values;
  }
  static std::pair<std::string, std::string> Both(int number) {
    return {absl::StrCat(number), absl::StrCat(number)};
  }
  bool ValuesBecome(int number) {
    return Eventually([&] { return Values() == Both(number); });
  }
  bool IsLogged(const std::string& text) const {
    std::ifstream file(errors_);
    return absl::StrContains(std::string(std::istreambuf_iterator<char>(file), {}), text);
  }
  // The next broker serves.
  void AwaitNext(pid_t broker) {
    daemon_.AwaitBrokerAfter(broker);
    daemon_.GetNode();
  }

  // Something that makes the daemon read the file.
  struct Moment {
    const char* name;
    std::function<void()> happen;
  };
  std::vector<Moment> Moments() {
    return {{"SIGHUP", [this] { ::kill(daemon_.supervisor_pid(), SIGHUP); }},
            {"reload",
             [this] {
               const absl::Status status = daemon_.inspector().ReloadConfig().status();
               EXPECT_TRUE(Refused(status, Reason::kInvalidField)) << status;
               EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat(path(), " is being written"))) << status;
             }},
            {"the broker's death",
             [this] {
               daemon_.KillBroker();
               daemon_.GetNode();
             }},
            {"the supervisor's death",
             [this] {
               daemon_.GetNode();
               daemon_.KillSupervisor();
             }},
            {"an upgrade", [this] {
               const pid_t broker = daemon_.broker();
               installed_.Install();
               EXPECT_TRUE(Ok(daemon_.inspector().UpgradeNode()));
               AwaitNext(broker);
             }}};
  }

  static std::string NewLog() {
    const std::string path = ::testing::TempDir() + "/config_save.log";
    std::filesystem::remove(path);
    return path;
  }

  const std::string errors_;
  Installed installed_;
  TestDaemon daemon_;
};

TEST_F(ConfigSaveTest, PausedSaveIsAppliedOnceComplete) {
  int number = 1;
  for (const Moment& moment : Moments()) {
    SCOPED_TRACE(moment.name);
    PausedSave save(path());
    moment.happen();
    // Several times the 50 ms without a change.
    ::poll(nullptr, 0, 600);
    EXPECT_EQ(Values(), Both(number));
    save.Finish(SecondHalf(++number));
    if (absl::string_view(moment.name) == "reload") EXPECT_TRUE(Ok(daemon_.inspector().ReloadConfig()));
    EXPECT_TRUE(ValuesBecome(number)) << Values().first << " and " << Values().second;
  }
  EXPECT_FALSE(IsLogged("still open for writing"));
}

// `berth config reload` awaits the writer; other clients of the daemon learn when to try again.
TEST_F(ConfigSaveTest, ReloadCommandAwaitsPausedSave) {
  PausedSave save(path());
  Subprocess reload = BerthCommand(daemon_.folder()).Start({"--admin", "config", "reload"});
  ASSERT_TRUE(Eventually([&] {
    std::ifstream audit(absl::StrCat(daemon_.folder(), "/state/audit.jsonl"));
    return absl::StrContains(std::string(std::istreambuf_iterator<char>(audit), {}), " is being written");
  })) << "the first attempt";
  EXPECT_EQ(Values(), Both(1));
  EXPECT_FALSE(reload.IsGone());
  save.Finish(SecondHalf(2));
  EXPECT_EQ(reload.Wait(), 0);
  EXPECT_EQ(Values(), Both(2));
}

TEST_F(ConfigSaveTest, ReloadCommandReportsSaveWithoutEnd) {
  if (!Soaks()) GTEST_SKIP() << "waits for the command's own time-out";
  PausedSave save(path());
  Subprocess reload = BerthCommand(daemon_.folder())
                          .Start({"--admin", "config", "reload"},
                                 {"/usr/bin/env", "BERTH_TEST_PATIENCE=1", "/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"});
  const std::string said = reload.ReadAll();
  EXPECT_EQ(reload.Wait(), 1) << said;
  EXPECT_TRUE(absl::StrContains(said, absl::StrCat(path(), " is being written"))) << said;
  EXPECT_TRUE(absl::StrContains(said, "waited 5s for the process that writes it")) << said;
  EXPECT_EQ(Values(), Both(1));
  save.Finish(SecondHalf(2));
}

TEST_F(ConfigSaveTest, PausedSaveIsAwaitedAtStart) {
  daemon_.Stop();
  PausedSave save(path());
  std::jthread writer([&] {
    ::poll(nullptr, 0, 1000);
    save.Finish(SecondHalf(2));
  });
  daemon_.StartAgain();
  EXPECT_EQ(Values(), Both(2));
}

TEST_F(ConfigSaveTest, FileThatStaysOpenIsAppliedAndNamed) {
  int number = 1;
  std::vector<UniqueFd> writers;
  for (const Moment& moment : Moments()) {
    SCOPED_TRACE(moment.name);
    writers.emplace_back(::open(path().c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
    const std::string text = WholeText(++number);
    ASSERT_EQ(::write(writers.back().get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    if (absl::string_view(moment.name) == "reload") {
      EXPECT_TRUE(Eventually([&] { return daemon_.inspector().ReloadConfig().ok(); }));
    } else {
      moment.happen();
    }
    EXPECT_TRUE(ValuesBecome(number)) << Values().first << " and " << Values().second;
    // Each moment takes the whole 2 s.
    if (!Soaks()) break;
  }
  EXPECT_TRUE(IsLogged(absl::StrCat(path(), " is still open for writing")));
}

// The file that is still open is no longer the configuration.
TEST_F(ConfigSaveTest, RenamedFileIsAppliedWhileOldOneIsWritten) {
  PausedSave save(path());
  std::ofstream(path() + ".new") << WholeText(2);
  std::filesystem::rename(path() + ".new", path());
  ::kill(daemon_.supervisor_pid(), SIGHUP);
  EXPECT_TRUE(ValuesBecome(2));
  EXPECT_FALSE(IsLogged("still open for writing"));
  save.Finish(SecondHalf(3));
  EXPECT_TRUE(Ok(daemon_.inspector().ReloadConfig()));
  EXPECT_EQ(Values(), Both(2));
}

// The kernel reports the writers to the file's owner only.
TEST_F(ConfigSaveTest, FileOfOtherUserIsAppliedOnceUnchanged) {
  if (!IsRoot()) GTEST_SKIP() << "only root gives files away";
  constexpr uid_t kOther = 65533;
  ASSERT_EQ(::chmod(path().c_str(), 0644), 0);
  ASSERT_EQ(::chown(path().c_str(), kOther, kOther), 0);
  const UniqueFd writer(::open(path().c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
  const std::string text = WholeText(2);
  ASSERT_EQ(::write(writer.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::kill(daemon_.supervisor_pid(), SIGHUP);
  EXPECT_TRUE(ValuesBecome(2));
  EXPECT_FALSE(IsLogged("still open for writing"));
}

}  // namespace
}  // namespace berth::testing
