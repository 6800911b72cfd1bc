#include "tests/chaos/chaos.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include <berth/block.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/resources.pb.h"
#include "gtest/gtest.h"
#include "tests/chaos/chaos_pools.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kPublished = 3;
// Jobs of `berth run` in a round, and the longest duration of each.
constexpr uint64_t kJobs = 4;
constexpr uint64_t kLongestJobMs = 400;
// Most client steps between two accidents.
constexpr uint64_t kMostSteps = 30;
// The longest stop of a process: a worker's driver call may take longer.
constexpr uint64_t kLongestStopMs = 300;
// The least number of grants, besides one a round, for each request refused because of a worker's death or the deaths
// of three brokers. On a GPU 5 of 298,707 requests were refused, with 845 deaths of brokers and 338 of workers
// (tests/bench/results/h200_runs.csv).
constexpr uint64_t kGrantsPerRefusal = 100;

std::string PoolsConfig() {
  std::string config;
  for (const ChaosPool& pool : kChaosPools) absl::StrAppend(&config, "[pools.", pool.name, "]\ncap = ", pool.cap, "\n");
  return config;
}

// Returns the daemon's own accounting of leases.
Accounts Account(TestDaemon& daemon) {
  Accounts accounts = daemon.TakeAccounts();
  accounts.fds.clear();
  return accounts;
}

}  // namespace

Chaos::Chaos(const ChaosOptions& options)
    : options_(options), random_(options.seed), daemon_(DaemonOptions()), folder_(daemon_.folder() + "/..") {
  if (!options_.stops) {
    Actor publisher(daemon_, {.program = "tests/chaos/chaos_client"});
    for (uint64_t i = 1; i <= kPublished; ++i) publisher.Do(absl::StrCat("publish w", i, " ", i));
    publisher.Quit();
  }
  while (clients_.size() < options_.clients) clients_.push_back(Start());
}

TestDaemonOptions Chaos::DaemonOptions() const {
  return {.program = installed_.path(),
          .flags = {absl::StrCat("--host-devices=", options_.host_devices), "--device-budget=2GiB"},
          .config = PoolsConfig(),
          .backend = options_.backend};
}

Chaos::Client Chaos::Start() {
  Client client = {.actor = Actor(daemon_, {.open = false, .program = "tests/chaos/chaos_client"}),
                   .cache = random_() % 2 == 0};
  client.actor.Do(client.cache ? "open cache" : "open");
  const uint32_t devices = options_.stops ? 0 : options_.backend == "host" ? options_.host_devices : 1;
  client.actor.Do(absl::StrCat("setup ", random_(), " ", devices));
  return client;
}

void Chaos::Go(Client& client) {
  client.path = absl::StrCat(folder_, "/history-", ++histories_);
  client.actor.Do(absl::StrCat("go ", client.path, " ", kPublished));
  client.history = Must(History::Open(client.path));
}

void Chaos::ShareBlocks() {
  for (int pair = 0; pair < 2; ++pair) {
    const auto from = AnyClient();
    auto to = AnyClient();
    while (to == from) to = AnyClient();
    to->actor.Do("take " + from->actor.Do("share"));
  }
}

