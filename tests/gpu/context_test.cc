// Context workers on a GPU: their cost, and the effects of their death and of a poisoned context. On a machine with two
// GPUs, also blocks that another device maps. $BERTH_GPU_TEST_BACKEND=host runs the same tests on host memory, except
// those that need a GPU.

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <thread>

#include <berth/bytes.h>
#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/inventory.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/cuda/driver.h"
#include "common/os/fd_passing.h"
#include "common/status_macros.h"
#include "daemon/device/memory/direct_backend.h"
#include "daemon/device/worker/worker.h"
#include "daemon/device/worker/worker_channel.h"
#include "daemon/device/worker/worker_exit.h"
#include "gtest/gtest.h"
#include "tests/bench/measurement.h"
#include "tests/gpu/compute.h"
#include "tests/gpu/gpu_job.h"
#include "tests/support/testing.h"

namespace berth::gpu {
namespace {

using testing::Eventually;
using testing::Must;
using testing::Ok;
using testing::Refused;

class GpuContextTest : public GpuJob {
 protected:
  // The assumed size of a process's context on the device.
  uint64_t ContextSaid() const { return Must(Inspector(session_).ListDevices()).devices(0).context_bytes(); }

  // Makes `owner` and `importer` share a block of each kind; "f" is the FD block, "block" the other.
  static void ShareBoth(Actor* owner, Actor* importer) {
    const std::string handle = owner->Do(absl::StrCat("allocate f ", kBlock.count(), " fd"));
    owner->Do(absl::StrCat("write f ", kSeed));
    owner->Do("grant f " + importer->Do("session"));
    importer->Do(absl::StrCat("import f ", handle, " rw"));
    Share(owner, importer, "rw", "ipc");
    importer->Do("sum block");
  }

