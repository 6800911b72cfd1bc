#include <berth/probe.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <berth/error.h>

#include "absl/time/clock.h"
#include "berth/v1/inventory.pb.h"
#include "common/cuda/testing/fake_driver.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

// Modules of the first program that used Berth's probe.
constexpr const char* kLabels[] = {"bms_flex",   "survival_flex", "cubic_bspline_moments",
                                   "cubic_cell", "pirls_row",     "sphere"};

v1::DeviceInventory HostDevice(uint32_t ordinal) {
  v1::DeviceInventory inventory;
  v1::Device& device = *inventory.mutable_device();
  device.set_ordinal(ordinal);
  device.set_uuid(absl::StrCat("HOST-", ordinal));
  device.set_name("host memory");
  device.set_kind(v1::MEMORY_KIND_HOST);
  device.set_state(v1::Device::READY);
  device.set_generation(1);
  device.set_total_bytes(1 << 20);
  return inventory;
}

v1::DeviceInventory CudaDevice(uint32_t ordinal, const std::string& uuid = "GPU-fake") {
  v1::DeviceInventory inventory = HostDevice(ordinal);
  inventory.mutable_device()->set_uuid(uuid);
  inventory.mutable_device()->set_kind(v1::MEMORY_KIND_CUDA_VMM);
  return inventory;
}

class ProbeTest : public ::testing::Test {
 protected:
  std::shared_ptr<Prober> MakeProber(const ProberOptions& options = {.host_devices = true}) {
    internal::ProbeSources sources;
    sources.devices = [this] {
      ++asked;
      return devices;
    };
    sources.driver = [this]() -> absl::StatusOr<cuda::Driver*> {
      ++inits;
      if (!no_driver.ok()) return no_driver;
      return &driver;
    };
    sources.now = [this] { return now; };
    return std::make_shared<Prober>(std::move(sources), options);
  }
  static std::string Metadata(const absl::Status& status, const std::string& name) {
    return NamedValueOf(status, name).value_or("none");
  }

  absl::StatusOr<std::vector<v1::DeviceInventory>> devices = std::vector<v1::DeviceInventory>{HostDevice(0)};
  cuda::FakeDriver driver;
  absl::Status no_driver;
  std::atomic<int> asked = 0;
  std::atomic<int> inits = 0;
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
};

TEST_F(ProbeTest, EveryLabelReceivesSameDevice) {
  devices = std::vector<v1::DeviceInventory>{HostDevice(0), HostDevice(1)};
  const auto prober = MakeProber();
  std::shared_ptr<ProbedStream> stream;
  for (const char* const label : kLabels) {
    const auto probed = prober->Probe(label);
    ASSERT_TRUE(probed.ok()) << probed.status();
    ASSERT_TRUE(probed->present());
    const ProbedDevice& device = probed->value();
    EXPECT_EQ(device.uuid, "HOST-0");
    EXPECT_EQ(device.capability, GpuCapability());
    EXPECT_EQ(device.health, DeviceHealth::kReady);
    EXPECT_TRUE(device.stream->Synchronize().ok());
    if (stream == nullptr) stream = device.stream;
    EXPECT_EQ(device.stream, stream);
  }
  EXPECT_EQ(prober->looks(), 1u);
  EXPECT_EQ(inits, 0) << "host devices need no driver";
}

TEST_F(ProbeTest, ProbeAcceptsNamedDevice) {
  devices = std::vector<v1::DeviceInventory>{HostDevice(0), HostDevice(1)};
  const auto prober = MakeProber();
  EXPECT_EQ(prober->Probe("a", {.device = 1})->value().uuid, "HOST-1");
  EXPECT_EQ(prober->Probe("a", {.device_uuid = "HOST-1"})->value().device, 1u);
  const absl::Status ordinal = prober->Probe("a", {.device = 7}).status();
  EXPECT_TRUE(IsRefusal(ordinal, Reason::kNotFound));
  EXPECT_EQ(ordinal.message(), "a backend: no device 7");
  const absl::Status uuid = prober->Probe("a", {.device_uuid = "HOST-7"}).status();
  EXPECT_EQ(uuid.message(), "a backend: no device HOST-7");
  EXPECT_EQ(Metadata(uuid, "label"), "a");
}

