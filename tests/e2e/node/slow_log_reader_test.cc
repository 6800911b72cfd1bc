// A daemon whose log no process reads, or whose reader is slow: it serves, replaces its processes, and stops in time.

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/device.pb.h"
#include "client/sdk/admin/inspector.h"
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
  const v1::Node before = daemon.GetNode();
  EXPECT_TRUE(Ok(daemon.inspector().UpgradeNode()));
  EXPECT_TRUE(Eventually([&] {
    const absl::StatusOr<v1::Node> node = daemon.inspector().GetNode();
    return node.ok() && node->epoch() != before.epoch() && !node->upgrading();
  }));
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

}  // namespace
}  // namespace berth::testing
