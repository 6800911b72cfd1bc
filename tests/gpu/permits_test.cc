// The purpose of permits, on a GPU: many test processes, two at a time, and jobs that declare how many bytes they take.
// $BERTH_GPU_TEST_BACKEND=host runs the same tests on host memory, except those that need a GPU. $BERTH_STORM_SEED
// replays the random choices of a run.

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <berth/bytes.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/permit.pb.h"
#include "client/sdk/admin/inspector.h"
#include "gtest/gtest.h"
#include "tests/gpu/gpu_job.h"
#include "tests/support/environment.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::gpu {
namespace {

using testing::Eventually;
using testing::Must;
using testing::ProgramPath;
using testing::Subprocess;

constexpr absl::Duration kPatience = absl::Minutes(3);
constexpr int kAtATime = 20;
constexpr uint64_t kCap = 2;
constexpr int kJobs = 40;

class GpuPermitsTest : public GpuJob {
 protected:
  void TearDown() override {
    if (HasFailure()) ADD_FAILURE() << "BERTH_STORM_SEED=" << seed_;
    GpuJob::TearDown();
  }

  v1::Pool Pool() const {
    const v1::ListPoolsResponse pools = Must(Inspector(session_).ListPools());
    for (const v1::Pool& pool : pools.pools()) {
      if (pool.name() == "gpu-tests") return pool;
    }
    ADD_FAILURE() << "no pool gpu-tests";
    return {};
  }

  enum class Kind {
    // Acquires its own permit.
    kOfBerth,
    // Knows nothing of Berth, and runs under `berth run`.
    kUnder,
    // As kUnder, with the CUDA runtime instead of the driver's own interface.
    kRuntimeUnder,
  };
  Subprocess StartTest(const std::vector<std::string>& arguments, Kind kind) const {
    std::vector<std::string> argv;
    if (kind != Kind::kOfBerth) argv = {ProgramPath("client/cli/berth"), "run", "--quiet", "--"};
    if (kind == Kind::kRuntimeUnder) {
      argv.insert(argv.end(), {"python3", ProgramPath("tests/gpu/runtime_client.py")});
    } else {
      argv.push_back(ProgramPath("tests/gpu/gpu_test"));
    }
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    if (kind == Kind::kOfBerth) argv.emplace_back("--permit");
    return Subprocess::Start({.argv = argv, .environment = {"BERTH_FOLDER=" + folder()}});
  }

  // Whether clients with the CUDA runtime can run here.
  bool HaveRuntime() const {
    if (!cuda()) return false;
    Subprocess have = Subprocess::Start(
        {.argv = {"/usr/bin/env", "python3", ProgramPath("tests/gpu/runtime_client.py"), "--have"}});
    return have.Wait() == 0;
  }

  // Maxima while `work` runs: the permits granted by the daemon, and the processes with a context by NVML.
  struct Most {
    uint64_t permits = 0;
    size_t contexts = 0;
  };
  Most During(const std::function<void()>& work) const {
    Most most;
    std::atomic<bool> over = false;
    std::thread witness([&] {
      while (!over) {
        most.permits = std::max<uint64_t>(most.permits, Pool().out());
        if (cuda()) most.contexts = std::max(most.contexts, DeviceProcesses() - processes_before_);
      }
    });
    work();
    over = true;
    witness.join();
    return most;
  }

  void ExpectNothingLost() const {
    EXPECT_TRUE(Eventually([this] { return Pool().out() == 0 && Pool().waiters() == 0; }));
    EXPECT_TRUE(Eventually([this] { return DeviceProcesses() == processes_before_; }));
    EXPECT_TRUE(DeviceComesBackTo(before_));
  }