TEST_F(ProbeTest, UniquePrefixNamesDevice) {
  devices = std::vector<v1::DeviceInventory>{HostDevice(1), HostDevice(10), HostDevice(23)};
  const auto prober = MakeProber();
  EXPECT_EQ(prober->Probe("a", {.device_uuid = "HOST-2"})->value().device, 23u);
  EXPECT_EQ(prober->Probe("a", {.device_uuid = "23"})->value().uuid, "HOST-23");
  // A whole UUID that another one begins with.
  EXPECT_EQ(prober->Probe("a", {.device_uuid = "HOST-1"})->value().device, 1u);
  const absl::Status ambiguous = prober->Probe("a", {.device_uuid = "HOST"}).status();
  EXPECT_TRUE(IsRefusal(ambiguous, Reason::kInvalidField)) << ambiguous;
  EXPECT_EQ(ambiguous.message(),
            "a backend: device HOST matches 1 (HOST-1), 10 (HOST-10), 23 (HOST-23): give more of its UUID");
  EXPECT_EQ(Metadata(ambiguous, "label"), "a");
}

TEST_F(ProbeTest, BestDeviceFollowsDaemonScore) {
  devices = std::vector<v1::DeviceInventory>{HostDevice(0), HostDevice(1), HostDevice(2)};
  // The hardware values alone favour the last device: it is chosen if the daemon sends no score.
  devices->at(2).mutable_hardware()->set_multiprocessors(132);
  EXPECT_EQ(MakeProber()->Probe("a")->value().uuid, "HOST-2");
  for (size_t i = 0; i < devices->size(); ++i) {
    devices->at(i).set_score_version(1);
    devices->at(i).set_score(i == 1 ? 7.5 : 7);
  }
  EXPECT_EQ(MakeProber()->Probe("a")->value().uuid, "HOST-1");
}

TEST_F(ProbeTest, EmptyLabelIsRejectedOthersAreCleaned) {
  const auto prober = MakeProber();
  const absl::Status empty = prober->Probe("").status();
  EXPECT_TRUE(IsRefusal(empty, Reason::kInvalidField));
  EXPECT_EQ(empty.message(), "label: 0 bytes, the least is 1");
  EXPECT_EQ(prober->looks(), 0u);
  EXPECT_TRUE(prober->Probe(std::string(129, 'x')).ok());
  const absl::Status none = prober->Probe("a\nb", {.device_uuid = "GPU-none"}).status();
  EXPECT_EQ(NamedValueOf(none, "label"), "a?b") << none;
}

TEST_F(ProbeTest, AbsenceIsValueWithReason) {
  devices = std::vector<v1::DeviceInventory>{CudaDevice(0)};
  no_driver = Refuse(Reason::kUnsupported, "no {capability}: {why}",
                     {{"capability", "CUDA"}, {"why", "libcuda.so.1: cannot open"}});
  auto probed = MakeProber()->Probe("sphere");
  ASSERT_TRUE(probed.ok()) << probed.status();
  ASSERT_FALSE(probed->present());
  EXPECT_EQ(probed->absence().kind, Absence::Kind::kNoDriver);
  EXPECT_EQ(probed->absence().why, "no CUDA: libcuda.so.1: cannot open");

  no_driver =
      Refuse(Reason::kUnsupported, "no {capability}: {why}", {{"capability", "CUDA"}, {"why", "no device"}});
  EXPECT_EQ(MakeProber()->Probe("sphere")->absence().kind, Absence::Kind::kNoDevice);

  no_driver = absl::OkStatus();
  devices = std::vector<v1::DeviceInventory>{CudaDevice(0, "GPU-hidden")};
  EXPECT_EQ(MakeProber()->Probe("sphere")->absence().why, "this process can see none of the node's devices");
  devices = std::vector<v1::DeviceInventory>();
  EXPECT_EQ(MakeProber()->Probe("sphere")->absence().kind, Absence::Kind::kNoDevice);
}

