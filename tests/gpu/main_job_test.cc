// The main job on a GPU: a daemon without a context makes a block, one process fills it, another one sums it, even
// after the death of the first. $BERTH_GPU_TEST_BACKEND=host runs the same tests on host memory, except those that need
// a GPU.

#include <iostream>
#include <string>

#include <berth/bytes.h>
#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/bench/measurement.h"
#include "tests/gpu/compute.h"
#include "tests/gpu/gpu_job.h"
#include "tests/support/actor/actor_wire.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::gpu {
namespace {

using testing::Eventually;
using testing::Ok;
using testing::Refused;

using GpuMainJobTest = GpuJob;

// Tests of both kinds of blocks.
class GpuEachKindTest : public GpuJob, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kinds, GpuEachKindTest, ::testing::Values("fd", "ipc"));

TEST_P(GpuEachKindTest, SecondProcessComputesOnFirstsBlock) {
  Actor owner(folder());
  Actor importer(folder());
  Share(&owner, &importer, "rw", GetParam());
  EXPECT_EQ(importer.Do("sum block"), ExpectedSum());
  // The reverse direction works, too: it is one memory.
  importer.Do("write block 8");
  EXPECT_EQ(owner.Do("sum block"), absl::StrCat(PatternSum(8, kBlock)));
  importer.Quit();
  owner.Quit();
  EXPECT_TRUE(BytesBecome("outstanding", Bytes()));
}

TEST_F(GpuMainJobTest, ReadOnlyImportReadsAndDoesNotWrite) {
  Actor owner(folder());
  Actor importer(folder());
  Share(&owner, &importer, "ro");
  EXPECT_EQ(importer.Do("sum block"), ExpectedSum());
  EXPECT_FALSE(importer.Ask("overwrite block").ok());
  EXPECT_EQ(importer.Do("sum block"), ExpectedSum());
  EXPECT_EQ(owner.Do("sum block"), ExpectedSum());
}

TEST_P(GpuEachKindTest, ImporterSurvivesOwnersDeathAndBytesReturn) {
  const Bytes before = DeviceUsed();
  Actor owner(folder());
  Actor importer(folder());
  Share(&owner, &importer, "rw", GetParam());
  EXPECT_EQ(BytesSaid("live"), kBlock.count());
  owner.Kill();
  EXPECT_TRUE(BytesBecome("quarantined", kBlock));
  EXPECT_EQ(BytesSaid("live"), 0u);
  EXPECT_EQ(importer.Do("sum block"), ExpectedSum());
  EXPECT_GE(DeviceUsed().count(), cuda() ? before.count() + kBlock.count() : 0);
  importer.Quit();
  EXPECT_TRUE(BytesBecome("outstanding", Bytes()));
  EXPECT_TRUE(DeviceComesBackTo(before))
      << DeviceUsed().count() << " bytes in use, " << before.count() << " before";
}

TEST_P(GpuEachKindTest, KilledImporterReturnsItsBytes) {
  const Bytes before = DeviceUsed();
  Actor owner(folder());
  Actor importer(folder());
  Share(&owner, &importer, "rw", GetParam());
  EXPECT_EQ(importer.Do("sum block"), ExpectedSum());
  owner.Kill();
  EXPECT_TRUE(BytesBecome("quarantined", kBlock));
  importer.Kill();
  EXPECT_TRUE(BytesBecome("outstanding", Bytes()));
  EXPECT_TRUE(DeviceComesBackTo(before))
      << DeviceUsed().count() << " bytes in use, " << before.count() << " before";
}

TEST_F(GpuMainJobTest, BlockOutlivesItsWorker) {
  Actor owner(folder());
  Actor importer(folder());
  Share(&owner, &importer, "ro");
  EXPECT_GT(KillDaemons("berth-worker"), 0);
  EXPECT_EQ(importer.Do("sum block"), ExpectedSum());
  EXPECT_TRUE(Eventually([&] { return importer.Ask(absl::StrCat("allocate more ", kBlock.count())).ok(); }));
  EXPECT_EQ(importer.Do("sum block"), ExpectedSum());
}

