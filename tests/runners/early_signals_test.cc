// Signals that arrive while `berthd` or `berth` starts have the effect of later ones.
//
// A started program runs from one system call to the next. At one of these stops it gets a signal, and then runs by
// itself. The stops are all the states in which a signal can meet a start, however many milliseconds old. The gate
// tries one random stop for each signal, the soak more, and both the one at which the daemon waits for its inventory.
// BERTH_EARLY_SEED replays the choice.

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/proc.h"
#include "tests/support/stepped_program.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

using Words = std::vector<std::string>;

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The stops of a start at which the program has decided what a signal does: [first, end).
struct Stops {
  uint64_t first = 0;
  uint64_t end = 0;
};

// Steps the program until `done`, from the first stop on at which it blocks SIGTERM.
Stops CountStops(SteppedProgram& program, const std::function<bool()>& done) {
  Stops stops;
  for (uint64_t stop = 1; program.Step(); ++stop) {
    if (stops.first == 0 && program.Blocks(SIGTERM)) stops.first = stop;
    stops.end = stop;
    if (stops.first != 0 && done()) break;
  }
  return stops;
}

class EarlySignalsTest : public ::testing::Test {
 protected:
  EarlySignalsTest() : random_(SeedFromEnvironment("BERTH_EARLY_SEED")) {}

  void SetUp() override {
#ifdef BERTH_SANITIZED
    GTEST_SKIP() << "a sanitizer makes system calls of its own";
#endif
  }

  // Returns the stops to try.
  std::vector<uint64_t> Choose(const Stops& stops) {
    EXPECT_GT(stops.first, 0u) << "the program never blocks SIGTERM";
    EXPECT_GT(stops.end, stops.first + 4);
    std::vector<uint64_t> chosen;
    if (HasFailure()) return chosen;
    for (uint64_t i = 0; i < GateOrSoak(1, 24); ++i) {
      // Another start may take a system call more or less.
      chosen.push_back(stops.first + 2 + random_() % (stops.end - stops.first - 3));
    }
    return chosen;
  }

  // Runs the program up to that stop, and lets it run on with the signal.
  static void SignalAt(SteppedProgram& program, uint64_t stop, int signal) {
    for (uint64_t i = 0; i < stop && program.Step(); ++i) {
    }
    // A stop by the terminal may take effect at once.
    if (signal != SIGTSTP) EXPECT_TRUE(program.Blocks(signal)) << "stop " << stop;
    program.LetGo(signal);
  }

  // Continues the process whenever it is stopped, until `done`. The kernel stops no process of an orphaned process
  // group by SIGTSTP: the signal then has no effect.
  static bool ContinueUntil(const Subprocess& process, const std::function<bool()>& done) {
    return Eventually([&] {
      if (StateOf(process.pid()) == 'T') process.Signal(SIGCONT);
      return done();
    });
  }

  std::mt19937_64 random_;
};

// A daemon of the test in a folder of its own.
class SteppedDaemon {
 public:
  SteppedDaemon() {
    char path[] = "/tmp/berth-early-XXXXXX";
    if (::mkdtemp(path) == nullptr) Fatal(OsError("mkdtemp", errno), path);
    parent_ = path;
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) < 0) Fatal(OsError("pipe2", errno), "berthd");
    ready_.reset(ends[0]);
    UniqueFd given(ends[1]);
    program_.emplace(SubprocessOptions{
        .argv = {ProgramPath("daemon/berthd"), "--backend=host", absl::StrCat("--folder=", folder()),
                 absl::StrCat("--ready-fd=", given.get())},
        .inherited_fd = given.get(),
        .of_operator = true});
  }
  ~SteppedDaemon() {
    program_.reset();
    // After a failure: each process starts the others again.
    (void)Within(kPatience, [&] {
      const std::vector<ChildInfo> left = ProcessesWith("berthd", absl::StrCat("--folder=", folder()));
      for (const ChildInfo& process : left) ::kill(process.pid, SIGKILL);
      return left.empty();
    });
    std::filesystem::remove_all(parent_);
  }

  std::string folder() const { return parent_ + "/run"; }
  SteppedProgram& program() { return *program_; }
  bool IsReady() const {
    pollfd entry = {.fd = ready_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&entry, 1, 0) > 0 && (entry.revents & POLLIN) != 0;
  }
  // Waits until it serves. Returns false if it ends before.
  bool AwaitReady() const {
    char byte = 0;
    return ::read(ready_.get(), &byte, 1) == 1;
  }
  void ExpectCleanEnd() {
    EXPECT_EQ(program_->process().Wait(), 0);
    EXPECT_TRUE(Eventually([&] { return ProcessesWith("berthd", absl::StrCat("--folder=", folder())).empty(); }));
    EXPECT_FALSE(std::filesystem::exists(folder() + "/berthd.sock"));
  }

 private:
  std::string parent_;
  UniqueFd ready_;
  std::optional<SteppedProgram> program_;
};