TEST_F(ProbeTest, RequiredAbsentDeviceIsReportedExactly) {
  no_driver = Refuse(Reason::kUnsupported, "no {capability}: {why}", {{"capability", "CUDA"}, {"why", "none"}});
  for (const v1::DeviceInventory& device : {CudaDevice(0), HostDevice(0)}) {
    devices = std::vector<v1::DeviceInventory>{device};
    const auto prober = MakeProber({.policy = DevicePolicy::kRequired});
    for (const std::string label : kLabels) {
      const absl::Status status = prober->Probe(label).status();
      EXPECT_EQ(status.message(), label + " backend: no CUDA runtime available");
      EXPECT_TRUE(IsRefusal(status, Reason::kNoRuntime));
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_EQ(Metadata(status, "label"), label);
      EXPECT_EQ(Metadata(status, "absence"), "NO_DRIVER");
      EXPECT_EQ(Metadata(status, "why"), "no CUDA: none");
    }
  }
}

TEST_F(ProbeTest, HostMemoryIsNoDeviceUnlessAllowed) {
  devices = std::vector<v1::DeviceInventory>{HostDevice(0)};
  for (const ProbeTarget& target : {ProbeTarget{}, ProbeTarget{.device = 0}, ProbeTarget{.device_uuid = "HOST-0"}}) {
    EXPECT_TRUE(MakeProber({.host_devices = true})->Probe("sphere", target)->present());
    no_driver = absl::OkStatus();
    auto probed = MakeProber({})->Probe("sphere", target);
    ASSERT_TRUE(probed.ok()) << probed.status();
    ASSERT_FALSE(probed->present());
    EXPECT_EQ(probed->absence().kind, Absence::Kind::kNoDevice);
    EXPECT_EQ(probed->absence().why, "the node's devices are host memory");
    no_driver =
        Refuse(Reason::kUnsupported, "no {capability}: {why}", {{"capability", "CUDA"}, {"why", "libcuda.so.1"}});
    probed = MakeProber({})->Probe("sphere", target);
    EXPECT_EQ(probed->absence().kind, Absence::Kind::kNoDriver);
    EXPECT_EQ(probed->absence().why, "no CUDA: libcuda.so.1");
  }
  // A CUDA device is chosen over host devices, however good they are.
  no_driver = absl::OkStatus();
  devices = std::vector<v1::DeviceInventory>{HostDevice(0), CudaDevice(1)};
  devices->at(0).mutable_hardware()->set_multiprocessors(1000);
  EXPECT_EQ(MakeProber({})->Probe("sphere")->value().device, 1u);
}

TEST_F(ProbeTest, PolicyOffQueriesNothing) {
  devices = std::vector<v1::DeviceInventory>{CudaDevice(0)};
  const auto prober = MakeProber({.policy = DevicePolicy::kOff});
  EXPECT_EQ(prober->Probe("sphere")->absence().kind, Absence::Kind::kPolicyOff);
  EXPECT_EQ(asked + inits, 0);
  EXPECT_EQ(Prober::Create(nullptr, {.policy = DevicePolicy::kOff})->Probe("sphere")->absence().why,
            "GPU policy is off");
}

