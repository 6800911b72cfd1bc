// Waiters whose process is stopped: the next waiter gets the unit, every view says so, and the stopped one waits on in
// its place once it continues.

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/permit.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/cgroup.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// How a waiter comes to a halt.
struct Halt {
  // The freezer of cgroups, and that of cgroup v1.
  enum class By { kSignal, kDebugger, kFreezer, kOldFreezer };
  int signal = 0;
  bool group = false;
  By by = By::kSignal;
  // A debugger stops every thread, a tracer perhaps only the main one.
  bool all_threads = true;
};
constexpr Halt kStop = {SIGSTOP, false};
// As a terminal's ^Z.
constexpr Halt kTerminalStop = {SIGTSTP, true};

// A shell's command that waits for a unit, prints "ran" and releases the unit; $0 is `berth`.
constexpr char kRun[] = "\"$0\" run --quiet -- echo ran";
// The process that waits is the holder process, in a session of its own.
constexpr char kAcquire[] =
    "(me=$BASHPID; eval \"$(\"$0\" acquire --quiet --shell --owner $me)\" && echo ran && "
    "eval \"$(\"$0\" release --shell)\")";
// A test that CTest gave one slot of the device.
constexpr char kCtestRun[] =
    "CTEST_RESOURCE_GROUP_COUNT=1 CTEST_RESOURCE_GROUP_0=gpus CTEST_RESOURCE_GROUP_0_GPUS=id:host_0,slots:1 "
    "\"$0\" ctest-run --quiet -- echo ran";

// A command that waits, and how its waiting process comes to a halt.
struct Case {
  const char* name;
  const char* command;
  Halt halt;
};
constexpr Case kCases[] = {{"Stop", kRun, kStop},
                           {"GroupStop", kRun, {SIGSTOP, true}},
                           {"GroupTstp", kRun, kTerminalStop},
                           {"Ttin", kRun, {SIGTTIN, false}},
                           {"Ttou", kRun, {SIGTTOU, false}},
                           {"ExecStop", "\"$0\" run --quiet --exec -- /bin/echo ran", kStop},
                           {"ExecGroupTstp", "\"$0\" run --quiet --exec -- /bin/echo ran", kTerminalStop},
                           {"GangStop", "\"$0\" run --quiet --gpus 1 -- echo ran", kStop},
                           {"GangGroupTstp", "\"$0\" run --quiet --gpus 1 -- echo ran", kTerminalStop},
                           {"MemStop", "\"$0\" run --quiet --mem 1MiB -- echo ran", kStop},
                           {"MemGroupTstp", "\"$0\" run --quiet --mem 1MiB -- echo ran", kTerminalStop},
                           {"CtestRunStop", kCtestRun, kStop},
                           {"CtestRunGroupTstp", kCtestRun, kTerminalStop},
                           {"HolderProcessStop", kAcquire, kStop},
                           {"Debugger", kRun, {.by = Halt::By::kDebugger}},
                           {"ExecDebugger", "\"$0\" run --quiet --exec -- /bin/echo ran", {.by = Halt::By::kDebugger}},
                           {"HolderProcessDebugger", kAcquire, {.by = Halt::By::kDebugger}},
                           {"Tracer", kRun, {.by = Halt::By::kDebugger, .all_threads = false}}};
// The state of a frozen process is that of one that sleeps; its cgroup reports the difference.
constexpr Case kFrozenCases[] = {{"Frozen", kRun, {.by = Halt::By::kFreezer}},
                                 {"OldFrozen", kRun, {.by = Halt::By::kOldFreezer}},
                                 {"GangFrozen", "\"$0\" run --quiet --gpus 1 -- echo ran", {.by = Halt::By::kFreezer}},
                                 {"HolderProcessFrozen", kAcquire, {.by = Halt::By::kFreezer}}};

// Stops a process as a debugger does; no signal continues it.
class Debugger {
 public:
  // Returns errno, 0 for success. The process runs on with the end of this thread at the latest.
  int Attach(pid_t pid, bool all_threads) {
    // Threads that start meanwhile are found by the next look.
    for (bool found = true; found;) {
      found = false;
      for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"))) {
        pid_t thread = 0;
        if (!absl::SimpleAtoi(entry.path().filename().string(), &thread)) continue;
        if ((!all_threads && thread != pid) || !threads_.insert(thread).second) continue;
        if (::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) < 0) return errno;
        if (::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) < 0) return errno;
        if (::waitpid(thread, nullptr, __WALL) < 0) return errno;
        found = true;
      }
    }
    return 0;
  }
  void Detach() {
    for (const pid_t thread : threads_) EXPECT_EQ(::ptrace(PTRACE_DETACH, thread, nullptr, nullptr), 0) << errno;
    threads_.clear();
  }

 private:
  std::set<pid_t> threads_;
};

