#include "daemon/device/worker/device_identity.h"

#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "common/cuda/testing/fake_driver.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

// A driver of several devices; one with an empty UUID does not report it.
class Devices : public cuda::FakeDriver {
 public:
  explicit Devices(std::vector<std::string> uuids) : uuids_(std::move(uuids)) {}

  absl::StatusOr<int> DeviceCount() override { return static_cast<int>(uuids_.size()); }
  absl::StatusOr<std::string> DeviceUuid(int ordinal) override {
    asked.push_back(ordinal);
    const std::string& uuid = uuids_.at(static_cast<size_t>(ordinal));
    if (uuid.empty()) return cuda::DriverError("DeviceUuid", 999, "CUDA_ERROR_UNKNOWN");
    return uuid;
  }

  std::vector<int> asked;

 private:
  const std::vector<std::string> uuids_;
};

TEST(DeviceIdentityTest, DeviceAtItsOrdinalNeedsNoOtherDevice) {
  Devices driver({"", "GPU-b", "GPU-c"});
  EXPECT_EQ(FindCudaOrdinal(driver, 1, "GPU-b").value(), 1);
  EXPECT_EQ(driver.asked, std::vector<int>{1});
}

TEST(DeviceIdentityTest, RenumberedDeviceIsFoundByUuid) {
  Devices driver({"GPU-a", "", "GPU-c"});
  EXPECT_EQ(FindCudaOrdinal(driver, 0, "GPU-c").value(), 2);
  // As in a process to which CUDA_VISIBLE_DEVICES shows few devices.
  EXPECT_EQ(FindCudaOrdinal(driver, 5, "GPU-a").value(), 0);
}

TEST(DeviceIdentityTest, DeviceThatDriverDoesNotListIsNotFound) {
  Devices driver({"GPU-a", "GPU-b"});
  const absl::Status refused = FindCudaOrdinal(driver, 1, "GPU-c").status();
  EXPECT_TRUE(IsRefusal(refused, Reason::kNotFound)) << refused;
  EXPECT_EQ(refused.message(), "no device GPU-c among the devices that CUDA lists: 2");
}

TEST(DeviceIdentityTest, DeviceWithoutUuidIsDriverError) {
  Devices driver({"GPU-a", ""});
  EXPECT_TRUE(IsRefusal(FindCudaOrdinal(driver, 1, "GPU-b").status(), Reason::kDriver));
}

}  // namespace
}  // namespace berth