TEST_F(ProbeTest, CudaDeviceReportsDriverValues) {
  devices = std::vector<v1::DeviceInventory>{CudaDevice(3)};
  const auto probed = MakeProber()->Probe("sphere");
  ASSERT_TRUE(probed.ok() && probed->present()) << probed.status();
  const ProbedDevice& device = probed->value();
  EXPECT_EQ(device.device, 3u);
  EXPECT_EQ(device.local_ordinal, 0);
  EXPECT_EQ(device.capability, (GpuCapability{1, 1}));
  EXPECT_EQ(device.free, GiB(1));
  EXPECT_EQ(device.stream->cuda_context(), driver.kPrimary);
  EXPECT_EQ(device.stream->cuda_stream(), nullptr);
  EXPECT_EQ(driver.current, nullptr) << "the thread is as it was";
  EXPECT_EQ(driver.context_of.at("SynchronizeStream"), driver.kPrimary);
  // The context is made before everything that lives in it.
  const auto at = [&](const char* call) {
    return std::find(driver.calls.begin(), driver.calls.end(), call) - driver.calls.begin();
  };
  EXPECT_LT(at("RetainPrimaryContext"), at("SynchronizeStream"));
  EXPECT_LT(at("RetainPrimaryContext"), at("GetMemoryInfo"));
}

TEST_F(ProbeTest, ContextIsRetainedOnceUntilLastUser) {
  devices = std::vector<v1::DeviceInventory>{CudaDevice(0)};
  auto prober = MakeProber();
  auto probed = prober->Probe("sphere");
  ASSERT_TRUE(prober->ProbeAgain("sphere").ok());
  ASSERT_TRUE(prober->Probe("sphere", {.device = 0}).ok());
  EXPECT_EQ(driver.contexts, 1);
  prober.reset();
  EXPECT_EQ(driver.contexts, 1);
  probed = absl::CancelledError();
  EXPECT_EQ(driver.contexts, 0);
}

TEST_F(ProbeTest, FailedContextIsReportedExactly) {
  devices = std::vector<v1::DeviceInventory>{CudaDevice(2)};
  driver.failing = "RetainPrimaryContext";
  const auto prober = MakeProber({.policy = DevicePolicy::kRequired});
  for (const std::string label : kLabels) {
    const absl::Status status = prober->Probe(label).status();
    EXPECT_EQ(status.message(), label + " backend: failed to create CUDA context for device 2");
    EXPECT_TRUE(IsRefusal(status, Reason::kDriver));
    EXPECT_EQ(Metadata(status, "label"), label);
    EXPECT_EQ(Metadata(status, "ordinal"), "2");
    EXPECT_EQ(Metadata(status, "driver_code"), "1");
  }
}

TEST_F(ProbeTest, FailingDriverIsFaultNotAbsence) {
  devices = std::vector<v1::DeviceInventory>{CudaDevice(0)};
  no_driver = cuda::DriverError("cuInit", 304, "CUDA_ERROR_OPERATING_SYSTEM");
  const absl::Status status = MakeProber()->Probe("sphere").status();
  EXPECT_EQ(status.message(), "sphere backend: failed to create CUDA context for device 0");
  EXPECT_EQ(Metadata(status, "driver_code"), "304");
}

TEST_F(ProbeTest, FailingStreamIsFault) {
  devices = std::vector<v1::DeviceInventory>{CudaDevice(0)};
  driver.failing = "SynchronizeStream";
  const absl::Status status = MakeProber()->Probe("sphere").status();
  EXPECT_TRUE(IsRefusal(status, Reason::kDriver));
  EXPECT_EQ(Metadata(status, "ordinal"), "0");
  EXPECT_NE(status.message().find("sphere backend: the default stream of device 0 failed"),
            absl::string_view::npos);
}