// Freezes processes in a control group of their own.
class Freezer {
 public:
  // `old`: of cgroup v1.
  explicit Freezer(bool old) : old_(old), cgroup_("berth-frozen", old ? "freezer" : "") {}
  ~Freezer() { Thaw(); }
  void Add(pid_t pid) {
    if (works()) Write("cgroup.procs", absl::StrCat(pid));
  }
  // Whether this machine can freeze.
  bool works() const {
    return !cgroup_.path().empty() &&
           std::filesystem::exists(cgroup_.path() + (old_ ? "/freezer.state" : "/cgroup.freeze"));
  }
  void Freeze() {
    old_ ? Write("freezer.state", "FROZEN") : Write("cgroup.freeze", "1");
    ASSERT_TRUE(Eventually([this] {
      std::ifstream file(cgroup_.path() + (old_ ? "/freezer.state" : "/cgroup.events"));
      const std::string state(std::istreambuf_iterator<char>(file), {});
      return absl::StrContains(state, old_ ? "FROZEN" : "frozen 1");
    }));
  }
  void Thaw() {
    if (works()) old_ ? Write("freezer.state", "THAWED") : Write("cgroup.freeze", "0");
  }

 private:
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(absl::StrCat(cgroup_.path(), "/", name)) << text << std::flush;
  }

  const bool old_;
  Cgroup cgroup_;
};

class StoppedWaitersTest : public ::testing::Test {
 protected:
  explicit StoppedWaitersTest(const std::string& program = "daemon/berthd")
      : daemon_({.program = program, .environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}}), berth_(daemon_.folder()) {}

  void TearDown() override { daemon_.ExpectAccountsBack(); }

  bool WaitersBecome(uint64_t count) {
    return daemon_.AccountsBecome([count](const Accounts& accounts) { return accounts.waiters == count; });
  }
  // Returns the waiters in the order of the queue.
  std::vector<v1::Waiter> Waiters() {
    const v1::ListPermitsResponse permits = Must(daemon_.inspector().ListPermits());
    return {permits.waiters().begin(), permits.waiters().end()};
  }
  bool FirstWaiterIsStopped() {
    const std::vector<v1::Waiter> waiters = Waiters();
    return !waiters.empty() && waiters[0].stopped();
  }

  // The first waiter is skipped.
  void ExpectViewsSayStopped() {
    EXPECT_TRUE(absl::StrContains(berth_.Show({"permits"}), " stopped"));
    EXPECT_TRUE(absl::StrContains(berth_.Show({"status"}), ", 1 stopped"));
    const std::string explained = berth_.Show({"explain", absl::StrCat(Waiters()[0].number())});
    EXPECT_TRUE(absl::StrContains(explained, "because: the waiting process is stopped")) << explained;
    EXPECT_TRUE(absl::StrContains(explained, "the thaw of its cgroup, the detach of its debugger")) << explained;
  }

  // Freezes waiting processes together; no grant is needed to find them.
  void ExpectFrozenWaitersSkipped(Freezer& freezer, uint64_t count) {
    Actor holder(daemon_);
    holder.Do("acquire p");
    std::vector<Subprocess> frozen;
    for (uint64_t i = 0; i < count; ++i) {
      frozen.push_back(berth_.Start({"run", "--quiet", "--", "/bin/true"}));
      ASSERT_TRUE(WaitersBecome(i + 1));
      freezer.Add(frozen.back().pid());
    }
    Actor next(daemon_);
    next.SendLine("acquire p");
    ASSERT_TRUE(WaitersBecome(count + 1));
    freezer.Freeze();
    EXPECT_TRUE(Eventually([&] {
      const std::vector<v1::Waiter> waiters = Waiters();
      return std::count_if(waiters.begin(), waiters.end(), [](const v1::Waiter& waiter) { return waiter.stopped(); }) ==
             static_cast<int64_t>(count);
    }));
    holder.Do("release p");
    EXPECT_TRUE(Ok(next.Answer()));
    freezer.Thaw();
    next.Do("release p");
    for (Subprocess& process : frozen) EXPECT_EQ(process.Wait(), 0);
    next.Quit();
    holder.Quit();
  }

  TestDaemon daemon_;
  BerthCommand berth_;
};

