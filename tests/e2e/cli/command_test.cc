// The `berth` command against a daemon: its exit codes, what it passes on, its output.

#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <berth/block_handle.h>

#include "absl/base/config.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/permit.pb.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

using Json = nlohmann::json;

class CommandTest : public ::testing::Test {
 protected:
  CommandTest() : daemon_({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}}) {}

  void TearDown() override { daemon_.ExpectAccountsBack(); }

  Subprocess Start(const std::vector<std::string>& words, std::vector<std::string> wrapper = {}) {
    return berth_.Start(words, std::move(wrapper));
  }
  int Run(const std::vector<std::string>& words) { return berth_.Run(words); }
  std::string Show(const std::vector<std::string>& words) { return berth_.Show(words); }
  Json ShowJson(const std::vector<std::string>& words) { return berth_.ShowJson(words); }

  TestDaemon daemon_;
  const BerthCommand berth_{daemon_.folder()};
};

TEST_F(CommandTest, RunReturnsExitStatusOfCommand) {
  EXPECT_EQ(Run({"run", "--", "/bin/true"}), 0);
  EXPECT_EQ(Run({"run", "--", "/bin/sh", "-c", "exit 7"}), 7);
  EXPECT_EQ(Run({"run", "--", "/bin/sh", "-c", "exit 255"}), 255);
  EXPECT_EQ(Run({"run", "--", "/bin/sh", "-c", "kill -TERM $$"}), 128 + SIGTERM);
  EXPECT_EQ(Run({"run", "--", "/bin/sh", "-c", "kill -KILL $$"}), 128 + SIGKILL);
}

TEST_F(CommandTest, RunExitCodeNamesFailureReason) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  EXPECT_EQ(Run({"run", "--timeout", "1", "--", "/bin/true"}), 124);
  EXPECT_EQ(Run({"run", "--timeout", "0", "--", "/bin/true"}), 124);
  EXPECT_EQ(Run({"run", "--timeout", "0.000000001", "--", "/bin/true"}), 124);
  EXPECT_EQ(Run({"run", "--no-wait", "--", "/bin/true"}), 75);
  holder.Do("release p");
  EXPECT_EQ(Run({"--folder", "/nowhere", "run", "--", "/bin/true"}), 69);
  const std::string file = daemon_.folder() + "/../no-program";
  std::ofstream(file) << "text";
  EXPECT_EQ(Run({"run", "--", file}), 126);
  EXPECT_EQ(Run({"run", "--", daemon_.folder()}), 126);
  EXPECT_EQ(Run({"run", "--", "no-such-command-anywhere"}), 127);
  EXPECT_EQ(Run({"run", "--", "/no/such/command"}), 127);
  EXPECT_EQ(Run({"run", "--until=never", "--", "/bin/true"}), 64);
  EXPECT_EQ(Run({"run"}), 64);
  EXPECT_EQ(Run({}), 64);
  holder.Quit();
}

TEST_F(CommandTest, SilentDaemonIsNotReportedAsTimeout) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  // A machine that stalls may stop the broker too late, after it has answered.
  int code = 124;
  for (const char* const timeout : {"1", "5", "25"}) {
    Subprocess command = Start({"run", "--quiet", "--timeout", timeout, "--", "/bin/true"},
                               {"/usr/bin/env", "BERTH_TEST_PATIENCE=1"});
    EXPECT_TRUE(daemon_.AccountsBecome(
        [&](const Accounts& accounts) { return accounts.waiters == 1 || command.IsGone(); }));
    const pid_t broker = daemon_.StopBroker();
    code = command.Wait();
    ASSERT_EQ(::kill(broker, SIGCONT), 0);
    if (code != 124) break;
  }
  EXPECT_EQ(code, 69);
  holder.Quit();
}

TEST_F(CommandTest, RunForwardsStandardInputAndArguments) {
  Subprocess command =
      Start({"run", "--", "/bin/sh", "-c", "read line; echo \"$line|$1|$2\"", "sh", "--json", "a b"});
  command.WriteLine("from outside");
  EXPECT_EQ(Must(command.ReadLine()), "from outside|--json|a b");
  EXPECT_EQ(command.Wait(), 0);
}

