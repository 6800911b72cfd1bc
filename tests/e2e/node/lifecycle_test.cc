// The daemon's own lifecycle: one daemon per folder, a clean stop, and the death of any one of its processes.

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <berth/block_handle.h>
#include <berth/error.h>
#include <berth/session.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/admin/inspector.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/damaged_ledger.h"
#include "tests/support/daemon/installed.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

using ::testing::Contains;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uint64_t kMiB = 1 << 20;

// Returns the environment with which the process was started, "NAME=value" each.
std::vector<std::string> StartedWith(pid_t process) {
  std::ifstream file(absl::StrCat("/proc/", process, "/environ"));
  std::vector<std::string> entries;
  for (std::string entry; std::getline(file, entry, '\0');) entries.push_back(entry);
  return entries;
}

// Kills the broker and waits until the next one serves.
void KillBroker(TestDaemon& daemon) {
  const pid_t before = daemon.broker();
  ASSERT_EQ(::kill(before, SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] {
    for (const ChildInfo& child : ChildrenOf(daemon.supervisor_pid())) {
      if (child.name == "berth-broker" && child.pid != before) return true;
    }
    return false;
  }));
}

TEST(LifecycleTest, EnvironmentOfGrpcEndsNoBroker) {
  for (const char* const entry : {"GRPC_POLL_STRATEGY=", "GRPC_POLL_STRATEGY=none", "GRPC_POLL_STRATEGY=garbage",
                                  "GRPC_ENABLE_FORK_SUPPORT=garbage"}) {
    SCOPED_TRACE(entry);
    TestDaemon daemon({.environment = {entry}});
    EXPECT_TRUE(Ok(daemon.inspector().ListPools()));
  }
}

TEST(LifecycleTest, SecondDaemonOnFolderIsRejected) {
  TestDaemon daemon;
  Actor actor(daemon);
  actor.Do("acquire p");
  Subprocess second =
      Subprocess::Start({.argv = {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1", ProgramPath("daemon/berthd"),
                                  absl::StrCat("--folder=", daemon.folder()), "--backend=host"}});
  EXPECT_EQ(second.Wait(), 1);
  const std::string said = second.ReadAll();
  EXPECT_TRUE(absl::StrContains(said, daemon.folder())) << said;
  EXPECT_TRUE(absl::StrContains(said, absl::StrCat(daemon.supervisor().pid()))) << said;
  EXPECT_TRUE(Ok(actor.Ask("release p")));
  Actor later(daemon);
  EXPECT_TRUE(Ok(later.Ask("acquire p")));
  actor.Quit();
  later.Quit();
  daemon.ExpectAccountsBack();
}

TEST(LifecycleTest, DaemonStartsOverRemainsOfKilledDaemon) {
  TestDaemon daemon;
  const std::string folder = daemon.folder();
  daemon.KillSupervisorAndBroker();
  EXPECT_EQ(daemon.supervisor().Wait(), 128 + SIGKILL);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  Subprocess next =
      Subprocess::Start({.argv = {ProgramPath("daemon/berthd"), absl::StrCat("--folder=", folder),
                                  absl::StrCat("--client-group=", kClientsGroup), "--backend=host",
                                  absl::StrCat("--ready-fd=", ready[1])},
                         .inherited_fd = ready[1]});
  ::close(ready[1]);
  char text[6] = {};
  EXPECT_EQ(::read(ready[0], text, sizeof(text)), 6);
  ::close(ready[0]);
  Actor actor(folder);
  EXPECT_TRUE(Ok(actor.Ask("acquire p")));
  next.Signal(SIGTERM);
  EXPECT_EQ(next.Wait(), 0);
}

TEST(LifecycleTest, NoProcessOutlivesSupervisorAndBroker) {
  TestDaemon daemon;
  const std::vector<ChildInfo> children = ChildrenOf(daemon.supervisor_pid());
  EXPECT_EQ(children.size(), 2u);
  daemon.KillSupervisorAndBroker();
  for (const ChildInfo& child : children) {
    EXPECT_TRUE(Eventually([&] { return !IsAlive(child.pid); })) << child.name;
  }
}

