// Signals under `berth run`, `berth ctest-run` and `berth acquire`. The command gets the same signals, equally often,
// as without a wrapper, and a shell with job control observes the same.
//
// Each cell of the table runs twice on a separate terminal: under Berth, and bare or under `flock --no-fork`, which
// waits and becomes the command. Both must report the same. A selection runs that contains each pair of values;
// BERTH_ALL_CELLS=1 runs all cells.

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/runners/signal_job.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// Returns the reason why a cell is impossible; empty for a possible one.
std::string Impossible(const Cell& cell) {
  const int signal = SignalOf(cell).number;
  if (cell[1] == kTerminal && SignalOf(cell).key == 0 && signal != SIGHUP && !UsesTerminal(cell)) {
    return "a terminal never sends it";
  }
  if (UsesTerminal(cell) && cell[4] == kHolder) return "a holder process does not use the terminal";
  if (UsesTerminal(cell) && cell[3] != kRunning) return "no command is running that uses the terminal";
  if (cell[4] == kHolder) {
    if (Handles(cell)) return "a holder process handles nothing";
    if (cell[3] != kWaiting && (cell[1] == kWrapper || cell[1] == kGroup)) {
      return "`berth acquire` has ended by then, and the holder process is in no group of the owner's";
    }
    return "";
  }
  if (cell[1] == kChild && cell[3] == kWaiting) return "there is no command yet";
  if (signal == SIGCHLD && cell[2] != kDefault && cell[3] == kWaiting) {
    return "flock gives SIGCHLD its default before it waits";
  }
  if (signal == SIGCONT && cell[1] == kChild && cell[3] == kStopped && cell[4] != kExec) {
    return "a stopped wrapper does not see that only its command goes on; it does when it is continued";
  }
  return "";
}

std::vector<Cell> AllCells() {
  std::vector<Cell> cells = {Cell{}};
  for (size_t dimension = 0; dimension < kSizes.size(); ++dimension) {
    std::vector<Cell> more;
    for (Cell cell : cells) {
      for (cell[dimension] = 0; cell[dimension] < kSizes[dimension]; ++cell[dimension]) more.push_back(cell);
    }
    cells = std::move(more);
  }
  return cells;
}

// Returns a selection of `cells` that contains each pair of values that occurs in them, and the usual signals of a
// command that handles them, by every route. The selection is deterministic.
std::vector<Cell> Pairwise(const std::vector<Cell>& cells) {
  using Pair = std::array<int, 4>;
  const auto pairs = [](const Cell& cell) {
    std::vector<Pair> all;
    for (int a = 0; a < static_cast<int>(cell.size()); ++a) {
      for (int b = a + 1; b < static_cast<int>(cell.size()); ++b) {
        all.push_back({a, cell[static_cast<size_t>(a)], b, cell[static_cast<size_t>(b)]});
      }
    }
    return all;
  };
  std::set<Pair> missing;
  for (const Cell& cell : cells) {
    for (const Pair& pair : pairs(cell)) missing.insert(pair);
  }
  std::vector<Cell> chosen;
  for (const Cell& cell : cells) {
    if (cell[2] != kDefault || cell[3] != kRunning || cell[4] != kCommand || !Handles(cell)) continue;
    for (const Pair& pair : pairs(cell)) missing.erase(pair);
    chosen.push_back(cell);
  }
  while (!missing.empty()) {
    const Cell* best = nullptr;
    int64_t most = 0;
    for (const Cell& cell : cells) {
      const std::vector<Pair> all = pairs(cell);
      const int64_t gain =
          std::count_if(all.begin(), all.end(), [&](const Pair& pair) { return missing.contains(pair); });
      if (gain > most) {
        best = &cell;
        most = gain;
      }
    }
    for (const Pair& pair : pairs(*best)) missing.erase(pair);
    chosen.push_back(*best);
  }
  return chosen;
}

bool StopsByDefault(int signal) { return signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU; }
bool EndsByDefault(int signal) { return !StopsByDefault(signal) && signal != SIGCONT && signal != SIGCHLD; }

