// The main job on a GPU: a block made by a daemon without a context, filled by one process, summed by
// another, over the death of the first. $BERTH_GPU_TEST_BACKEND=host plays the same on host memory, less what
// only a GPU can show.

#include <signal.h>
#include <stdlib.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/inspector.h"
#include "client/session.h"
#include "common/bytes.h"
#include "common/cuda/driver.h"
#include "common/cuda/nvml.h"
#include "gtest/gtest.h"
#include "tests/bench/figure.h"
#include "tests/bench/servers.h"
#include "tests/gpu/compute.h"
#include "tests/support/actor_wire.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::gpu {
namespace {

using testing::Eventually;
using testing::Must;
using testing::Ok;
using testing::ProgramPath;
using testing::Refused;
using testing::Subprocess;

constexpr Bytes kBlock = MiB(256);
constexpr uint32_t kSeed = 7;
// What the daemon's driver may take of a device beside the blocks.
constexpr Bytes kOverhead = MiB(8);

double InMiB(Bytes bytes) { return static_cast<double>(bytes.count()) / MiB(1).count(); }

// A client process (gpu_actor.cc).
class Actor {
 public:
  explicit Actor(const std::string& folder)
      : process_(Subprocess::Start(
            {.argv = {ProgramPath("tests/gpu/gpu_actor")}, .environment = {"BERTH_FOLDER=" + folder}})) {}

  absl::StatusOr<std::string> Ask(const std::string& command) {
    process_.WriteLine(command);
    const absl::StatusOr<std::string> line = process_.ReadLine(absl::Minutes(1));
    if (!line.ok()) return line.status();
    return testing::DecodeAnswer(*line);
  }
  std::string Do(const std::string& command) { return Must(Ask(command), command); }

  void Kill() {
    process_.Kill();
    process_.Wait();
  }
  void Quit() {
    process_.CloseInput();
    EXPECT_EQ(process_.Wait(), 0);
  }

 private:
  Subprocess process_;
};

class GpuMainJobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const backend = getenv("BERTH_GPU_TEST_BACKEND");
    if (backend != nullptr) backend_ = backend;
    if (cuda()) RequireCuda();
    if (IsSkipped() || HasFatalFailure()) return;
    // What an earlier test's processes had is on its way back.
    static const Bytes idle = DeviceUsed();
    ASSERT_TRUE(DeviceComesBackTo(idle));
    before_ = DeviceUsed();
    processes_before_ = DeviceProcesses();
    // Nothing warm, so that every byte on the device is a block that somebody holds.
    daemon_ = Must(bench::StartDaemon({.berthd = ProgramPath("daemon/berthd"), .backend = backend_},
                                      {"--warm-blocks=0", "--device-budget=4GiB"}));
    session_ = Must(Session::Open({.folder = folder(), .label = "test"}));
  }

  bool cuda() const { return backend_ == "cuda"; }
  const std::string& folder() const { return daemon_->folder(); }

  // Bytes of the device that are in use, by whomever; 0 without one.
  Bytes DeviceUsed() const { return nvml_ == nullptr ? Bytes() : Must(nvml_->GetMemory(uuid_)).used; }
  size_t DeviceProcesses() const { return nvml_ == nullptr ? 0 : Must(nvml_->Processes(uuid_)).size(); }
  bool DeviceComesBackTo(Bytes used) const {
    return Eventually([&] { return DeviceUsed().count() <= used.count() + kOverhead.count(); });
  }

  // What `berth bytes` says of device 0.
  uint64_t BytesSaid(const std::string& state) const {
    Subprocess command = Subprocess::Start({.argv = {ProgramPath("client/cli/berth"), "bytes", "--json"},
                                            .environment = {"BERTH_FOLDER=" + folder()}});
    const nlohmann::json said = nlohmann::json::parse(command.ReadAll());
    return std::stoull(said["devices"][0]["bytes"][state].get<std::string>());
  }
  bool BytesBecome(const std::string& state, Bytes bytes) const {
    return Eventually([&] { return BytesSaid(state) == bytes.count(); });
  }

  // `owner` leases a block, fills it and lets `importer` have it, under the name "block" in both.
  static void Share(Actor* owner, Actor* importer, const std::string& how) {
    const std::string handle = owner->Do(absl::StrCat("allocate block ", kBlock.count()));
    owner->Do(absl::StrCat("write block ", kSeed));
    owner->Do("grant block " + importer->Do("session"));
    importer->Do(absl::StrCat("import block ", handle, " ", how));
  }
  static std::string ExpectedSum() { return absl::StrCat(PatternSum(kSeed, kBlock)); }

  std::string backend_ = "cuda";
  cuda::Nvml* nvml_ = nullptr;
  std::string uuid_;
  // Of the device, before the daemon started.
  Bytes before_;
  size_t processes_before_ = 0;
  std::unique_ptr<bench::Server> daemon_;
  std::shared_ptr<Session> session_;

 private:
  // Without a GPU there is nothing to test: said aloud, and a failure where one was promised.
  void RequireCuda() {
    const absl::StatusOr<cuda::Nvml*> nvml = cuda::Nvml::Get();
    const absl::StatusOr<std::vector<std::string>> uuids = nvml.ok() ? (*nvml)->Uuids() : nvml.status();
    if (uuids.ok() && !uuids->empty()) {
      nvml_ = *nvml;
      uuid_ = uuids->front();
      return;
    }
    const std::string why = absl::StrCat("no GPU: ", uuids.ok() ? "no device" : uuids.status().ToString());
    if (getenv("BERTH_REQUIRE_CUDA") != nullptr) FAIL() << why;
    GTEST_SKIP() << why;
  }
};