TEST_F(GpuMainJobTest, DaemonTakesNoGpuMemoryBesidePayload) {
  if (!cuda()) GTEST_SKIP() << "host memory shows no context";
  constexpr Bytes kPayload = GiB(1);
  Actor actor(folder());
  const Bytes started = DeviceUsed();
  // The block is leased but not mapped: any context would be the daemon's.
  actor.Do(absl::StrCat("allocate block ", kPayload.count()));
  const Bytes with_payload = DeviceUsed();
  const double beside = InMiB(with_payload) - InMiB(before_) - InMiB(kPayload);
  const bench::Measurement measurement = {
      .name = "daemon's device memory beside 1 GiB of payload",
      .value = {.value = beside, .low = beside, .high = beside},
      .unit = "MiB",
      .against = absl::StrCat(InMiB(started) - InMiB(before_), " MiB before the payload"),
      .bound = 8};
  std::cout << bench::FormatMeasurement(measurement, bench::Format::kTable) << std::endl;
  EXPECT_GE(with_payload.count(), before_.count() + kPayload.count());
  EXPECT_LE(with_payload.count(), before_.count() + kPayload.count() + kOverhead.count());
  // NVML would list a process with a context.
  EXPECT_EQ(DeviceProcesses(), processes_before_);
  actor.Quit();
  EXPECT_TRUE(DeviceComesBackTo(before_));
}

TEST_F(GpuMainJobTest, PermitsCountAndReturnLikeOnHost) {
  Actor first(folder());
  Actor second(folder());
  Actor third(folder());
  first.Do("acquire a");
  second.Do("acquire a");
  EXPECT_TRUE(Refused(third.Ask("try a"), Reason::kNoPermit));
  first.Kill();
  // Waits until the dead holder's permit is back.
  EXPECT_TRUE(Ok(third.Ask("acquire a")));
  EXPECT_TRUE(Refused(second.Ask("try b"), Reason::kNoPermit));
  second.Do("release a");
  third.Do("release a");
}

TEST_F(GpuMainJobTest, RunCommandSeesOnlyItsDevice) {
  testing::Subprocess command = testing::Subprocess::Start(
      {.argv = {testing::ProgramPath("client/cli/berth"), "run", "--mem", "64MiB", "--", "/bin/sh", "-c",
                "echo $BERTH_DEVICE ${CUDA_VISIBLE_DEVICES-none} ${CUDA_DEVICE_ORDER-none}; exec $0",
                testing::ProgramPath("tests/gpu/gpu_actor")},
       .environment = {absl::StrCat("BERTH_FOLDER=", folder()), "BERTH_SESSION", "CUDA_VISIBLE_DEVICES",
                       "CUDA_DEVICE_ORDER"}});
  const std::string line = testing::Must(command.ReadLine());
  const std::string uuid = line.substr(0, line.find(' '));
  EXPECT_EQ(line, absl::StrCat(uuid, cuda() ? absl::StrCat(" ", uuid, " PCI_BUS_ID") : " none none"));
  command.WriteLine("devices");
  const absl::StatusOr<std::string> seen = testing::DecodeAnswer(testing::Must(command.ReadLine()));
  if (cuda()) {
    EXPECT_EQ(testing::Must(seen), absl::StrCat("1 ", uuid));
  }
  command.CloseInput();
  EXPECT_EQ(command.Wait(), 0);
}

TEST_F(GpuMainJobTest, RequestAboveBudgetIsRejected) {
  Actor actor(folder());
  EXPECT_TRUE(Refused(actor.Ask(absl::StrCat("allocate block ", GiB(5).count())), Reason::kOverBudget));
  EXPECT_EQ(BytesSaid("outstanding"), 0u);
  actor.Do(absl::StrCat("allocate block ", kBlock.count()));
  EXPECT_EQ(BytesSaid("outstanding"), kBlock.count());
}

}  // namespace
}  // namespace berth::gpu
