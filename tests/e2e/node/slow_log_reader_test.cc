// A daemon whose log no process reads, or whose reader is slow: it serves, replaces its processes, and stops in time.
// Outputs that the daemon inherits, as the log of memory events.

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/device.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/outputs.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

class LogReaderTest : public ::testing::Test {
 protected:
  LogReaderTest() { EXPECT_NE(::mkdtemp(folder_.data()), nullptr); }
  ~LogReaderTest() override { std::filesystem::remove_all(folder_); }

  Output Make(const std::string& name) {
    return std::move(MakeOutputs(absl::StrCat(folder_, "/", ++outputs_), {name})[0]);
  }

  static void KillWorker(TestDaemon& daemon) {
    const std::vector<pid_t> before = daemon.workers();
    ASSERT_EQ(::kill(before[0], SIGKILL), 0);
    EXPECT_TRUE(Eventually([&] {
      const std::vector<pid_t> now = daemon.workers();
      return now.size() == before.size() && now != before;
    }));
  }
  static void ExpectService(TestDaemon& daemon) {
    Actor actor(daemon);
    EXPECT_TRUE(Ok(actor.Ask("acquire p")));
    EXPECT_TRUE(Ok(actor.Ask("allocate b 4096")));
    EXPECT_TRUE(Ok(actor.Ask("drop b")));
    EXPECT_TRUE(Ok(actor.Ask("release p")));
    actor.Quit();
  }
  static void Upgrade(TestDaemon& daemon) {
    const v1::Node before = daemon.GetNode();
    EXPECT_TRUE(Ok(daemon.inspector().UpgradeNode()));
    EXPECT_TRUE(Eventually([&] {
      const absl::StatusOr<v1::Node> node = daemon.inspector().GetNode();
      return node.ok() && node->epoch() != before.epoch() && !node->upgrading();
    }));
  }
  // Reads the log until it has `text`.
  static void ExpectInLog(const Output& output, const std::string& text) {
    std::string log;
    EXPECT_TRUE(Eventually([&] {
      log += Drain(output);
      return absl::StrContains(log, text);
    })) << output.name
        << " lacks: " << text;
  }

  std::string folder_ = "/tmp/berth-log-XXXXXX";
  int outputs_ = 0;
};

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

class EachLogReaderTest : public LogReaderTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(EachLogReaderTest, DaemonServesAndReplacesItsProcesses) {
  const Output output = Make(GetParam());
  const int flags = ::fcntl(output.fd.get(), F_GETFL);
  // Full before the start.
  TestDaemon daemon({.error_fd = output.error_fd()});
  for (uint64_t round = 0; round < GateOrSoak(1, 3); ++round) {
    daemon.KillBroker();
    KillWorker(daemon);
    daemon.supervisor().Signal(SIGHUP);
    ExpectService(daemon);
  }
  if (Soaks()) {
    daemon.KillSupervisor();
    ExpectService(daemon);
    EXPECT_TRUE(Ok(daemon.inspector().UpgradeNode()));
    ExpectService(daemon);
  }
  EXPECT_EQ(::fcntl(output.fd.get(), F_GETFL), flags);
  // The retained lines come once the reader reads, without a further event.
  if (output.full && !Soaks()) ExpectInLog(output, "broker exited");
  daemon.Stop();
}

std::vector<std::string> Names() {
  if (!Soaks()) {
    return {"full pipe", "full FIFO", "full socket", "stopped terminal", "pipe without a reader", "hung-up terminal"};
  }
  const std::string folder = absl::StrCat("/tmp/berth-log-names-", ::getpid());
  std::vector<std::string> names;
  for (const Output& output : MakeOutputs(folder)) {
    // A daemon at its file size limit is another matter.
    if (output.launcher.empty()) names.push_back(output.name);
  }
  std::filesystem::remove_all(folder);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Outputs, EachLogReaderTest, ::testing::ValuesIn(Names()), [](const auto& info) {
  return absl::StrReplaceAll(info.param, {{" ", "_"}, {"-", "_"}, {",", ""}});
});

TEST_F(LogReaderTest, UsageErrorWaitsForNoReader) {
  for (const Output& output : MakeOutputs(absl::StrCat(folder_, "/", ++outputs_))) {
    SCOPED_TRACE(output.name);
    std::vector<std::string> argv = output.launcher;
    argv.insert(argv.end(), {ProgramPath("daemon/berthd"), "--no-such-option"});
    Subprocess berthd = Subprocess::Start({.argv = argv, .error_fd = output.error_fd(), .of_operator = true});
    EXPECT_EQ(berthd.Wait(), 1);
    // The end of its session can take a terminal's last line with it.
    if (output.takes && output.launcher.empty()) ExpectInLog(output, "--no-such-option");
  }
}