class SignalsTest : public ::testing::Test {
 protected:
  SignalsTest()
      : daemon_({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}}), lock_(daemon_.folder() + "/../lock") {
    std::ofstream file(lock_);
    file.close();
    GiveToClients(lock_);
  }
  void TearDown() override { daemon_.ExpectAccountsBack(); }

  Words CommandOf(const Cell& cell) const {
    return {ProgramPath("tests/runners/signal_probe"), "command", absl::StrCat(SignalOf(cell).number),
            kHandles[cell[5]], own_group_ ? "own-group" : "same-group"};
  }
  Words UnderBerth(const Cell& cell) const {
    Words words = {ProgramPath("client/cli/berth"), cell[4] == kCtestRun ? "ctest-run" : "run"};
    if (cell[4] == kTree) words.push_back("--until=tree");
    if (cell[4] == kExec) words.push_back("--exec");
    if (cell[4] == kCgroup) words.push_back("--cgroup");
    words.push_back("--");
    if (nested_) words.insert(words.end(), {ProgramPath("client/cli/berth"), "run", "--"});
    const Words command = CommandOf(cell);
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }
  Words Bare(const Cell& cell) const {
    Words words;
    if (cell[3] == kWaiting) words = {"/usr/bin/flock", "--no-fork", lock_};
    const Words command = CommandOf(cell);
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }
  std::vector<std::string> Environment() const {
    return {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION", "CTEST_RESOURCE_GROUP_COUNT"};
  }

  bool MakesCgroups() const {
    const Words words = {ProgramPath("client/cli/berth"), "run", "--cgroup", "--", "/bin/true"};
    return Subprocess::Start({.argv = words, .environment = Environment(), .errors = "/dev/null"}).Wait() == 0;
  }
  // Returns a cell of a running command for each of `modes` that is possible here.
  std::vector<Cell> RunningCells(std::vector<Mode> modes) const {
    if (MakesCgroups()) modes.push_back(kCgroup);
    std::vector<Cell> cells;
    for (const Mode mode : modes) cells.push_back({0, kGroup, kDefault, kRunning, mode, 0});
    return cells;
  }

  // Holds the two things that a waiter waits for: the permit and the file's lock.
  class Held {
   public:
    explicit Held(SignalsTest* test) : test_(test), file_(::open(test->lock_.c_str(), O_RDWR | O_CLOEXEC)) {
      ::flock(file_.get(), LOCK_EX);
      if (!test_->holder_.has_value()) test_->holder_.emplace(test_->daemon_);
      test_->holder_->Do("acquire p");
    }
    ~Held() { Release(); }
    void Release() {
      if (!file_) return;
      file_.reset();
      test_->holder_->Do("release p");
    }

   private:
    SignalsTest* const test_;
    UniqueFd file_;
  };

  bool AwaitWaiting(const Job& job, bool bare) {
    if (!bare) return daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; });
    return Eventually([&] {
      std::ifstream file(absl::StrCat("/proc/", job.pid(), "/syscall"));
      long number = -1;
      file >> number;
      return number == SYS_flock;
    });
  }

  // Runs one cell of a command. Returns the observations.
  Words Run(const Cell& cell, bool bare) {
    const int signal = SignalOf(cell).number;
    const bool acts = cell[2] == kDefault && (!Handles(cell) || cell[3] == kWaiting);
    std::optional<Held> held;
    if (cell[3] == kWaiting) held.emplace(this);
    Job job(cell, bare ? Bare(cell) : UnderBerth(cell), Environment());
    if (held.has_value()) {
      EXPECT_TRUE(AwaitWaiting(job, bare));
    } else {
      EXPECT_TRUE(job.Read({"started"}));
    }
    if (cell[3] == kStopped) {
      ::kill(job.command(), SIGSTOP);
      EXPECT_TRUE(job.Read({"stopped"}));
    }
    job.Deliver();
    if (cell[3] == kStopped) {
      if (signal != SIGCONT) ::kill(-job.pid(), SIGCONT);
      job.Read({"continued"});
    } else if (acts && StopsByDefault(signal)) {
      EXPECT_TRUE(job.Read({"stopped"}));
      job.GoOn();
    }
    // The command may have used the terminal before the shell saw it continue.
    const auto has_used = [&] {
      return std::any_of(job.said().begin(), job.said().end(),
                         [](const std::string& line) { return absl::StartsWith(line, "used "); });
    };
    if (UsesTerminal(cell) && !has_used()) EXPECT_TRUE(job.Read({"used"}));
    if (acts && EndsByDefault(signal)) job.ReadToEnd();
    if (held.has_value()) held->Release();
    if (held.has_value() && !job.over()) {
      EXPECT_TRUE(job.Read({"started"}));
    }
    if (!job.over()) ::kill(job.pid(), SIGRTMIN + 1);
    job.ReadToEnd();
    return job.said();
  }

  // Runs one cell of an owner process: `berth acquire` ends as `flock` does, and its owner process is separate.
  void RunHolder(const Cell& cell) {
    const int signal = SignalOf(cell).number;
    const bool acts = EndsByDefault(signal) && (cell[2] == kDefault || signal == SIGTERM);
    Subprocess owner = Subprocess::Start({.argv = {"/bin/cat"}});
    const Words acquire = {ProgramPath("client/cli/berth"), "--json", "acquire", "--owner",
                           absl::StrCat(owner.pid())};
    std::optional<Held> held;
    if (cell[3] == kWaiting) held.emplace(this);
    Job job(cell, acquire, Environment());
    pid_t holder = 0;
    if (held.has_value()) {
      ASSERT_TRUE(AwaitWaiting(job, /*bare=*/false));
      for (const ChildInfo& child : ChildrenOf(job.pid())) holder = child.pid;
      if (cell[1] == kChild) {
        ::kill(holder, signal);
      } else {
        job.Deliver();
      }
      const bool ends = cell[1] == kChild ? acts : EndsByDefault(signal) && cell[2] == kDefault;
      if (cell[1] != kChild && cell[2] == kDefault && StopsByDefault(signal)) {
        EXPECT_TRUE(job.Read({"stopped"}));
        job.GoOn();
      }
      if (cell[1] == kChild && cell[2] != kBlocked) ::kill(holder, SIGCONT);
      if (ends) job.ReadToEnd();
      held->Release();
      job.ReadToEnd();
      if (ends) {
        EXPECT_EQ(absl::StrJoin(job.last(), " "),
                  cell[1] == kChild ? "exited 125" : absl::StrCat("died ", signal));
        EXPECT_TRUE(
            daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits + accounts.waiters == 0; }));
        return;
      }
      EXPECT_EQ(absl::StrJoin(job.last(), " "), "exited 0");
    } else {
      job.ReadToEnd();
      ASSERT_EQ(absl::StrJoin(job.last(), " "), "exited 0") << absl::StrJoin(job.said(), "\n");
      for (const std::string& line : job.said()) {
        if (absl::StartsWith(line, "{")) holder = nlohmann::json::parse(line)["keeper"];
      }
      if (cell[3] == kStopped) {
        ::kill(holder, SIGSTOP);
        ASSERT_TRUE(Eventually([&] { return StateOf(holder) == 'T'; }));
      }
      if (cell[1] == kChild) {
        ::kill(holder, signal);
      } else {
        job.Deliver();
      }
      ::kill(holder, SIGCONT);
      if (cell[1] == kChild && acts) {
        EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 0; }));
        return;
      }
      // The signal is delivered, unless it is blocked.
      EXPECT_TRUE(Eventually([&] { return cell[2] == kBlocked || !IsPending(holder, signal); }));
    }
    EXPECT_EQ(daemon_.TakeAccounts().permits, 1u);
    // A release ends it, whichever signals it ignores.
    ::kill(holder, SIGTERM);
    EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 0; }));
  }

  TestDaemon daemon_;
  const std::string lock_;
  // Whether the command makes a process group of its own, as timeout(1) does. A group's leader cannot.
  bool own_group_ = false;
  // Whether a second wrapper starts the command.
  bool nested_ = false;
  std::optional<Actor> holder_;
};