TEST(LifecycleTest, DaemonStopsWithinSecondDespiteClients) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < 8; ++i) {
    actors.push_back(std::make_unique<Actor>(daemon));
    actors.back()->Do(absl::StrCat("allocate b ", kMiB));
  }
  actors[0]->Do("acquire p");
  for (int i = 1; i < 8; ++i) actors[i]->Do("begin p");
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 7; }));
  // Expects the exit within a second, and that nothing is left.
  daemon.Stop();
  for (int i = 1; i < 8; ++i) actors[i]->Kill();
  EXPECT_TRUE(Ok(actors[0]->Ask("status"))) << "the session waits for the next daemon";
  actors[0]->Kill();
}

TEST(LifecycleTest, RepeatedSignalStopsDaemonCleanly) {
  for (const int signal : {SIGTERM, SIGINT}) {
    TestDaemon daemon;
    daemon.supervisor().Signal(signal);
    daemon.supervisor().Signal(signal);
    EXPECT_EQ(daemon.supervisor().Wait(), 0) << signal;
    daemon.Abandon();
  }
}

TEST(LifecycleTest, KilledBrokerIsReplacedAndListenersStay) {
  TestDaemon daemon;
  for (int life = 0; life < 3; ++life) {
    Actor holder(daemon);
    holder.Do("acquire p");
    holder.Do(absl::StrCat("allocate b ", 4 * kMiB));
    holder.Do("map b");
    holder.Do("fill b 3");
    const BlockHandle handle = holder.Allocate("c", kMiB);
    KillBroker(daemon);
    Actor next(daemon);
    EXPECT_TRUE(Ok(next.Ask("acquire p try")));
    EXPECT_TRUE(Refused(next.Ask("acquire q key=q try"), Reason::kNoPermit)) << "the first one has the other";
    EXPECT_TRUE(Refused(next.Ask(absl::StrCat("import c ", FormatHandle(handle))), Reason::kDenied));
    EXPECT_TRUE(Ok(holder.Ask("access b")));
    EXPECT_TRUE(Ok(holder.Ask("check b 3")));
    next.Quit();
    holder.Quit();
    daemon.ExpectAccountsBack();
  }
}

// As by prlimit: the supervisor lacks fds for the next broker until the limit is raised again.
TEST(LifecycleTest, LoweredFdLimitEndsNoSupervisor) {
  const std::string errors = ::testing::TempDir() + "/fd_limit.log";
  std::filesystem::remove(errors);
  TestDaemon daemon({.errors = errors});
  Actor holder(daemon);
  holder.Do("acquire p");
  const pid_t supervisor = daemon.supervisor_pid();
  rlimit before = {};
  ASSERT_EQ(::prlimit(supervisor, RLIMIT_NOFILE, nullptr, &before), 0);
  const rlimit few = {.rlim_cur = 3, .rlim_max = before.rlim_max};
  ASSERT_EQ(::prlimit(supervisor, RLIMIT_NOFILE, &few, nullptr), 0);
  ::kill(daemon.broker(), SIGKILL);
  const auto is_logged = [&](const std::string& text) {
    std::ifstream file(errors);
    return absl::StrContains(std::string(std::istreambuf_iterator<char>(file), {}), text);
  };
  for (const char* const text : {"poll: Too many open files (RLIMIT_NOFILE is 3", "cannot start the broker: "}) {
    EXPECT_TRUE(Eventually([&] { return is_logged(text); })) << text;
  }
  ASSERT_EQ(::prlimit(supervisor, RLIMIT_NOFILE, &before, nullptr), 0);
  holder.Do("release p");
  EXPECT_EQ(daemon.supervisor_pid(), supervisor);
  holder.Quit();
  daemon.ExpectAccountsBack();
}

TEST(LifecycleTest, OnlyBrokerHasHeapOfLargePagesByDefault) {
  constexpr char kOurs[] = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1";
  constexpr char kOperators[] = "GLIBC_TUNABLES=glibc.malloc.arena_max=4";
  TestDaemon daemon;
  EXPECT_THAT(StartedWith(daemon.broker()), Contains(kOurs));
  // The new supervisor, started at the broker's request, and the broker that this supervisor starts.
  daemon.KillSupervisor();
  EXPECT_THAT(StartedWith(daemon.supervisor_pid()), Not(Contains(StartsWith("GLIBC_TUNABLES="))));
  KillBroker(daemon);
  EXPECT_THAT(StartedWith(daemon.broker()), Contains(kOurs));
  for (const pid_t worker : daemon.workers()) EXPECT_THAT(StartedWith(worker), Not(Contains(kOurs)));
  TestDaemon other({.environment = {kOperators}});
  EXPECT_THAT(StartedWith(other.broker()), Contains(kOperators));
  EXPECT_THAT(StartedWith(other.broker()), Not(Contains(kOurs)));
}