TEST_F(ProbeTest, FailedDeviceIsSkippedUnlessRequested) {
  v1::DeviceInventory sick = HostDevice(0);
  sick.mutable_device()->set_state(v1::Device::STOPPED);
  sick.mutable_device()->set_last_failure("3 restarts in 60 s");
  devices = std::vector<v1::DeviceInventory>{sick, HostDevice(1)};
  const auto prober = MakeProber();
  EXPECT_EQ(prober->Probe("sphere")->value().device, 1u);
  const absl::Status status = prober->Probe("sphere", {.device = 0}).status();
  EXPECT_TRUE(IsRefusal(status, Reason::kDeviceStopped));
  EXPECT_EQ(status.message(), "sphere backend: failed to create CUDA context for device 0");
  EXPECT_NE(Metadata(status, "why").find("3 restarts in 60 s"), std::string::npos);
  devices->at(1).mutable_device()->set_state(v1::Device::REBUILDING);
  EXPECT_EQ(prober->ProbeAgain("sphere")->value().health, DeviceHealth::kRebuilding);
  devices->at(1).mutable_device()->set_state(v1::Device::READY);
  devices->at(1).mutable_condition()->set_health(v1::Condition::DEGRADED);
  devices->at(1).mutable_condition()->set_trouble("Xid 31");
  EXPECT_EQ(prober->ProbeAgain("sphere")->value().health, DeviceHealth::kDegraded);
  EXPECT_EQ(prober->Probe("sphere")->value().trouble, "Xid 31");
}

TEST_F(ProbeTest, BestDeviceIsReusedWhileItServes) {
  devices = std::vector<v1::DeviceInventory>{HostDevice(0), HostDevice(1), HostDevice(2)};
  devices->at(0).mutable_hardware()->set_multiprocessors(40);
  devices->at(1).mutable_hardware()->set_multiprocessors(132);
  devices->at(1).mutable_hardware()->set_compute_capability(90);
  devices->at(2).mutable_hardware()->set_multiprocessors(132);
  devices->at(2).mutable_hardware()->set_compute_capability(89);
  const auto prober = MakeProber();
  const ProbedDevice best = prober->Probe("sphere")->value();
  EXPECT_EQ(best.device, 1u);
  EXPECT_EQ(best.capability, (GpuCapability{9, 0}));
  EXPECT_EQ(best.multiprocessors, 132u);
  devices->at(2).mutable_hardware()->set_multiprocessors(1000);
  EXPECT_EQ(prober->ProbeAgain("sphere")->value().device, 1u);
  devices->at(1).mutable_device()->set_state(v1::Device::DRAINING);
  EXPECT_EQ(prober->ProbeAgain("sphere")->value().device, 2u);
  EXPECT_EQ(prober->Probe("sphere", {.device = 1})->value().health, DeviceHealth::kDraining);
}

TEST_F(ProbeTest, ResultIsCachedForItsLifetime) {
  const auto prober =
      MakeProber({.host_devices = true, .cache_success = absl::Seconds(60), .cache_failure = absl::Seconds(5)});
  ASSERT_TRUE(prober->Probe("a").ok());
  now = now + absl::Seconds(59);
  ASSERT_TRUE(prober->Probe("b").ok());
  EXPECT_EQ(prober->looks(), 1u);
  now = now + absl::Seconds(1);
  ASSERT_TRUE(prober->Probe("a").ok());
  EXPECT_EQ(prober->looks(), 2u);
  ASSERT_TRUE(prober->ProbeAgain("a").ok());
  EXPECT_EQ(prober->looks(), 3u);
}

TEST_F(ProbeTest, FailureIsCachedBriefly) {
  devices = std::vector<v1::DeviceInventory>{CudaDevice(0)};
  driver.failing = "RetainPrimaryContext";
  const auto prober = MakeProber({.cache_success = absl::Seconds(60), .cache_failure = absl::Seconds(5)});
  EXPECT_FALSE(prober->Probe("a").ok());
  driver.failing.clear();
  const absl::Status still = prober->Probe("b").status();
  EXPECT_EQ(Metadata(still, "label"), "b") << "each is told in its own name";
  now = now + absl::Seconds(5);
  EXPECT_TRUE(prober->Probe("a").ok());
}