  // Returns the driver's reports about the device so far.
  v1::Condition Reported() const {
    const v1::ListInventoryResponse inventory = Must(Inspector(session_).ListInventory());
    for (const v1::DeviceInventory& device : inventory.devices()) {
      if (device.device().uuid() == uuids_[0]) return device.condition();
    }
    ADD_FAILURE() << "the daemon has no device " << uuids_[0];
    return {};
  }
  // Prints the Xids beyond those in `before`, reported at `fault` or later. Their absence is no failure: containers may
  // hide them.
  void PrintXidsSince(const v1::Condition& before, absl::Time fault) const {
    constexpr absl::Duration kXidPatience = absl::Seconds(5);
    v1::Condition now;
    Eventually(
        [&] {
          now = Reported();
          return now.events_total() > before.events_total();
        },
        kXidPatience);
    const absl::Duration after = absl::Trunc(absl::Now() - fault, absl::Milliseconds(1));
    bool any = false;
    for (const v1::DeviceEvent& event : now.events()) {
      const auto same = [&](const v1::DeviceEvent& other) {
        return other.kind() == event.kind() && other.code() == event.code();
      };
      const auto was = std::find_if(before.events().begin(), before.events().end(), same);
      const uint64_t count = event.count() - (was == before.events().end() ? 0 : was->count());
      if (event.kind() != v1::DeviceEvent::XID || count == 0) continue;
      any = true;
      std::cout << "xid | " << event.code() << " | " << count << " | heard of " << after
                << " after the fault, the device " << v1::Condition::Health_Name(now.health()) << std::endl;
    }
    if (!any) std::cout << "xid | none | 0 | THE DRIVER REPORTED NONE in " << after << std::endl;
  }
};

TEST_F(GpuContextTest, ContextExistsWhileBlockNeedsIt) {
  Actor actor(folder());
  const Bytes without = DeviceUsed();
  const uint64_t at_start = ContextSaid();
  actor.Do(absl::StrCat("allocate f ", kBlock.count(), " fd"));
  EXPECT_EQ(BytesSaid("daemon"), 0u);
  actor.Do(absl::StrCat("allocate block ", kBlock.count(), " ipc"));
  if (cuda()) {
    // The charge is NVML's value for the process, or the decrease of the device's free memory.
    EXPECT_TRUE(Eventually([&] { return BytesSaid("daemon") > 0; }));
    const double said = InMiB(Bytes(BytesSaid("daemon")));
    const double taken = InMiB(DeviceUsed()) - InMiB(without) - 2 * InMiB(kBlock);
    const bench::Measurement measurement = {.name = "a context worker's device memory, beside its blocks",
                                            .value = {.value = taken, .low = taken, .high = taken},
                                            .unit = "MiB",
                                            .against = absl::StrCat(said, " MiB charged"),
                                            .bound = 1024};
    std::cout << bench::FormatMeasurement(measurement, bench::Format::kTable) << std::endl;
    EXPECT_NEAR(said, taken, 64);
    // A process measured a context at the daemon's start.
    std::cout << "a context when the daemon started | " << InMiB(Bytes(at_start)) << " MiB" << std::endl;
    EXPECT_NEAR(InMiB(Bytes(at_start)), taken, 64);
    EXPECT_NE(at_start, MiB(600).count()) << "that is said where nobody could look";
    EXPECT_EQ(ContextSaid(), BytesSaid("daemon")) << "what was measured last";
  }
  actor.Do("drop block");
  EXPECT_TRUE(BytesBecome("daemon", Bytes()));
  actor.Do("drop f");
  EXPECT_TRUE(DeviceComesBackTo(without));
}

TEST_F(GpuContextTest, ContextWorkerDeathLeavesFdBlocksUsable) {
  const Bytes before = DeviceUsed();
  Actor owner(folder());
  Actor importer(folder());
  ShareBoth(&owner, &importer);
  ASSERT_EQ(KillDaemons("berth-context"), 1);
  for (Actor* const actor : {&owner, &importer}) {
    for (int round = 0; round < 8; ++round) EXPECT_EQ(actor->Do("sum f"), ExpectedSum());
    EXPECT_TRUE(Eventually([&] { return Refused(actor->Ask("access block"), Reason::kStale); }));
    EXPECT_TRUE(Ok(actor->Ask("access f")));
  }
  importer.Do("drop block");
  owner.Do("drop block");
  EXPECT_TRUE(BytesBecome("outstanding", kBlock));
  // The next request starts another context worker.
  Share(&owner, &importer, "rw", "ipc");
  EXPECT_EQ(importer.Do("sum block"), ExpectedSum());
  EXPECT_EQ(owner.Do("sum f"), ExpectedSum());
  owner.Quit();
  importer.Quit();
  EXPECT_TRUE(BytesBecome("outstanding", Bytes()));
  EXPECT_TRUE(DeviceComesBackTo(before));
}

TEST_F(GpuContextTest, PoisonedClientContextAffectsOnlyItsClient) {
  if (!cuda()) GTEST_SKIP() << "host memory has no context";
  const Bytes before = DeviceUsed();
  Actor owner(folder());
  Actor importer(folder());
  ShareBoth(&owner, &importer);
  // The daemon receives the driver's reports from its first reading on.
  EXPECT_TRUE(Eventually([&] { return Reported().has_read_time(); }));
  const v1::Condition reported = Reported();
  const absl::Time fault = absl::Now();
  EXPECT_FALSE(importer.Ask("poison block").ok());
  PrintXidsSince(reported, fault);
  EXPECT_FALSE(importer.Ask("sum block").ok());
  EXPECT_FALSE(importer.Ask("sum f").ok());
  // The owner and the daemon's context are unaffected.
  EXPECT_EQ(owner.Do("sum block"), ExpectedSum());
  EXPECT_EQ(owner.Do("sum f"), ExpectedSum());
  owner.Do(absl::StrCat("allocate more ", kBlock.count(), " ipc"));
  EXPECT_TRUE(Ok(owner.Ask("access block")));
  owner.Quit();
  EXPECT_TRUE(BytesBecome("quarantined", Bytes(2 * kBlock.count())));
  importer.Kill();
  EXPECT_TRUE(BytesBecome("outstanding", Bytes()));
  EXPECT_TRUE(DeviceComesBackTo(before));
}

// ---- A context worker whose context is poisoned -------------------------------------------------------------

constexpr char kWorkerFlag[] = "--poisoned-worker";
constexpr int kWorkerFd = 3;

// Runs a context worker's loop over kWorkerFd; a kernel poisons its context when a line comes in.
int RunPoisonedWorker() {
  const absl::StatusOr<cuda::Driver*> driver = cuda::Driver::Get();
  if (!driver.ok()) return 1;
  auto resource = DirectBackend::Open(**driver, 0);
  if (!resource.ok()) return 1;
  absl::StatusOr<WorkerEnd> end = absl::UnknownError("it never ended");
  std::thread serving([&] { end = ServeWorker(kWorkerFd, **resource, MiB(1)); });
  if (::getchar() != EOF) Poison(**driver, 0).IgnoreError();
  serving.join();
  // Exits at once: the driver's own clean-up after this is irrelevant.
  ::_exit(end.ok() ? static_cast<int>(end->exit) : 1);
}

WorkerReply ReadReply(WorkerChannel& channel) {
  absl::StatusOr<WorkerReply> reply = absl::UnknownError("nothing came");
  Eventually([&] {
    reply = channel.Read();
    return !IsWouldBlock(reply.status());
  });
  return Must(std::move(reply), "an answer of the worker's");
}

TEST(PoisonedWorkerTest, PoisonedWorkerAnswersEndsAndNextIsSound) {
  if (!cuda::Driver::Get().ok()) GTEST_SKIP() << "no GPU";
  auto sockets = Must(SocketPair());
  int commands[2];
  ASSERT_EQ(::pipe(commands), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(commands[0], STDIN_FILENO);
    ::close(commands[1]);
    ::dup2(sockets.second.get(), kWorkerFd);
    ::execl("/proc/self/exe", "context_test", kWorkerFlag, nullptr);
    ::_exit(1);
  }
  sockets.second.reset();
  Must(SetNonBlocking(sockets.first.get()));
  WorkerChannel channel(std::move(sockets.first));
  Must(channel.SendBegin(/*epoch=*/1));
  EXPECT_EQ(std::get<BegunWorker>(ReadReply(channel)).context, MiB(1));
  Must(channel.SendCreate(BlockId(1), MiB(2)));
  EXPECT_TRUE(std::get<CreatedBlock>(ReadReply(channel)).handle.has_value());
  // An answer to this may come before the poisoning kernel has run; then another request follows.
  ASSERT_EQ(::write(commands[1], "p\n", 2), 2);
  absl::Status refused;
  for (uint64_t id = 2; refused.ok() && id < 100'000; ++id) {
    Must(channel.SendCreate(BlockId(id), MiB(2)));
    refused = std::get<CreatedBlock>(ReadReply(channel)).fd.status();
    if (!refused.ok()) break;
    // The release may be the call that fails.
    Must(channel.SendRelease(BlockId(id)));
    refused = std::get<ReleasedBlock>(ReadReply(channel)).status;
  }
  EXPECT_TRUE(IsRefusal(refused, Reason::kDriver)) << refused;
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(WorkerExit::kPoisoned)) << refused;
  ::close(commands[0]);
  ::close(commands[1]);
}

// ---- Two GPUs -----------------------------------------------------------------------------------------------

class TwoGpusTest : public GpuJob, public ::testing::WithParamInterface<const char*> {
 protected:
  TwoGpusTest() : GpuJob(2) {}
  void SetUp() override {
    GpuJob::SetUp();
    if (!cuda()) GTEST_SKIP() << "host memory is every device's";
  }
  // Returns a UUID by the daemon's ordinal, which in its environment equals CUDA's.
  absl::StatusOr<std::string> DeviceUuid(int ordinal) {
    BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
    return driver->DeviceUuid(ordinal);
  }
};

INSTANTIATE_TEST_SUITE_P(Kinds, TwoGpusTest, ::testing::Values("fd", "ipc"));

TEST_P(TwoGpusTest, OtherDeviceMapsAndComputesOnBlock) {
  const std::string other = Must(DeviceUuid(1));
  Actor owner(folder());
  Actor importer(folder());
  Share(&owner, &importer, "on=" + other, GetParam());
  EXPECT_EQ(importer.Do("sum block"), ExpectedSum());
  importer.Do("write block 8");
  EXPECT_EQ(owner.Do("sum block"), absl::StrCat(PatternSum(8, kBlock)));
  importer.Quit();
  owner.Quit();
  EXPECT_TRUE(BytesBecome("outstanding", Bytes()));
}

TEST_P(TwoGpusTest, ReversedVisibleDevicesShareBlock) {
  const std::string reversed =
      absl::StrCat("CUDA_VISIBLE_DEVICES=", Must(DeviceUuid(1)), ",", Must(DeviceUuid(0)));
  Actor owner(folder());
  Actor importer(folder(), {reversed});
  Share(&owner, &importer, "rw", GetParam());
  EXPECT_EQ(importer.Do("sum block"), ExpectedSum());
  importer.Quit();
  owner.Quit();
}

TEST_P(TwoGpusTest, ProcessSeeingOnlyOtherDeviceMapsThere) {
  const std::string other = Must(DeviceUuid(1));
  Actor owner(folder());
  Actor importer(folder(), {"CUDA_VISIBLE_DEVICES=" + other});
  Share(&owner, &importer, "rw", GetParam());
  // A process cannot use a device that it does not see.
  EXPECT_TRUE(Refused(importer.Ask("sum block"), Reason::kNotFound));
  importer.Do("drop block");
  Share(&owner, &importer, "on=" + other, GetParam());
  EXPECT_EQ(importer.Do("sum block"), ExpectedSum());
  importer.Quit();
  owner.Quit();
}

}  // namespace
}  // namespace berth::gpu

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], berth::gpu::kWorkerFlag) == 0) return berth::gpu::RunPoisonedWorker();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