// A command as a job of a shell, which may be stopped by the terminal's signals.
class Job {
 public:
  Job(const TestDaemon& daemon, const std::string& command)
      : shell_(Subprocess::Start(
            {.argv = {"/bin/bash", "-c",
                      absl::StrCat("set -m; ", command,
                                   " & echo $!; read line; while kill -0 $! 2>/dev/null; do wait $!; done"),
                      ProgramPath("client/cli/berth")},
             .environment = {absl::StrCat("BERTH_FOLDER=", daemon.folder()), "BERTH_SESSION",
                             "CTEST_RESOURCE_GROUP_COUNT"}})) {
    EXPECT_TRUE(absl::SimpleAtoi(Must(shell_.ReadLine()), &pid_));
    waiter_ = pid_;
  }
  // The process that waits, where that is not the job's own.
  void set_waiter(pid_t waiter) { waiter_ = waiter; }
  void Signal(int signal, bool group) const { ::kill(group ? -pid_ : waiter_, signal); }
  void Stop(const Halt& halt) const {
    Signal(halt.signal, halt.group);
    ASSERT_TRUE(Eventually([&] { return StateOf(waiter_) == 'T'; })) << halt.signal;
  }
  pid_t waiter() const { return waiter_; }
  Subprocess& shell() { return shell_; }
  // The job ends by itself.
  void End() {
    shell_.CloseInput();
    shell_.Wait();
  }

 private:
  Subprocess shell_;
  pid_t pid_ = 0;
  pid_t waiter_ = 0;
};

// `seen`: the unit comes free once the daemon has seen the stop; or else before it can have seen it.
class HaltTest : public StoppedWaitersTest, public ::testing::WithParamInterface<std::tuple<Case, bool>> {};

TEST_P(HaltTest, NextWaiterIsServedAndStoppedOneKeepsPlace) {
  const auto& [how, seen] = GetParam();
  const Halt& halt = how.halt;
  Debugger debugger;
  std::optional<Freezer> freezer;
  Actor holder(daemon_), next(daemon_), last(daemon_);
  holder.Do("acquire p");
  Job job(daemon_, how.command);
  ASSERT_TRUE(WaitersBecome(1));
  job.set_waiter(Waiters()[0].process().pid());
  if (halt.by == Halt::By::kFreezer || halt.by == Halt::By::kOldFreezer) {
    if (!freezer.emplace(halt.by == Halt::By::kOldFreezer).works()) {
      job.Signal(SIGKILL, /*group=*/false);
      GTEST_SKIP() << "this machine has no writable control group that freezes";
    }
    freezer->Add(job.waiter());
  }
  next.SendLine("acquire p");
  ASSERT_TRUE(WaitersBecome(2));
  switch (halt.by) {
    case Halt::By::kSignal:
      job.Stop(halt);
      break;
    case Halt::By::kDebugger:
      ASSERT_EQ(debugger.Attach(job.waiter(), halt.all_threads), 0) << ::strerror(errno);
      break;
    case Halt::By::kFreezer:
    case Halt::By::kOldFreezer:
      freezer->Freeze();
      break;
  }
  if (seen) ASSERT_TRUE(Eventually([&] { return FirstWaiterIsStopped(); }));
  holder.Do("release p");
  EXPECT_TRUE(Ok(next.Answer()));
  ASSERT_TRUE(Eventually([&] { return FirstWaiterIsStopped(); }));
  // The waiter returns to its place, before one that came meanwhile.
  last.SendLine("acquire p");
  ASSERT_TRUE(WaitersBecome(2));
  EXPECT_EQ(Waiters()[0].process().pid(), job.waiter());
  ExpectViewsSayStopped();
  if (halt.by == Halt::By::kSignal) job.Signal(SIGCONT, halt.group);
  debugger.Detach();
  if (freezer.has_value()) freezer->Thaw();
  ASSERT_TRUE(Eventually([&] { return !Waiters()[0].stopped(); }));
  EXPECT_EQ(Waiters()[0].process().pid(), job.waiter());
  next.Do("release p");
  EXPECT_EQ(Must(job.shell().ReadLine()), "ran");
  EXPECT_TRUE(Ok(last.Answer()));
  last.Do("release p");
  job.End();
  for (Actor* const actor : {&holder, &next, &last}) actor->Quit();
}

