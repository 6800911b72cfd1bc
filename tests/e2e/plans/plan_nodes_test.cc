// Plans on nodes of any shape: one device and sixteen, two models, MIG slices, islands; and devices that leave and
// return.

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <berth/block_handle.h>
#include <berth/bytes.h>
#include <berth/error.h>
#include <berth/plan.h>
#include <berth/session.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/plan.pb.h"
#include "berth/v1/resources.pb.h"
#include "common/device_score.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/node_file.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// Returns the tables of `count` devices with `multiprocessors` SMs, of an island where `island` is not negative.
std::string Cards(int count, int multiprocessors, int island = -1, const std::string& more = "") {
  return absl::StrCat("[[device]]\ncount = ", count,
                      "\nname = \"card\"\ncapability = \"9.0\"\nmultiprocessors = ", multiprocessors,
                      "\nmemory = \"80GiB\"\n", island < 0 ? "" : absl::StrCat("island = ", island), "\n",
                      more, "\n");
}

// A node and a client of it.
struct Node {
  explicit Node(const std::string& devices) : file(devices), daemon({.flags = {file.flag()}}) {
    session = Must(Session::Open({.folder = daemon.folder(), .always_new = true}), "session");
  }

  Plan Make(const PlanOptions& options) const { return Must(Plan::Make(session, options), "plan"); }
  // Returns the plan as `berth plans` shows it.
  v1::Plan Show(const Plan& plan) { return Must(daemon.inspector().GetPlan(plan.id()), "plan"); }
  bool Becomes(int device, v1::Device::State state) {
    return Eventually(
        [&] { return Must(daemon.inspector().ListDevices()).devices(device).state() == state; });
  }

  NodeFile file;
  TestDaemon daemon;
  std::shared_ptr<Session> session;
};

std::map<std::string, uint64_t> UnitsOf(const Plan& plan) {
  std::map<std::string, uint64_t> units;
  uint64_t at = 0;
  for (const PlanTile& tile : plan.tiles()) {
    EXPECT_EQ(tile.begin, at);
    at = tile.end;
    units[tile.device_uuid] += tile.units();
  }
  EXPECT_EQ(at, plan.units());
  return units;
}

class PlanNodesTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Devices, PlanNodesTest, ::testing::Values(1, 2, 8, 16));

TEST_P(PlanNodesTest, EqualDevicesGetEqualTiles) {
  Node node(Cards(GetParam(), 132));
  const uint64_t units = 1'000'003;
  const Plan plan = node.Make({.units = units});
  ASSERT_EQ(plan.tiles().size(), static_cast<size_t>(GetParam()));
  for (const auto& [uuid, count] : UnitsOf(plan)) {
    EXPECT_GE(count, units / GetParam());
    EXPECT_LE(count, units / GetParam() + 1);
  }
  const v1::Plan shown = node.Show(plan);
  for (const v1::PlanDevice& device : shown.devices()) {
    EXPECT_EQ(device.weight(),
              DeviceScore({.sm_count = 132, .cc_major = 9, .free = Bytes(device.free_bytes())}));
  }
}

