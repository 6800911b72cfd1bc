// Many processes on one GPU at once: their data stays intact, and leases of killed processes come back.
// $BERTH_GPU_TEST_BACKEND=host runs the same tests on host memory. $BERTH_STORM_SEED replays the random choices of a
// run.

#include <algorithm>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <berth/bytes.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/gpu/compute.h"
#include "tests/gpu/gpu_job.h"
#include "tests/support/environment.h"
#include "tests/support/proc.h"
#include "tests/support/testing.h"

namespace berth::gpu {
namespace {

using testing::Eventually;
using testing::Ok;

constexpr int kPairs = 8;
// Small enough for sixteen processes at once within the test's budget of 4 GiB.
constexpr Bytes kLargest = MiB(16);

class GpuStormTest : public GpuJob {
 protected:
  void SetUp() override {
    GpuJob::SetUp();
    idle_ = DeviceUsed();
  }
  void TearDown() override {
    if (HasFailure()) ADD_FAILURE() << "BERTH_STORM_SEED=" << seed_;
    GpuJob::TearDown();
  }

  // Runs `work` in kPairs threads, each with its own random choices, and waits for all.
  void InParallel(const std::function<void(std::mt19937_64&)>& work) const {
    std::vector<std::thread> threads;
    for (int pair = 0; pair < kPairs; ++pair) {
      threads.emplace_back([this, pair, &work] {
        std::mt19937_64 random(seed_ + pair);
        work(random);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void ExpectEverythingBack() const {
    EXPECT_TRUE(BytesBecome("outstanding", Bytes()));
    EXPECT_TRUE(BytesBecome("daemon", Bytes()));
    EXPECT_TRUE(DeviceComesBackTo(idle_))
        << DeviceUsed().count() << " bytes in use, " << idle_.count() << " before";
    EXPECT_TRUE(Eventually([this] { return DeviceProcesses() == processes_before_; }));
  }

  const uint64_t seed_ = testing::SeedFromEnvironment("BERTH_STORM_SEED");
  Bytes idle_;
};

// Gives both a block "b" that `owner` leased and filled. Returns the sum of its words.
std::string ShareAny(Actor& owner, Actor& importer, std::mt19937_64& random) {
  const uint64_t bytes = random() % kLargest.count() + 1;
  const auto seed = static_cast<uint32_t>(random());
  const std::string kind = random() % 4 == 0 ? "ipc" : "fd";
  const std::string handle = owner.Do(absl::StrCat("allocate b ", bytes, " ", kind));
  uint64_t written = 0;
  EXPECT_TRUE(absl::SimpleAtoi(owner.Do(absl::StrCat("write b ", seed)), &written));
  EXPECT_GE(written, bytes);
  owner.Do("grant b " + importer.Do("session"));
  importer.Do("import b " + handle);
  return absl::StrCat(PatternSum(seed, Bytes(written)));
}

void ShareOnce(Actor& owner, Actor& importer, std::mt19937_64& random) {
  const std::string sum = ShareAny(owner, importer, random);
  EXPECT_EQ(importer.Do("sum b"), sum);
  importer.Do("drop b");
  EXPECT_EQ(owner.Do("sum b"), sum);
  owner.Do("drop b");
}

TEST_F(GpuStormTest, ImportersReadWrittenDataInEveryRound) {
  const uint64_t rounds = testing::GateOrSoak(2, 64);
  InParallel([&](std::mt19937_64& random) {
    Actor first(folder());
    Actor second(folder());
    for (uint64_t round = 0; round < rounds; ++round) {
      ShareOnce(first, second, random);
      ShareOnce(second, first, random);
    }
    first.Quit();
    second.Quit();
  });
  ExpectEverythingBack();
}

TEST_F(GpuStormTest, ProcessesKilledAtAnyPointLeaveNothing) {
  const std::vector<std::string> work = {"sum b",     "overwrite b", "sum b", "allocate d 4194304 ipc",
                                         "write d 3", "drop b"};
  // Kills by each thread.
  const uint64_t kills = testing::GateOrSoak(2, 26);
  InParallel([&](std::mt19937_64& random) {
    for (uint64_t killed = 0; killed < kills; killed += 2) {
      Actor owner(folder());
      Actor importer(folder());
      ShareAny(owner, importer, random);
      std::deque<Actor*> dying = {&owner, &importer};
      if (random() % 2 == 0) std::swap(dying.front(), dying.back());
      for (Actor* const actor : dying) {
        for (const std::string& command : work) actor->SendLine(command);
      }
      // Each process is killed after a random number of answers, during its next command.
      for (Actor* const actor : dying) {
        const size_t lives = random() % work.size();
        for (size_t i = 0; i < lives; ++i) EXPECT_TRUE(Ok(actor->Answer())) << work[i];
        actor->Kill();
      }
    }
  });
  ExpectEverythingBack();
}

TEST_F(GpuStormTest, ComputingProcessesSurviveWorkerDeaths) {
  constexpr int kSums = 32;
  std::deque<Actor> actors;
  for (int i = 0; i < kPairs; ++i) {
    Actor& actor = actors.emplace_back(folder());
    actor.Do(absl::StrCat("allocate b ", kLargest.count(), " fd"));
    actor.Do(absl::StrCat("write b ", i));
  }
  // A context worker runs, too.
  actors.front().Do(absl::StrCat("allocate d ", MiB(4).count(), " ipc"));
  for (Actor& actor : actors) {
    for (int i = 0; i < kSums; ++i) actor.SendLine("sum b");
  }
  for (int i = 0; i < kSums; ++i) {
    for (size_t k = 0; k < actors.size(); ++k) {
      const absl::StatusOr<std::string> sum = actors[k].Answer();
      ASSERT_TRUE(Ok(sum));
      EXPECT_EQ(*sum, absl::StrCat(PatternSum(static_cast<uint32_t>(k), kLargest)));
    }
    // Three times, the number of deaths that do not yet stop a device.
    if (i % 12 != 0) continue;
    EXPECT_TRUE(Eventually([this] { return KillDaemons("berth-worker") > 0; }));
    KillDaemons("berth-context");
  }
  EXPECT_TRUE(Eventually([&] { return Ok(actors.back().Ask("allocate e 4096 fd")); }));
  for (Actor& actor : actors) actor.Quit();
  ExpectEverythingBack();
}

TEST_F(GpuStormTest, ConcurrentFirstRequestsShareContext) {
  std::deque<Actor> actors;
  for (int i = 0; i < 2 * kPairs; ++i) actors.emplace_back(folder());
  for (Actor& actor : actors) actor.SendLine(absl::StrCat("allocate b ", MiB(4).count(), " ipc"));
  for (Actor& actor : actors) EXPECT_TRUE(Ok(actor.Answer()));
  const std::vector<testing::ChildInfo> children = testing::ChildrenOf(daemon_->pid());
  EXPECT_EQ(std::count_if(children.begin(), children.end(),
                          [](const auto& child) { return absl::StartsWith(child.name, "berth-context"); }),
            1);
  for (Actor& actor : actors) actor.Do("write b 1");
  for (Actor& actor : actors) EXPECT_EQ(actor.Do("sum b"), absl::StrCat(PatternSum(1, MiB(4))));
  for (Actor& actor : actors) actor.Quit();
  ExpectEverythingBack();
}

}  // namespace
}  // namespace berth::gpu
