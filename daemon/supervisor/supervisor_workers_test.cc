// How the supervisor handles devices and their workers, with real processes.

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/wire/state_page.h"
#include "daemon/supervisor/testing/supervisor_test_daemon.h"

namespace berth {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using SupervisorWorkersTest = SupervisorTest;

TEST_F(SupervisorWorkersTest, KilledWorkerIsReportedAndRestarted) {
  const auto daemon = StartReady();
  ASSERT_EQ(Ask("create 1"), "2097152");
  daemon->KillChild("berth-worker1");
  EXPECT_THAT(Ask("await up 1"), HasSubstr("down 1\nup 1\n"));
  EXPECT_EQ(Ask("create 1"), "2097152");
  EXPECT_EQ(Ask("create 0"), "2097152");
}

TEST_F(SupervisorWorkersTest, FourthWorkerDeathStopsOnlyItsDevice) {
  const auto daemon = StartReady();
  std::string seen;
  for (int death = 1; death <= 3; ++death) {
    ASSERT_EQ(Ask("create 0"), "2097152");
    daemon->KillChild("berth-worker0");
    seen += "down 0\nup 0\n";
    ASSERT_EQ(Ask(absl::StrCat("await ", seen)), seen);
  }
  ASSERT_EQ(Ask("create 0"), "2097152");
  daemon->KillChild("berth-worker0");
  EXPECT_EQ(Ask(absl::StrCat("await ", seen, "down 0 stopped\n")), absl::StrCat(seen, "down 0 stopped\n"));
  EXPECT_EQ(daemon->Child("berth-worker0"), 0);
  EXPECT_EQ(Ask("create 1"), "2097152");
  daemon->KillChild("berth-broker");
  EXPECT_EQ(Ask("await down"), "down 0 stopped\n") << "the next broker is told as well";
}

TEST_F(SupervisorWorkersTest, EnabledDeviceHasFreshRestarts) {
  const auto daemon = StartReady();
  std::string seen;
  for (int death = 1; death <= 4; ++death) {
    ASSERT_EQ(Ask("create 0"), "2097152");
    daemon->KillChild("berth-worker0");
    seen += death < 4 ? "down 0\nup 0\n" : "down 0 stopped\n";
    ASSERT_EQ(Ask(absl::StrCat("await ", seen)), seen);
  }
  EXPECT_EQ(Ask("status 0"), "left 0, generation 1: the worker ended: signal 9");
  EXPECT_EQ(Ask("command enable 0"), "OK");
  EXPECT_EQ(Ask(absl::StrCat("await ", seen, "up 0\n")), seen + "up 0\n");
  EXPECT_EQ(Ask("create 0"), "2097152");
  EXPECT_EQ(Ask("status 0"), "left 3, generation 1: the worker ended: signal 9");
  // A device that is not stopped needs no enabling.
  EXPECT_EQ(Ask("command enable 0"), "OK");
  EXPECT_EQ(Ask("command enable 63"), "OK");
  EXPECT_EQ(Ask("create 0"), "2097152");
}

TEST_F(SupervisorWorkersTest, ContextWorkerExistsFromFirstCommandToItsEnd) {
  const auto daemon = StartReady();
  const StatePage page = daemon->Page();
  EXPECT_EQ(daemon->Child("berth-context0"), 0);
  EXPECT_EQ(page->devices[0].context_generation, 0u);
  EXPECT_EQ(Ask("command start 0"), "OK");
  EXPECT_EQ(Ask("await up 0c"), "up 0c\n");
  EXPECT_EQ(page->devices[0].context_generation, 1u);
  EXPECT_EQ(Ask("create-context 0"), "by handle");
  EXPECT_NE(daemon->Child("berth-context0"), 0);
  // The context worker runs already.
  EXPECT_EQ(Ask("command start 0"), "OK");
  EXPECT_EQ(Ask("status 0c"), "left 3, generation 1: ");
  EXPECT_EQ(Ask("command end 0"), "OK");
  EXPECT_EQ(Ask("await up 0c\ndown 0c idle\n"), "up 0c\ndown 0c idle\n");
  EXPECT_EQ(page->devices[0].context_generation, 2u);
  EXPECT_EQ(Ask("status 0c"), "left 3, generation 2: ");
  EXPECT_EQ(daemon->Child("berth-context0"), 0);
  // The context worker's files are removed, and the main worker was never touched.
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/ipc"));
  EXPECT_EQ(page->devices[0].generation, 1u);
  EXPECT_EQ(page->devices[1].context_generation, 0u);
  EXPECT_EQ(Ask("create 0"), "2097152");
}

TEST_F(SupervisorWorkersTest, FourthContextWorkerDeathStopsOnlyIt) {
  const auto daemon = StartReady();
  const StatePage page = daemon->Page();
  std::string seen;
  for (int death = 1; death <= 4; ++death) {
    EXPECT_EQ(Ask("command start 0"), "OK");
    seen += "up 0c\n";
    ASSERT_EQ(Ask(absl::StrCat("await ", seen)), seen);
    ASSERT_EQ(Ask("create-context 0"), "by handle");
    daemon->KillChild("berth-context0");
    seen += death < 4 ? "down 0c idle\n" : "down 0c stopped\n";
    ASSERT_EQ(Ask(absl::StrCat("await ", seen)), seen);
    EXPECT_EQ(page->devices[0].context_generation, 1u + death);
  }
  EXPECT_EQ(Ask("status 0c"), "left 0, generation 5: the worker ended: signal 9");
  EXPECT_EQ(Ask("status 0"), "left 3, generation 1: ");
  EXPECT_EQ(Ask("command start 0"), "OK");
  EXPECT_EQ(Ask("command enable 0c"), "OK");
  EXPECT_EQ(Ask("command start 0"), "OK");
  EXPECT_THAT(Ask("await down 0c stopped\nup 0c"), HasSubstr("down 0c stopped\nup 0c\n"));
  EXPECT_EQ(Ask("create 0"), "2097152");
}

TEST_F(SupervisorWorkersTest, NextBrokerReceivesExistingContextWorker) {
  const auto daemon = StartReady();
  EXPECT_EQ(Ask("command start 1"), "OK");
  EXPECT_EQ(Ask("await up 1c"), "up 1c\n");
  daemon->KillChild("berth-broker");
  EXPECT_EQ(Ask("create-context 1"), "by handle");
}

TEST_F(SupervisorWorkersTest, ResetAndDropEndContextWorker) {
  const auto daemon = StartReady();
  const StatePage page = daemon->Page();
  std::string seen = "up 0c\n";
  EXPECT_EQ(Ask("command start 0"), "OK");
  ASSERT_EQ(Ask(absl::StrCat("await ", seen)), seen);
  ASSERT_EQ(Ask("create-context 0"), "by handle");
  EXPECT_EQ(Ask("command reset 0"), "OK");
  EXPECT_THAT(Ask("await down 0c idle"), HasSubstr("down 0c idle\n"));
  EXPECT_EQ(page->devices[0].context_generation, 2u);
  EXPECT_EQ(page->devices[0].generation, 2u);
  EXPECT_EQ(Ask("command drop 0"), "OK");
  EXPECT_THAT(Ask("await down 0 stopped"), HasSubstr("down 0 stopped\n"));
  EXPECT_EQ(Ask("command start 0"), "OK");
  EXPECT_THAT(Ask("status 0c"), HasSubstr("dropped"));
  EXPECT_EQ(daemon->Child("berth-context0"), 0);
}

TEST_F(SupervisorWorkersTest, OnlyKilledRestartsCount) {
  const auto daemon = StartReady();
  std::string seen;
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(Ask("create 0"), "2097152");
    EXPECT_EQ(Ask("command restart 0"), "OK");
    seen += "down 0\nup 0\n";
    ASSERT_EQ(Ask(absl::StrCat("await ", seen)), seen);
  }
  EXPECT_EQ(Ask("status 0"), "left 3, generation 1: ordered to restart");
  EXPECT_EQ(Ask("command kill 0"), "OK");
  seen += "down 0\nup 0\n";
  ASSERT_EQ(Ask(absl::StrCat("await ", seen)), seen);
  EXPECT_EQ(Ask("status 0"), "left 2, generation 1: ordered to kill");
  EXPECT_EQ(Ask("create 1"), "2097152");
}