TEST_F(ProbeTest, UnavailableDaemonIsRetriedAtNextProbe) {
  devices = absl::UnavailableError("the daemon ended the call");
  const auto prober = MakeProber();
  const absl::Status status = prober->Probe("sphere").status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(status.message(), "sphere backend: the daemon ended the call");
  EXPECT_EQ(Metadata(status, "label"), "sphere");
  devices = std::vector<v1::DeviceInventory>{HostDevice(0)};
  EXPECT_TRUE(prober->Probe("sphere").ok());
}

TEST_F(ProbeTest, ConcurrentProbesShareSingleLook) {
  devices = std::vector<v1::DeviceInventory>{CudaDevice(0)};
  const auto prober = MakeProber();
  std::atomic<int> ready = 0;
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&, i] {
      ++ready;
      while (ready < 16) std::this_thread::yield();
      const auto probed = prober->Probe(kLabels[i % 6]);
      if (probed.ok() && probed->present() && probed->value().stream->cuda_context() == driver.kPrimary) ++good;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 16);
  EXPECT_EQ(prober->looks(), 1u);
  EXPECT_EQ(inits, 1);
  EXPECT_EQ(driver.contexts, 1);
}

TEST_F(ProbeTest, ProbeBehindHungLookTimesOut) {
  std::promise<void> hangs, begun;
  internal::ProbeSources sources;
  sources.devices = [&] {
    begun.set_value();
    hangs.get_future().wait();
    return devices;
  };
  sources.now = [this] { return now; };
  Prober prober(std::move(sources), {.host_devices = true, .patience = absl::Milliseconds(20)});
  std::thread looks([&] { EXPECT_TRUE(prober.Probe("first").ok()); });
  begun.get_future().wait();
  const absl::Status late = prober.Probe("late").status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late.message(),
            "late backend: another thread's search for a device takes longer than 20ms: the driver may hang");
  EXPECT_EQ(Metadata(late, "label"), "late");
  hangs.set_value();
  looks.join();
  EXPECT_TRUE(prober.Probe("late").ok()) << "what was found in the end";
}

// Two devices; making the first one's context hangs until the test releases it.
class DriverThatHangs : public cuda::FakeDriver {
 public:
  absl::StatusOr<int> DeviceCount() override { return 2; }
  absl::StatusOr<std::string> DeviceUuid(int ordinal) override { return absl::StrCat("GPU-", ordinal); }
  absl::StatusOr<cuda::Context> RetainPrimaryContext(int ordinal) override {
    if (ordinal == 0) {
      begun.set_value();
      hangs.get_future().wait();
    }
    return FakeDriver::RetainPrimaryContext(ordinal);
  }

  std::promise<void> begun, hangs;
};

TEST_F(ProbeTest, HungDeviceDelaysOnlyItsProbes) {
  devices = std::vector<v1::DeviceInventory>{CudaDevice(0, "GPU-0"), CudaDevice(1, "GPU-1")};
  DriverThatHangs two;
  internal::ProbeSources sources;
  sources.devices = [this] { return devices; };
  sources.driver = [&two] { return absl::StatusOr<cuda::Driver*>(&two); };
  sources.now = [this] { return now; };
  Prober prober(std::move(sources), {.patience = absl::Milliseconds(20)});
  std::thread stuck([&] { EXPECT_TRUE(prober.Probe("stuck").ok()); });
  two.begun.get_future().wait();
  const std::vector<ProbeTarget> names_of_first = {{}, {.device = 0}, {.device_uuid = "GPU-0"}};
  for (int i = 0; i < 2; ++i) {
    const auto other = prober.ProbeAgain("other", {.device = 1});
    ASSERT_TRUE(other.ok() && other->present()) << other.status();
    EXPECT_EQ(other->value().uuid, "GPU-1");
    // Under each of its names, every time.
    for (const ProbeTarget& target : names_of_first) {
      EXPECT_EQ(prober.Probe("late", target).status().code(), absl::StatusCode::kDeadlineExceeded);
    }
  }
  two.hangs.set_value();
  stuck.join();
  for (const ProbeTarget& target : names_of_first) EXPECT_TRUE(prober.Probe("late", target).ok());
  EXPECT_EQ(two.contexts, 2) << "one of each device, whatever it is called";
}

