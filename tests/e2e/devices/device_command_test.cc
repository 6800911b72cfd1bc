// Operators' device commands, while NVML answers and while it hangs for good.

#include <algorithm>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/sdk/admin/inspector.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/driver/driver_script.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kLong = absl::Minutes(2);

class DeviceCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!DriverScript::IsOfUse()) GTEST_SKIP() << "built without CUDA's headers";
    daemon_.emplace(TestDaemonOptions{.environment = driver_.environment(), .backend = "cuda"});
    berth_.emplace(daemon_->folder());
  }
  // These tests do not check how long a daemon takes to stop.
  void TearDown() override {
    if (daemon_.has_value()) daemon_->KillSupervisorAndBroker();
  }

  Json Hardware(int device) { return berth_->ShowJson({"devices", "--hardware"})["devices"][device]; }
  bool HealthBecomes(const std::string& health) {
    return Eventually(
        [&] {
          return Hardware(0)["condition"]["health"] == health && Hardware(1)["condition"]["health"] == health;
        },
        kLong);
  }
  bool Says(const std::vector<std::string>& words, const std::string& text) {
    const std::string said = berth_->Show(words);
    EXPECT_TRUE(absl::StrContains(said, text)) << said;
    return absl::StrContains(said, text);
  }

  DriverScript driver_{2};
  std::optional<TestDaemon> daemon_;
  std::optional<BerthCommand> berth_;
};

TEST_F(DeviceCommandTest, DevicesAndTopologyMatchDriver) {
  ASSERT_TRUE(HealthBecomes("ANSWERS"));
  const std::string table = berth_->Show({"devices", "--hardware"});
  for (const std::string& cell : {std::string("NVIDIA H200"), std::string("00000000:02:00.0"), std::string("41 C"),
                                  std::string("75 of 700 W"), std::string("1980 MHz"), DriverScript::UuidOf(1)}) {
    EXPECT_TRUE(absl::StrContains(table, cell)) << cell << " in\n" << table;
  }
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(berth_->Show({"topology"}), "NV18"); }, kLong));
  driver_.Set(1, "state", "lost");
  const auto lost = [&] {
    return absl::StrContains(berth_->Show({"devices"}), "the driver reports the device as lost");
  };
  ASSERT_TRUE(Eventually(lost, kLong));
  EXPECT_TRUE(Says({"topology"}, DriverScript::UuidOf(1)));
  EXPECT_EQ(berth_->Run({"device", "enable", "7"}), 1);
}

TEST_F(DeviceCommandTest, CommandsAnswerWithReadingAgeWhileNvmlHangs) {
  ASSERT_TRUE(HealthBecomes("ANSWERS"));
  driver_.SetAll({{"0.hangs", "all"}, {"1.hangs", "all"}});
  ASSERT_TRUE(HealthBecomes("SILENT"));
  for (int device = 0; device < 2; ++device) {
    const Json condition = Hardware(device)["condition"];
    EXPECT_GE(std::stoull(condition["age_ms"].get<std::string>()), 5'000u);
    EXPECT_EQ(condition["temperature"]["value"], absl::StrCat(40 + device)) << "what was said last";
    EXPECT_EQ(condition["trouble"], "the driver does not answer");
  }
  EXPECT_TRUE(Says({"devices", "--hardware"}, "SILENT"));
  constexpr size_t kRuns = 20;
  std::vector<absl::Duration> times;
  for (size_t i = 0; i < kRuns; ++i) {
    const absl::Time begin = absl::Now();
    berth_->Show({"devices"});
    times.push_back(absl::Now() - begin);
  }
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  std::cout << kRuns << " times `berth devices` while NVML hangs, in the middle " << times[kRuns / 2]
            << std::endl;
  EXPECT_TRUE(Says({"topology"}, " ago."));
  // Operators' commands need no answer of NVML.
  EXPECT_TRUE(
      Says({"--admin", "device", "drain", "1", "--reason", "a fan is loud"}, "device 1: DRAINING (a fan is loud)"));
  EXPECT_TRUE(Says({"devices"}, "a fan is loud"));
  EXPECT_TRUE(Says({"--admin", "device", "undrain", "1"}, "device 1: READY"));
  EXPECT_TRUE(Says({"--admin", "device", "enable", "0"}, "device 0: READY"));
  driver_.SetAll({{"0.hangs", ""}, {"1.hangs", ""}});
  EXPECT_TRUE(HealthBecomes("ANSWERS"));
}

}  // namespace
}  // namespace berth::testing