TEST_F(CommandTest, RunHoldsPermitWhileCommandRuns) {
  Subprocess command = Start({"run", "--label", "mine", "--", "/bin/sh", "-c", "echo ready; read line"});
  EXPECT_EQ(Must(command.ReadLine()), "ready");
  const v1::ListPermitsResponse permits = Must(daemon_.inspector().ListPermits());
  ASSERT_EQ(permits.permits_size(), 1);
  EXPECT_EQ(permits.permits(0).label(), "mine");
  EXPECT_EQ(permits.permits(0).process().pid(), command.pid());
  EXPECT_TRUE(permits.permits(0).adoptable());
  EXPECT_EQ(Run({"run", "--no-wait", "--", "/bin/true"}), 75);
  command.CloseInput();
  command.Wait();
  EXPECT_EQ(Run({"run", "--no-wait", "--", "/bin/true"}), 0);
}

TEST_F(CommandTest, NestedAcquiresOfJobsDoNotDeadlock) {
  // Each job holds the pool's only permit in turn; an acquire inside it nests, in any process of the job.
  const std::string berth = ProgramPath("client/cli/berth");
  const std::vector<std::string> nested = {"run", "--",  berth, "run", "--no-wait",
                                           "--",  berth, "run", "--",  "/bin/true"};
  Subprocess first = Start(nested);
  Subprocess second = Start(nested);
  EXPECT_EQ(first.Wait(), 0);
  EXPECT_EQ(second.Wait(), 0);
  // Except for a request with --independent.
  EXPECT_EQ(Run({"run", "--", berth, "run", "--independent", "--no-wait", "--", "/bin/true"}), 75);
}

TEST_F(CommandTest, InheritedSessionUsesFolderOfEnvironment) {
  // As in a container, where the folder of the session is mounted at another path.
  const std::string elsewhere = daemon_.folder() + "-elsewhere";
  const auto run_in = [&](const std::string& folder) {
    return Start({"run", "--", "/bin/sh", "-c",
                  absl::StrCat("BERTH_FOLDER=", folder, " ", ProgramPath("client/cli/berth"),
                               " run --no-wait -- /bin/true")})
        .Wait();
  };
  EXPECT_EQ(run_in(elsewhere), 69) << "the session's own folder is not asked";
  std::filesystem::create_symlink(daemon_.folder(), elsewhere);
  EXPECT_EQ(run_in(elsewhere), 0);
}

TEST_F(CommandTest, RelativeFolderIsFoundFromAnywhere) {
#ifdef ABSL_HAVE_THREAD_SANITIZER
  GTEST_SKIP() << "ThreadSanitizer looks for its suppressions in the working folder";
#endif
  const std::filesystem::path folder = daemon_.folder();
  const std::string berth = ProgramPath("client/cli/berth");
  Subprocess command = Subprocess::Start(
      {.argv = {"/bin/sh", "-c",
                absl::StrCat("cd ", folder.parent_path().string(), " && ", berth, " --folder ",
                             folder.filename().string(), " run -- /bin/sh -c 'cd / && exec ", berth,
                             " run --no-wait -- /bin/true'")},
       .environment = {"BERTH_FOLDER", "BERTH_SESSION"}});
  EXPECT_EQ(command.Wait(), 0);
}

// `berth run` of a plain permit uses no gRPC, and the command gets the variable.
TEST_F(CommandTest, UnusableEnvironmentOfGrpcIsReported) {
  for (const char* const value : {"", "garbage", ",", "none"}) {
    const std::string variable = absl::StrCat("GRPC_POLL_STRATEGY=", value);
    const std::string errors = absl::StrCat(daemon_.folder(), "/errors");
    const std::string folder = absl::StrCat("BERTH_FOLDER=", daemon_.folder());
    Subprocess permits = Subprocess::Start({.argv = {ProgramPath("client/cli/berth"), "permits"},
                                            .environment = {folder, variable},
                                            .errors = errors});
    EXPECT_EQ(permits.Wait(), 125) << value;
    std::ifstream file(errors);
    std::stringstream text;
    text << file.rdbuf();
    EXPECT_TRUE(absl::StrContains(text.str(), "GRPC_POLL_STRATEGY")) << text.str();
    Subprocess run = Subprocess::Start(
        {.argv = {ProgramPath("client/cli/berth"), "run", "--", "/bin/sh", "-c", "echo \"$GRPC_POLL_STRATEGY\""},
         .environment = {folder, variable, "BERTH_SESSION"}});
    EXPECT_EQ(Must(run.ReadLine()), value);
    EXPECT_EQ(run.Wait(), 0);
  }
}