void Chaos::StartJobs() {
  for (uint64_t i = 0; i < kJobs; ++i) {
    const ChaosPool& pool = kChaosPools[random_() % std::size(kChaosPools)];
    const uint64_t units = random_() % pool.most_units + 1;
    const bool tree = random_() % 2 == 0;
    const std::string path = absl::StrCat(folder_, "/history-", ++histories_);
    jobs_.push_back({.run = Subprocess::Start(
                         {.argv = {ProgramPath("client/cli/berth"), "run", "--quiet", "--pool", pool.name, "--permits",
                                   absl::StrCat(units), tree ? "--until=tree" : "--until=command", "--",
                                   ProgramPath("tests/chaos/chaos_client"), "hold", path, absl::StrCat(pool.number),
                                   absl::StrCat(units), absl::StrCat(random_() % kLongestJobMs)},
                          .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION"}}),
                     .tree = tree,
                     .path = path});
  }
}

void Chaos::EndJobs() {
  for (Job& job : jobs_) {
    if (!job.run.IsGone()) {
      EXPECT_EQ(job.run.Wait(), 0) << "berth run";
    }
    const absl::StatusOr<History> history = History::Open(job.path);
    // The job never started.
    if (!history.ok()) continue;
    const std::vector<HeldInterval> held = Must(HeldIntervalsOf(history->Read(), MonotonicNanoseconds()));
    intervals_.insert(intervals_.end(), held.begin(), held.end());
    ++job_grants_;
    ::unlink(job.path.c_str());
  }
  jobs_.clear();
}

void Chaos::KillWrapper() {
  for (Job& job : jobs_) {
    if (job.tree && !job.run.IsGone()) return job.run.Kill();
  }
}

void Chaos::Round() {
  ++rounds_;
  if (options_.stops) {
    StartJobs();
  } else {
    ShareBlocks();
  }
  for (Client& client : clients_) Go(client);
  for (const std::string& accident : Deal()) {
    AwaitSteps(random_() % kMostSteps);
    Suffer(accident);
    if (::testing::Test::HasFailure()) return;
  }
  AwaitSteps(kMostSteps);
  Halt();
  if (::testing::Test::HasFailure()) return;
  ExpectAccounts();
  EndJobs();
  ExpectNoOverlap();
}

std::vector<std::string> Chaos::Deal() {
  if (options_.stops) {
    std::vector<std::string> hand = {"stop",    "stop",        "kill all",   "kill all", "kill all",
                                     "broker",  "broker",      "supervisor", "client",   "client",
                                     "wrapper", "stop client", "stop client"};
    std::shuffle(hand.begin(), hand.end(), random_);
    return hand;
  }
  std::vector<std::string> hand = {"broker",          "broker",      "broker",     "broker",      "broker",
                                   "worker",          "worker",      "context",    "client",      "client",
                                   "client",          "monitor",     "client",     "stop client", "stop client",
                                   "stop supervisor", "stop broker", "stop worker"};
  if (rounds_ % 2 == 0) hand.push_back("upgrade");
  std::shuffle(hand.begin(), hand.end(), random_);
  // The supervisor replaces a worker at most three times in a minute. A new one starts a new count: so its death comes
  // last.
  hand.push_back("supervisor");
  return hand;
}

void Chaos::Suffer(const std::string& accident) {
  if (accident == "broker") {
    KillBroker();
  } else if (accident == "supervisor") {
    // The next one writes its pid once it has everything.
    daemon_.KillSupervisor();
  } else if (accident == "worker") {
    // While one worker replaces another, there is none for a moment.
    ASSERT_TRUE(Eventually([this] { return KillOneOf(daemon_.workers()); }));
  } else if (accident == "context") {
    if (!KillOneOf(daemon_.context_workers())) return;
  } else if (accident == "monitor") {
    if (!KillOneOf(Monitors())) return;
  } else if (accident == "client") {
    KillClient();
  } else if (accident == "upgrade") {
    Upgrade();
  } else if (accident == "wrapper") {
    KillWrapper();
  } else if (accident == "stop" || accident == "kill all") {
    if (accident == "stop") {
      daemon_.Stop();
    } else {
      daemon_.KillSupervisorAndBroker();
    }
    // No daemon sees a wrapper that ends meanwhile, or a waiter that arrives.
    if (random_() % 2 == 0) KillWrapper();
    daemon_.StartAgain();
  } else {
    Stop(accident);
  }
  ++accidents_[accident];
}

void Chaos::KillBroker() {
  daemon_.KillBroker();
  // Until the next broker serves, only the supervisor has the state.
  daemon_.TakeAccounts();
}

bool Chaos::KillOneOf(const std::vector<pid_t>& pids) {
  return !pids.empty() && ::kill(pids[random_() % pids.size()], SIGKILL) == 0;
}

std::vector<pid_t> Chaos::Monitors() const {
  std::vector<pid_t> pids;
  for (const ChildInfo& process : ProcessesWith("berthd", absl::StrCat("--folder=", daemon_.folder()))) {
    if (absl::StartsWith(process.name, "berth-monitor")) pids.push_back(process.pid);
  }
  return pids;
}

void Chaos::Stop(const std::string& accident) {
  pid_t pid = AnyClient()->actor.pid();
  if (accident == "stop supervisor") pid = daemon_.supervisor_pid();
  if (accident == "stop broker") pid = daemon_.broker();
  if (const std::vector<pid_t> workers = daemon_.workers(); accident == "stop worker" && !workers.empty()) {
    pid = workers[random_() % workers.size()];
  }
  ::kill(pid, SIGSTOP);
  ::poll(nullptr, 0, static_cast<int>(random_() % kLongestStopMs));
  ::kill(pid, SIGCONT);
}

std::list<Chaos::Client>::iterator Chaos::AnyClient() {
  return std::next(clients_.begin(), static_cast<ptrdiff_t>(random_() % clients_.size()));
}

void Chaos::Upgrade() {
  installed_.Install();
  Subprocess command = Subprocess::Start({.argv = {ProgramPath("client/cli/berth"), "upgrade"},
                                          .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()),
                                                          "BERTH_SESSION"}});
  const std::string said = command.ReadAll();
  EXPECT_EQ(command.Wait(), 0) << said;
  EXPECT_TRUE(installed_.IsRunBy(daemon_.supervisor_pid()));
  EXPECT_TRUE(installed_.IsRunBy(daemon_.broker()));
}

