// Processes with too few threads, too little memory, too few file descriptors, or too small files. At each value of
// each limit a process gives the same result as without the limit, or the message and exit code for that limit. Nothing
// crashes, hangs or leaves a permit.
//
// The gate tries `berth run`, the SDK, `berth acquire` with few fds, and the daemon with few fds or small files. The
// soak tries every program under every limit, BERTH_LIMITS_ALL=1 in finer steps.

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// A user without processes of other tests, also of this test in another checkout: the kernel counts threads by user.
const uid_t kOwnUser = 30'000 + static_cast<uid_t>(::getpid()) % 30'000;
constexpr int kLacking = 125;

// Whether to try every useful value of every limit, instead of a selection that takes half a minute.
bool TriesAll() { return getenv("BERTH_LIMITS_ALL") != nullptr; }
// Whether to try every program under every limit.
bool TriesEach() { return TriesAll() || Soaks(); }

// A control group for one limited process at a time. Needs root and a mounted pids controller.
class PidsGroup {
 public:
  PidsGroup() {
    for (const char* const root : {"/sys/fs/cgroup/pids", "/sys/fs/cgroup"}) {
      const std::string path = absl::StrCat(root, "/berth-limits-", ::getpid());
      if (::mkdir(path.c_str(), 0755) < 0) continue;
      path_ = path;
      if (std::filesystem::exists(path + "/pids.max")) return;
      Remove();
    }
  }
  ~PidsGroup() { Remove(); }

  bool exists() const { return !path_.empty(); }
  // Returns the words that move a process into the group, before its own words.
  std::vector<std::string> Enter(uint64_t max) const {
    return {"/bin/sh", "-c", "echo $2 > $1/pids.max && echo $$ > $1/cgroup.procs && shift 2 && exec \"$@\"", "sh",
            path_, absl::StrCat(max)};
  }

 private:
  void Remove() {
    if (!path_.empty() && !Eventually([&] { return ::rmdir(path_.c_str()) == 0; })) {
      ADD_FAILURE() << path_ << " still has processes";
    }
    path_.clear();
  }

  std::string path_;
};

// One of prlimit's options, and its values from too small on; `floor` is the least value at which the program starts.
// "pids.max" is a control group's limit.
struct Limit {
  std::string name;
  std::string option;
  std::vector<uint64_t> (*values)(uint64_t floor);
  // Candidates for the floor, in the order of the trials.
  std::vector<uint64_t> floors;
};

std::vector<uint64_t> Threads(uint64_t) {
  std::vector<uint64_t> values;
  // gRPC starts threads for each processor.
  for (uint64_t value = 1; value <= 1024; value += value < 40 ? 1 : 16) values.push_back(value);
  return values;
}

std::vector<uint64_t> Fds(uint64_t floor) {
  std::vector<uint64_t> values;
  // Half of the daemon's fds are for clients, so that it needs some 100.
  for (uint64_t value = floor; value <= 512; value += value < 64 ? 1 : 16) values.push_back(value);
  return values;
}

std::vector<uint64_t> Memory(uint64_t floor) {
  std::vector<uint64_t> values;
  const uint64_t step = TriesAll() ? 1 << 20 : 9 << 20;
  for (uint64_t value = floor; value <= 2048ULL << 20; value += value < floor + 12 * step ? step : 8 * step) {
    values.push_back(value);
  }
  return values;
}

std::vector<uint64_t> MemoryFloors(uint64_t least_mib) {
  std::vector<uint64_t> values;
  for (uint64_t mib = least_mib; mib <= 512; mib += 2) values.push_back(mib << 20);
  return values;
}

const Limit kLimits[] = {{"Threads", "--nproc", &Threads, {1}},
                         {"Memory", "--as", &Memory, MemoryFloors(16)},
                         {"Data", "--data", &Memory, MemoryFloors(2)},
                         {"Fds", "--nofile", &Fds, {3, 4, 5, 6, 7, 8}},
                         {"Pids", "pids.max", &Threads, {1}}};

// The outcome of a process.
struct Outcome {
  int code = 0;
  std::string output;
  std::string errors;
};

