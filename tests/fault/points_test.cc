// Broker and vault die at every point between what they hear and what they say, each in the middle of the same play:
// it is played to its end as if nothing had been, and nothing is lost, left or out twice. And every call by which a
// process of the daemon's speaks, asks the kernel for memory or fds, opens, writes, maps or renames a file, or has one
// looked at, fails once: whatever that costs is given back.
// And there is once no memory for each thing that broker, vault and worker make by operator new, of which they end.
//
// Every so many points are tried, with a first one by chance; BERTH_FAULT_POINTS=1 tries each of them, =N each Nth, and
// BERTH_FAULT_FROM=N none before that. BERTH_FAULT_SEED replays the draws of a run.

#include "tests/fault/points.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/block.h"
#include "common/block_handle.h"
#include "common/error.h"
#include "common/os_error.h"
#include "gtest/gtest.h"
#include "tests/support/actor_handle.h"
#include "tests/support/environment.h"
#include "tests/support/proc.h"
#include "tests/support/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// What outlives who published it.
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
  // Of a daemon whose points these are.
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
  // Nothing more happens. Returns how many were passed.
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

  // How far apart the points are that a run tries of `all`: eight of them in the gate, each `soak`th in the soak.
  uint64_t Stride(uint64_t all, uint64_t soak) const {
    return FromEnvironment("BERTH_FAULT_POINTS", ByLane(all / 8 + 1, soak));
  }

  uint64_t First(uint64_t stride) { return FromEnvironment("BERTH_FAULT_FROM", 1) + random_() % stride; }

  // A session comes and goes, a block is leased, filled, lent, used on streams of both, looked at and given back, and a
  // permit goes from one to the other; bytes are reserved, and what is drawn from them is published, looked at and
  // deleted; a plan takes permit and bytes. Returns the first thing that went wrong, at which it ends.
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

  // Every permit and byte is back.
  void ExpectBack() {
    EXPECT_TRUE(daemon_.BooksBecome([this](const Books& books) {
      const Books& start = daemon_.books_at_start();
      return books.permits == 0 && books.units == 0 && books.waiters == 0 && books.blocks == start.blocks &&
             books.live == start.live && books.retired == 0 && books.quarantined == 0 && books.reserved == 0;
    })) << Describe(daemon_.TakeBooks());
  }

  // The same after a play that ended early: what it has published is deleted for it.
  void ExpectBackWithoutPublished() {
    EXPECT_TRUE(daemon_.BooksBecome([this](const Books& books) {
      if (books.blocks <= daemon_.books_at_start().blocks) return true;
      const absl::Status deleted = Block::Unpublish(daemon_.admin_session(), kPublished);
      EXPECT_TRUE(deleted.ok() || IsRefusal(deleted, Reason::kNotFound)) << deleted;
      return false;
    }));
    ExpectBack();
  }

  // Plays it with `process` dying at each `soak`th point, of those that `mode` has it die at and `counts` counts; 0
  // tries some thirty. Returns how often one died.
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
      const pid_t vault = daemon_.vault_pid();
      points_.Set(process, mode, point);
      EXPECT_TRUE(Ok(Play(owner, importer, lent_to))) << process << " dies at " << point << " of " << all;
      const bool died = points_.Clear() >= point;
      deaths += died ? 1 : 0;
      // The next one is there before any other dies.
      if (died && process == "berthd") {
        EXPECT_TRUE(Eventually([&] { return daemon_.vault_pid() != vault && IsAlive(daemon_.vault_pid()); }))
            << point;
      }
      ExpectBack();
      // A worker is followed by another three times in a minute, which the next vault counts anew.
      if (died && process == "berth-worker0" && deaths % 3 == 0) daemon_.KillVault();
    }
    std::cout << process << ": " << deaths << " deaths over " << all << " points\n";
    owner.Quit();
    importer.Quit();
    return deaths;
  }

  // Plays it with each call of `process` failing once.
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
      // One that ended is followed by another three times in a minute, which the next vault counts anew.
      if (daemon_.workers() != workers) {
        daemon_.KillVault();
        workers = daemon_.workers();
      }
    }
    std::cout << process << ": over " << all << " calls, " << refused << " plays were refused\n";
    // As if nothing had been.
    EXPECT_TRUE(Ok(play()));
  }

  const uint64_t seed_;
  std::mt19937_64 random_;
  SharedPoints points_;
  TestDaemon daemon_;
};

TEST_F(PointsTest, ABrokerThatDiesAtAnyPointLosesNothing) {
  EXPECT_GT(DieEverywhere("berth-broker", 12), ByLane(1, 5));
  daemon_.ExpectBooksBack();
}

TEST_F(PointsTest, AVaultThatDiesAtAnyPointLosesNothing) {
  EXPECT_GT(DieEverywhere("berthd", 2), ByLane(0, 2));
  daemon_.ExpectBooksBack();
}

TEST_F(PointsTest, ABrokerThatGetsNoMemoryEndsAndNothingIsLost) {
  EXPECT_GT(DieEverywhere("berth-broker", 0, PointMode::kFailNew, PointMode::kCountNew), ByLane(1, 5));
  daemon_.ExpectBooksBack();
}

