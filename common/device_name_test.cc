#include "common/device_name.h"

#include <optional>
#include <string>
#include <vector>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

using ::testing::HasSubstr;

const std::vector<DeviceLabel>& Devices() {
  static const auto* const devices = new std::vector<DeviceLabel>{
      {0, "GPU-1a2b"}, {1, "GPU-1a3c"}, {2, "GPU-77"}, {3, "GPU-777"}, {10, "HOST-10"}};
  return *devices;
}

TEST(DeviceNameTest, DeviceIsFoundByOrdinalUuidOrUniquePrefix) {
  const struct {
    const char* name;
    std::optional<uint32_t> ordinal;
    Reason reason = Reason::kNotFound;
    const char* says = "this node has 0 (GPU-1a2b), 1 (GPU-1a3c), 2 (GPU-77), 3 (GPU-777), 10 (HOST-10)";
  } kCases[] = {
      {"0", 0},          {"10", 10},       {"00", 0},       {"GPU-1a3c", 1}, {"GPU-1a2", 0},
      {"GPU-77", 2},     {"GPU-777", 3},   {"H", 10},       {"4", {}},       {"", {}},
      {"GPU-2", {}},     {"gpu-1a2b", {}}, {"+1", {}},      {"-1", {}},      {"99999999999999999999", {}},
      {"GPU-1a2bc", {}}, {"GPU", {}, Reason::kInvalidField, "0 (GPU-1a2b), 1 (GPU-1a3c), 2 (GPU-77), 3 (GPU-777)"},
      {"GPU-1a", {}, Reason::kInvalidField, "matches 0 (GPU-1a2b), 1 (GPU-1a3c): give more"},
      {"GPU-7", {}, Reason::kInvalidField, "matches 2 (GPU-77), 3 (GPU-777)"},
  };
  for (const auto& each : kCases) {
    const absl::StatusOr<uint32_t> found = FindDeviceByName(Devices(), each.name);
    if (each.ordinal.has_value()) {
      ASSERT_TRUE(found.ok()) << each.name << ": " << found.status();
      EXPECT_EQ(*found, *each.ordinal) << each.name;
    } else {
      EXPECT_TRUE(IsRefusal(found.status(), each.reason)) << each.name << ": " << found.status();
      EXPECT_THAT(found.status().message(), HasSubstr(each.says)) << each.name;
    }
  }
  EXPECT_THAT(FindDeviceByName({}, "0").status().message(), HasSubstr("this node has none"));
}

TEST(DeviceNameTest, VisibleDevicesAreParsedLikeCuda) {
  const struct {
    const char* text;
    // Comma-separated; null for a refused text, whose invalid entry is `refused`.
    const char* names;
    const char* refused = "";
  } kCases[] = {
      {"", ""},
      {"-1", ""},
      {"NoDevFiles", ""},
      {"0", "0"},
      {"3,1", "3,1"},
      {" 0 , 2 ", "0,2"},
      {"0,-1,2", "0"},
      {"0,,2", "0"},
      {"0,", "0"},
      {"GPU-1a2b,MIG-9", "GPU-1a2b,MIG-9"},
      {"MIG-GPU-1/2/0", "MIG-GPU-1/2/0"},
      {"all", nullptr, "all"},
      {"0,none", nullptr, "none"},
      {"0;1", nullptr, "0;1"},
      {"+1", nullptr, "+1"},
      {"0x1", nullptr, "0x1"},
      {"HOST-0", nullptr, "HOST-0"},
  };
  for (const auto& each : kCases) {
    const absl::StatusOr<std::vector<std::string>> names = ParseVisibleDevices(each.text);
    if (each.names != nullptr) {
      ASSERT_TRUE(names.ok()) << each.text << ": " << names.status();
      EXPECT_EQ(absl::StrJoin(*names, ","), each.names) << each.text;
    } else {
      EXPECT_THAT(names.status().message(),
                  HasSubstr(absl::StrCat("invalid CUDA_VISIBLE_DEVICES \"", each.refused, "\"")));
    }
  }
}

TEST(DeviceNameTest, ChoiceIsBoundedByNamesAndVisibleDevices) {
  const std::vector<DeviceLabel> gpus = {{0, "GPU-a"}, {1, "GPU-b"}, {2, "GPU-c"}};
  const std::vector<DeviceLabel> mixed = {{0, "GPU-a"}, {1, "GPU-b"}, {2, "HOST-0"}};
  const std::vector<DeviceLabel> host = {{0, "HOST-0"}, {1, "HOST-1"}};
  const struct {
    const std::vector<DeviceLabel>& devices;
    std::vector<std::string> names;
    std::optional<std::string> visible;
    // Comma-separated ordinals; null for a refusal whose text contains `says`.
    const char* among;
    const char* says = "";
  } kCases[] = {
      {gpus, {}, {}, "0,1,2"},
      {gpus, {"2", "GPU-a"}, {}, "0,2"},
      {gpus, {}, "2,1", "1,2"},
      {gpus, {}, "GPU-b,-1,0", "1"},
      {gpus, {"0", "1"}, "1,2", "1"},
      {gpus, {"0"}, "1,2", nullptr, "asked one of 0; the caller's CUDA_VISIBLE_DEVICES=\"1,2\" excludes all"},
      {gpus, {}, "", nullptr, "asked any device; the caller's CUDA_VISIBLE_DEVICES=\"\" excludes all"},
      {gpus, {}, "7", nullptr, "CUDA_VISIBLE_DEVICES: no device 7: this node has 0 (GPU-a)"},
      {gpus, {}, "GPU-", nullptr, "CUDA_VISIBLE_DEVICES: device GPU- matches 0 (GPU-a), 1 (GPU-b), 2 (GPU-c): give"},
      {gpus, {}, "x", nullptr, "invalid CUDA_VISIBLE_DEVICES \"x\": expected ordinals"},
      {gpus, {"9"}, {}, nullptr, "no device 9"},
      {mixed, {}, "1", "1,2"},
      {mixed, {}, "", "2"},
      // The host devices are not subject to CUDA_VISIBLE_DEVICES.
      {host, {}, "", "0,1"},
      {host, {}, "x", "0,1"},
      {{}, {}, "0", ""},
  };
  for (const auto& each : kCases) {
    const absl::StatusOr<std::vector<DeviceLabel>> among = DevicesAmong(each.devices, each.names, each.visible);
    SCOPED_TRACE(absl::StrCat(absl::StrJoin(each.names, ","), " of ", each.visible.value_or("all")));
    if (each.among == nullptr) {
      EXPECT_THAT(among.status().message(), HasSubstr(each.says));
      continue;
    }
    ASSERT_TRUE(among.ok()) << among.status();
    const auto ordinal = [](std::string* out, const DeviceLabel& device) { absl::StrAppend(out, device.first); };
    EXPECT_EQ(absl::StrJoin(*among, ",", ordinal), each.among);
  }
}

}  // namespace
}  // namespace berth
