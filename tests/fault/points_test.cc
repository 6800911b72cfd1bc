// Broker and supervisor die at every point between the messages that they receive and send, each during the same
// scenario. The scenario runs to its end undisturbed, and nothing is lost, left over or granted twice.
// Each call of these kinds fails once, in each process of the daemon: communication, requests of memory or fds, and the
// open, write, map, rename and stat of files. Everything affected is released.
// Each allocation by operator new in broker, supervisor and worker fails once, which ends that process.
//
// Every Nth point is tried, starting at a random one: about four in the gate, more in the soak. BERTH_FAULT_POINTS=1
// tries each point, =N each Nth, and BERTH_FAULT_FROM=N none before that. BERTH_FAULT_SEED replays the random choices
// of a run.

#include "tests/fault/points.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <berth/block.h>
#include <berth/block_handle.h>
#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// A lost message ends at a bound of the product's: its daemon and clients have the product's own.
[[maybe_unused]] const int own_bounds = ::setenv("BERTH_TEST_PATIENCE", "1", /*overwrite=*/1);

// A name that outlives its publisher.
constexpr char kPublished[] = "of-a-play";

// The test's end of the file.
class SharedPoints {
 public:
  SharedPoints() : path_(absl::StrCat(::testing::TempDir(), "/points-", ::getpid())) {
    const UniqueFd file(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!file || ::ftruncate(file.get(), sizeof(Points)) < 0) Fatal(OsError(path_, errno), "points");
    void* const memory = ::mmap(nullptr, sizeof(Points), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED) Fatal(OsError("mmap", errno), "points");
    points_ = new (memory) Points{};
  }
  ~SharedPoints() {
    ::munmap(points_, sizeof(Points));
    ::unlink(path_.c_str());
  }
  // Environment of the daemon that these points control.
  std::vector<std::string> environment() const {
    return {absl::StrCat("LD_PRELOAD=",
                         std::filesystem::canonical(ProgramPath("tests/fault/libpoints.so")).string()),
            absl::StrCat(kPointsVariable, "=", path_), "BERTH_GPU_TEST_CONCURRENCY=1"};
  }

  void Set(const std::string& process, PointMode mode, uint64_t target) {
    points_->mode = PointMode::kCount;
    strncpy(points_->process, process.c_str(), sizeof(points_->process) - 1);
    points_->passed = 0;
    points_->target = target;
    points_->mode = mode;
  }
  uint64_t passed() const { return points_->passed; }
  // Disables all points. Returns how many were passed.
  uint64_t Clear() {
    const uint64_t passed = points_->passed;
    Set("", PointMode::kCount, 0);
    return passed;
  }

 private:
  const std::string path_;
  Points* points_;
};

class PointsTest : public ::testing::Test {
 protected:
  PointsTest()
      : seed_(SeedFromEnvironment("BERTH_FAULT_SEED")),
        random_(seed_),
        daemon_({.environment = points_.environment()}) {}
  void TearDown() override {
    points_.Clear();
    if (HasFailure()) ADD_FAILURE() << "BERTH_FAULT_SEED=" << seed_;
  }

  // Returns the distance between two tried points of `all`: the gate tries about four, the soak each `soak`th.
  uint64_t Stride(uint64_t all, uint64_t soak) const {
    return FromEnvironment("BERTH_FAULT_POINTS", GateOrSoak(all / 4 + 1, soak));
  }
  // As above, where a try restarts the daemon: one point in the gate.
  uint64_t RestartStride(uint64_t all, uint64_t soak) const {
    return FromEnvironment("BERTH_FAULT_POINTS", GateOrSoak(std::max<uint64_t>(all, 1), soak));
  }
  // Returns the processes of whose calls one fails while the daemon is replaced, stopped or started.
  static std::vector<std::string> ReplacedProcesses() {
    if (!Soaks()) return {"berthd", "berth-broker"};
    return {"berthd", "exe", "berth-launcher", "berth-broker"};
  }

  uint64_t First(uint64_t stride) { return FromEnvironment("BERTH_FAULT_FROM", 1) + random_() % stride; }

