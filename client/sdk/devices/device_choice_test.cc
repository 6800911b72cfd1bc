#include "client/sdk/devices/device_choice.h"

#include <string>
#include <vector>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "common/cuda/testing/fake_driver.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

// Fakes a process's view of a node's devices, in the process's own order.
class SomeDevices : public cuda::FakeDriver {
 public:
  explicit SomeDevices(std::vector<std::string> uuids) : uuids_(std::move(uuids)) {}
  absl::StatusOr<int> DeviceCount() override { return static_cast<int>(uuids_.size()); }
  absl::StatusOr<std::string> DeviceUuid(int ordinal) override { return uuids_.at(ordinal); }
  absl::StatusOr<bool> CanAccessPeer(int, int) override { return peers; }

  bool peers = true;

 private:
  const std::vector<std::string> uuids_;
};

TEST(DeviceChoiceTest, BlockMapsOnItsDeviceAtAnyOrdinal) {
  SomeDevices reversed({"GPU-b", "GPU-a"});
  EXPECT_EQ(*ChooseDevice(reversed, "GPU-a", ""), 1);
  EXPECT_EQ(*ChooseDevice(reversed, "GPU-a", "GPU-a"), 1);
  EXPECT_EQ(*ChooseDevice(reversed, "GPU-b", ""), 0);
}

TEST(DeviceChoiceTest, OtherDeviceMapsBlockIfPeersReach) {
  SomeDevices devices({"GPU-a", "GPU-b"});
  EXPECT_EQ(*ChooseDevice(devices, "GPU-a", "GPU-b"), 1);
  devices.peers = false;
  const absl::Status refused = ChooseDevice(devices, "GPU-a", "GPU-b").status();
  EXPECT_TRUE(IsRefusal(refused, Reason::kUnsupported)) << refused;
  EXPECT_EQ(GetErrorDetails(refused)->metadata.at("capability"), "peer access");
  EXPECT_EQ(*ChooseDevice(devices, "GPU-a", ""), 0);
}

TEST(DeviceChoiceTest, UnseenDeviceFallsBackToGivenVisibleDevice) {
  SomeDevices other({"GPU-b"});
  EXPECT_EQ(*ChooseDevice(other, "GPU-a", "GPU-b"), 0);
  EXPECT_TRUE(IsRefusal(ChooseDevice(other, "GPU-a", "").status(), Reason::kNotFound));
  EXPECT_TRUE(IsRefusal(ChooseDevice(other, "GPU-a", "GPU-c").status(), Reason::kNotFound));
}

}  // namespace
}  // namespace berth::internal