TEST_F(EarlySignalsTest, DaemonHandlesSignalAtAnyMomentOfStart) {
  Stops stops;
  // The stop at which it begins to wait for the inventory of devices.
  uint64_t waits = 0;
  {
    SteppedDaemon daemon;
    uint64_t covered = 0;
    stops = CountStops(daemon.program(), [&] {
      ++covered;
      if (waits == 0 && daemon.program().Enters(SYS_poll)) waits = covered;
      return daemon.IsReady();
    });
    waits += stops.first - 1;
    daemon.program().LetGo(SIGTERM);
    daemon.ExpectCleanEnd();
  }
  for (const int signal : {SIGHUP, SIGTERM, SIGINT, SIGTSTP}) {
    std::vector<uint64_t> chosen = Choose(stops);
    if (signal == SIGHUP || Soaks()) chosen.push_back(waits);
    for (const uint64_t stop : chosen) {
      SCOPED_TRACE(absl::StrCat("signal ", signal, " at stop ", stop, " of ", stops.first, " to ", stops.end));
      SteppedDaemon daemon;
      SignalAt(daemon.program(), stop, signal);
      if (signal == SIGHUP) {
        EXPECT_TRUE(daemon.AwaitReady());
        const std::string audit = daemon.folder() + "/state/audit.jsonl";
        EXPECT_TRUE(Eventually([&] { return absl::StrContains(ReadText(audit), "\"what\":\"reload\""); }))
            << ReadText(audit);
        daemon.program().process().Signal(SIGTERM);
      }
      if (signal == SIGTSTP) {
        EXPECT_TRUE(ContinueUntil(daemon.program().process(), [&] { return daemon.IsReady(); }));
        daemon.program().process().Signal(SIGTERM);
      }
      daemon.ExpectCleanEnd();
    }
  }
}

TEST_F(EarlySignalsTest, WrapperHandlesSignalAtAnyMomentOfStart) {
  struct Row {
    const char* name;
    Words words;
    bool reports;
  };
  const Row rows[] = {{"run", {"run"}, true},
                      {"exec", {"run", "--exec"}, true},
                      {"ctest-run", {"ctest-run"}, true},
                      {"acquire", {"acquire", "--json", "--owner=OWNER"}, false}};
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  const std::string report = daemon.folder() + "/../report";
  for (const Row& row : rows) {
    SubprocessOptions options = {
        .argv = {ProgramPath("client/cli/berth")},
        .environment = {absl::StrCat("BERTH_FOLDER=", daemon.folder()), "BERTH_SESSION", "CTEST_RESOURCE_GROUP_COUNT"}};
    options.argv.insert(options.argv.end(), row.words.begin(), row.words.end());
    if (row.reports) {
      for (const std::string& word : {absl::StrCat("--status-file=", report), std::string("--"),
                                      std::string("/bin/true")}) {
        options.argv.push_back(word);
      }
    }
    // The holder process that an acquire leaves behind ends with its owner.
    const auto start_owner = [&] {
      Subprocess owner = Subprocess::Start({.argv = {"/bin/cat"}});
      if (!row.reports) options.argv.back() = absl::StrCat("--owner=", owner.pid());
      return owner;
    };
    Stops stops;
    {
      const Subprocess owner = start_owner();
      SteppedProgram program(options);
      // A wrapper reads its signals from then on; another verb has its signals back.
      stops = CountStops(program, [&] {
        return row.reports ? program.Enters(SYS_signalfd4) : !program.Blocks(SIGTERM);
      });
      program.LetGo(SIGTERM);
      EXPECT_EQ(program.process().Wait(), 128 + SIGTERM);
    }
    for (const int signal : {SIGHUP, SIGTERM, SIGINT, SIGTSTP}) {
      for (const uint64_t stop : Choose(stops)) {
        SCOPED_TRACE(absl::StrCat(row.name, ": signal ", signal, " at stop ", stop, " of ", stops.first, " to ",
                                  stops.end));
        std::filesystem::remove(report);
        const Subprocess owner = start_owner();
        SteppedProgram program(options);
        SignalAt(program, stop, signal);
        if (signal == SIGTSTP) {
          EXPECT_TRUE(ContinueUntil(program.process(), [&] { return program.process().IsGone(); }));
          EXPECT_EQ(program.process().Wait(), 0);
          if (row.reports) EXPECT_FALSE(absl::StartsWith(ReadText(report), "ran=no")) << ReadText(report);
        } else {
          EXPECT_EQ(program.process().Wait(), 128 + signal);
          if (row.reports) {
            EXPECT_EQ(ReadText(report), absl::StrCat("ran=no\nreason=interrupted\nsignal=", signal,
                                                     "\nexit=", 128 + signal, "\n"));
          }
        }
        owner.Kill();
        EXPECT_TRUE(daemon.AccountsBecome(
            [](const Accounts& accounts) { return accounts.permits == 0 && accounts.waiters == 0; }));
      }
    }
  }
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