  // Runs the scenario: a session opens and ends. A block is leased, filled, shared, used on streams of both clients,
  // checked and released, and a permit moves from one client to the other. Bytes are reserved, and a block drawn from
  // them is published, checked and deleted. A plan takes permit and bytes. Ends at the first error, and returns it.
  absl::Status Play(Actor& owner, Actor& importer, SessionId lent_to) const {
    Actor guest(daemon_, {.open = false});
    absl::Status status = guest.Ask("open").status();
    if (status.ok()) status = owner.Ask("acquire p").status();
    if (!status.ok()) return status;
    const absl::StatusOr<std::string> handle = owner.Ask("allocate b 65536");
    if (!handle.ok()) return handle.status();
    const std::vector<std::pair<Actor*, std::string>> steps = {
        {&owner, "map b"},
        {&owner, "fill b 7"},
        {&importer, "begin q"},
        {&owner, absl::StrCat("grant-session b ", lent_to.value())},
        {&importer, absl::StrCat("import b ", *handle)},
        {&importer, "map b"},
        {&importer, "check b 7"},
        {&owner, "release p"},
        {&owner, "stream s"},
        {&owner, "preflight write s b:w"},
        {&owner, "queue-fill s b 8"},
        {&owner, "commit write"},
        {&importer, "join q"},
        {&importer, "release q"},
        {&importer, "stream t"},
        {&importer, "preflight read t b:r"},
        {&importer, "queue-check t b 8"},
        {&importer, "commit read"},
        {&importer, "sync t"},
        {&importer, "close-stream t"},
        {&owner, "close-stream s"},
        {&owner, "unmap b"},
        {&owner, "free b"},
        {&importer, "check b 8"},
        {&importer, "drop b"},
        {&owner, "reserve o 0=131072"},
        {&owner, "allocate c 65536 from=o"},
        {&owner, absl::StrCat("publish c ", kPublished)},
        {&importer, absl::StrCat("import-published c ", kPublished)},
        {&owner, absl::StrCat("unpublish ", kPublished)},
        {&importer, "drop c"},
        {&owner, "unreserve o"},
        {&owner, "plan w 8 pool=gpu-tests reserve=4096"},
        {&owner, "plan-release w"},
        {&guest, "acquire r"}};
    for (const auto& [actor, step] : steps) {
      if (status = actor->Ask(step).status(); !status.ok()) {
        return absl::Status(status.code(), absl::StrCat(step, ": ", status.message()));
      }
    }
    return absl::OkStatus();
  }

  // Expects every permit and byte back.
  void ExpectBack() {
    EXPECT_TRUE(daemon_.AccountsBecome([this](const Accounts& accounts) {
      const Accounts& start = daemon_.accounts_at_start();
      return accounts.permits == 0 && accounts.units == 0 && accounts.waiters == 0 && accounts.blocks == start.blocks &&
             accounts.live == start.live && accounts.retired == 0 && accounts.quarantined == 0 &&
             accounts.reserved == 0;
    })) << Describe(daemon_.TakeAccounts());
  }

  // As above, after a scenario that ended early: deletes its published block first.
  void ExpectBackWithoutPublished() {
    EXPECT_TRUE(daemon_.AccountsBecome([this](const Accounts& accounts) {
      if (accounts.blocks <= daemon_.accounts_at_start().blocks) return true;
      const absl::Status deleted = Block::Unpublish(daemon_.admin_session(), kPublished);
      EXPECT_TRUE(deleted.ok() || IsRefusal(deleted, Reason::kNotFound)) << deleted;
      return false;
    }));
    ExpectBack();
  }

  // A broker holds a user back after two ended workers in a minute, and a supervisor replaces a worker at most three
  // times in a minute. A new broker and a new supervisor start new counts.
  void ForgetEndedWorkers(bool supervisor) {
    daemon_.KillBroker();
    daemon_.TakeAccounts();
    if (supervisor) daemon_.KillSupervisor();
  }