// A program, and how the test uses it.
struct Subject {
  std::string name;
  std::string program;
  // Arguments of the program, before further ones.
  std::vector<std::string> words;
  // Standard input, line by line.
  std::vector<std::string> input = {};
  // Called with the output of a successful run, to finish its effects.
  std::function<void(const std::string&)> after = nullptr;
  // Exit code under a limit that is too low.
  int lacking = kLacking;
};

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Ends the owner process of an acquire, which root can do.
void EndHolder(const std::string& output) {
  const nlohmann::json json = nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object() && json.contains("keeper")) << output;
  ::kill(json["keeper"].get<pid_t>(), SIGTERM);
}

const std::vector<Subject>& Subjects() {
  static const auto* const kSubjects = new std::vector<Subject>{
      {"Run", "client/cli/berth", {"run", "--no-wait", "--", "/bin/true"}},
      {"RunExec", "client/cli/berth", {"run", "--exec", "--", "/bin/true"}},
      {"RunTree",
       "client/cli/berth",
       {"run", "--exit-code-not-run=42", "--until=tree", "--", "/bin/true"},
       {},
       nullptr,
       42},
      {"CtestRun", "client/cli/berth", {"ctest-run", "--", "/bin/true"}},
      {"Acquire", "client/cli/berth", {"acquire", "--json", absl::StrCat("--owner=", ::getpid())}, {}, &EndHolder},
      {"Status", "client/cli/berth", {"status"}},
      {"Sdk", "tests/support/actor/actor", {}, {"open", "acquire p", "release p"}},
      // A plain permit needs no gRPC, a block does.
      {"SdkBlock", "tests/support/actor/actor", {}, {"open", "allocate b 4096", "free b"}},
  };
  return *kSubjects;
}

class LimitsTest : public ::testing::Test {
 protected:
  // Programs must lie where every user can read them, and sockets must be open to the clients' group.
  static void SetUpTestSuite() {
    if (IsRoot()) ::setenv("BERTH_TEST_OTHER_USER", "1", 1);
  }