TEST_F(CommandTest, RunForwardsSignalsToCommand) {
  for (const auto& [name, signal] : std::vector<std::pair<std::string, int>>{{"TERM", SIGTERM},
                                                                             {"INT", SIGINT},
                                                                             {"HUP", SIGHUP},
                                                                             {"QUIT", SIGQUIT},
                                                                             {"USR1", SIGUSR1},
                                                                             {"USR2", SIGUSR2}}) {
    Subprocess command = Start({"run", "--", ProgramPath("tests/support/actor/actor"), "--await-signal"});
    EXPECT_EQ(Must(command.ReadLine()), "ready");
    command.Signal(signal);
    EXPECT_EQ(Must(command.ReadLine()), absl::StrCat("got ", name));
    EXPECT_EQ(command.Wait(), 42) << name;
  }
}

TEST_F(CommandTest, RunContinuesWithCommandThatHandlesStop) {
  Subprocess command = Start({"run", "--", ProgramPath("tests/support/actor/actor"), "--await-signal"});
  EXPECT_EQ(Must(command.ReadLine()), "ready");
  for (int round = 0; round < 3; ++round) {
    command.Signal(SIGTSTP);
    EXPECT_EQ(Must(command.ReadLine()), "got TSTP");
    EXPECT_EQ(daemon_.TakeAccounts().permits, 1u);
    command.Signal(SIGCONT);
    EXPECT_EQ(Must(command.ReadLine()), "got CONT");
  }
  command.Signal(SIGTERM);
  EXPECT_EQ(Must(command.ReadLine()), "got TERM");
  EXPECT_EQ(command.Wait(), 42);
}

TEST_F(CommandTest, UnprintableCommandNameBecomesLabel) {
  const std::string name = absl::StrCat(std::string(127, 'n'), "\u00f6\xff\n", std::string(50, 'x'));
  const std::string path = absl::StrCat(daemon_.folder(), "/../", name);
  std::filesystem::create_symlink("/bin/sh", path);
  Subprocess command = Start({"run", "--", path, "-c", "echo ready; read line"});
  EXPECT_EQ(Must(command.ReadLine()), "ready");
  const v1::ListPermitsResponse permits = Must(daemon_.inspector().ListPermits());
  ASSERT_EQ(permits.permits_size(), 1);
  EXPECT_EQ(permits.permits(0).label(), std::string(127, 'n'));
  command.CloseInput();
  command.Wait();
}

TEST_F(CommandTest, InterruptedWaitLeavesNoWaiter) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  for (const int signal : {SIGINT, SIGTERM, SIGKILL}) {
    Subprocess command = Start({"run", "--quiet", "--", "/bin/true"});
    ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
    command.Signal(signal);
    EXPECT_EQ(command.Wait(), 128 + signal);
    EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 0; }));
  }
  holder.Quit();
}

// A command that ends at once, and leaves a child that lives as long as standard input is open.
const char kLeavesOneBehind[] = "exec 9<&0; (read line <&9) & echo ready; exit 3";

TEST_F(CommandTest, UntilTreeLastDescendantHoldsPermit) {
  Subprocess command = Start({"run", "--until=tree", "--", "/bin/sh", "-c", kLeavesOneBehind});
  EXPECT_EQ(Must(command.ReadLine()), "ready");
  EXPECT_EQ(command.Wait(), 3);
  EXPECT_EQ(daemon_.TakeAccounts().permits, 1u);
  EXPECT_EQ(Run({"run", "--no-wait", "--", "/bin/true"}), 75);
  command.CloseInput();
  EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 0; }));
}

TEST_F(CommandTest, KilledRunHoldsUntilLastDescendantEnds) {
  for (const char* const until : {"--until=tree", "--until=command"}) {
    for (const bool kills_command : {false, true}) {
      SCOPED_TRACE(absl::StrCat(until, kills_command ? ", with its command" : ""));
      Subprocess command = Start({"run", until, "--", "/bin/sh", "-c", "exec 9<&0; (read line <&9) & echo $$; wait"});
      int32_t child;
      ASSERT_TRUE(absl::SimpleAtoi(Must(command.ReadLine()), &child));
      command.Kill();
      EXPECT_EQ(command.Wait(), 128 + SIGKILL);
      if (kills_command) ::kill(child, SIGKILL);
      ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.processes == 1; }));
      EXPECT_EQ(Run({"run", "--no-wait", "--", "/bin/true"}), 75);
      command.CloseInput();
      EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 0; }));
    }
  }
}

