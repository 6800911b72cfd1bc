#include "client/cli/run/ctest_resources.h"

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace berth::cli {
namespace {

using Variables = std::map<std::string, std::string>;

absl::StatusOr<std::optional<CtestSlots>> Read(const Variables& variables) {
  return ReadCtestSlots([&](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  });
}

v1::ListDevicesResponse Devices(const std::vector<std::pair<std::string, v1::Device::State>>& all) {
  v1::ListDevicesResponse devices;
  for (const auto& [uuid, state] : all) {
    v1::Device* const device = devices.add_devices();
    device->set_uuid(uuid);
    device->set_state(state);
  }
  return devices;
}

v1::Pool PoolOf(uint64_t cap) {
  v1::Pool pool;
  pool.set_cap(cap);
  return pool;
}

TEST(CtestResourcesTest, DeviceIdHasOnlyCtestCharacters) {
  EXPECT_EQ(CtestId("GPU-8C9a-01"), "gpu_8c9a_01");
  EXPECT_EQ(CtestId("HOST-0"), "host_0");
}

TEST(CtestResourcesTest, SlotsOfAllDevicesCoverCap) {
  const auto spec = MakeCtestSpec(
      Devices({{"GPU-a", v1::Device::READY}, {"GPU-b", v1::Device::STOPPED}, {"GPU-c", v1::Device::READY}}),
      PoolOf(3));
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto json = nlohmann::json::parse(*spec);
  EXPECT_EQ(json["version"]["major"], 1);
  const auto& gpus = json["local"][0]["gpus"];
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0]["id"], "gpu_a");
  EXPECT_EQ(gpus[1]["id"], "gpu_c");
  EXPECT_EQ(gpus[0]["slots"], 2);
  EXPECT_EQ(gpus[1]["slots"], 2);
  EXPECT_TRUE(
      absl::IsFailedPrecondition(MakeCtestSpec(Devices({{"GPU-b", v1::Device::STOPPED}}), PoolOf(2)).status()));
}

// CTest would start a test for which the pool never has the units on one device.
TEST(CtestResourcesTest, DeviceHasNoMoreSlotsThanItsCap) {
  const auto devices =
      Devices({{"GPU-a", v1::Device::READY}, {"GPU-b", v1::Device::READY}, {"GPU-c", v1::Device::READY}});
  v1::Pool pool = PoolOf(9);
  pool.set_device_cap(2);
  v1::DeviceCap* cap = pool.add_device_caps();
  cap->set_uuid("GPU-b");
  cap->set_cap(0);
  cap = pool.add_device_caps();
  cap->set_uuid("GPU-c");
  cap->set_cap(7);
  const auto gpus = nlohmann::json::parse(*MakeCtestSpec(devices, pool))["local"][0]["gpus"];
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0]["slots"], 2);
  EXPECT_EQ(gpus[1]["id"], "gpu_c");
  EXPECT_EQ(gpus[1]["slots"], 5) << "half of the cap, rounded up";
}

TEST(CtestResourcesTest, SlotsAreSummedOverGroups) {
  const auto slots = Read({{"CTEST_RESOURCE_GROUP_COUNT", "3"},
                           {"CTEST_RESOURCE_GROUP_0", "gpus"},
                           {"CTEST_RESOURCE_GROUP_0_GPUS", "id:gpu_a,slots:1;id:gpu_b,slots:2"},
                           {"CTEST_RESOURCE_GROUP_1", "crypto_chips"},
                           {"CTEST_RESOURCE_GROUP_1_CRYPTO_CHIPS", "id:card0,slots:1"},
                           {"CTEST_RESOURCE_GROUP_2", "crypto_chips,gpus"},
                           {"CTEST_RESOURCE_GROUP_2_GPUS", "id:gpu_a,slots:4"}});
  ASSERT_TRUE(slots.ok()) << slots.status();
  EXPECT_EQ(*slots, (CtestSlots{{"gpu_a", 5}, {"gpu_b", 2}}));
}

TEST(CtestResourcesTest, TestWithoutDevicesHasNoSlots) {
  EXPECT_EQ(*Read({}), std::nullopt);
  EXPECT_EQ(*Read({{"CTEST_RESOURCE_GROUP_COUNT", "1"}, {"CTEST_RESOURCE_GROUP_0", "crypto_chips"}}),
            std::nullopt);
}

TEST(CtestResourcesTest, MalformedCtestVariablesAreRejected) {
  const Variables good = {{"CTEST_RESOURCE_GROUP_COUNT", "1"},
                          {"CTEST_RESOURCE_GROUP_0", "gpus"},
                          {"CTEST_RESOURCE_GROUP_0_GPUS", "id:gpu_a,slots:1"}};
  ASSERT_TRUE(Read(good).ok());
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"CTEST_RESOURCE_GROUP_COUNT", "0"},
           {"CTEST_RESOURCE_GROUP_COUNT", "-1"},
           {"CTEST_RESOURCE_GROUP_COUNT", "2"},
           {"CTEST_RESOURCE_GROUP_COUNT", "no_resource_spec"},
           {"CTEST_RESOURCE_GROUP_0_GPUS", ""},
           {"CTEST_RESOURCE_GROUP_0_GPUS", "gpu_a"},
           {"CTEST_RESOURCE_GROUP_0_GPUS", "id:,slots:1"},
           {"CTEST_RESOURCE_GROUP_0_GPUS", "id:gpu_a,slots:0"},
           {"CTEST_RESOURCE_GROUP_0_GPUS", "id:gpu_a,slots:-1"},
           {"CTEST_RESOURCE_GROUP_0_GPUS", "id:gpu_a,slots:1;"}}) {
    Variables bad = good;
    bad[name] = value;
    EXPECT_TRUE(absl::IsInvalidArgument(Read(bad).status())) << name << "=" << value;
  }
}

}  // namespace
}  // namespace berth::cli