TEST(LifecycleTest, EndedSessionHoldsNoConnectionToNextDaemon) {
  TestDaemon daemon;
  const std::string socket = daemon.folder() + "/berthd.sock";
  // Holds the sessions: any object of an ended session refers to that session.
  std::vector<std::shared_ptr<Session>> ended;
  for (int life = 0; life < 5; ++life) {
    const std::shared_ptr<Session> session = Must(Session::Open({.folder = daemon.folder()}));
    Must(Inspector(session).GetNode());
    EXPECT_TRUE(Eventually([&] { return CountConnections(socket) == 1; })) << CountConnections(socket);
    // A thread calls constantly. The next broker serves it before the session is known to have ended.
    std::thread caller([&session] {
      while (Inspector(session).GetNode().ok()) {
      }
    });
    DamageLedger(daemon);
    Must(ResetDamaged(daemon));
    caller.join();
    EXPECT_TRUE(Eventually([&] { return !session->status().ok(); }));
    ended.push_back(session);
    EXPECT_TRUE(Eventually([&] { return CountConnections(socket) == 0; })) << CountConnections(socket);
  }
  daemon.ExpectAccountsBack();
}

TEST(LifecycleTest, ClientWaitsForStartingBroker) {
  TestDaemon daemon;
  Actor actor(daemon, {.open = false});
  ASSERT_EQ(::kill(daemon.broker(), SIGKILL), 0);
  // The supervisor holds the listening sockets, so that the next broker serves a connection made now.
  EXPECT_TRUE(Ok(actor.Ask("open")));
  EXPECT_TRUE(Ok(actor.Ask("acquire p try")));
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST(LifecycleTest, KilledWorkerIsReplacedAndBlocksRetainData) {
  TestDaemon daemon;
  Actor owner(daemon);
  Actor importer(daemon);
  const BlockHandle handle = owner.Allocate("b", 4 * kMiB);
  owner.Do("map b");
  owner.Do("fill b 6");
  owner.Do("unmap b");
  owner.Do(absl::StrCat("grant-session b ", importer.session().value()));
  const pid_t before = daemon.workers().at(0);
  ASSERT_EQ(::kill(before, SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] {
    const std::vector<pid_t> workers = daemon.workers();
    return !workers.empty() && workers[0] != before;
  }));
  EXPECT_TRUE(Ok(importer.Ask(absl::StrCat("import b ", FormatHandle(handle)))));
  EXPECT_TRUE(Ok(importer.Ask("map b")));
  EXPECT_TRUE(Ok(importer.Ask("check b 6")));
  EXPECT_TRUE(Ok(importer.Ask("access b")));
  EXPECT_TRUE(Ok(owner.Ask(absl::StrCat("allocate c ", kMiB))));
  EXPECT_TRUE(Ok(owner.Ask("free b")));
  owner.Quit();
  importer.Quit();
  daemon.ExpectAccountsBack();
}