  // Runs the scenario with `process` dying at each `soak`th point, 0 for some thirty points; `mode` is how it dies and
  // `counts` what counts as a point. Returns the number of deaths.
  uint64_t DieEverywhere(const std::string& process, uint64_t soak, PointMode mode = PointMode::kDie,
                         PointMode counts = PointMode::kCount) {
    Actor owner(daemon_);
    Actor importer(daemon_);
    const SessionId lent_to = importer.session();
    points_.Set(process, counts, 0);
    EXPECT_TRUE(Ok(Play(owner, importer, lent_to)));
    const uint64_t all = points_.Clear();
    const uint64_t stride = Stride(all, soak == 0 ? all / 30 + 1 : soak);
    uint64_t deaths = 0;
    for (uint64_t point = First(stride); point <= all && !HasFailure(); point += stride) {
      const pid_t supervisor = daemon_.supervisor_pid();
      points_.Set(process, mode, point);
      EXPECT_TRUE(Ok(Play(owner, importer, lent_to))) << process << " dies at " << point << " of " << all;
      const bool died = points_.Clear() >= point;
      deaths += died ? 1 : 0;
      // The next one runs before any other dies.
      if (died && process == "berthd") {
        EXPECT_TRUE(Eventually([&] {
          return daemon_.supervisor_pid() != supervisor && IsAlive(daemon_.supervisor_pid());
        })) << point;
      }
      ExpectBack();
      if (!died || process != "berth-worker0") continue;
      ForgetEndedWorkers(/*supervisor=*/deaths % 3 == 0);
    }
    std::cout << process << ": " << deaths << " deaths over " << all << " points\n";
    owner.Quit();
    importer.Quit();
    return deaths;
  }

  // Runs the scenario with each `soak`th call of `process` failing once.
  void FailEverywhere(const std::string& process, uint64_t soak) {
    const auto play = [this] {
      Actor owner(daemon_, {.open = false});
      Actor importer(daemon_, {.open = false});
      absl::Status status = owner.Ask("open").status();
      status.Update(importer.Ask("open").status());
      if (!status.ok()) return status;
      return Play(owner, importer, importer.session());
    };
    points_.Set(process, PointMode::kCount, 0);
    EXPECT_TRUE(Ok(play()));
    const uint64_t all = points_.Clear();
    const uint64_t stride = Stride(all, soak);
    uint64_t refused = 0;
    std::vector<pid_t> workers = daemon_.workers();
    for (uint64_t point = First(stride); point <= all && !HasFailure(); point += stride) {
      points_.Set(process, PointMode::kFail, point);
      const absl::Status played = play();
      EXPECT_FALSE(absl::StrContains(played.message(), "said nothing")) << played << ", point " << point;
      refused += played.ok() ? 0 : 1;
      points_.Clear();
      ExpectBackWithoutPublished();
      if (daemon_.workers() != workers) {
        ForgetEndedWorkers(/*supervisor=*/true);
        workers = daemon_.workers();
      }
    }
    std::cout << process << ": over " << all << " calls, " << refused << " plays were refused\n";
    // The scenario succeeds as before.
    EXPECT_TRUE(Ok(play()));
  }

  const uint64_t seed_;
  std::mt19937_64 random_;
  SharedPoints points_;
  TestDaemon daemon_;
};

TEST_F(PointsTest, BrokerDeathAtAnyPointLosesNothing) {
  EXPECT_GT(DieEverywhere("berth-broker", 12), GateOrSoak(1, 5));
  daemon_.ExpectAccountsBack();
}

TEST_F(PointsTest, SupervisorDeathAtAnyPointLosesNothing) {
  EXPECT_GT(DieEverywhere("berthd", 2), GateOrSoak(0, 2));
  daemon_.ExpectAccountsBack();
}

TEST_F(PointsTest, BrokerWithoutMemoryEndsAndLosesNothing) {
  EXPECT_GT(DieEverywhere("berth-broker", 0, PointMode::kFailNew, PointMode::kCountNew), GateOrSoak(1, 5));
  daemon_.ExpectAccountsBack();
}

TEST_F(PointsTest, SupervisorWithoutMemoryEndsAndLosesNothing) {
  EXPECT_GT(DieEverywhere("berthd", 0, PointMode::kFailNew, PointMode::kCountNew), GateOrSoak(0, 2));
  daemon_.ExpectAccountsBack();
}