TEST_F(GpuMainJobTest, ASecondProcessComputesOnTheBlockThatTheFirstFilled) {
  Actor owner(folder());
  Actor importer(folder());
  Share(&owner, &importer, "rw");
  EXPECT_EQ(importer.Do("sum block"), ExpectedSum());
  // The other way round too: it is one memory.
  importer.Do("write block 8");
  EXPECT_EQ(owner.Do("sum block"), absl::StrCat(PatternSum(8, kBlock)));
  importer.Quit();
  owner.Quit();
  EXPECT_TRUE(BytesBecome("outstanding", Bytes()));
}

TEST_F(GpuMainJobTest, AReadOnlyImportReadsAndDoesNotWrite) {
  Actor owner(folder());
  Actor importer(folder());
  Share(&owner, &importer, "ro");
  EXPECT_EQ(importer.Do("sum block"), ExpectedSum());
  EXPECT_FALSE(importer.Ask("overwrite block").ok());
  EXPECT_EQ(importer.Do("sum block"), ExpectedSum());
  EXPECT_EQ(owner.Do("sum block"), ExpectedSum());
}

TEST_F(GpuMainJobTest, TheImporterGoesOnAfterItsOwnerIsKilledAndTheBytesComeBackAfterIt) {
  const Bytes before = DeviceUsed();
  Actor owner(folder());
  Actor importer(folder());
  Share(&owner, &importer, "ro");
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

TEST_F(GpuMainJobTest, AKilledImporterGivesItsBytesBackToo) {
  const Bytes before = DeviceUsed();
  Actor owner(folder());
  Actor importer(folder());
  Share(&owner, &importer, "ro");
  EXPECT_EQ(importer.Do("sum block"), ExpectedSum());
  owner.Kill();
  EXPECT_TRUE(BytesBecome("quarantined", kBlock));
  importer.Kill();
  EXPECT_TRUE(BytesBecome("outstanding", Bytes()));
  EXPECT_TRUE(DeviceComesBackTo(before))
      << DeviceUsed().count() << " bytes in use, " << before.count() << " before";
}

TEST_F(GpuMainJobTest, ABlockOutlivesTheWorkerThatMadeIt) {
  Actor owner(folder());
  Actor importer(folder());
  Share(&owner, &importer, "ro");
  for (const testing::ChildInfo& child : testing::ChildrenOf(daemon_->pid())) {
    if (absl::StartsWith(child.name, "berth-worker")) ::kill(child.pid, SIGKILL);
  }
  EXPECT_EQ(importer.Do("sum block"), ExpectedSum());
  EXPECT_TRUE(Eventually([&] { return importer.Ask(absl::StrCat("allocate more ", kBlock.count())).ok(); }));
  EXPECT_EQ(importer.Do("sum block"), ExpectedSum());
}

TEST_F(GpuMainJobTest, TheDaemonCostsTheGpuNothingBesideThePayload) {
  if (!cuda()) GTEST_SKIP() << "host memory shows no context";
  constexpr Bytes kPayload = GiB(1);
  Actor actor(folder());
  const Bytes started = DeviceUsed();
  // Leased, not mapped: whatever context there is now, it is the daemon's.
  actor.Do(absl::StrCat("allocate block ", kPayload.count()));
  const Bytes with_payload = DeviceUsed();
  const double beside = InMiB(with_payload) - InMiB(before_) - InMiB(kPayload);
  const bench::Figure figure = {
      .name = "daemon's device memory beside 1 GiB of payload",
      .value = {.value = beside, .low = beside, .high = beside},
      .unit = "MiB",
      .against = absl::StrCat(InMiB(started) - InMiB(before_), " MiB before the payload"),
      .bound = 8};
  std::cout << bench::FormatFigure(figure, bench::Format::kTable) << std::endl;
  EXPECT_GE(with_payload.count(), before_.count() + kPayload.count());
  EXPECT_LE(with_payload.count(), before_.count() + kPayload.count() + kOverhead.count());
  // A process with a context would be listed.
  EXPECT_EQ(DeviceProcesses(), processes_before_);
  actor.Quit();
  EXPECT_TRUE(DeviceComesBackTo(before_));
}

TEST_F(GpuMainJobTest, PermitsCountAndReturnAsTheyDoOnTheHost) {
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

TEST_F(GpuMainJobTest, MoreThanTheBudgetIsRefusedAndChangesNothing) {
  Actor actor(folder());
  EXPECT_TRUE(Refused(actor.Ask(absl::StrCat("allocate block ", GiB(5).count())), Reason::kOverBudget));
  EXPECT_EQ(BytesSaid("outstanding"), 0u);
  actor.Do(absl::StrCat("allocate block ", kBlock.count()));
  EXPECT_EQ(BytesSaid("outstanding"), kBlock.count());
}

}  // namespace
}  // namespace berth::gpu
