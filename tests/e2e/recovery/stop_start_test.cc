// A daemon that is stopped, or killed with all its processes, and restarted: leases continue, and the count is true.

#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <berth/block_handle.h>
#include <berth/error.h>
#include <berth/session.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/admin/inspector.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

enum class Way { kStopped, kKilled };
std::ostream& operator<<(std::ostream& out, Way way) {
  return out << (way == Way::kStopped ? "Stopped" : "Killed");
}

class StopStartTest : public ::testing::TestWithParam<Way> {
 protected:
  explicit StopStartTest(const std::vector<std::string>& flags = {}, int cap = 1)
      : daemon_({.flags = flags, .environment = {absl::StrCat("BERTH_GPU_TEST_CONCURRENCY=", cap)}}),
        berth_(daemon_.folder()) {}

  void End() {
    if (GetParam() == Way::kStopped) {
      daemon_.Stop();
    } else {
      daemon_.KillSupervisorAndBroker();
    }
  }
  void Restart() {
    End();
    daemon_.StartAgain();
  }

  // Without a session: a daemon that is killed may not have noticed the end of one that this process has closed.
  Inspector Look() {
    return Inspector(Must(Session::Open({.folder = daemon_.folder(), .observer = true, .always_new = true})));
  }
  // Starts `berth run` with these words, with stderr redirected to stdout.
  Subprocess Run(const std::vector<std::string>& words) {
    std::vector<std::string> argv = {"/bin/sh", "-c", "exec \"$0\" run \"$@\" 2>&1", ProgramPath("client/cli/berth")};
    argv.insert(argv.end(), words.begin(), words.end());
    return Subprocess::Start(
        {.argv = argv, .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION"}});
  }
  // Whether a newcomer is refused because no permit is free.
  bool IsFull() { return Run({"--no-wait", "--", "/bin/true"}).Wait() == 75; }
  bool PermitsBecome(uint64_t count) {
    return daemon_.AccountsBecome([count](const Accounts& accounts) { return accounts.permits == count; });
  }

  TestDaemon daemon_;
  BerthCommand berth_;
};

TEST_P(StopStartTest, PermitSurvivesRestartAndIsReleased) {
  for (const char* const open : {"", "cache"}) {
    SCOPED_TRACE(open);
    Actor holder(daemon_, {.open = false});
    holder.Do(absl::StrCat("open ", open));
    holder.Do("acquire p");
    Restart();
    EXPECT_TRUE(IsFull()) << "the permit is out still";
    EXPECT_TRUE(Ok(holder.Ask("status")));
    EXPECT_TRUE(Ok(holder.Ask("acquire nested"))) << "nests in the permit that it has";
    EXPECT_TRUE(Ok(holder.Ask("release nested")));
    EXPECT_TRUE(Ok(holder.Ask("release p")));
    EXPECT_TRUE(PermitsBecome(0));
    EXPECT_TRUE(Ok(holder.Ask("acquire again"))) << "the session goes on as before";
    EXPECT_TRUE(Ok(holder.Ask("release again")));
    holder.Quit();
    EXPECT_TRUE(PermitsBecome(0));
  }
  daemon_.ExpectAccountsBack();
}

TEST_P(StopStartTest, PermitOfProcessEndedDuringStopReturns) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  End();
  holder.Kill();
  daemon_.StartAgain();
  EXPECT_TRUE(PermitsBecome(0));
  daemon_.ExpectAccountsBack();
}

TEST_P(StopStartTest, UnresumedProcessCountsUntilItEnds) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  holder.process().Signal(SIGSTOP);
  Restart();
  EXPECT_TRUE(IsFull());
  holder.Kill();
  EXPECT_TRUE(PermitsBecome(0));
  daemon_.ExpectAccountsBack();
}

TEST_P(StopStartTest, WaiterSurvivesRestartAndIsGranted) {
  Actor holder(daemon_);
  Actor waiter(daemon_);
  holder.Do("acquire p");
  waiter.Do("begin q");
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  Restart();
  EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  EXPECT_TRUE(Ok(waiter.Ask("join q")));
  EXPECT_TRUE(Ok(waiter.Ask("release q")));
  holder.Quit();
  waiter.Quit();
  daemon_.ExpectAccountsBack();
}