TEST_F(PointsTest, WorkerWithoutMemoryEndsAndLosesNothing) {
  EXPECT_GT(DieEverywhere("berth-worker0", 0, PointMode::kFailNew, PointMode::kCountNew), GateOrSoak(1, 5));
  daemon_.ExpectAccountsBack();
}

TEST_F(PointsTest, WorkerSharedByTwoBrokersMakesBlockOnce) {
  Actor owner(daemon_);
  Actor importer(daemon_);
  // A replacement follows it, and stops once it has read that the broker begins.
  points_.Set("berth-worker0", PointMode::kStop, 1);
  const pid_t first = daemon_.workers().at(0);
  ::kill(first, SIGKILL);
  pid_t worker = 0;
  ASSERT_TRUE(Eventually([&] {
    const std::vector<pid_t> workers = daemon_.workers();
    worker = workers.empty() ? 0 : workers[0];
    return worker != 0 && worker != first && StateOf(worker) == 'T';
  }));
  points_.Clear();
  // The broker requests a block from it; then another broker begins, too.
  owner.SendLine("allocate b 65536");
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.reserved > 0; }));
  daemon_.KillBroker();
  daemon_.TakeAccounts();
  ::kill(worker, SIGCONT);
  const std::string handle = Must(owner.Answer());
  // A block that the worker made a second time would have arrived by now.
  owner.Do("allocate c 65536");
  EXPECT_EQ(daemon_.TakeAccounts().blocks, 2u);
  // A client that has only the handle can get the block, also from the next broker.
  for (int life = 0; life < 2; ++life) {
    EXPECT_TRUE(Ok(owner.Ask(absl::StrCat("grant-session b ", importer.session().value()))));
    EXPECT_TRUE(Ok(importer.Ask(absl::StrCat("import b ", handle))));
    EXPECT_TRUE(Ok(importer.Ask("drop b")));
    daemon_.KillBroker();
  }
  owner.Do("free b");
  owner.Do("free c");
  ExpectBack();
}

TEST_F(PointsTest, FailedStartIsRetriedWithoutEndingLeases) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  // `launcher` cannot start a replacement of the dead process for a while.
  const auto refuse = [&](const std::string& launcher, pid_t dead) {
    points_.Set(launcher, PointMode::kFailStarts, 0);
    ::kill(dead, SIGKILL);
    EXPECT_TRUE(Eventually([&] { return points_.passed() >= 3; })) << launcher << " has given up";
    points_.Clear();
    EXPECT_TRUE(Eventually([&] { return IsAlive(daemon_.supervisor_pid()); }));
    EXPECT_TRUE(Ok(holder.Ask("status"))) << launcher;
    EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 1; })) << launcher;
  };
  refuse("berthd", daemon_.broker());
  // A broker's process name begins with this.
  refuse("exe", daemon_.broker());
  refuse("berthd", daemon_.workers().at(0));
  EXPECT_TRUE(Ok(holder.Ask("allocate b 65536")));
  EXPECT_TRUE(Ok(holder.Ask("free b")));
  const pid_t broker = daemon_.broker();
  refuse("berth-launcher", daemon_.supervisor_pid());
  EXPECT_EQ(daemon_.broker(), broker) << "it has served all the while";
  holder.Do("release p");
  holder.Quit();
  daemon_.ExpectAccountsBack();
}