TEST_F(CommandTest, UntilCommandLeftProcessHoldsNothing) {
  Subprocess command = Start({"run", "--", "/bin/sh", "-c", kLeavesOneBehind});
  EXPECT_EQ(Must(command.ReadLine()), "ready");
  EXPECT_EQ(command.Wait(), 3);
  EXPECT_EQ(Run({"run", "--", "/bin/true"}), 0);
  EXPECT_TRUE(
      daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 0 && accounts.sessions == 1; }));
  command.CloseInput();
}

TEST_F(CommandTest, TablesShowHoldersAndLeases) {
  Actor actor(daemon_);
  actor.Do("acquire p label=training");
  actor.Do("allocate b 5000000 label=weights");
  Actor waiter(daemon_);
  waiter.Do("begin w label=patient");
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  const std::string pid = absl::StrCat(actor.pid());

  const std::string permits = Show({"permits"});
  EXPECT_TRUE(absl::StrContains(permits, "training") && absl::StrContains(permits, pid)) << permits;
  EXPECT_TRUE(absl::StrContains(permits, "patient")) << permits;
  const std::string blocks = Show({"blocks"});
  EXPECT_TRUE(absl::StrContains(blocks, "weights") && absl::StrContains(blocks, "6 MiB")) << blocks;
  const std::string bytes = Show({"bytes"});
  EXPECT_TRUE(absl::StrContains(bytes, "6 MiB") && absl::StrContains(bytes, "weights")) << bytes;
  EXPECT_TRUE(absl::StrContains(Show({"sessions"}), pid));
  EXPECT_TRUE(absl::StrContains(Show({"status"}), "gpu-tests"));
  const std::string devices = Show({"devices"});
  EXPECT_TRUE(absl::StrContains(devices, "HOST-0") && absl::StrContains(devices, "  READ")) << devices;
  EXPECT_TRUE(absl::StrContains(Show({"health"}), "healthy"));

  const Json listed = ShowJson({"permits"});
  EXPECT_EQ(listed["permits"].size(), 1u);
  EXPECT_EQ(listed["permits"][0]["label"], "training");
  EXPECT_EQ(listed["permits"][0]["process"]["pid"], actor.pid());
  EXPECT_EQ(listed["waiters"][0]["label"], "patient");
  const Json block = ShowJson({"blocks"})["blocks"][0];
  EXPECT_EQ(block["bytes"], absl::StrCat(6 << 20));
  EXPECT_EQ(block["state"], "LIVE");
  EXPECT_EQ(block["imports"].size(), 1u);
  const Json usage = ShowJson({"bytes"});
  EXPECT_EQ(usage["rows"][0]["label"], "weights");
  EXPECT_EQ(usage["devices"][0]["bytes"]["outstanding"], absl::StrCat(6 << 20));
  // The sessions of the actor, of the waiter and of the test itself; with another user, the command's instead of the
  // test's.
  EXPECT_EQ(ShowJson({"sessions"})["sessions"].size(), 3u);
  EXPECT_EQ(ShowJson({"status"})["pools"]["pools"][0]["out"], "1");
  EXPECT_EQ(ShowJson({"health"})["devices"]["devices"][0]["state"], "READY");
  const Json device = ShowJson({"devices"})["devices"][0];
  EXPECT_EQ(device["uuid"], "HOST-0");
  EXPECT_EQ(device["clears_check"], "NOT_TRIED");
  EXPECT_EQ(device["clears_check_detail"], "not tried: the kernel clears memory");
  actor.Kill();
  waiter.Kill();
}