TEST_F(SignalsTest, EachCellMatchesRunWithoutWrapper) {
  std::map<std::string, int> impossible;
  std::vector<Cell> cells;
  const bool cgroups = MakesCgroups();
  for (const Cell& cell : AllCells()) {
    std::string why = Impossible(cell);
    if (cell[4] == kCgroup && !cgroups) why = "no control group can be made here";
    if (why.empty()) {
      cells.push_back(cell);
    } else {
      ++impossible[why];
    }
  }
  for (const auto& [why, count] : impossible) printf("%d cells are impossible: %s\n", count, why.c_str());
  const size_t all = cells.size();
  const char* const every = ::getenv("BERTH_ALL_CELLS");
  if (every == nullptr || *every != '1') cells = Pairwise(cells);
  printf("%zu of %zu cells run\n", cells.size(), all);
  std::map<Cell, Words> bare;
  for (const Cell& cell : cells) {
    SCOPED_TRACE(NameOf(cell));
    if (cell[4] == kHolder) {
      RunHolder(cell);
      continue;
    }
    Cell without = cell;
    without[4] = kExec;
    if (!bare.contains(without)) bare[without] = Run(without, /*bare=*/true);
    EXPECT_EQ(absl::StrJoin(Run(cell, /*bare=*/false), "; "), absl::StrJoin(bare[without], "; "));
  }
  if (holder_.has_value()) holder_->Quit();
}