TEST(LifecycleTest, AllocationDuringWorkerDeathSucceeds) {
  TestDaemon daemon;
  Actor actor(daemon);
  const pid_t worker = daemon.workers().at(0);
  // A stopped worker reads nothing, so that the request is certainly pending when it dies.
  ASSERT_EQ(::kill(worker, SIGSTOP), 0);
  ASSERT_TRUE(Eventually([&] { return StateOf(worker) == 'T'; }));
  actor.SendLine(absl::StrCat("allocate b ", kMiB));
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.reserved == 2 * kMiB; }));
  ASSERT_EQ(::kill(worker, SIGKILL), 0);
  EXPECT_TRUE(Ok(actor.Answer()));
  EXPECT_TRUE(Ok(actor.Ask("map b")));
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST(LifecycleTest, RepeatedlyDyingWorkerStopsOnlyItsDevice) {
  TestDaemon daemon({.flags = {"--host-devices=2"}});
  Actor actor(daemon);
  const auto state = [&](int device) {
    return Must(daemon.inspector().ListDevices(), "devices").devices(device).state();
  };
  const auto worker = [&]() -> pid_t {
    for (const ChildInfo& child : ChildrenOf(daemon.supervisor_pid())) {
      if (child.name == "berth-worker1") return child.pid;
    }
    return 0;
  };
  // 3 restarts in a minute, then no more.
  for (int death = 0; death < 4; ++death) {
    const pid_t now = worker();
    ASSERT_NE(now, 0) << death;
    ASSERT_EQ(::kill(now, SIGKILL), 0);
    ASSERT_TRUE(Eventually([&] {
      const pid_t next = worker();
      return death == 3 ? next == 0 : next != 0 && next != now;
    }));
  }
  EXPECT_TRUE(Eventually([&] { return state(1) == v1::Device::STOPPED; }));
  EXPECT_EQ(state(0), v1::Device::READY);
  EXPECT_TRUE(Refused(actor.Ask("allocate b 1 device=1"), Reason::kDeviceStopped, {{"device", "1"}}));
  EXPECT_TRUE(Ok(actor.Ask("allocate c 1 device=0")));
  actor.Quit();
}

TEST(LifecycleTest, FloodOfSessionsLeavesNothing) {
  TestDaemon daemon;
  for (int round = 0; round < 5; ++round) {
    std::vector<std::unique_ptr<Actor>> actors;
    for (int i = 0; i < 10; ++i) actors.push_back(std::make_unique<Actor>(daemon));
    for (const auto& actor : actors) actor->SendLine(absl::StrCat("allocate b ", kMiB));
    for (const auto& actor : actors) EXPECT_TRUE(Ok(actor->Answer()));
    // Half of them end orderly, half are killed.
    for (size_t i = 0; i < actors.size(); i += 2) actors[i]->Quit();
  }
  daemon.ExpectAccountsBack();
}

class StandardFdsTest : public ::testing::TestWithParam<int> {
 protected:
  // Returns a script that closes stdin, stdout and stderr where `closed` has their bits, and becomes the daemon.
  static std::string Closing(int closed, const Installed& installed) {
    const std::string path = installed.path() + ".closing";
    std::ofstream script(path);
    script << "#!/bin/sh\nexec " << installed.path() << " \"$@\"";
    for (int fd = 0; fd <= 2; ++fd) {
      if ((closed & 1 << fd) != 0) script << " " << fd << ">&-";
    }
    script << "\n";
    script.close();
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }

  // Expects /dev/null where an fd was closed, and the original file otherwise, in every process of the daemon.
  static void ExpectHarmless(const TestDaemon& daemon, int closed, const std::string& when) {
    std::vector<ChildInfo> processes = ProcessesWith("berthd", absl::StrCat("--folder=", daemon.folder()));
    processes.push_back({daemon.supervisor_pid(), "supervisor"});
    EXPECT_GE(processes.size(), 4u);
    for (const ChildInfo& process : processes) {
      for (int fd = 0; fd <= 2; ++fd) {
        std::error_code gone;
        const std::string file =
            std::filesystem::read_symlink(absl::StrCat("/proc/", process.pid, "/fd/", fd), gone).string();
        if (gone && !IsAlive(process.pid)) continue;
        EXPECT_EQ(file == "/dev/null", (closed & 1 << fd) != 0)
            << when << ": fd " << fd << " of " << process.name << " is \"" << file << "\"";
      }
    }
    std::ifstream lock(daemon.folder() + "/berthd.lock");
    std::string line;
    std::getline(lock, line);
    EXPECT_EQ(line, absl::StrCat(daemon.supervisor_pid())) << when;
    EXPECT_FALSE(std::getline(lock, line)) << line;
  }
};

INSTANTIATE_TEST_SUITE_P(Closed, StandardFdsTest, ::testing::Range(0, 8));