TEST_F(LogReaderTest, LeftOutLinesAreReportedOnceReaderReturns) {
  // A broker logs a line for each pool at its start.
  std::string config;
  for (int pool = 0; pool < 900; ++pool) {
    absl::StrAppend(&config, "[pools.", std::string(40, 'p'), pool, "]\ncap = 1\n");
  }
  const Output output = Make("full pipe");
  TestDaemon daemon({.config = config, .error_fd = output.error_fd()});
  ExpectService(daemon);
  ExpectInLog(output, " lines are missing here");
  daemon.Stop();
}

TEST_F(LogReaderTest, UpgradedSupervisorReportsLinesOfItsPredecessor) {
  const Output output = Make("full pipe");
  TestDaemon daemon({.error_fd = output.error_fd()});
  // The supervisor retains a line about this.
  daemon.KillBroker();
  Upgrade(daemon);
  ExpectInLog(output, " missing here: the reader of this output was too slow, or gone");
  ExpectService(daemon);
  daemon.Stop();
}

TEST_F(LogReaderTest, EventsOfMemoryGoToEveryStandardStream) {
  for (const char* const kind : {"pipe", "socket", "terminal"}) {
    for (const char* const path : {"/dev/stderr", "/dev/fd/2", "/proc/self/fd/2"}) {
      SCOPED_TRACE(absl::StrCat(path, ", a ", kind));
      const Output output = Make(kind);
      TestDaemon daemon({.config = absl::StrCat("[log]\nfile = \"", path, "\"\n"), .error_fd = output.error_fd()});
      ExpectService(daemon);
      ExpectInLog(output, "\"action\":\"ALLOCATE\"");
      daemon.Stop();
      if (!Soaks()) break;
    }
  }
  TestDaemon daemon({.config = "[log]\nfile = \"/dev/stdout\"\n"});
  ExpectService(daemon);
  EXPECT_TRUE(absl::StrContains(Must(daemon.supervisor().ReadLine()), "\"action\":\"ALLOCATE\""));
}

// As a terminal of another user: the daemon cannot open it again, and writes single bytes.
TEST_F(LogReaderTest, TerminalThatCannotBeReopenedGetsWholeLines) {
  Output output = Make("terminal");
  termios settings;
  ASSERT_EQ(::tcgetattr(output.fd.get(), &settings), 0);
  ::cfmakeraw(&settings);
  ASSERT_EQ(::tcsetattr(output.fd.get(), TCSANOW, &settings), 0);
  std::swap(output.fd, output.reader);
  TestDaemon daemon({.config = "[log]\nfile = \"/dev/stderr\"\n", .error_fd = output.error_fd()});
  ExpectService(daemon);
  ExpectInLog(output, "\"action\":\"ALLOCATE\"");
  daemon.Stop();
}

TEST_F(LogReaderTest, ReaderOfSingleBytesDelaysNothing) {
  const Output output = Make("full pipe");
  TestDaemon daemon({.error_fd = output.error_fd()});
  for (int i = 0; i < 3; ++i) {
    daemon.KillBroker();
    char byte;
    EXPECT_EQ(::read(output.reader.get(), &byte, 1), 1);
    ExpectService(daemon);
  }
  daemon.Stop();
}

// A daemon that is started with its standard error under another number, too.
class InheritedLogTest : public LogReaderTest {
 protected:
  InheritedLogTest() {
    // The fd by which TestDaemon learns that the daemon serves has none of the numbers of this test.
    do {
      low_.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    } while (low_.back().get() >= 0 && low_.back().get() < 10);
  }

  // Returns a program that starts berthd after the shell has executed `redirections`.
  std::string BerthdWith(const std::string& redirections) const {
    const std::string path = folder_ + "/start";
    std::ofstream(path) << "#!/bin/sh\nexec " << redirections << " 2>>" << errors() << "\nexec "
                        << ProgramPath("daemon/berthd") << " \"$@\"\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  std::string errors() const { return folder_ + "/errors"; }
  static std::string ConfigOf(int number) { return absl::StrCat("[log]\nfile = \"/dev/fd/", number, "\"\n"); }

  std::vector<UniqueFd> low_;
};

struct InheritedOutput {
  std::string kind;
  int number;
};

class EachInheritedLogTest : public InheritedLogTest, public ::testing::WithParamInterface<InheritedOutput> {
 protected:
  Output MakeInherited() {
    if (GetParam().kind != "file") return Make(GetParam().kind);
    const std::string path = folder_ + "/events";
    Output output = {.name = "file", .fd = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
                                                           0600))};
    output.reader.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    return output;
  }
};