TEST_F(PointsTest, FailedCallDuringReplacementEndsNoLease) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  // Kills with the call of `process` at `point` failing, 0 for none. Returns the number of points.
  const auto kill = [&](bool supervisor, const std::string& process, uint64_t point) {
    points_.Set(process, point == 0 ? PointMode::kCount : PointMode::kFail, point);
    if (supervisor) {
      daemon_.KillSupervisor();
    } else {
      daemon_.KillBroker();
    }
    EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 1; }))
        << process << " " << point;
    const uint64_t passed = points_.Clear();
    // A supervisor may have published its pid, and have ended since.
    EXPECT_TRUE(Eventually([&] { return IsAlive(daemon_.supervisor_pid()); })) << process << " " << point;
    EXPECT_TRUE(Ok(holder.Ask("status"))) << process << " " << point;
    return passed;
  };
  for (const std::string& process : ReplacedProcesses()) {
    for (const bool supervisor : {false, true}) {
      const uint64_t all = kill(supervisor, process, 0);
      const uint64_t stride = RestartStride(all, all / 4 + 1);
      for (uint64_t point = 1 + random_() % stride; point <= all && !HasFailure(); point += stride) {
        kill(supervisor, process, point);
      }
      std::cout << process << ": " << all << " calls as a " << (supervisor ? "supervisor" : "broker") << " follows\n";
    }
  }
  holder.Do("release p");
  holder.Quit();
  ExpectBack();
}

TEST_F(PointsTest, SignalDuringReplacementIsHandled) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  const auto is_held = [this] {
    return daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 1; });
  };
  for (const bool upgrade : {false, true}) {
    for (const int signal : {SIGHUP, SIGTERM, SIGINT}) {
      if (!Soaks() && signal != (upgrade ? SIGTERM : SIGHUP)) continue;
      const uint64_t point = 1 + random_() % 8;
      SCOPED_TRACE(absl::StrCat(upgrade ? "upgrade" : "succession", ", signal ", signal, ", point ", point));
      // The supervisor stops there: the next one in a succession, this one before or after its exec in an upgrade.
      points_.Set("berthd", PointMode::kStop, point);
      std::optional<Subprocess> command;
      if (upgrade) {
        command.emplace(Subprocess::Start({.argv = {ProgramPath("client/cli/berth"), "--admin", "upgrade"},
                                           .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder())},
                                           .errors = "/dev/null",
                                           .of_operator = true}));
      } else {
        ::kill(daemon_.supervisor_pid(), SIGKILL);
      }
      pid_t stopped = 0;
      ASSERT_TRUE(Eventually([&] {
        for (const ChildInfo& process : ProcessesWith("berthd", absl::StrCat("--folder=", daemon_.folder()))) {
          if (StateOf(process.pid) == 'T') stopped = process.pid;
        }
        // The first word of a supervisor that the test started is a path.
        if (StateOf(daemon_.supervisor_pid()) == 'T') stopped = daemon_.supervisor_pid();
        return stopped != 0;
      }));
      points_.Clear();
      ::kill(stopped, signal);
      ::kill(stopped, SIGCONT);
      if (signal == SIGHUP) {
        if (command.has_value()) {
          EXPECT_EQ(command->Wait(), 0);
        }
        EXPECT_TRUE(Eventually([&] { return daemon_.supervisor_pid() == stopped && IsAlive(stopped); }));
      } else {
        daemon_.Abandon();
        EXPECT_TRUE(daemon_.TryStartAgain());
      }
      EXPECT_TRUE(is_held());
      EXPECT_TRUE(Ok(holder.Ask("status")));
    }
  }
  holder.Do("release p");
  holder.Quit();
  ExpectBack();
}