INSTANTIATE_TEST_SUITE_P(Halts, HaltTest,
                         ::testing::Combine(::testing::ValuesIn(kCases), ::testing::Bool()),
                         [](const auto& info) {
                           const bool seen = std::get<1>(info.param);
                           return absl::StrCat(std::get<0>(info.param).name, seen ? "Seen" : "Unseen");
                         });
INSTANTIATE_TEST_SUITE_P(Frozen, HaltTest,
                         ::testing::Combine(::testing::ValuesIn(kFrozenCases), ::testing::Bool()),
                         [](const auto& info) {
                           const bool seen = std::get<1>(info.param);
                           return absl::StrCat(std::get<0>(info.param).name, seen ? "Seen" : "Unseen");
                         });

TEST_F(StoppedWaitersTest, WaiterLeavesQueueBeforeTerminalStopsIt) {
  Actor holder(daemon_), next(daemon_);
  holder.Do("acquire p");
  Job job(daemon_, kRun);
  ASSERT_TRUE(WaitersBecome(1));
  job.Stop(kTerminalStop);
  // No look at the process is needed.
  EXPECT_TRUE(FirstWaiterIsStopped());
  next.SendLine("acquire p");
  ASSERT_TRUE(WaitersBecome(2));
  holder.Do("release p");
  EXPECT_TRUE(Ok(next.Answer()));
  job.Signal(SIGCONT, /*group=*/true);
  next.Do("release p");
  EXPECT_EQ(Must(job.shell().ReadLine()), "ran");
  job.End();
  holder.Quit();
  next.Quit();
}

// A terminal's ^Z whose `fg` comes before the waiter has left the queue.
TEST_F(StoppedWaitersTest, ContinueDuringStopUndoesIt) {
  for (const Halt& halt : {kTerminalStop, Halt{SIGTTIN, false}, Halt{SIGTTOU, false}}) {
    SCOPED_TRACE(halt.signal);
    Actor holder(daemon_);
    holder.Do("acquire p");
    Job job(daemon_, kRun);
    ASSERT_TRUE(WaitersBecome(1));
    // The waiter's message that it leaves the queue has no answer meanwhile.
    const pid_t broker = daemon_.StopBroker();
    job.Signal(halt.signal, halt.group);
    job.Signal(SIGCONT, halt.group);
    ::kill(broker, SIGCONT);
    // The SIGCONT arrives at different moments of the waiter's preparation to stop.
    for (int round = 0; round < 100; ++round) {
      job.Signal(halt.signal, halt.group);
      for (int turn = 0; turn < round; ++turn) ::sched_yield();
      job.Signal(SIGCONT, halt.group);
    }
    holder.Do("release p");
    EXPECT_EQ(Must(job.shell().ReadLine()), "ran");
    job.End();
    holder.Quit();
  }
}

TEST_F(StoppedWaitersTest, SdkGangsAndPlansOfStoppedProcessAreSkipped) {
  for (const std::string& request : {std::string("acquire p"), std::string("gang p gpu-tests:1"),
                                     std::string("acquire p key=k"), std::string("plan p 4 pool=gpu-tests")}) {
    for (const bool seen : {true, false}) {
      SCOPED_TRACE(absl::StrCat(request, seen ? " seen" : ""));
      Actor holder(daemon_), stops(daemon_), next(daemon_);
      holder.Do("acquire p");
      stops.SendLine(request);
      ASSERT_TRUE(WaitersBecome(1));
      next.SendLine("acquire p");
      ASSERT_TRUE(WaitersBecome(2));
      stops.process().Signal(SIGSTOP);
      ASSERT_TRUE(Eventually([&] { return StateOf(stops.pid()) == 'T'; }));
      if (seen) {
        ASSERT_TRUE(Eventually([&] { return FirstWaiterIsStopped() && Waiters()[0].process().pid() == stops.pid(); }));
      }
      holder.Do("release p");
      EXPECT_TRUE(Ok(next.Answer()));
      stops.process().Signal(SIGCONT);
      next.Do("release p");
      EXPECT_TRUE(Ok(stops.Answer()));
      stops.Quit();
      next.Quit();
      holder.Quit();
    }
  }
}