  void SetUp() override {
    char path[] = "/tmp/berth-limits-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    folder_ = path;
    ASSERT_TRUE(!IsRoot() || ::chown(path, kOwnUser, kOwnUser) == 0);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Returns the words that run a program as kOwnUser under a limit; `value` is empty for no limit.
  std::vector<std::string> Limited(const Limit& limit, std::optional<uint64_t> value,
                                   const std::vector<std::string>& argv) const {
    std::vector<std::string> words;
    const bool by_group = limit.option == "pids.max";
    if (by_group && value.has_value()) words = group_.Enter(*value);
    if (IsRoot()) {
      words.insert(words.end(), {"/usr/bin/setpriv", absl::StrCat("--reuid=", kOwnUser),
                                 absl::StrCat("--regid=", kOwnUser), absl::StrCat("--groups=", kClientsGroup)});
    }
    if (!by_group && value.has_value()) {
      words.insert(words.end(), {"/usr/bin/prlimit", absl::StrCat(limit.option, "=", *value, ":", *value)});
    }
    words.insert(words.end(), argv.begin(), argv.end());
    return words;
  }

  Outcome Run(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
              const std::vector<std::string>& input) const {
    const std::string errors = folder_ + "/errors";
    std::filesystem::remove(errors);
    std::vector<std::string> all = {"BERTH_SESSION", "BERTH_GPU_TEST_CONCURRENCY", "REALIZAR_GPU_TEST_CONCURRENCY"};
    all.insert(all.end(), environment.begin(), environment.end());
    Subprocess process =
        Subprocess::Start({.argv = argv, .environment = all, .errors = errors, .of_operator = true});
    for (const std::string& line : input) process.WriteLine(line);
    process.CloseInput();
    Outcome outcome;
    if (!Eventually([&] { return process.IsGone(); })) {
      process.Kill();
      ADD_FAILURE() << "it hangs: " << argv.back();
    }
    outcome.output = process.ReadAll();
    outcome.code = process.Wait();
    outcome.errors = ReadText(errors);
    return outcome;
  }

  // Returns the least value of the limit at which the program starts.
  uint64_t FloorOf(const Limit& limit, const std::string& program, const std::vector<std::string>& words) const {
    std::vector<std::string> argv = {ProgramPath(program)};
    argv.insert(argv.end(), words.begin(), words.end());
    for (const uint64_t value : limit.floors) {
      if (Run(Limited(limit, value, argv), {}, {}).code == 0) return value;
    }
    ADD_FAILURE() << program << " does not begin under " << limit.option << "=" << limit.floors.back();
    return limit.floors.back();
  }

  // Whether this environment can impose the limit.
  bool Imposes(const Limit& limit) const {
    if (limit.name == "Threads" && !IsRoot()) {
      std::cerr << "SKIPPED: only root can be a user of its own, whose threads can be counted" << std::endl;
      return false;
    }
    if (limit.name == "Pids" && !group_.exists()) {
      std::cerr << "SKIPPED: no control group with pids.max can be made here" << std::endl;
      return false;
    }
    return true;
  }

  std::string folder_;
  PidsGroup group_;
};

bool NamesLimit(absl::string_view text) {
  return absl::StrContains(text, "RLIMIT_NPROC") || absl::StrContains(text, "RLIMIT_AS") ||
         absl::StrContains(text, "RLIMIT_DATA") ||
         absl::StrContains(text, "RLIMIT_NOFILE") || absl::StrContains(text, "RLIMIT_FSIZE") ||
         absl::StrContains(text, "RLIMIT_STACK") ||
         absl::StrContains(text, "pids.max");
}

// Whether the outcome is the same as without a limit.
bool Succeeded(const Subject& subject, const Outcome& outcome) {
  if (outcome.code != 0) return false;
  for (const absl::string_view line : absl::StrSplit(outcome.output, '\n', absl::SkipEmpty())) {
    if (!subject.input.empty() && !absl::StartsWith(line, "ok")) return false;
  }
  return true;
}

// Whether the outcome names the exceeded limit: by the exit code and a message, or by the SDK's status.
bool Lacked(const Subject& subject, const Outcome& outcome) {
  if (subject.input.empty()) {
    return outcome.code == subject.lacking && absl::StrContains(outcome.errors, "berth: ") &&
           NamesLimit(outcome.errors) && !absl::StrContains(outcome.errors, "a mounted /proc");
  }
  // The first request that fails names it.
  for (const absl::string_view answer : absl::StrSplit(outcome.output, '\n')) {
    if (absl::StartsWith(answer, "ok")) continue;
    return outcome.code == 0 && absl::StartsWith(answer, "error\t8\t") && NamesLimit(answer);
  }
  return false;
}

TEST_F(LimitsTest, ClientsSucceedOrNameTheLimit) {
#ifdef BERTH_SANITIZED
  GTEST_SKIP() << "a sanitizer takes more than a limit leaves";
#endif
  TestDaemon daemon;
  const std::vector<std::string> environment = {absl::StrCat("BERTH_FOLDER=", daemon.folder())};
  for (const Limit& limit : kLimits) {
    if (!Imposes(limit) || (!TriesEach() && limit.name == "Data")) continue;
    for (const Subject& subject : Subjects()) {
      SCOPED_TRACE(absl::StrCat(subject.name, ", ", limit.name));
      const bool sdk = !subject.input.empty();
      const bool in_gate = subject.name == "Run" || sdk || (subject.name == "Acquire" && limit.name == "Fds");
      if (!TriesEach() && (!in_gate || subject.name == "SdkBlock")) continue;
      const uint64_t floor =
          FloorOf(limit, subject.program, sdk ? std::vector<std::string>() : std::vector<std::string>{"--version"});
      std::vector<std::string> argv = {ProgramPath(subject.program)};
      argv.insert(argv.end(), subject.words.begin(), subject.words.end());
      int lacked = 0;
      int succeeded = 0;
      for (const uint64_t value : limit.values(floor)) {
        const Outcome outcome = Run(Limited(limit, value, argv), environment, subject.input);
        const std::string said = absl::StrCat(limit.option, "=", value, ": code ", outcome.code, "\n", outcome.output,
                                              outcome.errors);
        if (Succeeded(subject, outcome)) {
          ++succeeded;
          if (subject.after != nullptr) subject.after(outcome.output);
        } else {
          ++lacked;
          EXPECT_TRUE(Lacked(subject, outcome)) << said;
        }
        EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) {
          return accounts.units == 0 && accounts.waiters == 0;
        })) << said;
        // Larger values would only repeat the result.
        if (succeeded == (TriesAll() ? 6 : 2)) break;
      }
      EXPECT_GT(succeeded, 0);
      EXPECT_GT(lacked, 0) << "no value was too small: nothing was tried";
      RecordProperty(absl::StrCat(subject.name, limit.name), lacked);
      std::cerr << subject.name << ", " << limit.name << ": " << lacked << " values are too small from " << floor
                << " on" << std::endl;
    }
  }
  daemon.ExpectAccountsBack();
}

