// `berth upgrade` under load: every process runs the new program, and no call fails. A daemon that is stopped is
// continued by the new program. In the soak, an older daemon is upgraded, too: BERTH_TEST_OLD_BERTHD is its program,
// which `tests/run --all` builds from the commit before.

#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <berth/block.h>
#include <berth/error.h>
#include <berth/permit.h>
#include <berth/session.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/device.pb.h"
#include "client/sdk/admin/inspector.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/installed.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// A client that leases and releases without a pause.
class Load {
 public:
  explicit Load(const TestDaemon& daemon)
      : session_(Must(Session::Open({.folder = daemon.folder(), .always_new = true}))), thread_([this] { Run(); }) {}
  // Ends the load. Returns the duration of its longest round.
  absl::Duration Stop() {
    stop_ = true;
    thread_.join();
    EXPECT_TRUE(Ok(failed_)) << "after " << rounds_ << " rounds";
    return longest_;
  }
  int rounds() const { return rounds_; }

 private:
  absl::Status Round() {
    absl::StatusOr<Permit> permit = Permit::Acquire(session_, {});
    if (!permit.ok()) return permit.status();
    absl::StatusOr<Block> block = Block::Allocate(session_, {.bytes = Bytes(kMiB)});
    if (!block.ok()) return block.status();
    if (const absl::Status freed = block->Free(); !freed.ok()) return freed;
    return permit->Release();
  }
  void Run() {
    while (!stop_ && failed_.ok()) {
      const absl::Time begin = absl::Now();
      failed_ = Round();
      longest_ = std::max(longest_, absl::Now() - begin);
      ++rounds_;
    }
  }

  const std::shared_ptr<Session> session_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> rounds_ = 0;
  // Owned by the thread until it has ended.
  absl::Status failed_;
  absl::Duration longest_;
  std::thread thread_;
};

// The program before the first upgrade: "this" or "older".
class UpgradeFromTest : public ::testing::TestWithParam<const char*> {
 protected:
  // Returns its path; empty where there is none.
  static std::string Program() {
    if (std::string(GetParam()) == "this") return ProgramPath("daemon/berthd");
    const char* const older = ::getenv("BERTH_TEST_OLD_BERTHD");
    return older == nullptr ? "" : older;
  }
  // Expects the accounts of the start, with the fds that a daemon of this program has at its start: an older program
  // has others.
  static void ExpectAccountsBack(TestDaemon& daemon, const TestDaemonOptions& options) {
    Accounts start = daemon.accounts_at_start();
    start.fds = TestDaemon(options).accounts_at_start().fds;
    EXPECT_TRUE(daemon.AccountsReturnTo(start));
  }
  static constexpr char kNoProgram[] = "BERTH_TEST_OLD_BERTHD names no older berthd";
};