TEST_F(ProbeTest, ProbeDuringDriverStartTimesOut) {
  devices = std::vector<v1::DeviceInventory>{CudaDevice(0), CudaDevice(1, "GPU-1"), HostDevice(2)};
  std::promise<void> hangs, begun;
  internal::ProbeSources sources;
  sources.devices = [this] { return devices; };
  sources.driver = [&]() -> absl::StatusOr<cuda::Driver*> {
    if (++inits == 1) {
      begun.set_value();
      hangs.get_future().wait();
    }
    return &driver;
  };
  sources.now = [this] { return now; };
  Prober prober(std::move(sources), {.patience = absl::Milliseconds(20)});
  std::thread stuck([&] { EXPECT_TRUE(prober.Probe("stuck").ok()); });
  begun.get_future().wait();
  for (uint32_t device = 0; device < 3; ++device) {
    EXPECT_EQ(prober.Probe("late", {.device = device}).status().code(), absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_EQ(inits, 1);
  hangs.set_value();
  stuck.join();
  EXPECT_TRUE(prober.Probe("late", {.device = 0})->present());
}

TEST_F(ProbeTest, BuildRunsWithDeviceContextCurrent) {
  devices = std::vector<v1::DeviceInventory>{CudaDevice(0)};
  const auto prober = MakeProber();
  const auto built = ProbeAndBuild(*prober, "sphere", [&](const ProbedDevice& device) -> absl::StatusOr<std::string> {
    EXPECT_EQ(driver.current, driver.kPrimary);
    return device.uuid;
  });
  ASSERT_TRUE(built.ok()) << built.status();
  EXPECT_EQ(built->value(), "GPU-fake");
  EXPECT_EQ(driver.current, nullptr);
}

TEST_F(ProbeTest, BuildDoesNotRunWithoutDevice) {
  const auto prober = MakeProber({.policy = DevicePolicy::kOff});
  bool ran = false;
  const auto built = ProbeAndBuild(*prober, "sphere", [&](const ProbedDevice&) -> absl::StatusOr<int> {
    ran = true;
    return 1;
  });
  ASSERT_TRUE(built.ok());
  EXPECT_FALSE(built->present() || ran);
  EXPECT_EQ(built->absence().kind, Absence::Kind::kPolicyOff);
}

TEST_F(ProbeTest, BuildErrorCarriesLabel) {
  const auto prober = MakeProber();
  const auto built = ProbeAndBuild(*prober, "sphere", [](const ProbedDevice&) -> absl::StatusOr<int> {
    return absl::InternalError("theirs");
  });
  EXPECT_EQ(built.status().message(), "theirs");
  EXPECT_EQ(built.status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Metadata(built.status(), "label"), "sphere");
}

TEST_F(ProbeTest, MoveOnlyResultIsBuilt) {
  const auto prober = MakeProber();
  auto built = ProbeAndBuild(*prober, "sphere", [](const ProbedDevice& device) {
    return absl::StatusOr<std::unique_ptr<std::string>>(std::make_unique<std::string>(device.name));
  });
  ASSERT_TRUE(built.ok());
  EXPECT_EQ(**&built->value(), "host memory");
}

TEST_F(ProbeTest, HostDeviceStreamRunsQueuedWork) {
  const auto prober = MakeProber();
  const auto probed = prober->Probe("sphere");
  std::atomic<bool> ran = false;
  ASSERT_TRUE(probed->value().stream->Enqueue([&] { ran = true; }).ok());
  ASSERT_TRUE(probed->value().stream->Synchronize().ok());
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace berth
