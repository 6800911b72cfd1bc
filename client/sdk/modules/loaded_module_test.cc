// Modules in a device's context, on a driver without a device.

#include <memory>
#include <string>

#include <berth/error.h>
#include <berth/module.h>
#include <berth/probe.h>

#include "berth/v1/inventory.pb.h"
#include "client/sdk/modules/module_bytes.h"
#include "common/cuda/testing/fake_driver.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

class LoadedModuleTest : public ::testing::Test {
 protected:
  ProbedDevice Probe(v1::MemoryKind kind) {
    internal::ProbeSources sources;
    sources.devices = [kind] {
      v1::DeviceInventory device;
      device.mutable_device()->set_uuid("GPU-fake");
      device.mutable_device()->set_kind(kind);
      device.mutable_device()->set_state(v1::Device::READY);
      return absl::StatusOr<std::vector<v1::DeviceInventory>>({device});
    };
    sources.driver = [this] { return absl::StatusOr<cuda::Driver*>(&driver_); };
    sources.now = [] { return absl::UnixEpoch(); };
    return Prober(std::move(sources), {.host_devices = true}).Probe("test")->value();
  }
  static CompiledModule Compiled() {
    return CompiledModule(std::make_shared<const internal::ModuleBytes>("ptx"), "compute_90",
                          CompiledModule::Origin::kCompiled);
  }

  cuda::FakeDriver driver_;
};

TEST_F(LoadedModuleTest, ModuleLoadsAndUnloadsInDeviceContext) {
  {
    const auto module = LoadedModule::Load("sphere", Probe(v1::MEMORY_KIND_CUDA_VMM), Compiled());
    ASSERT_TRUE(module.ok()) << module.status();
    EXPECT_TRUE(module->Function("Sphere").ok());
    EXPECT_EQ(driver_.context_of.at("LoadModule"), driver_.kPrimary);
    EXPECT_EQ(driver_.context_of.at("GetFunction"), driver_.kPrimary);
    EXPECT_EQ(driver_.current, nullptr);
  }
  EXPECT_EQ(driver_.context_of.at("UnloadModule"), driver_.kPrimary);
  EXPECT_EQ(driver_.contexts, 0) << "the module retains the context alone";
}

TEST_F(LoadedModuleTest, MovedModuleIsUnloadedOnce) {
  auto module = LoadedModule::Load("sphere", Probe(v1::MEMORY_KIND_CUDA_VMM), Compiled());
  {
    const LoadedModule moved = *std::move(module);
  }
  module = absl::CancelledError();
  EXPECT_EQ(std::count(driver_.calls.begin(), driver_.calls.end(), "UnloadModule"), 1);
}

TEST_F(LoadedModuleTest, FailureCarriesLabel) {
  driver_.failing = "LoadModule";
  const absl::Status status = LoadedModule::Load("sphere", Probe(v1::MEMORY_KIND_CUDA_VMM), Compiled()).status();
  EXPECT_TRUE(IsRefusal(status, Reason::kDriver));
  EXPECT_EQ(status.message().substr(0, 26), "sphere module load failed:");
  EXPECT_EQ(NamedValueOf(status, "label"), "sphere");
  EXPECT_EQ(NamedValueOf(status, "driver_code"), "1");
}

TEST_F(LoadedModuleTest, HostMemoryCannotLoadModule) {
  const absl::Status status = LoadedModule::Load("sphere", Probe(v1::MEMORY_KIND_HOST), Compiled()).status();
  EXPECT_TRUE(IsRefusal(status, Reason::kUnsupported));
}

}  // namespace
}  // namespace berth