TEST_F(LimitsTest, DaemonStartsOrNamesTheLimit) {
#ifdef BERTH_SANITIZED
  GTEST_SKIP() << "a sanitizer takes more than a limit leaves";
#endif
  for (const Limit& limit : kLimits) {
    if (!TriesEach() && limit.name != "Fds") continue;
    if (!Imposes(limit)) continue;
    SCOPED_TRACE(limit.name);
    // A broker has more arguments and fds than `--version`. Where its libraries cannot be loaded, it ends before any
    // code of Berth runs; berthd reports that, too.
    const uint64_t loading = limit.name == "Memory" ? 4 << 20 : 0;
    const uint64_t floor = FloorOf(limit, "daemon/berthd", {"--version"}) + loading;
    int lacked = 0;
    int succeeded = 0;
    const std::vector<uint64_t> values = limit.values(floor);
    // The daemon tries each failed start five times, which takes two seconds.
    const size_t stride = TriesAll() ? 1 : !TriesEach() ? 24 : limit.name == "Memory" ? 3 : 12;
    for (size_t i = 0; i < values.size(); i += stride) {
      const uint64_t value = values[i];
      const std::string run = absl::StrCat(folder_, "/run", limit.name, value);
      const std::string errors = absl::StrCat(run, ".errors");
      const std::string said = absl::StrCat(limit.option, "=", value);
      Subprocess berthd = Subprocess::Start(
          {.argv = Limited(limit, value,
                           {ProgramPath("daemon/berthd"), "--backend=host", absl::StrCat("--folder=", run)}),
           .environment = {"BERTH_SESSION"},
           .errors = errors,
           .of_operator = true});
      const auto serves = [&] {
        return Run({ProgramPath("client/cli/berth"), absl::StrCat("--folder=", run), "status"}, {}, {}).code == 0;
      };
      bool up = false;
      const bool over = Eventually([&] { return (up = serves()) || berthd.IsGone(); });
      EXPECT_TRUE(over) << said << " neither serves nor ends:\n" << ReadText(errors);
      if (up) berthd.Signal(SIGTERM);
      if (!over) berthd.Kill();
      const int code = berthd.Wait();
      const std::string text = ReadText(errors);
      if (up) {
        ++succeeded;
        EXPECT_EQ(code, 0) << said << "\n" << text;
      } else if (over) {
        ++lacked;
        EXPECT_TRUE(code == 1 || code == 75) << said << ": code " << code << "\n" << text;
        EXPECT_TRUE(NamesLimit(text)) << said << "\n" << text;
      }
      EXPECT_FALSE(absl::StrContains(text, "terminate called") || absl::StrContains(text, "signal 6")) << text;
      EXPECT_TRUE(Eventually([&] { return ProcessesWith("berthd", absl::StrCat("--folder=", run)).empty(); })) << said;
      if (succeeded == (TriesAll() ? 6 : 2)) break;
    }
    EXPECT_GT(succeeded, 0);
    EXPECT_GT(lacked, 0) << "no value was too small: nothing was tried";
    std::cerr << "berthd, " << limit.name << ": " << lacked << " values are too small from " << floor << " on"
              << std::endl;
  }
}