TEST_F(StoppedWaitersTest, ViewsNameStoppedWaitersAndHolders) {
  Actor holder(daemon_), stops(daemon_);
  holder.Do("acquire p");
  stops.SendLine("acquire p");
  ASSERT_TRUE(WaitersBecome(1));
  stops.process().Signal(SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return FirstWaiterIsStopped(); }));
  holder.process().Signal(SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return StateOf(holder.pid()) == 'T'; }));
  const std::string permits = berth_.Show({"permits"});
  // The holder's row, and the waiter's.
  const size_t first = permits.find(" stopped");
  ASSERT_NE(first, std::string::npos) << permits;
  EXPECT_NE(permits.find(" stopped", first + 1), std::string::npos) << permits;
  const std::string explained = berth_.Show({"explain", absl::StrCat(Waiters()[0].number())});
  EXPECT_TRUE(absl::StrContains(explained, "because: the waiting process is stopped")) << explained;
  const std::string status = berth_.Show({"status"});
  EXPECT_TRUE(absl::StrContains(status, "1, 1 stopped")) << status;
  const nlohmann::json json = berth_.ShowJson({"permits"});
  EXPECT_TRUE(json["permits"][0]["stopped"].get<bool>()) << json;
  EXPECT_TRUE(json["waiters"][0]["stopped"].get<bool>()) << json;
  // The notice of another wait names the stopped holder, and how many are stopped before it.
  Subprocess waits = Subprocess::Start(
      {.argv = {"/bin/sh", "-c", "exec \"$0\" run -- /bin/true 2>&1", ProgramPath("client/cli/berth")},
       .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION"}});
  const std::string notice = Must(waits.ReadLine());
  EXPECT_TRUE(absl::StrContains(notice, "(1 stopped)")) << notice;
  EXPECT_TRUE(absl::StrContains(notice, " (stopped)")) << notice;
  stops.process().Signal(SIGCONT);
  holder.process().Signal(SIGCONT);
  holder.Do("release p");
  EXPECT_TRUE(Ok(stops.Answer()));
  stops.Do("release p");
  EXPECT_EQ(waits.Wait(), 0);
  stops.Quit();
  holder.Quit();
}

TEST_F(StoppedWaitersTest, WaitOfStoppedProcessEndsAtItsLimit) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  Job job(daemon_, "\"$0\" run --quiet --timeout 1 -- echo ran");
  ASSERT_TRUE(WaitersBecome(1));
  job.Stop(kStop);
  ASSERT_TRUE(WaitersBecome(0));
  job.Signal(SIGCONT, /*group=*/false);
  ASSERT_TRUE(Eventually([&] { return !IsAlive(job.waiter()); }));
  job.End();
  EXPECT_EQ(job.shell().ReadAll(), "");
  holder.Quit();
}

TEST_F(StoppedWaitersTest, HundredStoppedWaitersCostNoMoreThanOne) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  std::vector<Subprocess> stopped;
  const uint64_t count = GateOrSoak(12, 100);
  for (uint64_t i = 0; i < count; ++i) {
    stopped.push_back(berth_.Start({"run", "--quiet", "--", "/bin/true"}));
    ASSERT_TRUE(WaitersBecome(i + 1));
  }
  Actor next(daemon_);
  next.SendLine("acquire p");
  ASSERT_TRUE(WaitersBecome(count + 1));
  // All at once, and the unit comes free at once.
  for (const Subprocess& process : stopped) process.Signal(SIGSTOP);
  const absl::Time freed = absl::Now();
  holder.Do("release p");
  EXPECT_TRUE(Ok(next.Answer()));
  // One patience each would be far more. A machine that is busy with other tests may stall the processes for longer.
  if (Soaks()) {
    EXPECT_LT(absl::Now() - freed, absl::Milliseconds(500) * static_cast<int64_t>(count));
  }
  for (const Subprocess& process : stopped) process.Signal(SIGCONT);
  next.Do("release p");
  for (Subprocess& process : stopped) EXPECT_EQ(process.Wait(), 0);
  next.Quit();
  holder.Quit();
}

TEST_F(StoppedWaitersTest, FrozenWaitersAreSkippedTogether) {
  Freezer freezer(/*old=*/false);
  if (!freezer.works()) GTEST_SKIP() << "this machine has no writable control group that freezes";
  ExpectFrozenWaitersSkipped(freezer, GateOrSoak(12, 100));
}