void Chaos::KillClient() {
  const auto victim = AnyClient();
  int64_t last_alive = MonotonicNanoseconds();
  victim->actor.process().Kill();
  for (int64_t now = last_alive; !victim->actor.process().IsGone(); now = MonotonicNanoseconds()) last_alive = now;
  const std::vector<HeldInterval> held = Must(HeldIntervalsOf(victim->history->Read(), last_alive));
  intervals_.insert(intervals_.end(), held.begin(), held.end());
  buried_steps_ += victim->history->steps();
  ::unlink(victim->path.c_str());
  clients_.erase(victim);
  clients_.push_back(Start());
  Go(clients_.back());
}

uint64_t Chaos::StepsNow() const {
  uint64_t steps = buried_steps_;
  for (const Client& client : clients_) steps += client.history->steps();
  return steps;
}

void Chaos::AwaitSteps(uint64_t count) {
  const uint64_t wanted = StepsNow() + count;
  ASSERT_TRUE(Eventually([&] { return StepsNow() >= wanted; })) << "nobody gets on";
}

void Chaos::Halt() {
  for (Client& client : clients_) client.actor.SendLine("halt");
  held_blocks_ = held_bytes_ = 0;
  for (Client& client : clients_) {
    const absl::StatusOr<std::string> said = client.actor.Answer();
    ASSERT_TRUE(Ok(said)) << "pid " << client.actor.pid();
    const std::vector<std::string> words = absl::StrSplit(*said, ' ');
    uint64_t blocks = 0;
    uint64_t bytes = 0;
    uint64_t refused = 0;
    ASSERT_TRUE(words.size() == 3 && absl::SimpleAtoi(words[0], &blocks) && absl::SimpleAtoi(words[1], &bytes) &&
                absl::SimpleAtoi(words[2], &refused));
    held_blocks_ += blocks;
    held_bytes_ += bytes;
    refused_ += refused;
    const std::vector<HeldInterval> held = Must(HeldIntervalsOf(client.history->Read(), MonotonicNanoseconds()));
    intervals_.insert(intervals_.end(), held.begin(), held.end());
    buried_steps_ += client.history->steps();
    client.history.reset();
    ::unlink(client.path.c_str());
  }
}

