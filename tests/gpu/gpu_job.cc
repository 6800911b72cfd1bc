#include "tests/gpu/gpu_job.h"

#include <signal.h>
#include <stdlib.h>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/gpu/compute.h"
#include "tests/support/actor/actor_wire.h"
#include "tests/support/environment.h"
#include "tests/support/proc.h"
#include "tests/support/testing.h"

namespace berth::gpu {

using testing::Eventually;
using testing::Must;
using testing::ProgramPath;
using testing::Subprocess;

namespace {

std::vector<std::string> WithFolder(const std::string& folder, std::vector<std::string> environment) {
  environment.push_back("BERTH_FOLDER=" + folder);
  return environment;
}

std::string Backend() {
  const char* const backend = getenv("BERTH_GPU_TEST_BACKEND");
  return backend == nullptr ? "cuda" : backend;
}

}  // namespace

const Bytes kBlock = Backend() == "host" && !testing::Soaks() ? MiB(32) : MiB(256);

double InMiB(Bytes bytes) { return static_cast<double>(bytes.count()) / MiB(1).count(); }

Actor::Actor(const std::string& folder, const std::vector<std::string>& environment)
    : process_(Subprocess::Start(
          {.argv = {ProgramPath("tests/gpu/gpu_actor")}, .environment = WithFolder(folder, environment)})) {}

absl::StatusOr<std::string> Actor::Ask(const std::string& command) {
  SendLine(command);
  return Answer();
}

void Actor::SendLine(const std::string& command) { process_.WriteLine(command); }

absl::StatusOr<std::string> Actor::Answer() {
  const absl::StatusOr<std::string> line = process_.ReadLine(absl::Minutes(1));
  if (!line.ok()) return line.status();
  return testing::DecodeAnswer(*line);
}

std::string Actor::Do(const std::string& command) { return Must(Ask(command), command); }

void Actor::Kill() {
  process_.Kill();
  process_.Wait();
}

void Actor::Quit() {
  process_.CloseInput();
  EXPECT_EQ(process_.Wait(), 0);
}

void GpuJob::SetUp() {
  backend_ = Backend();
  if (cuda()) RequireCuda();
  if (IsSkipped() || HasFatalFailure()) return;
  // Memory of an earlier test's processes may still be in release.
  static const Bytes idle = DeviceUsed();
  ASSERT_TRUE(DeviceComesBackTo(idle));
  before_ = DeviceUsed();
  processes_before_ = DeviceProcesses();
  // Nothing stays warm, and no context stays longer than needed, so that every byte on the device belongs to a held
  // block.
  daemon_ = Must(bench::StartDaemon({.berthd = ProgramPath("daemon/berthd"), .backend = backend_},
                                    {"--warm-blocks=0", "--context-idle=100ms", "--device-budget=4GiB"}));
  session_ = Must(Session::Open({.folder = folder(), .label = "test"}));
}

void GpuJob::RequireCuda() {
  const absl::StatusOr<cuda::Nvml*> nvml = cuda::Nvml::Get();
  const absl::StatusOr<std::vector<std::string>> uuids = nvml.ok() ? (*nvml)->Uuids() : nvml.status();
  if (uuids.ok() && uuids->size() >= devices_) {
    nvml_ = *nvml;
    uuids_ = *uuids;
    return;
  }
  // Without a GPU the test prints a message and skips; it fails where GPUs were promised.
  const std::string why = !uuids.ok() ? absl::StrCat("no GPU: ", uuids.status().ToString())
                                      : absl::StrCat("of ", devices_, " GPUs there are ", uuids->size());
  if (getenv("BERTH_REQUIRE_CUDA") != nullptr && devices_ == 1) FAIL() << why;
  GTEST_SKIP() << why;
}

Bytes GpuJob::DeviceUsed() const {
  return nvml_ == nullptr ? Bytes() : Must(nvml_->GetMemory(uuids_.front())).used;
}

size_t GpuJob::DeviceProcesses() const {
  return nvml_ == nullptr ? 0 : Must(nvml_->Processes(uuids_.front())).size();
}

bool GpuJob::DeviceComesBackTo(Bytes used) const {
  return Eventually([&] { return DeviceUsed().count() <= used.count() + kOverhead.count(); });
}

uint64_t GpuJob::BytesSaid(const std::string& state) const {
  Subprocess command = Subprocess::Start({.argv = {ProgramPath("client/cli/berth"), "bytes", "--json"},
                                          .environment = {"BERTH_FOLDER=" + folder()}});
  const nlohmann::json said = nlohmann::json::parse(command.ReadAll());
  return std::stoull(said["devices"][0]["bytes"][state].get<std::string>());
}

bool GpuJob::BytesBecome(const std::string& state, Bytes bytes) const {
  return Eventually([&] { return BytesSaid(state) == bytes.count(); });
}

int GpuJob::KillDaemons(const std::string& prefix) const {
  int killed = 0;
  for (const testing::ChildInfo& child : testing::ChildrenOf(daemon_->pid())) {
    if (absl::StartsWith(child.name, prefix) && ::kill(child.pid, SIGKILL) == 0) ++killed;
  }
  return killed;
}

void GpuJob::Share(Actor* owner, Actor* importer, const std::string& how, const std::string& kind) {
  const std::string handle = owner->Do(absl::StrCat("allocate block ", kBlock.count(), " ", kind));
  owner->Do(absl::StrCat("write block ", kSeed));
  owner->Do("grant block " + importer->Do("session"));
  importer->Do(absl::StrCat("import block ", handle, " ", how));
}

std::string GpuJob::ExpectedSum() { return absl::StrCat(PatternSum(kSeed, kBlock)); }

}  // namespace berth::gpu