INSTANTIATE_TEST_SUITE_P(From, UpgradeFromTest,
                         ::testing::ValuesIn(Soaks() ? std::vector<const char*>{"this", "older"}
                                                     : std::vector<const char*>{"this"}),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(UpgradeFromTest, UpgradeFailsNoCall) {
  if (Program().empty()) GTEST_SKIP() << kNoProgram;
  Installed installed(Program());
  TestDaemonOptions options = {.flags = {"--host-devices=2"}, .environment = {"BERTH_GPU_TEST_CONCURRENCY=8"}};
  const TestDaemonOptions of_this_program = options;
  options.program = installed.path();
  TestDaemon daemon(options);
  Actor holder(daemon);
  holder.Do("acquire p");
  holder.Do(absl::StrCat("allocate b ", 4 * kMiB));
  holder.Do("map b");
  holder.Do("fill b 7");
  std::vector<std::unique_ptr<Load>> loads;
  for (int i = 0; i < 3; ++i) loads.push_back(std::make_unique<Load>(daemon));
  const uint64_t incarnation = daemon.GetNode().incarnation();
  absl::Duration longest;
  for (int upgrade = 0; upgrade < 3; ++upgrade) {
    installed.Install();
    Subprocess command = Subprocess::Start({.argv = {ProgramPath("client/cli/berth"), "upgrade"},
                                            .environment = {absl::StrCat("BERTH_FOLDER=", daemon.folder()),
                                                            "BERTH_SESSION"}});
    const std::string said = command.ReadAll();
    EXPECT_EQ(command.Wait(), 0) << said;
    EXPECT_TRUE(installed.IsRunBy(daemon.supervisor_pid()));
    EXPECT_TRUE(installed.IsRunBy(daemon.broker()));
    // The last worker's replacement may not have started yet.
    EXPECT_TRUE(Eventually([&] { return daemon.workers().size() == 2; }));
    for (const pid_t worker : daemon.workers()) EXPECT_TRUE(installed.IsRunBy(worker));
    for (const auto& load : loads) {
      const int rounds = load->rounds();
      EXPECT_TRUE(Eventually([&] { return load->rounds() > rounds + 1; }));
    }
  }
  for (const auto& load : loads) longest = std::max(longest, load->Stop());
  RecordProperty("longest_round_ms", static_cast<int>(absl::ToInt64Milliseconds(longest)));
  std::cout << "the longest round of three upgrades under load: " << longest << std::endl;
  const v1::Node node = daemon.GetNode();
  EXPECT_EQ(node.incarnation(), incarnation);
  EXPECT_EQ(node.epoch(), 4u);
  EXPECT_TRUE(Ok(holder.Ask("check b 7")));
  EXPECT_TRUE(Ok(holder.Ask("access b")));
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  EXPECT_TRUE(Ok(holder.Ask("free b")));
  holder.Quit();
  loads.clear();
  ExpectAccountsBack(daemon, of_this_program);
}

// The daemon is stopped, and the new program started on its folder.
TEST_P(UpgradeFromTest, NewProgramResumesLeasesAfterStop) {
  if (Program().empty()) GTEST_SKIP() << kNoProgram;
  Installed installed(Program());
  TestDaemon daemon({.program = installed.path(), .environment = {"BERTH_GPU_TEST_CONCURRENCY=4"}});
  const auto run = [&](const std::string& until) {
    return Subprocess::Start({.argv = {ProgramPath("client/cli/berth"), "run", until, "--", "/bin/sh", "-c",
                                       "echo in; read line; exit 9"},
                              .environment = {absl::StrCat("BERTH_FOLDER=", daemon.folder()), "BERTH_SESSION"}});
  };
  Actor holder(daemon);
  Actor waiter(daemon);
  holder.Do("acquire p units=2");
  holder.Do(absl::StrCat("reserve r 0=", 8 * kMiB));
  Subprocess job = run("--until=command");
  Subprocess tree = run("--until=tree");
  for (Subprocess* const each : {&job, &tree}) ASSERT_EQ(Must(each->ReadLine()), "in");
  waiter.Do("begin q");
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  const auto account = [&] {
    Accounts accounts = daemon.TakeAccounts();
    accounts.fds.clear();
    return accounts;
  };
  const Accounts before = account();
  const uint64_t incarnation = daemon.GetNode().incarnation();
  EXPECT_EQ(before.units, 4u);
  EXPECT_EQ(before.reserved, 8 * kMiB);
  daemon.Stop();
  installed.Install();
  daemon.StartAgain();
  EXPECT_TRUE(installed.IsRunBy(daemon.supervisor_pid()));
  EXPECT_TRUE(installed.IsRunBy(daemon.broker()));
  EXPECT_TRUE(Eventually([&] { return account() == before; })) << Describe(account()) << Describe(before);
  EXPECT_EQ(daemon.GetNode().incarnation(), incarnation);
  for (Subprocess* const each : {&job, &tree}) {
    each->WriteLine("go");
    EXPECT_EQ(each->Wait(), 9);
    if (each != &job) continue;
    EXPECT_TRUE(Ok(waiter.Ask("join q")));
  }
  EXPECT_TRUE(Ok(waiter.Ask("release q")));
  EXPECT_TRUE(Ok(holder.Ask("acquire nested")));
  EXPECT_TRUE(Ok(holder.Ask("release nested")));
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  EXPECT_TRUE(Ok(holder.Ask("unreserve r")));
  holder.Quit();
  waiter.Quit();
  ExpectAccountsBack(daemon, {.environment = {"BERTH_GPU_TEST_CONCURRENCY=4"}});
}

TEST(UpgradeTest, UpgradeNeedsOperator) {
  TestDaemon daemon;
  const auto session = Must(Session::Open({.folder = daemon.folder(), .always_new = true}));
  EXPECT_TRUE(Refused(Inspector(session).UpgradeNode(), Reason::kAdminOnly));
}

}  // namespace
}  // namespace berth::testing