TEST(PlanNodesTest, BetterModelGetsMoreUnits) {
  Node node(absl::StrCat(Cards(2, 132), Cards(2, 40)));
  const Plan plan = node.Make({.units = 10'000});
  const v1::Plan shown = node.Show(plan);
  double sum = 0;
  for (const v1::PlanDevice& device : shown.devices()) sum += device.weight();
  for (const v1::PlanDevice& device : shown.devices()) {
    EXPECT_NEAR(static_cast<double>(device.units()), 10'000 * device.weight() / sum, 1);
  }
  EXPECT_EQ(shown.devices(0).sm_count(), 132u) << "the best first";
  EXPECT_EQ(shown.devices(3).sm_count(), 40u);
  EXPECT_GT(shown.devices(1).units(), shown.devices(2).units());
}

TEST(PlanNodesTest, FiftySixSlicesMakeFiftySixTiles) {
  Node node(Cards(8, 132, -1, "slices = 7"));
  EXPECT_EQ(node.Make({.units = 5'600}).tiles().size(), 56u);
  EXPECT_EQ(node.Make({.units = 10}).tiles().size(), 10u);
  EXPECT_EQ(node.Make({.units = 5'600, .max_devices = 9}).tiles().size(), 9u);
  EXPECT_EQ(node.Make({.units = 5'600, .min_units = 400}).tiles().size(), 14u);
}

TEST(PlanNodesTest, PlanFitsIntoSingleIsland) {
  Node node(absl::StrCat(Cards(4, 100, 0), Cards(4, 132, 1), Cards(1, 132)));
  const Plan plan = node.Make({.units = 4'000, .one_island = true});
  std::vector<uint32_t> ordinals;
  for (const PlanTile& tile : plan.tiles()) ordinals.push_back(tile.device);
  std::sort(ordinals.begin(), ordinals.end());
  EXPECT_EQ(ordinals, (std::vector<uint32_t>{4, 5, 6, 7}));
}

// A process uses a plan's devices and its own blocks through CUDA, which shows it those of CUDA_VISIBLE_DEVICES only.
TEST(PlanNodesTest, PlanAndBlockNameVisibleDevicesOnly) {
  // GPU-a-0 and GPU-a-1, and the instances MIG-GPU-b-0 and MIG-GPU-b-1, in this order.
  NodeFile file("[[device]]\ncount = 2\nuuid = \"GPU-a\"\nmemory = \"64MiB\"\n"
                "[[device]]\nuuid = \"GPU-b\"\nslices = 2\nmemory = \"128MiB\"\n");
  TestDaemon daemon({.flags = {file.flag()}});
  const struct {
    // CUDA_VISIBLE_DEVICES, BERTH_DEVICE and BERTH_VISIBLE_DEVICES; "unset" for none.
    const char* visible;
    const char* own;
    const char* outer;
    const char* options;
    // The plan's devices, or a part of the error.
    std::set<std::string> devices;
    const char* says;
  } kCases[] = {
      {"unset", "unset", "unset", "", {"GPU-a-0", "GPU-a-1", "MIG-GPU-b-0", "MIG-GPU-b-1"}, ""},
      {"1", "unset", "unset", "", {"GPU-a-1"}, ""},
      {"3,1", "unset", "unset", "", {"GPU-a-1", "MIG-GPU-b-1"}, ""},
      {"1,-1,0", "unset", "unset", "", {"GPU-a-1"}, ""},
      {"GPU-a-1", "unset", "unset", "", {"GPU-a-1"}, ""},
      {"MIG-GPU-b-1", "unset", "unset", "", {"MIG-GPU-b-1"}, ""},
      {"MIG-GPU-b-0,GPU-a-0", "unset", "unset", "", {"GPU-a-0", "MIG-GPU-b-0"}, ""},
      {"GPU-a", "unset", "unset", "", {}, "device GPU-a matches 0 (GPU-a-0), 1 (GPU-a-1)"},
      {"MIG-", "unset", "unset", "", {}, "device MIG- matches 2 (MIG-GPU-b-0), 3 (MIG-GPU-b-1)"},
      {"GPU-b", "unset", "unset", "", {}, "no device GPU-b"},
      {"", "unset", "unset", "", {}, "excludes all of them"},
      {"two", "unset", "unset", "", {}, "invalid CUDA_VISIBLE_DEVICES \"two\""},
      // In a `berth run`, without and with an outer bound.
      {"GPU-a-1", "GPU-a-1", "unset", "", {"GPU-a-1"}, ""},
      {"MIG-GPU-b-1", "MIG-GPU-b-1", "0,3", "", {"MIG-GPU-b-1"}, ""},
      {"1,2", "1,2", "unset", "", {"GPU-a-1", "MIG-GPU-b-0"}, ""},
      {"0,3", "unset", "unset", " devices=MIG-GPU-b-1", {"MIG-GPU-b-1"}, ""},
      {"0,3", "unset", "unset", " devices=GPU-a-1", {}, "does not name it"},
      {"GPU-a-1", "GPU-a-1", "unset", " devices=GPU-a-0", {}, "does not name it"},
  };
  const auto variable = [](const char* name, const char* value) {
    return absl::string_view(value) == "unset" ? std::string(name) : absl::StrCat(name, "=", value);
  };
  for (const auto& each : kCases) {
    SCOPED_TRACE(absl::StrCat("CUDA_VISIBLE_DEVICES ", each.visible, ", BERTH_DEVICE ", each.own, each.options));
    Actor actor(daemon, {.environment = {variable("CUDA_VISIBLE_DEVICES", each.visible),
                                         variable("BERTH_DEVICE", each.own),
                                         variable("BERTH_VISIBLE_DEVICES", each.outer)}});
    const absl::StatusOr<std::string> plan = actor.Ask(absl::StrCat("plan p 400", each.options));
    const absl::StatusOr<std::string> block = actor.Ask("allocate b 4096 pick=any");
    if (each.devices.empty()) {
      EXPECT_TRUE(absl::StrContains(plan.status().message(), each.says)) << plan.status();
    } else {
      std::set<std::string> planned;
      for (const absl::string_view tile : absl::StrSplit(Must(plan, "plan"), ' ')) {
        planned.emplace(tile.substr(0, tile.find(':')));
      }
      EXPECT_EQ(planned, each.devices);
    }
    if (*each.options == '\0') {
      EXPECT_EQ(block.ok(), !each.devices.empty()) << block.status();
      if (block.ok()) {
        EXPECT_TRUE(each.devices.contains(Must(ParseHandle(*block), "handle").device_uuid)) << *block;
      }
    }
    actor.Quit();
  }
}

TEST(PlanNodesTest, LostDevicesUnitsMoveAlone) {
  Node node(Cards(4, 132));
  Plan plan = node.Make({.units = 400});
  node.file.Now("[now.2]\nlost = true\n");
  ASSERT_TRUE(Eventually([&] { return plan.stale(); }));
  ASSERT_TRUE(node.Becomes(2, v1::Device::STOPPED));
  uint64_t moved = 0;
  for (const PlanMove& move : Must(plan.Replan(), "replan")) moved += move.units();
  EXPECT_EQ(moved, 100u);
  EXPECT_FALSE(plan.stale());
  EXPECT_EQ(UnitsOf(plan).size(), 3u);
  node.file.Now("");
  ASSERT_TRUE(node.Becomes(2, v1::Device::READY));
  EXPECT_FALSE(plan.stale()) << "who comes makes nobody's plan stale";
  moved = 0;
  for (const PlanMove& move : Must(plan.Replan(), "replan")) moved += move.units();
  EXPECT_EQ(moved, 100u);
  EXPECT_EQ(UnitsOf(plan).size(), 4u);
}

TEST(PlanNodesTest, DrainedDeviceMakesPlanStaleAndGetsNothing) {
  Node node(Cards(3, 132));
  Plan plan = node.Make({.units = 300});
  Must(node.daemon.inspector().DrainDevice(1, "maintenance"), "drain");
  ASSERT_TRUE(Eventually([&] { return plan.stale(); }));
  EXPECT_TRUE(Refused(plan.status(), Reason::kStale, {{"device", "1"}, {"why", "device draining"}}));
  EXPECT_EQ(node.Show(plan).stale(), v1::Plan::DEVICE_DRAINING);
  Must(plan.Replan(), "replan");
  EXPECT_EQ(UnitsOf(plan).size(), 2u);
  const v1::Plan shown = node.Show(plan);
  EXPECT_EQ(std::count_if(
                shown.devices().begin(), shown.devices().end(),
                [](const v1::PlanDevice& device) { return device.left() == v1::PlanDevice::OUT_OF_SERVICE; }),
            1);
  Must(node.daemon.inspector().UndrainDevice(1), "undrain");
  Must(plan.Replan(), "replan");
  EXPECT_EQ(UnitsOf(plan).size(), 3u);
}

}  // namespace
}  // namespace berth::testing
