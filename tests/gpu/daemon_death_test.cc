// The daemon dies while an importer's kernel runs on its memory: broker, supervisor and worker, one by one and all at
// once. This kernel and the next one read the data as written. $BERTH_GPU_TEST_BACKEND=host runs the same tests on host
// memory.

#include <signal.h>

#include <string>
#include <vector>

#include <berth/bytes.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/gpu/compute.h"
#include "tests/gpu/gpu_job.h"
#include "tests/support/proc.h"
#include "tests/support/testing.h"

namespace berth::gpu {
namespace {

using testing::ChildInfo;
using testing::Eventually;
using testing::Ok;

// Longer than the daemon takes to die and to restart.
constexpr int kKernelMs = 2'000;
constexpr Bytes kShared = MiB(16);
// Not a process name: it stands for the process whose pid is in the folder.
constexpr char kSupervisor[] = "supervisor";

// Gives `importer` a block that `owner` leased and filled, in both as "block". Returns the sum of its words.
std::string ShareBlock(Actor& owner, Actor& importer) {
  const std::string handle = owner.Do(absl::StrCat("allocate block ", kShared.count(), " fd"));
  owner.Do(absl::StrCat("write block ", kSeed));
  owner.Do("grant block " + importer.Do("session"));
  importer.Do(absl::StrCat("import block ", handle));
  return absl::StrCat(PatternSum(kSeed, kShared));
}

class GpuDaemonDeathTest : public GpuJob {
 protected:
  // Finds the processes by the argument that all of them were started with.
  std::vector<ChildInfo> Processes() const {
    std::vector<ChildInfo> all = testing::ProcessesWith("berthd", absl::StrCat("--folder=", folder()));
    if (testing::IsAlive(daemon_->pid())) all.push_back({.pid = daemon_->pid(), .name = kSupervisor});
    return all;
  }
  pid_t Find(const std::string& prefix) const {
    if (prefix == kSupervisor) return daemon_->FindSupervisor().value_or(0);
    for (const ChildInfo& process : Processes()) {
      if (absl::StartsWith(process.name, prefix)) return process.pid;
    }
    return 0;
  }
  // Sends SIGKILL, and waits for the next process of that name.
  void KillAndAwaitNext(const std::string& prefix) const {
    const pid_t before = Find(prefix);
    ASSERT_EQ(::kill(before, SIGKILL), 0);
    ASSERT_TRUE(Eventually([&] {
      const pid_t now = Find(prefix);
      return now != 0 && now != before;
    }));
  }
};

TEST_F(GpuDaemonDeathTest, RunningKernelSurvivesDaemonProcessDeath) {
  Actor owner(folder());
  Actor importer(folder());
  const std::string sum = ShareBlock(owner, importer);
  ASSERT_EQ(importer.Do("sum block"), sum);
  for (const char* const victim : {"berth-broker", "berth-worker", kSupervisor}) {
    importer.Do(absl::StrCat("launch block ", kKernelMs));
    KillAndAwaitNext(victim);
    EXPECT_EQ(importer.Do("await block"), sum) << victim;
    EXPECT_TRUE(Ok(importer.Ask("access block"))) << victim;
    EXPECT_EQ(owner.Do("sum block"), sum) << victim;
  }
  owner.Quit();
  importer.Quit();
}

TEST_F(GpuDaemonDeathTest, MappingsSurviveDeathOfEntireDaemon) {
  Actor owner(folder());
  Actor importer(folder());
  const std::string sum = ShareBlock(owner, importer);
  ASSERT_EQ(importer.Do("sum block"), sum);
  importer.Do(absl::StrCat("launch block ", kKernelMs));
  // Neither may restart the other.
  ::kill(daemon_->pid(), SIGSTOP);
  ::kill(Find("berth-broker"), SIGKILL);
  ::kill(daemon_->pid(), SIGKILL);
  // The workers end by themselves.
  EXPECT_TRUE(Eventually([this] { return Processes().empty(); }));
  owner.Kill();
  EXPECT_EQ(importer.Do("await block"), sum);
  EXPECT_EQ(importer.Do("sum block"), sum);
  EXPECT_TRUE(Ok(importer.Ask("access block"))) << "the lease is suspended until the next daemon";
  importer.Kill();
  EXPECT_TRUE(DeviceComesBackTo(before_));
}

}  // namespace
}  // namespace berth::gpu
