#include <berth/visible_devices.h>

#include <map>
#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(VisibleDevicesTest, VisibleDevicesSetByRunAreNoBound) {
  const struct {
    std::map<std::string, std::string> environment;
    std::optional<std::string> bound;
  } kCases[] = {
      {{}, std::nullopt},
      {{{"CUDA_VISIBLE_DEVICES", "2,3"}}, "2,3"},
      {{{"CUDA_VISIBLE_DEVICES", ""}}, ""},
      // In a run without a bound, and in a run with a bound.
      {{{"CUDA_VISIBLE_DEVICES", "GPU-a"}, {"BERTH_DEVICE", "GPU-a"}}, std::nullopt},
      {{{"CUDA_VISIBLE_DEVICES", "GPU-a"}, {"BERTH_DEVICE", "GPU-a"}, {"BERTH_VISIBLE_DEVICES", "0,1"}}, "0,1"},
      {{{"CUDA_VISIBLE_DEVICES", "3"}, {"BERTH_DEVICE", "3"}, {"BERTH_VISIBLE_DEVICES", ""}}, ""},
      // A launcher inside the run has selected a device for its rank.
      {{{"CUDA_VISIBLE_DEVICES", "GPU-b"}, {"BERTH_DEVICE", "GPU-a,GPU-b"}, {"BERTH_VISIBLE_DEVICES", "0,1"}}, "GPU-b"},
      // Without CUDA_VISIBLE_DEVICES there is no bound, whatever is left from before.
      {{{"BERTH_DEVICE", "GPU-a"}, {"BERTH_VISIBLE_DEVICES", "0,1"}}, std::nullopt},
  };
  for (size_t i = 0; i < std::size(kCases); ++i) {
    const auto variable_of = [&](const char* name) -> const char* {
      const auto found = kCases[i].environment.find(name);
      return found == kCases[i].environment.end() ? nullptr : found->second.c_str();
    };
    EXPECT_EQ(VisibleDevices(variable_of), kCases[i].bound) << "case " << i;
  }
}

}  // namespace
}  // namespace berth