TEST_F(SupervisorWorkersTest, ResetMovesGenerationBeforeNextWorker) {
  const auto daemon = StartReady();
  const StatePage page = daemon->Page();
  ASSERT_EQ(Ask("create 0"), "2097152");
  EXPECT_EQ(Ask("command reset 0"), "OK");
  ASSERT_THAT(Ask("await up 0"), HasSubstr("down 0\nup 0\n"));
  EXPECT_EQ(page->devices[0].generation, 2u);
  EXPECT_EQ(page->devices[1].generation, 1u);
  EXPECT_EQ(Ask("status 0"), "left 3, generation 2: ordered to reset");
  daemon->KillChild("berth-broker");
  EXPECT_EQ(Ask("status 0"), "left 3, generation 2: ordered to reset") << "the next broker is told as well";
}

TEST_F(SupervisorWorkersTest, DroppedDeviceStaysDropped) {
  const auto daemon = StartReady();
  const StatePage page = daemon->Page();
  ASSERT_EQ(Ask("create 0"), "2097152");
  EXPECT_EQ(Ask("command drop 0"), "OK");
  EXPECT_THAT(Ask("await down 0 stopped"), HasSubstr("down 0 stopped"));
  EXPECT_EQ(page->devices[0].dropped, 1u);
  EXPECT_EQ(page->devices[1].dropped, 0u);
  EXPECT_EQ(Ask("command enable 0"), "OK");
  EXPECT_EQ(Ask("status 0"), "left 0, generation 1, dropped: ordered to drop");
  EXPECT_EQ(daemon->Child("berth-worker0"), 0);
  EXPECT_EQ(Ask("create 1"), "2097152");
}