// A signal for the job's process group reaches a command that has left the group. Without a wrapper it could not leave.
TEST_F(SignalsTest, GroupSignalsReachCommandOfOwnGroup) {
  own_group_ = true;
  std::vector<Cell> cells;
  for (const Cell& cell : AllCells()) {
    const bool to_group = cell[1] == kGroup || (cell[1] == kTerminal && !UsesTerminal(cell));
    if (!to_group || cell[2] != kDefault || cell[3] == kWaiting || !Impossible(cell).empty()) continue;
    if (cell[4] == kCommand || (Soaks() && (cell[4] == kTree || cell[4] == kCtestRun))) cells.push_back(cell);
  }
  for (size_t i = 0; i < cells.size(); i += GateOrSoak(3, 1)) {
    nested_ = i % 2 == 1;
    SCOPED_TRACE(absl::StrCat(NameOf(cells[i]), nested_ ? " nested" : ""));
    EXPECT_EQ(absl::StrJoin(Run(cells[i], /*bare=*/false), "; "), absl::StrJoin(Run(cells[i], /*bare=*/true), "; "));
  }
}

// A pair of values that the selection lacks occurs in impossible cells only, and is listed with their reasons.
TEST(PairwiseTest, SelectionContainsEachPossiblePair) {
  std::vector<Cell> possible = AllCells();
  std::erase_if(possible, [](const Cell& cell) { return !Impossible(cell).empty(); });
  const std::vector<Cell> chosen = Pairwise(possible);
  for (size_t a = 0; a < kSizes.size(); ++a) {
    for (size_t b = a + 1; b < kSizes.size(); ++b) {
      std::map<std::string, std::set<std::string>> reasons;
      for (const Cell& cell : AllCells()) reasons[NameOf(cell, a, b)].insert(Impossible(cell));
      EXPECT_EQ(reasons.size(), static_cast<size_t>(kSizes[a] * kSizes[b]));
      for (const Cell& cell : chosen) reasons.erase(NameOf(cell, a, b));
      for (const auto& [pair, why] : reasons) {
        EXPECT_FALSE(why.contains("")) << pair << " is possible";
        printf("%s is impossible: %s\n", pair.c_str(), absl::StrJoin(why, "; ").c_str());
      }
    }
  }
}

// A stop signal or SIGCONT, and its target.
struct Sent {
  int signal;
  Target target;
};