  const uint64_t seed_ = testing::SeedFromEnvironment("BERTH_STORM_SEED");
};

TEST_F(GpuPermitsTest, ConcurrentTestsNeverExceedPermitCap) {
  const auto tests = static_cast<int>(testing::GateOrSoak(30, 200));
  std::atomic<int> next = 0;
  std::atomic<int> right = 0, of_runtime = 0, killed = 0;
  const bool have_runtime = HaveRuntime();
  const Most most = During([&] {
    std::vector<std::thread> runners;
    for (int runner = 0; runner < kAtATime; ++runner) {
      runners.emplace_back([&] {
        for (int number = next++; number < tests; number = next++) {
          std::mt19937_64 random(seed_ + number);
          const Kind kind = number % 2 == 0                   ? Kind::kOfBerth
                            : have_runtime && number % 4 == 1 ? Kind::kRuntimeUnder
                                                              : Kind::kUnder;
          Subprocess test =
              StartTest({absl::StrCat(number), absl::StrCat(MiB(64 + random() % 192).count())}, kind);
          if (random() % 4 == 0) {
            // Killed at any point of its life; a command under `berth run` may outlive the wrapper.
            pollfd end = {.fd = test.pidfd(), .events = POLLIN, .revents = 0};
            if (::poll(&end, 1, static_cast<int>(random() % 2'000)) == 0) ++killed;
            test.Kill();
            continue;
          }
          const std::string said = test.ReadAll();
          EXPECT_EQ(said, "right\n") << "test " << number;
          EXPECT_EQ(test.Wait(kPatience), 0) << "test " << number;
          ++right;
          if (kind == Kind::kRuntimeUnder) ++of_runtime;
        }
      });
    }
    for (std::thread& runner : runners) runner.join();
  });
  EXPECT_LE(most.permits, kCap);
  EXPECT_LE(most.contexts, kCap);
  EXPECT_EQ(Pool().peak(), kCap) << "never more, and work was conserved";
  EXPECT_GT(right, tests / 2);
  if (have_runtime) {
    EXPECT_GT(of_runtime, tests / 10);
  } else if (cuda()) {
    std::cout << "no CUDA runtime here: clients of one kind alone" << std::endl;
  }
  std::cout << "test processes, " << kAtATime << " at a time under cap " << kCap << " | " << right
            << " right, of them " << of_runtime << " by the CUDA runtime, " << killed << " killed, at most "
            << most.permits << " permits, " << most.contexts << " contexts" << std::endl;
  ExpectNothingLost();
}

TEST_F(GpuPermitsTest, JobsDeclaringBytesNeverRunOutOfMemory) {
  Subprocess raise = Subprocess::Start({.argv = {ProgramPath("client/cli/berth"), "--admin", "permits", "set",
                                                 "gpu-tests", absl::StrCat(kJobs)},
                                        .environment = {"BERTH_FOLDER=" + folder()}});
  ASSERT_EQ(raise.Wait(), 0);
  const v1::Usage usage = Must(Inspector(session_).GetUsage());
  const uint64_t total = usage.devices(0).total_bytes();
  // 20 GiB of a card with 139 GiB; proportionally less of another card.
  const Bytes bytes = cuda() && total >= GiB(130).count() ? GiB(20) : Bytes(total / 139 * 20);
  // Six jobs with their contexts fit where a context has its assumed size.
  constexpr uint64_t kOnACard = 6;
  const uint64_t at_a_time = std::min<uint64_t>(kJobs, kOnACard * usage.devices_size());
  const Most most = During([&] {
    std::vector<Subprocess> jobs;
    for (int job = 0; job < kJobs; ++job) {
      jobs.push_back(
          StartTest({absl::StrCat(job), absl::StrCat(bytes.count()), "--declare", "--stay"}, Kind::kOfBerth));
    }
    // However long each takes to start.
    EXPECT_TRUE(Eventually([&] { return Pool().out() == at_a_time; }));
    for (Subprocess& job : jobs) job.CloseInput();
    for (Subprocess& job : jobs) {
      EXPECT_EQ(job.ReadAll(), "right\n");
      EXPECT_EQ(job.Wait(kPatience), 0);
    }
  });
  EXPECT_LE(most.permits, at_a_time);
  // NVML is queried only for the first card.
  EXPECT_LE(most.contexts, kOnACard);
  EXPECT_EQ(Pool().peak(), at_a_time) << "as many as have capacity are let in";
  std::cout << kJobs << " jobs of " << bytes.count() << " bytes, started together | at most " << Pool().peak()
            << " at a time, " << most.contexts << " contexts" << std::endl;
  ExpectNothingLost();
}

TEST_F(GpuPermitsTest, IdleHolderIsShownUntilItComputes) {
  if (!cuda()) GTEST_SKIP() << "nobody says what host memory is at";
  Subprocess warn = Subprocess::Start(
      {.argv = {ProgramPath("client/cli/berth"), "--admin", "permits", "set", "gpu-tests", "--idle-warning", "2s"},
       .environment = {"BERTH_FOLDER=" + folder()}});
  ASSERT_EQ(warn.Wait(), 0);
  const auto is_idle = [this] { return Must(Inspector(session_).ListPermits()).permits(0).has_idle(); };
  Actor holder(folder());
  holder.Do("acquire p");
  holder.Do(absl::StrCat("allocate b ", MiB(64).count(), " fd"));
  holder.Do("write b 1");
  EXPECT_TRUE(Eventually(is_idle));
  holder.Do("launch b 5000");
  EXPECT_TRUE(Eventually([&] { return !is_idle(); }));
  holder.Do("await b");
  EXPECT_TRUE(Eventually(is_idle));
  holder.Quit();
  ExpectNothingLost();
}

TEST_F(GpuPermitsTest, ProcessWithoutPermitIsListedAsStray) {
  if (!cuda()) GTEST_SKIP() << "nobody says who is at host memory";
  const auto strays = [this] {
    std::vector<std::string> names;
    const v1::ListStraysResponse answer = Must(Inspector(session_).ListStrays());
    for (const v1::Stray& stray : answer.strays()) {
      EXPECT_GT(stray.bytes(), 0u);
      names.push_back(stray.process().name());
    }
    return names;
  };
  const std::vector<std::string> before = strays();
  const size_t there = std::count(before.begin(), before.end(), "gpu_actor");
  const auto become = [&](size_t more) {
    return Eventually([&] {
      const std::vector<std::string> now = strays();
      return std::count(now.begin(), now.end(), "gpu_actor") == static_cast<int64_t>(there + more);
    });
  };
  Actor stray(folder());
  stray.Do(absl::StrCat("allocate b ", MiB(64).count(), " fd"));
  stray.Do("write b 1");
  EXPECT_TRUE(become(1)) << "it has a context, and no permit";
  stray.Do("acquire p");
  EXPECT_TRUE(become(0));
  stray.Do("release p");
  EXPECT_TRUE(become(1));
  stray.Quit();
  EXPECT_TRUE(become(0));
  ExpectNothingLost();
}

}  // namespace
}  // namespace berth::gpu