// A process whose stack overflows would die of SIGSEGV; one whose stacks take all addresses would start no thread.
TEST_F(LimitsTest, ProcessesWithOddStacksSucceedOrNameTheLimit) {
#ifdef BERTH_SANITIZED
  GTEST_SKIP() << "a sanitizer takes more than a limit leaves";
#endif
  const Limit limit = {"Stack", "--stack", nullptr, {}};
  TestDaemon daemon;
  const std::vector<std::string> environment = {absl::StrCat("BERTH_FOLDER=", daemon.folder())};
  std::vector<uint64_t> sizes = {1ULL << 37};
  for (uint64_t kib = 32; kib <= 192; kib += TriesEach() ? 16 : 32) sizes.push_back(kib);
  for (const uint64_t kib : sizes) {
    const bool enough = kib >= 128;
    SCOPED_TRACE(absl::StrCat(kib, " KiB"));
    for (const Subject& subject : Subjects()) {
      // The test's own program has no check before its start.
      if (!subject.input.empty() && kib < 64) continue;
      if (subject.name == "RunTree") continue;
      std::vector<std::string> argv = {ProgramPath(subject.program)};
      argv.insert(argv.end(), subject.words.begin(), subject.words.end());
      const Outcome outcome = Run(Limited(limit, kib << 10, argv), environment, subject.input);
      // The SDK changes no limit of a program.
      const bool succeeds = enough && (subject.input.empty() || kib <= 192);
      EXPECT_TRUE(succeeds ? Succeeded(subject, outcome) : Lacked(subject, outcome))
          << subject.name << ": code " << outcome.code << "\n" << outcome.output << outcome.errors;
      if (enough && subject.after != nullptr) subject.after(outcome.output);
    }
    const std::string run = absl::StrCat(folder_, "/run", kib);
    const std::string errors = absl::StrCat(run, ".errors");
    Subprocess berthd = Subprocess::Start(
        {.argv = Limited(limit, kib << 10,
                         {ProgramPath("daemon/berthd"), "--backend=host", absl::StrCat("--folder=", run)}),
         .environment = {"BERTH_SESSION"},
         .errors = errors,
         .of_operator = true});
    if (enough) {
      EXPECT_TRUE(Eventually([&] {
        return Run({ProgramPath("client/cli/berth"), absl::StrCat("--folder=", run), "status"}, {}, {}).code == 0;
      }));
      berthd.Signal(SIGTERM);
    }
    EXPECT_EQ(berthd.Wait(), enough ? 0 : 1);
    EXPECT_EQ(NamesLimit(ReadText(errors)), !enough) << ReadText(errors);
    EXPECT_FALSE(absl::StrContains(ReadText(errors), "signal 11")) << ReadText(errors);
  }
  daemon.ExpectAccountsBack();
}