void Chaos::ExpectAccounts() {
  Accounts expected = daemon_.accounts_at_start();
  expected.fds.clear();
  expected.sessions += clients_.size();
  expected.processes += clients_.size();
  const uint64_t published = options_.stops ? 0 : kPublished;
  expected.blocks += held_blocks_ + published;
  expected.imports += held_blocks_;
  expected.live += held_bytes_ + published * kPublishedBytes;
  std::string mismatch;
  EXPECT_TRUE(Eventually([&] { return (mismatch = MismatchOf(expected)).empty(); })) << mismatch << DescribeBlocks();
}

std::string Chaos::DescribeBlocks() {
  std::string text;
  const v1::ListBlocksResponse blocks = Must(daemon_.inspector().ListBlocks());
  for (const v1::Block& block : blocks.blocks()) absl::StrAppend(&text, "\n", block.ShortDebugString());
  const v1::ListLogRecordsResponse records = Must(daemon_.inspector().ListLogRecords());
  for (const v1::LogRecord& record : records.records()) absl::StrAppend(&text, "\n", record.ShortDebugString());
  return text;
}

std::string Chaos::MismatchOf(const Accounts& expected) {
  Accounts accounts = Account(daemon_);
  // An idle cached permit counts as granted, too.
  const absl::StatusOr<v1::ListPermitsResponse> permits = daemon_.inspector().ListPermits();
  if (!permits.ok()) return permits.status().ToString();
  const auto& all = permits->permits();
  const auto cached = std::count_if(all.begin(), all.end(), [](const v1::Permit& permit) { return permit.kept(); });
  if (cached != all.size()) return absl::StrCat(all.size() - cached, " permits are out: ", permits->ShortDebugString());
  accounts.permits = accounts.units = 0;
  if (accounts == expected) return "";
  // Releases at which workers ended wait for an operator, or for the end of their user's hold.
  if (accounts.retired > expected.retired) daemon_.inspector().ReapBlocks().IgnoreError();
  return absl::StrCat("accounts: ", testing::Describe(accounts), "\nexpected: ", testing::Describe(expected));
}

void Chaos::ExpectNoOverlap() {
  for (const ChaosPool& pool : kChaosPools) {
    const uint64_t most = GreatestOverlap(intervals_, pool.number);
    EXPECT_LE(most, pool.cap) << "units of " << pool.name << " out at one time";
    most_[pool.number] = std::max(most_[pool.number], most);
  }
  grants_ += intervals_.size();
  intervals_.clear();
}

void Chaos::Finish() {
  for (Client& client : clients_) client.actor.Quit();
  clients_.clear();
  {
    const auto session = Must(Session::Open({.folder = daemon_.folder(), .label = "test", .always_new = true}));
    const uint64_t published = options_.stops ? 0 : kPublished;
    for (uint64_t i = 1; i <= published; ++i) EXPECT_TRUE(Ok(Block::Unpublish(session, absl::StrCat("w", i))));
  }
  daemon_.ExpectAccountsBack();
  EXPECT_GT(grants_, rounds_);
  EXPECT_EQ(job_grants_ > 0, options_.stops);
  EXPECT_LE(refused_, grants_ / kGrantsPerRefusal + rounds_);
}

std::string Chaos::Describe() const {
  std::string text = absl::StrCat(rounds_, " rounds, ", buried_steps_, " steps, ", grants_, " grants, ", refused_,
                                  " refused for a worker's death or three brokers'; most out at once:");
  for (const ChaosPool& pool : kChaosPools) {
    const auto most = most_.find(pool.number);
    absl::StrAppend(&text, " ", pool.name, " ", most == most_.end() ? 0 : most->second, " of ", pool.cap);
  }
  absl::StrAppend(&text, "; ", job_grants_, " jobs;");
  for (const auto& [accident, count] : accidents_) absl::StrAppend(&text, " ", accident, " ", count);
  return text;
}

}  // namespace berth::testing
