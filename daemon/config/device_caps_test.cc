#include "daemon/config/device_caps.h"

#include <stdio.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kFull[] = "GPU-12345678-9abc-def0-1234-56789abcdef0";

std::vector<DeviceRecord> DevicesOf(const std::vector<std::string>& uuids) {
  std::vector<DeviceRecord> devices;
  for (const std::string& uuid : uuids) {
    DeviceRecord& device = devices.emplace_back();
    device.ordinal = static_cast<uint32_t>(devices.size() - 1);
    snprintf(device.uuid, sizeof(device.uuid), "%s", uuid.c_str());
  }
  return devices;
}

const std::vector<std::string>& Uuids() {
  static const auto* const uuids = new std::vector<std::string>{kFull, "GPU-12399999-9abc-def0-1234-56789abcdef0",
                                                                "MIG-77777777-9abc-def0-1234-56789abcdef0", "HOST-3"};
  return *uuids;
}

TEST(DeviceCapsTest, NameOfPresentDeviceBecomesItsUuid) {
  const struct {
    const char* name;
    size_t device;
  } kCases[] = {{"0", 0}, {"3", 3}, {"GPU-1234", 0}, {"GPU-1239", 1}, {"M", 2}, {"HOST-3", 3}, {kFull, 0}};
  for (const auto& [name, device] : kCases) {
    SCOPED_TRACE(name);
    const ResolvedDeviceCaps resolved = ResolveDeviceCaps({{name, 5}}, DevicesOf(Uuids()));
    EXPECT_EQ(resolved.caps, (DeviceCaps{{Uuids()[device], 5}}));
    EXPECT_EQ(resolved.mistake, absl::OkStatus());
    EXPECT_THAT(resolved.absent, SizeIs(0));
  }
}

TEST(DeviceCapsTest, FullUuidMayBeOfAbsentDevice) {
  for (const std::string name :
       {"GPU-00000000-9abc-def0-1234-56789abcdef0", "MIG-00000000-9ABC-DEF0-1234-56789abcdef0"}) {
    const ResolvedDeviceCaps resolved = ResolveDeviceCaps({{name, 5}, {"1", 2}}, DevicesOf(Uuids()));
    EXPECT_EQ(resolved.caps, (DeviceCaps{{name, 5}, {Uuids()[1], 2}}));
    EXPECT_EQ(resolved.mistake, absl::OkStatus());
    ASSERT_THAT(resolved.absent, SizeIs(1));
    EXPECT_THAT(resolved.absent[0], AllOf(HasSubstr(name), HasSubstr("this node has 0 (GPU-12345678"),
                                          HasSubstr("no effect until a daemon finds it")));
  }
}

TEST(DeviceCapsTest, OtherNameOfNoDeviceIsMistake) {
  for (const std::string name :
       {"4", "07", "-1", "GPU-5", "GPU-00000000-9abc-def0-1234-56789abcdef",
        "GPU-00000000-9abc-def0-1234-56789abcdef00", "GPU-00000000-9abc-def0-1234-56789abcdefg",
        "GPU-00000000_9abc-def0-1234-56789abcdef0", "NIC-00000000-9abc-def0-1234-56789abcdef0", "HOST-4", ""}) {
    SCOPED_TRACE(name);
    const ResolvedDeviceCaps resolved = ResolveDeviceCaps({{name, 5}}, DevicesOf(Uuids()));
    EXPECT_EQ(resolved.caps, (DeviceCaps{{name, 5}})) << "a later broker that has the file already does without";
    EXPECT_EQ(resolved.mistake.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(resolved.mistake.message()),
                AllOf(HasSubstr("no device " + name), HasSubstr("this node has 0 (GPU-12345678"),
                      HasSubstr("or an absent device by its full UUID")));
    EXPECT_THAT(resolved.absent, SizeIs(0));
  }
}

TEST(DeviceCapsTest, AmbiguousPrefixIsMistake) {
  const absl::Status mistake = ResolveDeviceCaps({{"GPU-123", 5}}, DevicesOf(Uuids())).mistake;
  EXPECT_THAT(std::string(mistake.message()),
              AllOf(HasSubstr("GPU-123 matches 0 (GPU-12345678"), HasSubstr("1 (GPU-12399999"),
                    HasSubstr("give more of its UUID")));
}

TEST(DeviceCapsTest, TwoNamesOfDeviceAreMistake) {
  const ResolvedDeviceCaps resolved = ResolveDeviceCaps({{"0", 5}, {kFull, 2}}, DevicesOf(Uuids()));
  EXPECT_THAT(std::string(resolved.mistake.message()),
              HasSubstr(std::string("0 and ") + kFull + " name the same device"));
  EXPECT_EQ(resolved.caps, (DeviceCaps{{kFull, 2}})) << "the least";
}

TEST(DeviceCapsTest, AnyNameMayBeOfUnidentifiedDevice) {
  const std::vector<DeviceRecord> devices = DevicesOf({"unknown-0", Uuids()[1]});
  const ResolvedDeviceCaps resolved =
      ResolveDeviceCaps({{"0", 1}, {"7", 2}, {"GPU-8", 3}, {"GPU-1", 4}, {"unknown-0", 5}}, devices);
  EXPECT_EQ(resolved.caps, (DeviceCaps{{"0", 1}, {"7", 2}, {"GPU-8", 3}, {Uuids()[1], 4}, {"unknown-0", 5}}));
  EXPECT_EQ(resolved.mistake, absl::OkStatus());
  EXPECT_THAT(resolved.absent, SizeIs(4));
}

}  // namespace
}  // namespace berth