// The limit also applies to blocks of host memory, to pages shared with clients, and to the ledger.
TEST_F(LimitsTest, DaemonRefusesWhatExceedsFileSize) {
  const Limit limit = {"FileSize", "--fsize", nullptr, {}};
  const std::vector<uint64_t> gate = {4 << 20, 64 << 20};
  const std::vector<uint64_t> soak = {64 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20, 64 << 20};
  int served = 0;
  for (const uint64_t value : Soaks() ? soak : gate) {
    const std::string run = absl::StrCat(folder_, "/run", value);
    const std::string errors = absl::StrCat(run, ".errors");
    SCOPED_TRACE(absl::StrCat(limit.option, "=", value));
    Subprocess berthd = Subprocess::Start(
        {.argv = Limited(limit, value,
                         {ProgramPath("daemon/berthd"), "--backend=host", absl::StrCat("--folder=", run)}),
         .environment = {"BERTH_SESSION"},
         .errors = errors,
         .of_operator = true});
    const auto berth = [&](const std::vector<std::string>& words) {
      std::vector<std::string> argv = {ProgramPath("client/cli/berth"), absl::StrCat("--folder=", run)};
      argv.insert(argv.end(), words.begin(), words.end());
      return Run(argv, {}, {});
    };
    bool up = false;
    // A daemon whose ledger cannot grow serves, but opens no session.
    EXPECT_TRUE(Eventually([&] {
      const Outcome status = berth({"status"});
      up = status.code == 0 || absl::StrContains(status.errors, "RLIMIT_FSIZE");
      return up || berthd.IsGone();
    }));
    if (up) {
      ++served;
      const auto expect_done_or_refused = [&](const std::vector<std::string>& words, bool may_succeed) {
        const Outcome outcome = berth(words);
        const bool done = may_succeed && outcome.code == 0;
        EXPECT_TRUE(done || (outcome.code != 0 && absl::StrContains(outcome.errors, "RLIMIT_FSIZE")))
            << words[0] << ": code " << outcome.code << "\n" << outcome.errors;
      };
      const std::string large = absl::StrCat(folder_, "/large");
      const std::string small = absl::StrCat(folder_, "/small");
      for (const auto& [path, size] : {std::pair(large, value + (4 << 20)), std::pair(small, uint64_t{4096})}) {
        std::ofstream(path).put('b');
        std::filesystem::resize_file(path, size);
      }
      // The same request again, and others after it: it ends no worker.
      for (int i = 0; i < 2; ++i) expect_done_or_refused({"blocks", "publish", "large", large}, /*may_succeed=*/false);
      expect_done_or_refused({"blocks", "publish", "small", small}, /*may_succeed=*/true);
      expect_done_or_refused({"run", "--", "/bin/true"}, /*may_succeed=*/true);
      const Outcome devices = berth({"devices"});
      EXPECT_TRUE(absl::StrContains(devices.output, "READY") || absl::StrContains(devices.errors, "RLIMIT_FSIZE"))
          << devices.output << devices.errors;
      berthd.Signal(SIGTERM);
    }
    const int code = berthd.Wait();
    const std::string text = ReadText(errors);
    EXPECT_FALSE(absl::StrContains(text, "exited: signal")) << text;
    if (up) {
      EXPECT_EQ(code, 0) << text;
    } else {
      EXPECT_TRUE(code == 1 || code == 75) << code << "\n" << text;
      EXPECT_TRUE(absl::StrContains(text, "RLIMIT_FSIZE")) << text;
    }
  }
  EXPECT_GT(served, 0);
}

// A soft limit on processor time is raised; a hard one, which the daemon may not raise, is refused at the start.
TEST_F(LimitsTest, DaemonRefusesLimitOfProcessorTime) {
  struct Row {
    const char* value;
    bool serves;
  };
  for (const Row& row : {Row{"3600:unlimited", true}, Row{"3600:7200", false}}) {
    SCOPED_TRACE(row.value);
    // Not in folder_, which another user owns: root without all capabilities may not write there.
    const std::string run = absl::StrCat("/tmp/berth-cpu-limit-", ::getpid(), "-", row.serves);
    const std::string errors = absl::StrCat(run, ".errors");
    std::vector<std::string> argv = {"/usr/bin/prlimit", absl::StrCat("--cpu=", row.value), "--"};
    if (IsRoot()) argv.insert(argv.end(), {"/usr/bin/setpriv", "--bounding-set=-sys_resource"});
    argv.insert(argv.end(), {ProgramPath("daemon/berthd"), "--backend=host", absl::StrCat("--folder=", run)});
    Subprocess berthd =
        Subprocess::Start({.argv = argv, .environment = {"BERTH_SESSION"}, .errors = errors, .of_operator = true});
    bool up = false;
    EXPECT_TRUE(Eventually([&] {
      up = Run({ProgramPath("client/cli/berth"), absl::StrCat("--folder=", run), "status"}, {}, {}).code == 0;
      return up || berthd.IsGone();
    }));
    EXPECT_EQ(up, row.serves) << ReadText(errors);
    if (up) {
      for (const ChildInfo& child : ProcessesWith("berthd", absl::StrCat("--folder=", run))) {
        const std::string limits = ReadText(absl::StrCat("/proc/", child.pid, "/limits"));
        EXPECT_TRUE(absl::StrContains(limits, "Max cpu time              unlimited            unlimited")) << limits;
      }
      berthd.Signal(SIGTERM);
    }
    EXPECT_EQ(berthd.Wait(), row.serves ? 0 : 1);
    EXPECT_EQ(absl::StrContains(ReadText(errors), "RLIMIT_CPU is 3600 s"), !row.serves) << ReadText(errors);
    std::filesystem::remove_all(run);
  }
}

