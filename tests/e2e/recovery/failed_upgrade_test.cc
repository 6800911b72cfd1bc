// `berth upgrade` to a program that never takes over: the command reports why, the earlier program continues with every
// lease, and a later upgrade succeeds.

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/installed.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// Sets `fd` to the number of the socket to the broker.
constexpr char kFindBroker[] = "#!/bin/bash\nfor a; do case $a in --broker-fd=*) fd=${a#*=} ;; esac; done\n";
// Requests the handover state.
constexpr char kHandOver[] = "printf '\\013\\0\\0\\0' >&$fd\n";
// Starts a child, which has every fd of the program until the test ends. It opens the file for writing, too, so that it
// never waits for a writer; the time-out is for one that starts after the end of the test.
constexpr char kChild[] = "(read -t 60 line <>\"$0.fifo\")";

struct Program {
  std::string name;
  // The content of its file.
  std::string text;
};

class FailedUpgradeTest : public ::testing::Test {
 protected:
  // Starts a daemon with a holder of one permit and of a block, and a waiter for the permit.
  explicit FailedUpgradeTest(const std::vector<std::string>& environment = {})
      : daemon_({.program = installed_.path(), .environment = Environment(environment)}),
        berth_(daemon_.folder()),
        holder_(daemon_),
        waiter_(daemon_) {}