TEST_P(StandardFdsTest, ClosedStreamsAreDevNullInEveryProcess) {
  const int closed = GetParam();
  Installed installed;
  // The pipes of its start are not /dev/null.
  TestDaemon daemon({.program = Closing(closed, installed), .errors = installed.path() + ".errors"});
  Actor holder(daemon);
  holder.Do("acquire p");
  ExpectHarmless(daemon, closed, "at the start");
  daemon.KillBroker();
  daemon.GetNode();
  ExpectHarmless(daemon, closed, "after the broker's death");
  daemon.KillSupervisor();
  ExpectHarmless(daemon, closed, "after the supervisor's death");
  const pid_t worker = daemon.workers().at(0);
  ASSERT_EQ(::kill(worker, SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] {
    const std::vector<pid_t> workers = daemon.workers();
    return workers.size() == 1 && workers[0] != worker;
  }));
  ExpectHarmless(daemon, closed, "after a worker's death");
  installed.Install();
  EXPECT_EQ(BerthCommand(daemon.folder()).Run({"upgrade"}), 0);
  ASSERT_TRUE(Eventually([&] { return daemon.workers().size() == 1; }));
  ExpectHarmless(daemon, closed, "after an upgrade");
  holder.Do("release p");
  holder.Quit();
}

TEST(LifecycleTest, DaemonWithoutNullDeviceNamesIt) {
  if (!MayUnshare(CLONE_NEWNS)) GTEST_SKIP() << "needs a mount namespace";
  Subprocess berthd = Subprocess::Start(
      {.argv = {"/usr/bin/unshare", "--mount", "/bin/sh", "-c",
                "mount -t tmpfs none /dev && exec \"$0\" --version 2>&1 <&-", ProgramPath("daemon/berthd")},
       .of_operator = true});
  EXPECT_EQ(berthd.ReadAll(),
            "berthd: cannot open /dev/null in place of a closed stdin, stdout or stderr; create it\n");
  EXPECT_EQ(berthd.Wait(), 1);
}

// The readiness fd may be a standard fd, whose number refers to no other file afterwards.
TEST(LifecycleTest, StandardFdMayServeAsReadyFd) {
  for (const int fd : {1, 2}) {
    TestDaemon daemon;
    const std::string folder = daemon.folder() + "-second";
    Subprocess second = Subprocess::Start(
        {.argv = {"/bin/sh", "-c", fd == 1 ? "exec \"$0\" \"$@\"" : "exec \"$0\" \"$@\" 2>&1 >/dev/null",
                  ProgramPath("daemon/berthd"), absl::StrCat("--folder=", folder), "--backend=host",
                  absl::StrCat("--ready-fd=", fd)}});
    EXPECT_EQ(Must(second.ReadLine()), "ready");
    const std::string file = absl::StrCat("/proc/", second.pid(), "/fd/", fd);
    EXPECT_TRUE(Eventually([&] { return std::filesystem::read_symlink(file) == "/dev/null"; }));
    second.Signal(SIGTERM);
    EXPECT_EQ(second.Wait(), 0);
  }
}

TEST(LifecycleTest, UnusableReadyFdIsNamed) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/unusable-ready-fd");
  const std::pair<std::string, const char*> rows[] = {
      {"--ready-fd=77", ": fcntl 77: Bad file descriptor; name a file descriptor"},
      {"--ready-fd=7", " is open for reading only; name one"}};
  for (const auto& [option, why] : rows) {
    const std::string says = option + why;
    Subprocess daemon = Subprocess::Start(
        {.argv = {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1 7</dev/null", ProgramPath("daemon/berthd"),
                  absl::StrCat("--folder=", folder), option}});
    const std::string said = daemon.ReadAll();
    EXPECT_EQ(daemon.Wait(), 1) << said;
    EXPECT_TRUE(absl::StrContains(said, says)) << said;
    EXPECT_FALSE(std::filesystem::exists(folder));
  }
}

TEST(LifecycleTest, UnknownGroupIsReported) {
  TestDaemon daemon;
  for (const char* const option : {"--client-group", "--observer-group"}) {
    // The sockets of a user's own daemon are the user's.
    if (::geteuid() != 0 && option == std::string("--client-group")) continue;
    Subprocess second = Subprocess::Start(
        {.argv = {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1", ProgramPath("daemon/berthd"),
                  absl::StrCat("--folder=", daemon.folder(), option), "--backend=host",
                  absl::StrCat(option, "=no-such-group")}});
    EXPECT_TRUE(absl::StrContains(Must(second.ReadLine()), absl::StrCat(option, ": no group \"no-such-group\"")));
    second.Signal(SIGTERM);
    second.ReadAll();
    EXPECT_EQ(second.Wait(), 0);
  }
}