TEST_P(StopStartTest, LeasesOutliveTwoRestartsAndBrokerDeath) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  Restart();
  daemon_.KillBroker();
  EXPECT_TRUE(IsFull());
  daemon_.KillSupervisor();
  Restart();
  EXPECT_TRUE(IsFull());
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  holder.Quit();
  EXPECT_TRUE(PermitsBecome(0));
  daemon_.ExpectAccountsBack();
}

TEST_P(StopStartTest, BrokerDeathBeforeResumeLosesNothing) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  holder.process().Signal(SIGSTOP);
  Restart();
  daemon_.KillBroker();
  EXPECT_TRUE(IsFull());
  holder.process().Signal(SIGCONT);
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  holder.Quit();
  EXPECT_TRUE(PermitsBecome(0));
  daemon_.ExpectAccountsBack();
}

// A job that holds the permit: the script that acquires and becomes the command "$@" or its wrapper, and whether the
// wrapper is killed before the daemon ends.
struct Job {
  const char* name;
  const char* script;
  bool kill_wrapper = false;
};

TEST_P(StopStartTest, JobCountsUntilItsLastHolderEnds) {
  const Job jobs[] = {
      {"command", "exec $BERTH run -- \"$@\""},
      {"tree", "exec $BERTH run --until=tree -- \"$@\""},
      {"tree without its wrapper", "exec $BERTH run --until=tree -- \"$@\"", /*kill_wrapper=*/true},
      {"exec", "exec $BERTH run --exec -- \"$@\""},
      {"cgroup", "exec $BERTH run --cgroup -- \"$@\""},
      {"cgroup without its wrapper", "exec $BERTH run --cgroup -- \"$@\"", /*kill_wrapper=*/true},
      {"ctest", "exec $BERTH ctest-run -- \"$@\""},
      // The owner process holds the permit beside the owner, which never releases it.
      {"owner", "$BERTH --json acquire --owner $$ >/dev/null && exec \"$@\""},
  };
  for (const Job& job : jobs) {
    SCOPED_TRACE(job.name);
    Subprocess run = Subprocess::Start(
        {.argv = {"/bin/sh", "-c", absl::StrCat("exec 2>&1; ", job.script), "sh", "/bin/sh", "-c",
                  "echo $$; read line; exit 9"},
         .environment = {absl::StrCat("BERTH=", ProgramPath("client/cli/berth")),
                         absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION", "BERTH_PERMIT_KEEPER"}});
    const std::string first = Must(run.ReadLine());
    if (absl::StrContains(first, "cgroup")) continue;
    int32_t command;
    ASSERT_TRUE(absl::SimpleAtoi(first, &command)) << first;
    if (job.kill_wrapper) {
      run.Kill();
      run.Wait();
    }
    Restart();
    EXPECT_TRUE(IsFull());
    if (job.kill_wrapper) {
      ::kill(command, SIGKILL);
    } else {
      run.WriteLine("go");
      EXPECT_EQ(run.Wait(), 9) << "the command's own code";
      EXPECT_EQ(run.ReadAll(), "") << "nothing was said";
    }
    EXPECT_TRUE(PermitsBecome(0));
    daemon_.ExpectAccountsBack();
  }
}

TEST_P(StopStartTest, RestartIsNotReportedAsRevocation) {
  Subprocess run = Run({"--on-revoke", "TERM", "--", "/bin/sh", "-c",
                        "trap 'echo told; exit 3' TERM; echo in; read line; echo untold"});
  ASSERT_EQ(Must(run.ReadLine()), "in");
  Restart();
  EXPECT_TRUE(IsFull());
  run.WriteLine("go");
  EXPECT_EQ(Must(run.ReadLine()), "untold");
  EXPECT_EQ(run.Wait(), 0);
  daemon_.ExpectAccountsBack();
}

TEST_P(StopStartTest, OwnerProcessOfShellKeepsItsPermit) {
  Subprocess shell = Subprocess::Start(
      {.argv = {"/bin/sh", "-c",
                absl::StrCat("b=", ProgramPath("client/cli/berth"),
                             "; eval \"$($b acquire --shell)\" || exit 1; echo in; read line; "
                             "eval \"$($b release --shell)\"; echo $?; read line")},
       .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION"}});
  ASSERT_EQ(Must(shell.ReadLine()), "in");
  Restart();
  EXPECT_TRUE(IsFull());
  shell.WriteLine("go");
  EXPECT_EQ(Must(shell.ReadLine()), "0");
  EXPECT_TRUE(PermitsBecome(0));
  shell.CloseInput();
  shell.Wait();
  daemon_.ExpectAccountsBack();
}

TEST_P(StopStartTest, SessionClosedWithoutDaemonEndsAtRestart) {
  // The actor waits for the end of a release that no daemon answers.
  Actor actor(daemon_, {.environment = {"BERTH_TEST_PATIENCE=1"}});
  actor.Do("acquire p");
  End();
  actor.Do("close");
  daemon_.StartAgain();
  // The process lives on.
  EXPECT_TRUE(PermitsBecome(0));
  daemon_.ExpectAccountsBack();
  actor.Quit();
}

TEST_P(StopStartTest, LaterAcquireJoinsThroughOwnerProcess) {
  Subprocess shell = Subprocess::Start(
      {.argv = {"/bin/sh", "-s"},
       .environment = {absl::StrCat("b=", ProgramPath("client/cli/berth")),
                       absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION", "BERTH_PERMIT_KEEPER"}});
  const auto says = [&](const std::string& line) {
    shell.WriteLine(line + " 2>&1; echo $?");
    return Must(shell.ReadLine());
  };
  ASSERT_EQ(says("eval \"$($b acquire --shell)\""), "0");
  const std::string outer = (shell.WriteLine("echo $BERTH_SESSION"), Must(shell.ReadLine()));
  Restart();
  EXPECT_TRUE(IsFull());
  // The acquire nests: the pool has one unit.
  EXPECT_EQ(says("eval \"$($b acquire --shell --no-wait)\""), "0");
  EXPECT_EQ((shell.WriteLine("echo $BERTH_SESSION"), Must(shell.ReadLine())), outer) << "the same session";
  EXPECT_EQ(says("$b run --no-wait -- /bin/true"), "0");
  Restart();
  EXPECT_EQ(says("eval \"$($b release --shell)\""), "0") << "the inner permit";
  EXPECT_TRUE(IsFull()) << "the outer permit is out still";
  EXPECT_EQ(says("eval \"$($b release --shell)\""), "0");
  EXPECT_TRUE(PermitsBecome(0));
  shell.CloseInput();
  shell.Wait();
  daemon_.ExpectAccountsBack();
}

TEST_P(StopStartTest, RestartLosesBlocksAndFreesTheirNames) {
  Actor owner(daemon_);
  Actor importer(daemon_);
  const BlockHandle handle = owner.Allocate("b", 4194304);
  owner.Do("map b");
  owner.Do("fill b 3");
  owner.Do(absl::StrCat("grant-session b ", importer.session().value()));
  importer.Do(absl::StrCat("import b ", FormatHandle(handle)));
  importer.Do("map b");
  Actor publisher(daemon_);
  publisher.Allocate("w", 4194304);
  publisher.Do("publish w weights");
  Restart();
  EXPECT_TRUE(Eventually([&] { return Refused(importer.Ask("import-published x weights"), Reason::kDenied); }));
  publisher.Allocate("v", 4194304);
  EXPECT_TRUE(Ok(publisher.Ask("publish v weights"))) << "the name is free";
  EXPECT_TRUE(Ok(publisher.Ask("unpublish weights")));
  publisher.Quit();
  const auto says_lost = [&](Actor& actor, const std::string& command) {
    const absl::Status status = actor.Ask(command).status();
    return Refused(status, Reason::kStale) &&
           absl::StrContains(status.message(), "lost: its memory ended with the daemon that held it");
  };
  for (Actor* const actor : {&owner, &importer}) {
    EXPECT_TRUE(Eventually([&] { return says_lost(*actor, "access b"); }));
    EXPECT_TRUE(Ok(actor->Ask("check b 3"))) << "the process keeps what it has mapped";
  }
  const std::string blocks = berth_.Show({"--admin", "blocks"});
  EXPECT_TRUE(absl::StrContains(blocks, "QUARANTINED, lost")) << blocks;
  EXPECT_TRUE(says_lost(owner, "grant-session b 1"));
  EXPECT_TRUE(says_lost(owner, "free b"));
  importer.Quit();
  EXPECT_TRUE(Ok(owner.Ask("allocate c 4194304")));
  EXPECT_TRUE(Ok(owner.Ask("map c")));
  EXPECT_TRUE(Ok(owner.Ask("fill c 3")));
  EXPECT_TRUE(Ok(owner.Ask("access c")));
  owner.Quit();
  daemon_.ExpectAccountsBack();
}

TEST_P(StopStartTest, OperatorSettingsStayUntilDefault) {
  const auto set = [&](const std::vector<std::string>& words) { EXPECT_EQ(berth_.Run(words), 0) << words.back(); };
  const auto settings = [&] {
    Inspector look = Look();
    std::string text;
    const v1::ListPoolsResponse pools = Must(look.ListPools());
    const v1::ListBudgetsResponse budgets = Must(look.ListBudgets());
    for (const v1::Pool& pool : pools.pools()) {
      absl::StrAppend(&text, pool.name(), " cap ", pool.cap(), ", hold limit ", pool.hold_limit().seconds());
      for (const v1::TenantWeight& weight : pool.weights()) absl::StrAppend(&text, ", weight ", weight.weight());
      absl::StrAppend(&text, "\n");
    }
    absl::StrAppend(&text, "drained: ", Must(look.ListDevices()).devices(0).drain_reason(), "\n");
    for (const v1::Budget& budget : budgets.budgets()) {
      const bool of_session = budget.layer() == v1::Budget::SESSION;
      if (!of_session) absl::StrAppend(&text, v1::Budget::Layer_Name(budget.layer()), " ", budget.limit_bytes(), "\n");
    }
    return text;
  };
  const std::string configured = settings();
  set({"--admin", "permits", "set", "gpu-tests", "3", "--hold-limit", "2h", "--weight", "4711=5"});
  set({"device", "drain", "0", "--reason", "fan"});
  set({"--admin", "budget", "set", "3GiB"});
  set({"--admin", "budget", "set", "1GiB", "--tenant", "4711"});
  const std::string by_operator = settings();
  EXPECT_NE(by_operator, configured);
  Restart();
  EXPECT_EQ(settings(), by_operator) << "after a stop";
  End();
  daemon_.ForgetBoot();
  daemon_.StartAgain();
  EXPECT_EQ(settings(), by_operator) << "after a boot";
  set({"--admin", "permits", "set", "gpu-tests", "default"});
  set({"device", "undrain", "0"});
  set({"--admin", "budget", "set", "default"});
  set({"--admin", "budget", "set", "default", "--tenant", "4711"});
  EXPECT_EQ(settings(), configured);
  Restart();
  EXPECT_EQ(settings(), configured) << "after a stop";
  End();
  daemon_.ForgetBoot();
  daemon_.StartAgain();
  EXPECT_EQ(settings(), configured) << "after a boot";
}

TEST_P(StopStartTest, DeletedSettingsAreWrittenAgain) {
  EXPECT_EQ(berth_.Run({"device", "drain", "0", "--reason", "fan"}), 0);
  const std::string path = daemon_.folder() + "/state/operator_settings.json";
  const auto read = [&] {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string text = read();
  const std::function<void()> damages[] = {[&] { std::filesystem::remove(path); },
                                           [&] { std::ofstream(path, std::ios::trunc) << "{}"; }};
  for (const std::function<void()>& damage : damages) {
    damage();
    EXPECT_TRUE(Eventually([&] { return read() == text; }));
  }
  End();
  daemon_.ForgetBoot();
  daemon_.StartAgain();
  EXPECT_EQ(Must(Look().ListDevices()).devices(0).drain_reason(), "fan");
  daemon_.KillBroker();
  std::filesystem::remove(path);
  EXPECT_TRUE(Eventually([&] { return read() == text; })) << "of the next broker";
}

TEST_P(StopStartTest, UnreadableSettingsPreventFirstStartOfBoot) {
  EXPECT_EQ(berth_.Run({"device", "drain", "0", "--reason", "fan"}), 0);
  const std::string path = daemon_.folder() + "/state/operator_settings.json";
  const auto damage = [&] { std::ofstream(path, std::ios::trunc) << "{\"devices\": ["; };
  // After a stop the ledger has the settings.
  End();
  damage();
  daemon_.StartAgain();
  EXPECT_EQ(Must(Look().ListDevices()).devices(0).drain_reason(), "fan");
  End();
  std::filesystem::resize_file(path, 1ULL << 32);
  daemon_.ForgetBoot();
  // A killed daemon has the folder until its last process is gone.
  const std::string folder = absl::StrCat("--folder=", daemon_.folder());
  ASSERT_TRUE(Eventually([&] { return ProcessesWith("berthd", folder).empty(); }));
  Subprocess berthd = Subprocess::Start(
      {.argv = {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1", ProgramPath("daemon/berthd"),
                folder, "--backend=host"}});
  const std::string said = berthd.ReadAll();
  EXPECT_NE(berthd.Wait(), 0);
  EXPECT_TRUE(absl::StrContains(said, absl::StrCat(path, " has more than 64 MiB"))) << said;
  // Removing the file is the remedy that the text names.
  std::filesystem::remove(path);
  daemon_.StartAgain();
  EXPECT_EQ(Must(Look().ListDevices()).devices(0).drain_reason(), "");
}

// Changes to the folder between a stop and a start that leave the next daemon without leases to resume.
struct Loss {
  const char* name;
  std::function<void(TestDaemon&)> inflict;
};

TEST_P(StopStartTest, HoldersLearnThatNextDaemonResumesNothing) {
  const auto remove = [](TestDaemon& daemon) { std::filesystem::remove_all(daemon.folder()); };
  for (const Loss& loss : {Loss{"another boot", [](TestDaemon& daemon) { daemon.ForgetBoot(); }},
                           Loss{"no folder", remove}}) {
    SCOPED_TRACE(loss.name);
    Actor holder(daemon_);
    holder.Do("acquire p");
    End();
    loss.inflict(daemon_);
    daemon_.StartAgain();
    EXPECT_TRUE(PermitsBecome(0));
    EXPECT_TRUE(Eventually([&] { return !Ok(holder.Ask("status")); })) << "the session is over";
    EXPECT_FALSE(Ok(holder.Ask("release p"))) << "the permit was lost";
    holder.Quit();
  }
}

class StopStartOnTwoDevicesTest : public StopStartTest {
 protected:
  StopStartOnTwoDevicesTest() : StopStartTest({"--host-devices=2"}) {}
};

TEST_P(StopStartOnTwoDevicesTest, LeasesWaitForTheirDevices) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  End();
  daemon_.AddFlag("--host-devices=1");
  daemon_.StartAgain();
  const std::string fault = Must(Look().GetNode()).ledger_fault();
  EXPECT_TRUE(absl::StrContains(fault, "device 1 was")) << fault;
  EXPECT_TRUE(absl::StrContains(fault, "start the daemon with the previous devices")) << fault;
  EXPECT_FALSE(Run({"--no-wait", "--", "/bin/true"}).Wait() == 0) << "a permit that is out was granted twice";
  End();
  daemon_.AddFlag("--host-devices=2");
  daemon_.StartAgain();
  EXPECT_TRUE(PermitsBecome(1));
  EXPECT_TRUE(IsFull());
  holder.Do("release p");
  EXPECT_TRUE(PermitsBecome(0));
  holder.Quit();
}

TEST_P(StopStartOnTwoDevicesTest, OperatorSettingsOutliveUnreadableLedger) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  EXPECT_EQ(berth_.Run({"device", "drain", "1", "--reason", "repair"}), 0);
  EXPECT_EQ(berth_.Run({"--admin", "permits", "set", "gpu-tests", "3"}), 0);
  End();
  daemon_.AddFlag("--host-devices=1");
  daemon_.StartAgain();
  EXPECT_NE(Must(Look().GetNode()).ledger_fault(), "");
  EXPECT_EQ(Must(Look().ListPools()).pools(0).cap(), 3u);
  EXPECT_EQ(berth_.Run({"device", "drain", "0", "--reason", "fan"}), 1) << "the ledger would not have it";
  End();
  daemon_.ForgetBoot();
  daemon_.AddFlag("--host-devices=2");
  daemon_.StartAgain();
  const v1::ListDevicesResponse devices = Must(Look().ListDevices());
  EXPECT_EQ(devices.devices(0).drain_reason(), "");
  EXPECT_EQ(devices.devices(1).drain_reason(), "repair");
  EXPECT_EQ(Must(Look().ListPools()).pools(0).cap(), 3u);
  holder.Kill();
}

TEST_P(StopStartOnTwoDevicesTest, ChangedDevicesAreAcceptedWithoutLeases) {
  EXPECT_EQ(berth_.Run({"device", "drain", "1", "--reason", "repair"}), 0);
  End();
  daemon_.AddFlag("--host-devices=1");
  daemon_.StartAgain();
  EXPECT_EQ(Must(Look().GetNode()).ledger_fault(), "");
  EXPECT_EQ(Must(Look().ListDevices()).devices_size(), 1);
  EXPECT_EQ(Run({"--no-wait", "--", "/bin/true"}).Wait(), 0);
  End();
  daemon_.AddFlag("--host-devices=2");
  daemon_.StartAgain();
  EXPECT_EQ(Must(Look().ListDevices()).devices(1).drain_reason(), "repair") << "it came back";
}

class StopStartBytesTest : public StopStartTest {
 protected:
  static constexpr uint64_t kMiB = 1 << 20;
  static constexpr uint64_t kTotal = 64 * kMiB;

  StopStartBytesTest() : StopStartTest({"--host-bytes=64MiB"}, /*cap=*/4) {}

  // Whether a newcomer may declare exactly that many bytes now, and no byte more.
  bool IsFree(uint64_t bytes) {
    Actor newcomer(daemon_);
    const auto declares = [&](uint64_t declared) {
      const absl::StatusOr<std::string> got =
          newcomer.Ask(absl::StrCat("acquire n device=any try declared=", declared));
      EXPECT_TRUE(got.ok() || Refused(got, Reason::kNoPermit) || Refused(got, Reason::kOverCap)) << got.status();
      if (got.ok()) newcomer.Do("release n");
      return got.ok();
    };
    const bool exact = !declares(bytes + 1) && declares(bytes);
    newcomer.Quit();
    return exact;
  }
};

// A holder of declared and reserved bytes around a stop of the daemon. The process may be stopped until after the
// start. It may be killed before the start or after.
struct Fate {
  const char* name;
  bool stopped;
  bool dies_before;
  bool dies_after;
};

TEST_P(StopStartBytesTest, DeclaredBytesCountUntilHolderResumesOrEnds) {
  for (const Fate& fate : {Fate{"resumes at once", false, false, false}, Fate{"resumes late", true, false, false},
                           Fate{"ends meanwhile", false, true, false}, Fate{"never resumes", true, false, true}}) {
    SCOPED_TRACE(fate.name);
    Actor holder(daemon_);
    holder.Do(absl::StrCat("acquire p device=any declared=", 40 * kMiB));
    holder.Do(absl::StrCat("reserve r 0=", 16 * kMiB));
    EXPECT_TRUE(IsFree(8 * kMiB));
    if (fate.stopped) holder.process().Signal(SIGSTOP);
    End();
    if (fate.dies_before) holder.Kill();
    daemon_.StartAgain();
    if (!fate.dies_before) {
      EXPECT_EQ(daemon_.TakeAccounts().reserved, 16 * kMiB);
      EXPECT_TRUE(IsFree(8 * kMiB)) << "the bytes are the holder's still";
    }
    if (fate.dies_after) holder.Kill();
    if (!fate.dies_before && !fate.dies_after) {
      if (fate.stopped) holder.process().Signal(SIGCONT);
      EXPECT_TRUE(Ok(holder.Ask("status")));
      EXPECT_TRUE(IsFree(8 * kMiB)) << "the holder has resumed";
      EXPECT_TRUE(Ok(holder.Ask("unreserve r")));
      EXPECT_TRUE(IsFree(24 * kMiB));
      EXPECT_TRUE(Ok(holder.Ask("release p")));
      holder.Quit();
    }
    EXPECT_TRUE(daemon_.AccountsBecome(
        [](const Accounts& accounts) { return accounts.permits == 0 && accounts.reserved == 0; }));
    EXPECT_TRUE(IsFree(kTotal));
    daemon_.ExpectAccountsBack();
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, StopStartBytesTest, ::testing::Values(Way::kStopped, Way::kKilled),
                         ::testing::PrintToStringParamName());

INSTANTIATE_TEST_SUITE_P(Ways, StopStartOnTwoDevicesTest, ::testing::Values(Way::kStopped, Way::kKilled),
                         ::testing::PrintToStringParamName());

INSTANTIATE_TEST_SUITE_P(Ways, StopStartTest, ::testing::Values(Way::kStopped, Way::kKilled),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace berth::testing