TEST_F(CommandTest, OperatorSetsCapsBudgetsAndEndsSessions) {
  EXPECT_EQ(Run({"--admin", "permits", "set", "gpu-tests", "3"}), 0);
  EXPECT_EQ(ShowJson({"status"})["pools"]["pools"][0]["cap"], "3");
  EXPECT_NE(Run({"--admin", "permits", "set", "gpu-tests", "0"}), 0);
  EXPECT_NE(Run({"--admin", "permits", "set", "of-nobody", "3"}), 0);
  EXPECT_EQ(Run({"--admin", "budget", "set", "--device", "0", "64MiB"}), 0);
  EXPECT_EQ(ShowJson({"devices"})["devices"][0]["budget_bytes"], absl::StrCat(64 << 20));
  Actor actor(daemon_);
  EXPECT_EQ(Run({"--admin", "sessions", "end", absl::StrCat(actor.session().value())}), 0);
  EXPECT_FALSE(Ok(actor.Ask("acquire p try")));
  actor.Quit();
}

TEST_F(CommandTest, OperatorChangesDeviceServiceSeenByWatchers) {
  Subprocess watch = Start({"devices", "--watch", "--json"});
  const Json first = Json::parse(Must(watch.ReadLine()));
  EXPECT_EQ(first["devices"][0]["uuid"], "HOST-0");
  // Waits until the command reports that device 0 serves, with `value` in `field`.
  const auto serves = [&](const char* field, const std::string& value) {
    while (true) {
      const Json device = Json::parse(Must(watch.ReadLine()))["devices"][0];
      if (device["state"] == "READY" && device[field] == value) return true;
    }
  };
  for (const char* const ending : {"reset", "drop"}) {
    EXPECT_EQ(Run({"device", ending, "0"}), 1) << "nobody can be asked";
  }
  EXPECT_EQ(ShowJson({"devices"})["devices"][0]["state"], "READY");
  EXPECT_EQ(ShowJson({"devices"})["devices"][0]["generation"], "1");
  EXPECT_EQ(Run({"device", "reset", "0", "--yes"}), 0);
  EXPECT_TRUE(serves("generation", "2"));
  EXPECT_EQ(Run({"device", "restart", "0"}), 0);
  EXPECT_TRUE(serves("last_failure", "restarted by an operator"));
  EXPECT_EQ(Run({"device", "enable", "0"}), 0);
  EXPECT_TRUE(absl::StrContains(Show({"devices"}), "restarted by an operator"));
  EXPECT_EQ(Run({"device", "restart", "9"}), 1);
  EXPECT_EQ(Run({"device", "restart"}), 64);
  EXPECT_EQ(Run({"device"}), 64);
  watch.Kill();
}

TEST_F(CommandTest, DeviceIsNamedByOrdinalUuidOrPrefix) {
  const struct {
    const char* name;
    bool known;
  } rows[] = {{"0", true}, {"HOST-0", true}, {"HOST", true}, {"1", false}, {"OST-0", false}};
  for (const auto& [name, known] : rows) {
    const int code = known ? 0 : 1;
    EXPECT_EQ(Run({"device", "drain", name}), code) << name;
    EXPECT_EQ(ShowJson({"devices"})["devices"][0]["state"], known ? "DRAINING" : "READY") << name;
    EXPECT_EQ(Run({"device", "undrain", name}), code) << name;
    EXPECT_EQ(Run({"budget", "set", "64MiB", "--device", name}), code) << name;
  }
}

TEST_F(CommandTest, BudgetIsShownAndSetByLayer) {
  Actor actor(daemon_);
  actor.Do("allocate b 1");
  const std::string session = absl::StrCat(actor.session().value());
  EXPECT_EQ(Run({"--admin", "budget", "set", "--tenant", absl::StrCat(ClientUid()), "32MiB"}), 0);
  EXPECT_EQ(Run({"--admin", "budget", "set", "--session", session, "--device", "0", "16MiB"}), 0);
  EXPECT_EQ(Run({"--admin", "budget", "set", "--session", session, "--tenant", "1", "16MiB"}), 64);
  EXPECT_EQ(Run({"--admin", "budget", "set", "--tenant", "no-one", "16MiB"}), 64);
  EXPECT_EQ(Run({"--admin", "budget", "set", "lots"}), 64);
  EXPECT_EQ(Run({"--admin", "budget", "set", "--session", "4711", "1MiB"}), 1);
  int found = 0;
  const Json shown = ShowJson({"budget", "show"});
  for (const auto& budget : shown["budgets"]) {
    if (budget["layer"] == "TENANT") found += budget["limit_bytes"] == absl::StrCat(32 << 20) ? 1 : 0;
    if (budget["layer"] == "SESSION" && budget["session"] == session) {
      found += budget["limit_bytes"] == absl::StrCat(16 << 20) ? 1 : 0;
      EXPECT_EQ(budget["allocations_total"], "1");
    }
  }
  EXPECT_EQ(found, 2);
  EXPECT_EQ(Run({"--admin", "budget", "set", "--tenant", absl::StrCat(ClientUid()), "default"}), 0);
  actor.Do("reserve r 0=4194304");
  EXPECT_EQ(ShowJson({"reservations"})["reservations"][0]["claims"][0]["left_bytes"], "4194304");
  actor.Quit();
}