TEST_F(PointsTest, AVaultThatGetsNoMemoryEndsAndNothingIsLost) {
  EXPECT_GT(DieEverywhere("berthd", 0, PointMode::kFailNew, PointMode::kCountNew), ByLane(0, 2));
  daemon_.ExpectBooksBack();
}

TEST_F(PointsTest, AWorkerThatGetsNoMemoryEndsAndNothingIsLost) {
  EXPECT_GT(DieEverywhere("berth-worker0", 0, PointMode::kFailNew, PointMode::kCountNew), ByLane(1, 5));
  daemon_.ExpectBooksBack();
}

TEST_F(PointsTest, AWorkerThatTwoBrokersBeginWithMakesABlockOnce) {
  Actor owner(daemon_);
  Actor importer(daemon_);
  // Another one follows it, and stops once it has read that the broker begins.
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
  // It is asked for a block; then another broker begins, too.
  owner.Tell("allocate b 65536");
  ASSERT_TRUE(daemon_.BooksBecome([](const Books& books) { return books.reserved > 0; }));
  daemon_.KillBroker();
  daemon_.TakeBooks();
  ::kill(worker, SIGCONT);
  const std::string handle = Must(owner.Answer());
  // What it may have made a second time has come by then.
  owner.Do("allocate c 65536");
  EXPECT_EQ(daemon_.TakeBooks().blocks, 2u);
  // Whoever has nothing but the handle gets to it, also of the next broker.
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

TEST_F(PointsTest, WhatCannotBeStartedIsTriedAgainAndNoLeaseEnds) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  // `starter` cannot start what follows the dead for a while.
  const auto refuse = [&](const std::string& starter, pid_t dead) {
    points_.Set(starter, PointMode::kFailStarts, 0);
    ::kill(dead, SIGKILL);
    EXPECT_TRUE(Eventually([&] { return points_.passed() >= 3; })) << starter << " has given up";
    points_.Clear();
    EXPECT_TRUE(Eventually([&] { return IsAlive(daemon_.vault_pid()); }));
    EXPECT_TRUE(Ok(holder.Ask("status"))) << starter;
    EXPECT_TRUE(daemon_.BooksBecome([](const Books& books) { return books.permits == 1; })) << starter;
  };
  refuse("berthd", daemon_.broker());
  // By which a broker's name begins.
  refuse("exe", daemon_.broker());
  refuse("berthd", daemon_.workers().at(0));
  EXPECT_TRUE(Ok(holder.Ask("allocate b 65536")));
  EXPECT_TRUE(Ok(holder.Ask("free b")));
  const pid_t broker = daemon_.broker();
  refuse("berth-starter", daemon_.vault_pid());
  EXPECT_EQ(daemon_.broker(), broker) << "it has served all the while";
  holder.Do("release p");
  holder.Quit();
  daemon_.ExpectBooksBack();
}

TEST_F(PointsTest, ACallThatFailsWhileAnotherFollowsEndsNoLease) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  // With the call of `process` that comes at `point` failing, 0 for none. Returns how many there were.
  const auto kill = [&](bool vault, const std::string& process, uint64_t point) {
    points_.Set(process, point == 0 ? PointMode::kCount : PointMode::kFail, point);
    if (vault) {
      daemon_.KillVault();
    } else {
      daemon_.KillBroker();
    }
    EXPECT_TRUE(daemon_.BooksBecome([](const Books& books) { return books.permits == 1; })) << process << " " << point;
    const uint64_t passed = points_.Clear();
    // A vault may have said who it is, and have ended since.
    EXPECT_TRUE(Eventually([&] { return IsAlive(daemon_.vault_pid()); })) << process << " " << point;
    EXPECT_TRUE(Ok(holder.Ask("status"))) << process << " " << point;
    return passed;
  };
  for (const std::string process : {"berthd", "exe", "berth-starter", "berth-broker"}) {
    for (const bool vault : {false, true}) {
      const uint64_t all = kill(vault, process, 0);
      const uint64_t stride = FromEnvironment("BERTH_FAULT_POINTS", ByLane(std::max<uint64_t>(all, 1), all / 4 + 1));
      for (uint64_t point = 1 + random_() % stride; point <= all && !HasFailure(); point += stride) {
        kill(vault, process, point);
      }
      std::cout << process << ": " << all << " calls as a " << (vault ? "vault" : "broker") << " follows\n";
    }
  }
  holder.Do("release p");
  holder.Quit();
  ExpectBack();
}

TEST_F(PointsTest, ACallOfTheBrokersThatFailsCostsARequestAtMost) {
  FailEverywhere("berth-broker", 16);
}

TEST_F(PointsTest, ACallOfAWorkersThatFailsCostsARequestAtMost) {
  FailEverywhere("berth-worker0", 2);
}

TEST_F(PointsTest, ACallOfTheVaultsThatFailsCostsARequestAtMost) { FailEverywhere("berthd", 4); }

}  // namespace
}  // namespace berth::testing