// The command is stopped after a last stop signal and runs after a last SIGCONT, as without a wrapper, however close
// the signals follow each other. The wrapper does as the command.
TEST_F(SignalsTest, CloseStopsAndContinuesEndAsWithoutWrapper) {
  const std::vector<std::vector<Sent>> sequences = {
      {{SIGTSTP, kGroup}, {SIGCONT, kGroup}},   {{SIGTTIN, kGroup}, {SIGCONT, kGroup}},
      {{SIGSTOP, kGroup}, {SIGCONT, kGroup}},   {{SIGTSTP, kWrapper}, {SIGCONT, kGroup}},
      {{SIGTSTP, kGroup}, {SIGCONT, kWrapper}}, {{SIGTTOU, kWrapper}, {SIGCONT, kWrapper}},
      {{SIGTSTP, kChild}, {SIGCONT, kGroup}},   {{SIGTSTP, kChild}, {SIGCONT, kWrapper}},
      {{SIGCONT, kGroup}, {SIGTSTP, kGroup}},   {{SIGTSTP, kGroup}, {SIGCONT, kGroup}, {SIGTSTP, kGroup}}};
  constexpr int kGapsUs[] = {0, 100, 300, 1000, 3000};
  for (const Cell& cell : RunningCells({kCommand, kTree, kExec})) {
    for (const bool bare : {false, true}) {
      // Without a wrapper all modes are one.
      if (bare && cell[4] != kCommand) continue;
      Job job(cell, bare ? Bare(cell) : UnderBerth(cell), Environment());
      ASSERT_TRUE(job.Read({"started"}));
      for (size_t i = 0; i < sequences.size() * GateOrSoak(2, 200); ++i) {
        const size_t row = i % sequences.size();
        const absl::Duration gap = absl::Microseconds(kGapsUs[(i / sequences.size() + row) % std::size(kGapsUs)]);
        SCOPED_TRACE(absl::StrCat(NameOf(cell), bare ? " bare" : "", " row ", row, " gap ", absl::FormatDuration(gap)));
        for (const Sent& sent : sequences[row]) {
          job.Send(sent.signal, sent.target);
          for (const absl::Time next = absl::Now() + gap; absl::Now() < next;) {
          }
        }
        if (sequences[row].back().signal != SIGCONT) {
          ASSERT_TRUE(Eventually([&] { return StateOf(job.pid()) == 'T' && StateOf(job.command()) == 'T'; }));
          job.Send(SIGCONT, kGroup);
        }
        ASSERT_TRUE(job.IsAwake());
      }
      EXPECT_EQ(job.End(), "exited 7");
    }
  }
}

// A job that continues in the background and uses its terminal stops again at once, often by another signal.
TEST_F(SignalsTest, StopRightAfterContinueStopsWrapperToo) {
  constexpr std::pair<int, int> kStops[] = {{SIGTSTP, SIGTTIN}, {SIGTSTP, SIGTTOU}, {SIGTTIN, SIGTSTP},
                                            {SIGTTOU, SIGTSTP}, {SIGSTOP, SIGTSTP}, {SIGTSTP, SIGTSTP}};
  for (const Cell& cell : RunningCells({kCommand, kTree, kExec, kCtestRun})) {
    Job job(cell, UnderBerth(cell), Environment());
    ASSERT_TRUE(job.Read({"started"}));
    const auto stops = [&] {
      return Eventually([&] { return StateOf(job.pid()) == 'T' && StateOf(job.command()) == 'T'; });
    };
    for (const auto& [first, next] : kStops) {
      SCOPED_TRACE(absl::StrCat(NameOf(cell), ": ", first, ", ", next));
      job.Send(first, kGroup);
      ASSERT_TRUE(stops());
      job.Send(SIGCONT, kGroup);
      job.Send(next, kGroup);
      ASSERT_TRUE(stops());
      job.Send(SIGCONT, kGroup);
      ASSERT_TRUE(job.IsAwake());
    }
    EXPECT_EQ(job.End(), "exited 7");
  }
}