TEST_F(LimitsTest, ClientsReportOutputAboveFileSize) {
  TestDaemon daemon;
  const std::vector<std::string> environment = {absl::StrCat("BERTH_FOLDER=", daemon.folder())};
  const std::string berth = ProgramPath("client/cli/berth");
  const std::string full = folder_ + "/full";
  {
    std::ofstream file(full);
    file << std::string(4096, 'f');
  }
  std::filesystem::permissions(full, std::filesystem::perms::all);
  const auto under_limit = [&](const std::vector<std::string>& argv) {
    return Limited({"FileSize", "--fsize", nullptr, {}}, 4096, argv);
  };
  // Writes a byte more than the limit to its output.
  const std::string writer = absl::StrCat("printf x >> ", full);
  struct Row {
    std::string name;
    std::vector<std::string> argv;
    int code;
    std::string error;
  };
  const std::string to_full = absl::StrCat("exec \"$@\" >> ", full);
  for (const Row& row : std::vector<Row>{
           {"a view", {"/bin/sh", "-c", to_full, "sh", berth, "status"}, 1, "RLIMIT_FSIZE is 4 KiB"},
           {"a JSON view", {"/bin/sh", "-c", to_full, "sh", berth, "--json", "devices"}, 1, "RLIMIT_FSIZE"},
           {"a wrapper", {"/bin/sh", "-c", to_full, "sh", berth, "run", "--", "/bin/true"}, 0, ""},
           {"a command", {berth, "run", "--", "/bin/sh", "-c", writer}, 128 + SIGXFSZ, ""},
           {"a command by exec", {berth, "run", "--exec", "--", "/bin/sh", "-c", writer}, 128 + SIGXFSZ, ""}}) {
    const Outcome outcome = Run(under_limit(row.argv), environment, {});
    EXPECT_EQ(outcome.code, row.code) << row.name << "\n" << outcome.errors;
    EXPECT_TRUE(absl::StrContains(outcome.errors, row.error)) << row.name << "\n" << outcome.errors;
  }
  // A program writes the module that it compiled into memory of the daemon.
  const Outcome sdk = Run(under_limit({ProgramPath("tests/support/actor/actor")}), environment,
                          {"open", "module m kernel bytes=8192"});
  EXPECT_EQ(sdk.code, 0) << sdk.errors;
  EXPECT_TRUE(absl::StrContains(sdk.output, "alone ")) << sdk.output;
  daemon.ExpectAccountsBack();
}

// The limit may be set on a broker that serves.
TEST_F(LimitsTest, ErrorOfLimitedBrokerNamesTheDaemon) {
  TestDaemon daemon;
  rlimit limit = {};
  ASSERT_EQ(::prlimit(daemon.broker(), RLIMIT_FSIZE, nullptr, &limit), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::prlimit(daemon.broker(), RLIMIT_FSIZE, &none, nullptr), 0);
  const std::vector<std::string> argv = {ProgramPath("client/cli/berth"), "run", "--", "/bin/true"};
  const Outcome outcome = Run(argv, {absl::StrCat("BERTH_FOLDER=", daemon.folder())}, {});
  EXPECT_NE(outcome.code, 0);
  EXPECT_TRUE(absl::StrContains(outcome.errors, "the daemon cannot write the session credentials")) << outcome.errors;
  EXPECT_TRUE(NamesLimit(outcome.errors)) << outcome.errors;
  ASSERT_EQ(::prlimit(daemon.broker(), RLIMIT_FSIZE, &limit, nullptr), 0);
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