TEST_F(CommandTest, FileIsPublishedMappedAndDeleted) {
  const std::string path = daemon_.folder() + "/weights";
  std::ofstream(path) << std::string(5000, 'w');
  EXPECT_EQ(ShowJson({"blocks", "publish", "weights", path})["bytes"], "5000");
  EXPECT_EQ(Run({"blocks", "publish", "weights", path}), 1);
  EXPECT_EQ(Run({"blocks", "publish", "more", path + "/none"}), 1);
  EXPECT_EQ(ShowJson({"blocks"})["blocks"][0]["name"], "weights");
  Actor actor(daemon_);
  actor.Do("import-published w weights");
  EXPECT_EQ(Run({"blocks", "--imports"}), 0);
  EXPECT_EQ(ShowJson({"blocks", "--imports"})["blocks"][0]["imports"].size(), 1u);
  EXPECT_EQ(ShowJson({"blocks", "unpublish", "weights"})["name"], "weights");
  EXPECT_EQ(Run({"blocks", "unpublish", "weights"}), 1);
  EXPECT_EQ(Run({"--admin", "blocks", "unpublish", "--tenant", "4711", "weights"}), 1);
  actor.Quit();
}

TEST_F(CommandTest, BlockIsRecalledAndFreedByIdAndLogged) {
  Actor actor(daemon_);
  const std::string block = absl::StrCat(actor.Allocate("a", 4096).block.value());
  EXPECT_EQ(Run({"blocks", "recall", block}), 0);
  EXPECT_TRUE(ShowJson({"blocks"})["blocks"][0]["imports"][0]["recalled"]);
  EXPECT_EQ(Run({"blocks", "free", block}), 0);
  EXPECT_EQ(Run({"blocks", "free", block}), 1);
  EXPECT_EQ(Run({"blocks", "free", "all"}), 64);
  EXPECT_EQ(ShowJson({"--admin", "reap"})["tried_blocks"], "0");
  const std::string log = Show({"log"});
  EXPECT_TRUE(absl::StrContains(log, absl::StrCat("free, by id  block ", block))) << log;
  // The command follows new records until its reader closes.
  Subprocess follow = Start({"log", "--follow", "--json"});
  Json record;
  do {
    const absl::StatusOr<std::string> line = follow.ReadLine();
    ASSERT_TRUE(line.ok()) << line.status();
    record = Json::parse(*line, nullptr, /*allow_exceptions=*/false);
    ASSERT_FALSE(record.is_discarded()) << *line;
  } while (record["action"] != "FREE");
  actor.Do("allocate late 8192");
  do {
    const absl::StatusOr<std::string> line = follow.ReadLine();
    ASSERT_TRUE(line.ok()) << line.status();
    record = Json::parse(*line, nullptr, /*allow_exceptions=*/false);
  } while (record["action"] != "ALLOCATE");
  follow.Kill();
  follow.Wait();
  actor.Quit();
}

TEST_F(CommandTest, TornBlockIsShownAndCleared) {
  Actor owner(daemon_), writer(daemon_);
  const BlockHandle handle = owner.Allocate("b", 4096);
  owner.Do(absl::StrCat("grant-session b ", writer.session().value()));
  writer.Do("stream s");
  writer.Do(absl::StrCat("import b ", FormatHandle(handle)));
  writer.Do("map b");
  writer.Do("preflight w s b:w");
  writer.Kill();
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(Show({"blocks"}), "LIVE, torn"); }));
  EXPECT_EQ(Run({"--admin", "blocks", "clear-torn", "4711"}), 1);
  EXPECT_EQ(Run({"--admin", "blocks", "clear-torn", absl::StrCat(handle.block.value())}), 0);
  EXPECT_FALSE(absl::StrContains(Show({"blocks"}), "torn"));
  owner.Quit();
}