// The kernel merges equal signals that a process has not received yet: of close signals to the group, the wrapper may
// receive more than its witness. The command has each of them without the wrapper.
TEST_F(SignalsTest, CloseSignalsToGroupAreNotForwarded) {
  for (Cell cell : RunningCells({kCommand, kTree, kCtestRun})) {
    while (SignalOf(cell).number != SIGUSR1) ++cell[0];
    cell[5] = 1;
    SCOPED_TRACE(NameOf(cell));
    Job job(cell, UnderBerth(cell), Environment());
    ASSERT_TRUE(job.Read({"started"}));
    for (uint64_t i = 0; i < GateOrSoak(120, 4'000); ++i) {
      // Each signal comes at another moment of the wrapper's work on the earlier ones.
      for (uint64_t sent = 0; sent < 20; ++sent) {
        job.Send(SIGUSR1, kGroup);
        for (uint64_t spins = (i * 37 + sent * 11) % 100; spins > 0; --spins) job.Send(0, kWrapper);
      }
      // The wrapper forwards in order.
      ASSERT_TRUE(job.IsAwake());
      ASSERT_EQ(absl::StrJoin(job.last(), " "), "awake 0") << i;
    }
    EXPECT_EQ(job.End(), "exited 7");
  }
}

// pkill and killall select processes by their names. The wrapper forwards what does not reach the command.
TEST_F(SignalsTest, SignalsByNameReachCommandOnce) {
  for (const Mode mode : {kCommand, kTree, kCtestRun}) {
    Cell cell = {0, kGroup, kDefault, kRunning, mode, 1};
    while (SignalOf(cell).number != SIGUSR1) ++cell[0];
    SCOPED_TRACE(NameOf(cell));
    Job job(cell, UnderBerth(cell), Environment());
    ASSERT_TRUE(job.Read({"started"}));
    const auto send = [&](const std::string& script, const std::string& awake) {
      SCOPED_TRACE(script);
      EXPECT_EQ(Subprocess::Start({.argv = {"/bin/sh", "-c", script, absl::StrCat(job.pid())}}).Wait(), 0);
      // The wrapper forwards in order.
      ASSERT_TRUE(job.IsAwake());
      EXPECT_EQ(absl::StrJoin(job.last(), " "), awake);
    };
    send("pkill -USR1 -g $0 berth", "awake 1");
    send("pkill -USR1 -g $0 -x berth", "awake 2");
    send("kill -s USR1 -- -$0", "awake 2");
    EXPECT_EQ(job.End(), "exited 7");
    EXPECT_EQ(std::count(job.said().begin(), job.said().end(), "saw 3 0"), 1) << absl::StrJoin(job.said(), "\n");
  }
}

// The kernel discards a stop signal in a witness that has not yet reported it.
TEST_F(SignalsTest, ContinueBeforeWitnessReportsStopUndoesIt) {
  for (const Cell& cell : RunningCells({kCommand, kTree})) {
    Job job(cell, UnderBerth(cell), Environment());
    ASSERT_TRUE(job.Read({"started"}));
    pid_t witness = 0;
    for (const ChildInfo& child : ChildrenOf(job.pid())) {
      if (child.name == "signal-witness") witness = child.pid;
    }
    ASSERT_GT(witness, 0);
    for (const int signal : {SIGTSTP, SIGTTIN, SIGTTOU}) {
      SCOPED_TRACE(absl::StrCat(NameOf(cell), " ", signal));
      ::kill(witness, SIGSTOP);
      ASSERT_TRUE(Eventually([&] { return StateOf(witness) == 'T'; }));
      job.Send(signal, kGroup);
      // The wrapper has read the signal, or has stopped by it.
      ASSERT_TRUE(Eventually([&] { return !IsPending(job.pid(), signal) || StateOf(job.pid()) == 'T'; }));
      job.Send(SIGCONT, kGroup);
      ASSERT_TRUE(job.IsAwake());
    }
    EXPECT_EQ(job.End(), "exited 7");
  }
}

// A daemon that a script starts for itself, as `berthd &` does.
TEST_F(SignalsTest, DaemonRespectsSignalsIgnoredByParent) {
  struct Row {
    int signal;
    Disposition disposition;
    bool ends;
  };
  for (const Row& row : {Row{SIGINT, kDefault, true}, Row{SIGINT, kIgnored, false}, Row{SIGINT, kBlocked, true},
                         Row{SIGTERM, kDefault, true}, Row{SIGTERM, kIgnored, false}, Row{SIGTERM, kBlocked, true},
                         Row{SIGHUP, kDefault, false}, Row{SIGHUP, kIgnored, false}, Row{SIGPIPE, kDefault, false},
                         Row{SIGCHLD, kIgnored, false}}) {
    Cell cell = {};
    while (SignalOf(cell).number != row.signal) ++cell[0];
    cell[1] = row.signal == SIGTERM ? kWrapper : kGroup;
    cell[2] = row.disposition;
    SCOPED_TRACE(NameOf(cell));
    const std::string folder = daemon_.folder() + "/../of-a-script";
    const auto runs = [&] {
      const Words run = {ProgramPath("client/cli/berth"), "--folder", folder, "run", "--", "/bin/true"};
      return Subprocess::Start({.argv = run, .errors = "/dev/null", .of_operator = true}).Wait() == 0;
    };
    Job job(cell, {ProgramPath("daemon/berthd"), "--folder=" + folder, "--backend=host"}, {}, /*of_operator=*/true);
    EXPECT_TRUE(Eventually(runs));
    job.Deliver();
    if (!row.ends) {
      EXPECT_TRUE(runs());
      ::kill(job.pid(), row.signal == SIGTERM ? SIGINT : SIGTERM);
    }
    job.ReadToEnd();
    EXPECT_EQ(absl::StrJoin(job.last(), " "), "exited 0");
  }
}

}  // namespace
}  // namespace berth::testing