TEST_P(EachInheritedLogTest, EachLaterBrokerWritesToTheFd) {
  const int number = GetParam().number;
  const Output output = MakeInherited();
  const int flags = ::fcntl(output.fd.get(), F_GETFL);
  TestDaemon daemon({.program = BerthdWith(absl::StrCat(number, ">&2")),
                     .config = ConfigOf(number),
                     .error_fd = output.error_fd()});
  uint64_t bytes = 0;
  const auto expect_event = [&](const char* after) {
    SCOPED_TRACE(after);
    bytes += 2 << 20;
    Actor actor(daemon);
    EXPECT_TRUE(Ok(actor.Ask(absl::StrCat("allocate b ", bytes))));
    ExpectInLog(output, absl::StrCat("\"bytes\":\"", bytes, "\""));
    actor.Quit();
  };
  expect_event("the start");
  Must(daemon.inspector().ReloadConfig(), "a reload");
  expect_event("a reload");
  daemon.supervisor().Signal(SIGHUP);
  expect_event("SIGHUP");
  daemon.KillBroker();
  expect_event("a broker's death");
  Upgrade(daemon);
  expect_event("an upgrade");
  daemon.KillSupervisor();
  expect_event("the supervisor's death");
  daemon.KillBroker();
  expect_event("the death of the next supervisor's broker");
  EXPECT_EQ(::fcntl(output.fd.get(), F_GETFL), flags);
  daemon.Stop();
}

INSTANTIATE_TEST_SUITE_P(Outputs, EachInheritedLogTest,
                         ::testing::Values(InheritedOutput{"file", 9}, InheritedOutput{"pipe", 9},
                                           InheritedOutput{"socket", 9},
                                           // Each process of the daemon has its parent's socket under this number.
                                           InheritedOutput{"file", 3}),
                         [](const auto& info) { return absl::StrCat(info.param.kind, info.param.number); });

TEST_F(InheritedLogTest, FdThatIsNoOutputIsRefusedAtStart) {
  const struct {
    const char* redirections;
    const char* path;
    const char* says;
  } rows[] = {
      {"9>&-", "/dev/fd/9", "if fd 9 is open for writing then"},
      {"9</dev/null", "/proc/self/fd/9", "start it with 9>>FILE, or name a file"},
      {"0</dev/null", "/dev/fd/0", "name /dev/stdout, /dev/stderr or a file"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.redirections);
    std::filesystem::remove(errors());
    const std::string config = folder_ + "/config";
    std::ofstream(config) << "[log]\nfile = \"" << row.path << "\"\n";
    Subprocess daemon = Subprocess::Start(
        {.argv = {BerthdWith(row.redirections), "--backend=host", absl::StrCat("--folder=", folder_, "/run"),
                  absl::StrCat("--config=", config)},
         .environment = {"BERTH_SESSION", "BERTH_STATE"},
         .of_operator = true});
    EXPECT_EQ(daemon.Wait(), 1);
    const std::string said = TextOf(errors());
    EXPECT_TRUE(absl::StrContains(said, absl::StrCat(config, ":2: log.file: ", row.path, " is not an output"))) << said;
    EXPECT_TRUE(absl::StrContains(said, row.says)) << said;
  }
}

TEST_F(InheritedLogTest, LaterNamedFdIsRefusedAndChangesNothing) {
  const std::string file = folder_ + "/events";
  TestDaemon daemon({.program = BerthdWith("9>>" + folder_ + "/other"),
                     .config = absl::StrCat("[log]\nfile = \"", file, "\"\n")});
  std::ofstream(daemon.config_path()) << ConfigOf(9);
  const absl::Status refused = daemon.inspector().ReloadConfig().status();
  EXPECT_TRUE(absl::StrContains(refused.message(), "/dev/fd/9 is not an output of the daemon")) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "only at its start")) << refused;
  daemon.KillBroker();
  ExpectService(daemon);
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(TextOf(file), "\"action\":\"ALLOCATE\""); }));
  EXPECT_EQ(TextOf(folder_ + "/other"), "");
  daemon.Stop();
}

}  // namespace
}  // namespace berth::testing