TEST_F(CommandTest, UnprivilegedOperatorVerbIsDeniedAtOnce) {
  const std::string socket = daemon_.folder() + "/admin.sock";
  std::filesystem::permissions(socket, std::filesystem::perms::none);
  // Without its capabilities, root is subject to a file's mode like any other user.
  std::vector<std::string> wrapper = {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"};
  if (IsRoot()) {
    wrapper.insert(wrapper.end(), {"/usr/bin/setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"});
  }
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"permits", "set", "gpu-tests", "3"},
                                             {"budget", "set", "64MiB"},
                                             {"sessions", "end", "1"},
                                             {"blocks", "clear-torn", "1"},
                                             {"--admin", "status"},
                                             {"--admin", "run", "--", "/bin/true"}}) {
    Subprocess command = Start(words, wrapper);
    const std::string said = command.ReadAll();
    EXPECT_EQ(command.Wait(), 69) << said;
    EXPECT_TRUE(absl::StrContains(said, "has no access to")) << said;
    EXPECT_TRUE(absl::StrContains(said, socket)) << said;
  }
  std::filesystem::permissions(socket, std::filesystem::perms::owner_all);
}

TEST_F(CommandTest, WaiterIsExplainedAndGetsRevokedPermit) {
  Actor holder(daemon_);
  holder.Do("acquire p label=holding");
  Actor waiter(daemon_);
  waiter.SendLine("acquire p label=wanting priority=3");
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  const v1::ListPermitsResponse before = Must(daemon_.inspector().ListPermits());
  const std::string number = absl::StrCat(before.waiters(0).number());
  const std::string text = Show({"explain", number});
  for (const absl::string_view said :
       {"priority 3", "because: 0 of 1 free", "place: 1 of 1, 0 units requested before it",
        "no permit has been returned", "holding"}) {
    EXPECT_TRUE(absl::StrContains(text, said)) << text;
  }
  const Json json = ShowJson({"explain", number});
  EXPECT_EQ(json["cause"], "UNITS");
  EXPECT_EQ(json["waiter"]["label"], "wanting");
  EXPECT_EQ(json["holders"][0]["label"], "holding");
  EXPECT_EQ(Run({"--admin", "permits", "revoke", absl::StrCat(before.permits(0).id())}), 0);
  EXPECT_TRUE(Ok(waiter.Answer()));
  EXPECT_EQ(Run({"explain", number}), 1);
  // A release of a revoked permit releases nothing, and fails.
  EXPECT_TRUE(absl::IsAborted(holder.Ask("release p").status()));
  const Json pool = ShowJson({"status"})["pools"]["pools"][0];
  EXPECT_EQ(pool["out"], "1");
  EXPECT_EQ(pool["revoked_total"], "1");
  // Past releases give an estimate, until the permit is held for longer than they were.
  waiter.Do("release p");
  holder.Do("acquire p");
  waiter.SendLine("acquire p");
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  const v1::ListPermitsResponse after = Must(daemon_.inspector().ListPermits());
  const std::string again = absl::StrCat(after.waiters(0).number());
  const std::string guess = Show({"explain", again});
  EXPECT_TRUE(absl::StrContains(guess, "estimate: ")) << guess;
  EXPECT_FALSE(absl::StrContains(guess, "about 0s")) << guess;
  ASSERT_TRUE(Eventually([&] {
    return absl::StrContains(Show({"explain", again}), "estimate: none: every permit out is held for longer");
  }));
  EXPECT_FALSE(ShowJson({"explain", again}).contains("estimate"));
  holder.Quit();
  EXPECT_TRUE(Ok(waiter.Answer()));
  waiter.Quit();
}