TEST_F(SupervisorWorkersTest, LostDeviceMovesGenerationAndStaysStopped) {
  Daemon daemon(folder_, {{"BERTH_FAKE_WORKER", "13"}});
  ASSERT_TRUE(daemon.AwaitReady());
  const StatePage page = daemon.Page();
  Ask("create 1");
  EXPECT_THAT(Ask("await down 1 lost"), HasSubstr("down 1 lost"));
  EXPECT_EQ(page->devices[1].generation, 2u);
  EXPECT_EQ(page->devices[1].dropped, 0u) << "it may come back";
  EXPECT_EQ(Ask("status 1"), "left 0, generation 2: the driver reports the device as lost");
  // The monitor reports the same loss a moment later.
  EXPECT_EQ(Ask("command lose 1"), "OK");
  EXPECT_EQ(Ask("status 1"), "left 0, generation 2: the driver reports the device as lost");
  EXPECT_EQ(page->devices[1].generation, 2u);
  EXPECT_EQ(Ask("create 0"), "2097152");
  EXPECT_EQ(Ask("command enable 1"), "OK");
  EXPECT_THAT(Ask("await up 1"), HasSubstr("up 1"));
  EXPECT_EQ(page->devices[1].generation, 2u);
}

TEST_F(SupervisorWorkersTest, LostDeviceIsReportedToNextBroker) {
  Daemon daemon(folder_, {{"BERTH_FAKE_WORKER", "13"}});
  ASSERT_TRUE(daemon.AwaitReady());
  Ask("create 1");
  ASSERT_THAT(Ask("await down 1 lost"), HasSubstr("down 1 lost"));
  daemon.KillChild("berth-broker");
  EXPECT_THAT(Ask("await down 1 lost"), HasSubstr("down 1 lost"));
  EXPECT_EQ(daemon.Page()->devices[1].generation, 2u);
}

TEST_F(SupervisorWorkersTest, DeviceFailedAtStartIsStoppedWithReason) {
  Daemon daemon(folder_, {{"BERTH_FAKE_FAILED", "1"}});
  ASSERT_TRUE(daemon.AwaitReady());
  EXPECT_EQ(Ask("status 1"),
            "left 0, generation 1: the device failed at the daemon's start: cuDeviceTotalMem: CUDA_ERROR_UNKNOWN "
            "(999)");
  EXPECT_EQ(daemon.Child("berth-worker1"), 0);
  EXPECT_EQ(Ask("create 0"), "2097152");
}