  void SetUp() override {
    holder_.Do("acquire p");
    holder_.Do(absl::StrCat("allocate b ", kMiB));
    holder_.Do("map b");
    holder_.Do("fill b 5");
    waiter_.Do("begin q");
    ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
    epoch_ = daemon_.GetNode().epoch();
    ASSERT_EQ(::mkfifo(fifo().c_str(), 0600), 0);
    end_.reset(::open(fifo().c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(end_);
    // An operator may move the running program before installing another one.
    std::filesystem::rename(installed_.path(), installed_.path() + ".earlier");
  }

  // Ends what the programs have left.
  void TearDown() override {
    const std::string lines(16, '\n');
    EXPECT_EQ(::write(end_.get(), lines.data(), lines.size()), static_cast<ssize_t>(lines.size()));
  }

  // Upgrades to each program, which fails for `reason`.
  void ExpectFailure(const std::vector<Program>& programs, const std::string& reason) {
    for (const Program& program : programs) {
      SCOPED_TRACE(program.name);
      const std::string next = installed_.path() + ".new";
      std::ofstream(next) << program.text;
      std::filesystem::permissions(next, std::filesystem::perms(0755));
      std::filesystem::rename(next, installed_.path());
      Subprocess command = berth_.Start({"upgrade"}, {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"});
      const std::string said = command.ReadAll();
      EXPECT_EQ(command.Wait(), 1) << said;
      EXPECT_TRUE(absl::StrContains(said, reason)) << said;
      EXPECT_TRUE(absl::StrContains(said, ": the earlier one continues")) << said;
      const v1::Node node = daemon_.GetNode();
      EXPECT_FALSE(node.upgrading());
      EXPECT_TRUE(absl::StrContains(node.upgrade_fault(), reason)) << node.upgrade_fault();
      EXPECT_EQ(node.epoch(), epoch_) << "the same broker";
      EXPECT_TRUE(Ok(holder_.Ask("check b 5")));
      const Accounts accounts = daemon_.TakeAccounts();
      EXPECT_EQ(accounts.permits, 1u);
      EXPECT_EQ(accounts.waiters, 1u);
      EXPECT_EQ(accounts.blocks, 1u);
    }
  }

  // The supervisor of the earlier program attends to the workers.
  void ExpectWorkerReplaced() {
    ASSERT_TRUE(Eventually([&] { return !daemon_.workers().empty(); }));
    const pid_t worker = daemon_.workers().at(0);
    ASSERT_EQ(::kill(worker, SIGKILL), 0);
    EXPECT_TRUE(Eventually([&] {
      const std::vector<pid_t> now = daemon_.workers();
      return !now.empty() && now[0] != worker;
    }));
    EXPECT_TRUE(Ok(holder_.Ask(absl::StrCat("allocate c ", kMiB))));
    EXPECT_TRUE(Ok(holder_.Ask("free c")));
  }

  void ExpectUpgrade() {
    installed_.Install();
    EXPECT_TRUE(Eventually([&] { return berth_.Run({"upgrade"}) == 0; }));
    EXPECT_TRUE(installed_.IsRunBy(daemon_.supervisor_pid()));
    EXPECT_TRUE(installed_.IsRunBy(daemon_.broker()));
    const v1::Node node = daemon_.GetNode();
    EXPECT_GT(node.epoch(), epoch_);
    EXPECT_EQ(node.upgrade_fault(), "");
  }

  void ExpectLeasesReturn() {
    EXPECT_TRUE(Ok(holder_.Ask("check b 5")));
    EXPECT_TRUE(Ok(holder_.Ask("free b")));
    EXPECT_TRUE(Ok(holder_.Ask("release p")));
    EXPECT_TRUE(Ok(waiter_.Ask("join q")));
    EXPECT_TRUE(Ok(waiter_.Ask("release q")));
    holder_.Quit();
    waiter_.Quit();
    daemon_.ExpectAccountsBack();
  }

  std::string fifo() const { return installed_.path() + ".fifo"; }

  Installed installed_;
  TestDaemon daemon_;
  const BerthCommand berth_;
  Actor holder_;
  Actor waiter_;
  uint64_t epoch_ = 0;
  // The programs' children read lines from it.
  UniqueFd end_;

 private:
  static std::vector<std::string> Environment(std::vector<std::string> more) {
    more.emplace_back("BERTH_GPU_TEST_CONCURRENCY=1");
    return more;
  }
};

TEST_F(FailedUpgradeTest, EndOfNewProgramIsReportedAtOnce) {
  ExpectFailure({{"no interpreter", "#!/no/such/interpreter\n"}}, "No such file or directory");
  ExpectFailure({{"another architecture", std::string("\x7f" "ELF") + std::string(60, '\0')}}, "Exec format error");
  ExpectFailure({{"exits with 0", "#!/bin/sh\nexit 0\n"},
                 {"exits with 1", "#!/bin/sh\nexit 1\n"},
                 {"dies by a signal", "#!/bin/sh\nkill -KILL $$\n"},
                 {"exits without standard files", "#!/bin/sh\nexec <&- >&- 2>&-\nexit 1\n"},
                 {"leaves a child with the socket", absl::StrCat("#!/bin/bash\n", kChild, " &\nexit 0\n")},
                 {"requests the state and exits", absl::StrCat(kFindBroker, kHandOver, "exit 0\n")}},
                "the new program ended before it took over");
  ExpectWorkerReplaced();
  ExpectUpgrade();
  ExpectLeasesReturn();
}

// With a short limit.
class HangingUpgradeTest : public FailedUpgradeTest {
 protected:
  HangingUpgradeTest() : FailedUpgradeTest(std::vector<std::string>{"BERTH_TEST_TAKE_OVER_MS=300"}) {}
};

TEST_F(HangingUpgradeTest, HangingProgramIsEnded) {
  ExpectFailure({{"sleeps", "#!/bin/sh\nexec sleep 300\n"},
                 {"stops itself", "#!/bin/sh\nkill -STOP $$\n"},
                 {"waits for a child with the socket", absl::StrCat("#!/bin/bash\n", kChild, "\nexit 0\n")},
                 {"requests the state and hangs", absl::StrCat(kFindBroker, kHandOver, "exec sleep 300\n")}},
                "the new program did not take over within ");
  // A program that takes over may need more than this limit, so the other test has the upgrade that succeeds.
  ExpectWorkerReplaced();
  ExpectLeasesReturn();
}

// With a short limit for a program whose broker has died.
class LonelyUpgradeTest : public FailedUpgradeTest {
 protected:
  LonelyUpgradeTest() : FailedUpgradeTest(std::vector<std::string>{"BERTH_TEST_PROGRAM_MS=500"}) {}
};

TEST_F(LonelyUpgradeTest, HangingProgramEndsAfterBrokerDeath) {
  const pid_t broker = daemon_.broker();
  const pid_t supervisor = daemon_.supervisor_pid();
  std::ofstream(installed_.path()) << "#!/bin/sh\nkill -KILL " << broker << "\nexec sleep 300\n";
  std::filesystem::permissions(installed_.path(), std::filesystem::perms(0755));
  Subprocess command = berth_.Start({"upgrade"});
  EXPECT_EQ(daemon_.supervisor().Wait(), 128 + SIGALRM);
  if (IsAlive(broker)) {
    // The machine is so slow that the limit passed before the program killed the broker.
    daemon_.AwaitSupervisorAfter(supervisor);
    return ExpectLeasesReturn();
  }
  command.Kill();
  // As a service manager does when the daemon's main process has ended.
  installed_.Install();
  daemon_.StartAgain();
  EXPECT_TRUE(Ok(holder_.Ask("release p")));
  EXPECT_TRUE(Ok(waiter_.Ask("join q")));
  EXPECT_TRUE(Ok(waiter_.Ask("release q")));
  holder_.Quit();
  waiter_.Quit();
  daemon_.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