// A program that starts the daemon in a cgroup and a cgroup namespace of its own, as a container does. The cgroups of
// its clients are outside.
class ContainedDaemon {
 protected:
  ContainedDaemon(bool old, bool mounted) : own_("berth-daemon", old ? "freezer" : "") {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    if (own_.path().empty() || !MayUnshare(CLONE_NEWCGROUP | CLONE_NEWNS)) return;
    program_ = folder_ + "/berthd";
    std::ofstream(program_) << "#!/bin/sh\necho $$ >" << own_.path()
                            << "/cgroup.procs\nexec /usr/bin/unshare --cgroup --mount /bin/sh -c '"
                            << (mounted ? "" : "umount --recursive /sys/fs/cgroup; ") << "exec \"$@\"' sh "
                            << ProgramPath("daemon/berthd") << " \"$@\"\n";
    std::filesystem::permissions(program_, std::filesystem::perms::owner_all);
  }
  ~ContainedDaemon() { std::filesystem::remove_all(folder_); }
  bool works() const { return !program_.empty(); }
  std::string program() const { return works() ? program_ : "daemon/berthd"; }

 private:
  std::string folder_ = "/tmp/berth-contained-XXXXXX";
  const Cgroup own_;
  std::string program_;
};

// Whether the freezer is that of cgroup v1; whether the daemon has the mounts of all cgroups.
using Sight = std::tuple<bool, bool>;

class ContainedDaemonTest : private ContainedDaemon,
                            public StoppedWaitersTest,
                            public ::testing::WithParamInterface<Sight> {
 protected:
  ContainedDaemonTest()
      : ContainedDaemon(std::get<0>(GetParam()), std::get<1>(GetParam())),
        StoppedWaitersTest(ContainedDaemon::program()) {}
  using ContainedDaemon::works;
};

INSTANTIATE_TEST_SUITE_P(Freezers, ContainedDaemonTest, ::testing::Combine(::testing::Bool(), ::testing::Bool()),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param) ? "OldFreezer" : "Freezer",
                                               std::get<1>(info.param) ? "Mounted" : "Hidden");
                         });

TEST_P(ContainedDaemonTest, FrozenWaitersAreSkippedTogether) {
  Freezer freezer(std::get<0>(GetParam()));
  if (!works() || !freezer.works()) GTEST_SKIP() << "needs writable control groups that freeze, and namespaces";
  ExpectFrozenWaitersSkipped(freezer, GateOrSoak(3, 100));
}

class StopStormTest : public StoppedWaitersTest, public ::testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(Signals, StopStormTest, ::testing::Values(SIGSTOP, SIGTSTP),
                         [](const auto& info) { return info.param == SIGSTOP ? "Stop" : "TerminalStop"; });

TEST_P(StopStormTest, ThousandStopsASecondGrantNothingTwice) {
  char folder[] = "/tmp/berth-stops-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  GiveToClients(folder);
  // The command fails where another process uses the unit.
  const std::string use = absl::StrCat("mkdir ", folder, "/unit && rmdir ", folder, "/unit || echo twice");
  const uint64_t rounds = GateOrSoak(4, 100);
  const std::string loop = absl::StrCat("for i in $(seq ", rounds, "); do \"$0\" run --quiet -- /bin/sh -c '", use,
                                        "'; done; echo done");
  const auto start = [&] {
    return Subprocess::Start({.argv = {"/bin/bash", "-c", loop, ProgramPath("client/cli/berth")},
                              .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION"}});
  };
  std::vector<Subprocess> loops;
  for (int i = 0; i < 3; ++i) loops.push_back(start());
  std::atomic<bool> over = false;
  std::thread stopper([&] {
    // Stops the waiting processes, but no command.
    while (!over) {
      for (const Subprocess& loop : loops) {
        for (const ChildInfo& child : ChildrenOf(loop.pid())) {
          ::kill(child.pid, GetParam());
          // A read of /proc is the pause.
          StateOf(child.pid);
          ::kill(child.pid, SIGCONT);
        }
      }
    }
  });
  for (Subprocess& loop : loops) EXPECT_EQ(loop.ReadAll(), "done\n");
  over = true;
  stopper.join();
  for (Subprocess& loop : loops) EXPECT_EQ(loop.Wait(), 0);
  ::rmdir(folder);
}

}  // namespace
}  // namespace berth::testing