TEST_F(PointsTest, FailedCallAtStopOrStartForgetsNoLease) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  // Holds a permit only by the inherited credentials and lifeline.
  ASSERT_EQ(BerthCommand(daemon_.folder()).Run({"--admin", "permits", "set", "gpu-tests", "2"}), 0);
  Subprocess job = Subprocess::Start(
      {.argv = {ProgramPath("client/cli/berth"), "run", "--until=tree", "--", "/bin/sh", "-c", "echo $$; read line"},
       .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION"}});
  int32_t command;
  ASSERT_TRUE(absl::SimpleAtoi(Must(job.ReadLine()), &command));
  job.Kill();
  job.Wait();
  // The process that replaces one that died does not know of the stop.
  const auto stop_all = [&] {
    EXPECT_TRUE(daemon_.AwaitNone(SIGTERM));
    EXPECT_TRUE(Eventually([&] { return !IsAlive(daemon_.supervisor().pid()); }));
  };
  // Ends and restarts the daemon, with the call of `process` at `point` failing, or with `process` dying there. Returns
  // the number of points.
  const auto restart = [&](bool stop, const std::string& process, PointMode mode, uint64_t point) {
    SCOPED_TRACE(absl::StrCat(process, " ", point, stop ? ", a stop" : ", a start"));
    if (stop) points_.Set(process, mode, point);
    if (stop && mode == PointMode::kCount) {
      daemon_.Stop();
    } else if (stop) {
      // The daemon's exit may differ from the promised one.
      ::kill(daemon_.supervisor_pid(), SIGTERM);
      daemon_.Abandon();
      if (mode == PointMode::kDie) stop_all();
    } else {
      daemon_.KillSupervisorAndBroker();
      points_.Set(process, mode, point);
    }
    const bool served = daemon_.TryStartAgain();
    const uint64_t passed = points_.Clear();
    if (!served && mode == PointMode::kDie) stop_all();
    // The failed resource is available again.
    if (!served) daemon_.StartAgain();
    EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 2; }));
    EXPECT_TRUE(Ok(holder.Ask("status")));
    return passed;
  };
  for (const bool stop : {false, true}) {
    for (const std::string& process : ReplacedProcesses()) {
      const uint64_t all = restart(stop, process, PointMode::kCount, 0);
      const uint64_t stride = RestartStride(all, all / 3 + 1);
      for (uint64_t point = 1 + random_() % stride; point <= all && !HasFailure(); point += stride) {
        restart(stop, process, PointMode::kFail, point);
        restart(stop, process, PointMode::kDie, point);
      }
      std::cout << process << ": " << all << " calls at a " << (stop ? "stop and start" : "start") << "\n";
    }
  }
  holder.Do("release p");
  holder.Quit();
  ::kill(command, SIGKILL);
  ExpectBack();
}

TEST_F(PointsTest, FailedBrokerCallFailsSingleRequestAtMost) {
  FailEverywhere("berth-broker", 16);
}

// A reader that gets no fence page of the writer's process ends: it must not skip its wait for the write.
TEST_F(PointsTest, FailedBrokerCallSkipsNoWaitForUse) {
  Actor writer(daemon_);
  const std::string handle = writer.Do("allocate b 65536");
  writer.Do("map b");
  writer.Do("stream s");
  // A reader that has no page yet reads behind an unfinished write. Returns the number of points of its preflight.
  const auto read = [&](PointMode mode, uint64_t point) {
    Actor reader(daemon_);
    writer.Do(absl::StrCat("grant-session b ", reader.session().value()));
    for (const std::string& step : {absl::StrCat("import b ", handle), std::string("map b"), std::string("stream t")})
      reader.Do(step);
    writer.Do("preflight write s b:w");
    writer.Do("gate s");
    writer.Do(absl::StrCat("queue-fill s b ", point + 1));
    writer.Do("commit write");
    points_.Set("berth-broker", mode, point);
    absl::Status done = reader.Ask("preflight read t b:r").status();
    const uint64_t passed = points_.Clear();
    const bool begun = done.ok();
    if (begun) {
      reader.Do(absl::StrCat("queue-check t b ", point + 1));
      done = reader.Ask("commit read").status();
    }
    writer.Do("open-gate s");
    writer.Do("sync s");
    if (begun) {
      EXPECT_TRUE(Ok(reader.Ask("sync t"))) << point << ", " << done;
    }
    return passed;
  };
  const uint64_t all = read(PointMode::kCount, 0);
  uint64_t tried = 0;
  for (uint64_t point = 1; point <= all && !HasFailure(); ++point, ++tried) read(PointMode::kFail, point);
  std::cout << tried << " calls of a preflight\n";
  writer.Do("unmap b");
  writer.Do("free b");
  ExpectBack();
}

TEST_F(PointsTest, FailedWorkerCallFailsSingleRequestAtMost) {
  FailEverywhere("berth-worker0", 2);
}

TEST_F(PointsTest, FailedSupervisorCallFailsSingleRequestAtMost) { FailEverywhere("berthd", 4); }

}  // namespace
}  // namespace berth::testing