TEST_F(SupervisorWorkersTest, UnclearedDeviceIsStoppedUntilOperatorEnablesIt) {
  Daemon daemon(folder_, {{"BERTH_FAKE_STALE", "1"}});
  ASSERT_TRUE(daemon.AwaitReady());
  EXPECT_EQ(Ask("status 1"),
            "left 0, generation 1: the driver does not clear memory between processes: found 3 stale words in 1 GiB");
  EXPECT_EQ(daemon.Child("berth-worker1"), 0);
  EXPECT_EQ(Ask("create 0"), "2097152");
  EXPECT_EQ(Ask("command enable 1"), "OK");
  EXPECT_THAT(Ask("await up 1"), HasSubstr("up 1"));
  EXPECT_EQ(Ask("create 1"), "2097152");
}

TEST_F(SupervisorWorkersTest, UnkillableWorkerIsAbandonedUntilItsEnd) {
  const auto daemon = StartReady();
  ASSERT_EQ(Ask("create 0"), "2097152");
  const int worker = daemon->Child("berth-worker0");
  // Simulates a worker stuck in the driver: ptrace holds it at its exit until it is detached.
  if (::ptrace(PTRACE_SEIZE, worker, nullptr, PTRACE_O_TRACEEXIT) < 0) {
    GTEST_SKIP() << "no right to trace: " << strerror(errno);
  }
  const UniqueFd pidfd = OpenPidfd(worker);
  EXPECT_EQ(Ask("command kill 0"), "OK");
  int stopped = 0;
  ASSERT_EQ(::waitpid(worker, &stopped, __WALL), worker);
  ASSERT_TRUE(WIFSTOPPED(stopped));
  EXPECT_EQ(Ask("await down 0 abandoned\n"), "down 0 abandoned\n");
  EXPECT_THAT(Ask("status 0"), HasSubstr("ordered to kill; it did not end within 2 s of SIGKILL"));
  EXPECT_FALSE(IsGone(pidfd.get()));
  EXPECT_EQ(Ask("create 1"), "2097152") << "nobody else is touched";
  // No other worker starts while the abandoned one exists, and a new broker learns of it.
  EXPECT_EQ(Ask("command enable 0"), "OK");
  daemon->KillChild("berth-broker");
  EXPECT_EQ(Ask("await down 0"), "down 0 abandoned\n");
  EXPECT_THAT(Ask("held"), Not(HasSubstr("8 0\n")));
  ASSERT_EQ(::ptrace(PTRACE_DETACH, worker, nullptr, nullptr), 0);
  EXPECT_EQ(Ask("await down 0 stopped\n"), "down 0 abandoned\ndown 0 stopped\n");
  EXPECT_EQ(Ask("command enable 0"), "OK");
  EXPECT_THAT(Ask("await up 0"), HasSubstr("up 0"));
  EXPECT_EQ(Ask("create 0"), "2097152");
}

// ---- Inspecting known devices --------------------------------------------------------------------------------

TEST_F(SupervisorWorkersTest, LostDeviceNeedsEnablingAndSelfTest) {
  const auto daemon = StartReady();
  const StatePage page = daemon->Page();
  ASSERT_EQ(Ask("create 0"), "2097152");
  EXPECT_EQ(Ask("command lose 0"), "OK");
  EXPECT_THAT(Ask("await down 0 lost"), HasSubstr("down 0 lost"));
  EXPECT_EQ(page->devices[0].generation, 2u);
  EXPECT_EQ(Ask("status 0"), "left 0, generation 2: ordered to lose");
  EXPECT_EQ(daemon->Child("berth-worker0"), 0);
  // One report is enough.
  EXPECT_EQ(Ask("command lose 0"), "OK");
  EXPECT_EQ(Ask("status 0"), "left 0, generation 2: ordered to lose");
  EXPECT_EQ(Ask("create 1"), "2097152");
  EXPECT_EQ(Ask("command enable 0"), "OK");
  EXPECT_THAT(Ask("await up 0"), HasSubstr("up 0"));
  EXPECT_EQ(Ask("create 0"), "2097152");
  EXPECT_EQ(page->devices[0].generation, 2u);
}