// The daemon's processes open each other's files, also those of an earlier daemon, whatever the umask denies the owner.
TEST(LifecycleTest, DaemonServesUnderAnyUmask) {
  for (const char* const umask : {"0000", "0077", "0177", "0277", "0477", "0777"}) {
    SCOPED_TRACE(umask);
    Installed installed;
    const std::string path = installed.path() + ".umask";
    const std::string errors = installed.path() + ".errors";
    std::ofstream(path) << "#!/bin/sh\numask " << umask << "\nexec " << installed.path() << " \"$@\"\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    TestDaemon daemon({.program = path, .errors = errors});
    Actor actor(daemon);
    actor.Do("acquire p");
    daemon.KillBroker();
    daemon.GetNode();
    daemon.KillSupervisorAndBroker();
    daemon.StartAgain();
    actor.Do("release p");
    actor.Quit();
    std::ifstream file(errors);
    const std::string said((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    EXPECT_FALSE(absl::StrContains(said, "Permission denied")) << said;
  }
}

// An upgrade for which no program is installed is refused at once, and changes nothing.
TEST(LifecycleTest, UpgradeWithoutProgramIsRefused) {
  Installed installed;
  TestDaemon daemon({.program = installed.path()});
  const uint64_t epoch = daemon.GetNode().epoch();
  const BerthCommand berth(daemon.folder());
  const auto expect_refused = [&](const char* why) {
    Subprocess upgrade = berth.Start({"upgrade"}, {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"});
    const std::string said = upgrade.ReadAll();
    EXPECT_EQ(upgrade.Wait(), 1) << said;
    EXPECT_TRUE(absl::StrContains(said, installed.path()) && absl::StrContains(said, why)) << said;
  };
  std::filesystem::remove(installed.path());
  expect_refused("does not exist");
  std::filesystem::create_directory(installed.path());
  expect_refused("is not a file");
  std::filesystem::remove(installed.path());
  std::ofstream(installed.path()) << "half of a download";
  expect_refused("is not executable");
  std::filesystem::permissions(installed.path(), std::filesystem::perms::owner_all);
  expect_refused("is not a program");
  std::ofstream(installed.path(), std::ios::trunc).close();
  expect_refused("is not a program");
  EXPECT_EQ(daemon.GetNode().epoch(), epoch);
  installed.Install();
  EXPECT_EQ(berth.Run({"upgrade"}), 0);
  EXPECT_GT(daemon.GetNode().epoch(), epoch);
}

struct StateMode {
  const char* name;
  mode_t mode;
  bool is_refused;
};

class StateFolderTest : public ::testing::TestWithParam<StateMode> {};

INSTANTIATE_TEST_SUITE_P(Modes, StateFolderTest,
                         ::testing::Values(StateMode{"private", 0700, false}, StateMode{"readable", 0755, false},
                                           StateMode{"of_a_group", 0770, true}, StateMode{"like_tmp", 01777, true},
                                           StateMode{"written_by_all", 0777, true}),
                         [](const auto& info) { return info.param.name; });

TEST_P(StateFolderTest, ForeignFolderRetainsItsMode) {
  char root[] = "/tmp/berth-state-XXXXXX";
  ASSERT_NE(::mkdtemp(root), nullptr);
  const std::string state = absl::StrCat(root, "/state");
  ASSERT_EQ(::mkdir(state.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(state.c_str(), GetParam().mode), 0);
  if (GetParam().is_refused) {
    Subprocess daemon = Subprocess::Start(
        {.argv = {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1", ProgramPath("daemon/berthd"),
                  absl::StrCat("--folder=", root, "/run"), "--backend=host", absl::StrCat("--state=", state)}});
    EXPECT_EQ(daemon.Wait(), 1);
    const std::string said = daemon.ReadAll();
    EXPECT_TRUE(absl::StrContains(said, state) && absl::StrContains(said, "other users can write to it")) << said;
    EXPECT_TRUE(std::filesystem::is_empty(state));
  } else {
    TestDaemon daemon({.flags = {absl::StrCat("--state=", state)}});
    daemon.KillBroker();
    EXPECT_TRUE(Ok(daemon.inspector().GetNode()));
  }
  struct stat info;
  ASSERT_EQ(::stat(state.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, GetParam().mode);
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace berth::testing