TEST_F(CommandTest, OperatorChangesOnlyNamedPoolSettings) {
  const std::string text =
      Show({"--admin", "permits", "set", "gpu-tests", "--tenant-cap", "2", "--ageing", "90", "--hold-warning",
            "1h", "--hold-limit", "2h", "--weight", "1000=3", "--weight", "7=2"});
  EXPECT_EQ(text,
            "pool gpu-tests: cap 1, out 0, ageing 1m30s, tenant cap 2, hold warning 1h00m, hold limit 2h00m, idle "
            "warning 10m00s, uid 7 weight 2, uid 1000 weight 3\n");
  EXPECT_EQ(Show({"--admin", "permits", "set", "gpu-tests", "3", "--tenant-cap", "0", "--hold-warning",
                  "never", "--hold-limit", "never", "--idle-warning", "never", "--weight", "7=1"}),
            "pool gpu-tests: cap 3, out 0, ageing 1m30s, uid 1000 weight 3\n");
  EXPECT_EQ(Run({"permits", "set", "gpu-tests", "9"}), 0);
  EXPECT_EQ(ShowJson({"status"})["pools"]["pools"][0]["cap"], "9");
}

TEST_F(CommandTest, InvalidCommandLineIsReportedAndChangesNothing) {
  const auto refuse = [&](const std::vector<std::string>& words, int code, absl::string_view why) {
    Subprocess command = Start(words, {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"});
    const std::string said = command.ReadAll();
    EXPECT_EQ(command.Wait(), code) << said;
    EXPECT_TRUE(absl::StrContains(said, why)) << said;
  };
  refuse({"stauts"}, 64, "stauts is not a command");
  refuse({"status", "extra"}, 64, "extra");
  refuse({"permits", "set", "gpu-tests", "0"}, 64, "\"0\" is not a number from 1");
  refuse({"permits", "set", "gpu-tests", "--weight", "no-one=3"}, 64, "\"no-one\" is not a uid or the name of a user");
  refuse({"permits", "set", "gpu-tests", "--weight", "0=1001"}, 64, "1 to 1000");
  refuse({"permits", "set", "gpu-tests", "--hold-limit", "999ms"}, 64, "of at least 1s");
  refuse({"permits", "set", "gpu-tests", "--ageing", "soon"}, 64, "\"soon\" is not a time");
  refuse({"permits", "revoke", "mine"}, 64, "\"mine\" is not an id: expected a decimal number from `berth permits`");
  refuse({"permits", "revoke", "99999"}, 1, "no permit 99999: `berth permits` lists those that exist");
  refuse({"explain", "me"}, 64, "\"me\" is not an id");
  refuse({"explain", "99999"}, 1, "no waiter 99999; its request may have been granted or cancelled: `berth permits`");
  refuse({"permits", "--pool", "of-nobody"}, 1, "no permit pool of-nobody");
  refuse({"blocks", "recall", "99999"}, 1, "no block 99999: `berth blocks` lists");
  refuse({"sessions", "end", "99999"}, 1, "no session 99999: `berth sessions` lists");
  refuse({"budget", "set", "plenty"}, 64, "\"plenty\" is not an amount of bytes");
  refuse({"budget", "set", "100TiB"}, 1, "the most is");
  refuse({"budget", "set", "--device", "9", "1GiB"}, 1, "no device 9");
  refuse({"sessions", "end", "mine"}, 64, "\"mine\" is not an id: expected a decimal number from `berth sessions`");
  refuse({"run", "--permits", "18446744073709551616", "--", "/bin/true"}, 64, "is not a whole number from ");
  refuse({"run", "--permits", "0", "--", "/bin/true"}, 64, "\"0\" is not a whole number from 1 to ");
  refuse({"run", "--timeout", "soon", "--", "/bin/true"}, 64, "\"soon\" is not a time");
  refuse({"run", "--no-wait", "--timeout", "1", "--", "/bin/true"}, 64, "excludes");
  refuse({"run", "--pool", "of-nobody", "--", "/bin/true"}, 125, "no permit pool of-nobody");
  refuse({"run", "--permits", "2", "--", "/bin/true"}, 125, "cap 1: request at most 1");
  refuse({"run", "--label", "a\nb", "--", "/bin/true"}, 0, "");
  EXPECT_EQ(ShowJson({"status"})["pools"]["pools"][0]["cap"], "1");
}

TEST_F(CommandTest, EveryVerbReportsMissingDaemon) {
  for (const char* const verb : {"status", "permits", "blocks", "bytes", "sessions", "devices", "health"}) {
    EXPECT_EQ(Run({"--folder", "/nowhere", verb}), 69) << verb;
  }
}

}  // namespace
}  // namespace berth::testing