TEST_F(SupervisorWorkersTest, DrainIsReportedToNextBroker) {
  const auto daemon = StartReady();
  // The fake broker answers when it has sent the command; the supervisor's status arrives later.
  const auto status_becomes = [&](const std::string& expected) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (Ask("status 1") != expected && absl::Now() < deadline) std::this_thread::yield();
    return Ask("status 1") == expected;
  };
  EXPECT_EQ(Ask("command drain 1"), "OK");
  EXPECT_TRUE(status_becomes("left 3, generation 1: ; drained: ordered to drain"));
  daemon->KillChild("berth-broker");
  EXPECT_EQ(Ask("status 1"), "left 3, generation 1: ; drained: ordered to drain");
  EXPECT_EQ(Ask("status 0"), "left 3, generation 1: ");
  EXPECT_EQ(Ask("command undrain 1"), "OK");
  EXPECT_TRUE(status_becomes("left 3, generation 1: "));
  EXPECT_EQ(daemon->Child("berth-monitor"), 0) << "there is nothing to read";
}

class SupervisorMonitorTest : public SupervisorTest {
 protected:
  void Describe(const std::string& now) const {
    std::ofstream(script_) << "refresh = \"5ms\"\n[[device]]\ncount = 2\nmemory = \"64MiB\"\n" << now << "\n";
  }
  std::unique_ptr<Daemon> StartNode() {
    Describe("");
    auto daemon = std::make_unique<Daemon>(
        folder_, std::map<std::string, std::string>(),
        std::vector<std::string>{"--role=vault", "--backend=host", "--host-devices-file=" + script_});
    EXPECT_TRUE(daemon->AwaitReady());
    return daemon;
  }
  const std::string script_ = absl::StrCat(::testing::TempDir(), "/supervisor-node-", ::getpid(), ".toml");
};

TEST_F(SupervisorMonitorTest, MonitorIsReplacedHoweverItEnds) {
  const auto daemon = StartNode();
  EXPECT_TRUE(Becomes([&] { return daemon->Child("berth-monitor") != 0; })) << "once it has its name";
  EXPECT_THAT(Ask("held"), HasSubstr("11 0\n"));
  daemon->KillChild("berth-monitor");
  EXPECT_EQ(Ask("await monitor\n"), "monitor\n");
  EXPECT_EQ(Ask("command kill-monitor 0"), "OK");
  EXPECT_EQ(Ask("await monitor\nmonitor\n"), "monitor\nmonitor\n");
  // The next broker has the monitor from its start.
  daemon->KillChild("berth-broker");
  EXPECT_THAT(Ask("held"), HasSubstr("11 0\n"));
  EXPECT_EQ(Ask("create 1"), "2097152");
  daemon->Signal(SIGTERM);
  EXPECT_EQ(daemon->AwaitExit(), 0);
}

TEST_F(SupervisorMonitorTest, FailedSelfTestStopsDeviceWithReason) {
  const auto daemon = StartNode();
  Describe("[now.1]\nfails_self_test = \"its memory is bad\"");
  EXPECT_EQ(Ask("command lose 1"), "OK");
  EXPECT_THAT(Ask("await down 1 lost"), HasSubstr("down 1 lost"));
  EXPECT_EQ(Ask("command enable 1"), "OK");
  EXPECT_THAT(Ask("await down 1 lost\ndown 1 stopped\n"), HasSubstr("down 1 lost\ndown 1 stopped\n"));
  EXPECT_EQ(Ask("status 1"), "left 0, generation 2: the self-test failed: its memory is bad");
  Describe("");
  EXPECT_EQ(Ask("command enable 1"), "OK");
  EXPECT_THAT(Ask("await up 1"), HasSubstr("up 1"));
  EXPECT_EQ(Ask("create 1"), "2097152");
}

}  // namespace
}  // namespace berth
