#include "berth/v1/plan.pb.h"
#include "daemon/service/rpc/plan_requests.h"

#include <limits>
#include <memory>
#include <string>

#include <berth/error.h>

#include "gtest/gtest.h"

namespace berth::service {
namespace {

using MakePlan = RpcTraits<core::PlanRequest>;

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

std::string Field(const v1::MakePlanRequest& request) {
  const absl::Status status = MakePlan::Decode(request, kNow).status();
  EXPECT_TRUE(IsRefusal(status, Reason::kInvalidField)) << status;
  const auto details = GetErrorDetails(status);
  return details.has_value() ? details->metadata.at("field") : "";
}

TEST(PlanRequestsTest, PlanDefaultsToScoresWithoutReservation) {
  v1::MakePlanRequest request;
  request.set_units(7);
  const core::PlanRequest out = *MakePlan::Decode(request, kNow);
  EXPECT_EQ(out.units, 7);
  EXPECT_EQ(out.source, core::WeightSource::kScore);
  EXPECT_EQ(out.pool, "");
  EXPECT_FALSE(out.reserve);
  request.mutable_permits();
  EXPECT_EQ(MakePlan::Decode(request, kNow)->pool, "gpu-tests");
  EXPECT_EQ(MakePlan::Decode(request, kNow)->permit_units, 1);
  EXPECT_TRUE(MakePlan::Decode(request, kNow)->wait);
  request.mutable_permits()->mutable_max_wait();
  EXPECT_FALSE(MakePlan::Decode(request, kNow)->wait);
  request.mutable_permits()->mutable_max_wait()->set_seconds(3);
  EXPECT_EQ(MakePlan::Decode(request, kNow)->deadline, kNow + absl::Seconds(3));
}

TEST(PlanRequestsTest, MalformedFieldIsNamed) {
  v1::MakePlanRequest request;
  request.add_devices(std::string(129, 'x'));
  EXPECT_EQ(Field(request), "devices");
  request.clear_devices();
  request.set_weight_source(static_cast<v1::MakePlanRequest::WeightSource>(9));
  EXPECT_EQ(Field(request), "weight_source");
  request.clear_weight_source();
  request.mutable_permits()->set_priority(11);
  EXPECT_EQ(Field(request), "permits.priority");
  request.mutable_permits()->set_priority(0);
  request.mutable_permits()->set_pool("\n");
  EXPECT_EQ(Field(request), "permits.pool");
  request.mutable_permits()->clear_pool();
  request.mutable_permits()->mutable_max_wait()->set_seconds(-1);
  EXPECT_EQ(Field(request), "permits.max_wait");
}

TEST(PlanRequestsTest, PlanIsConvertedWhole) {
  auto layout = std::make_shared<core::PlanLayout>();
  layout->id = PlanId(3);
  layout->revision = 2;
  layout->asked = {.units = 10, .label = "fit", .pool = "a", .permit_units = 2};
  const auto uuid = [](const char* text) { return std::make_shared<const std::string>(text); };
  layout->devices.resize(2);
  core::PlanDevice& used = layout->devices[0];
  used.ordinal = 1;
  used.uuid = uuid("GPU-1");
  used.generation = 4;
  used.weight = 2.5;
  used.units = 10;
  core::PlanDevice& left_out = layout->devices[1];
  left_out.uuid = uuid("GPU-0");
  left_out.capacity = 3;
  left_out.left = core::PlanDevice::Left::kConstraint;
  layout->tiles = {{.device = 0, .begin = 0, .end = 10}};
  v1::Plan plan;
  ToProto(
      core::PlanView{
          .layout = layout, .stale = core::PlanStale::kMemoryLost, .stale_device = 1, .stale_since = kNow},
      &plan);
  EXPECT_EQ(plan.stale(), v1::Plan::MEMORY_LOST);
  EXPECT_EQ(plan.stale_uuid(), "GPU-1");
  EXPECT_TRUE(plan.has_stale_time());
  EXPECT_EQ(plan.permit_units(), 2);
  EXPECT_FALSE(plan.devices(0).has_room_units());
  EXPECT_EQ(plan.devices(1).room_units(), 3);
  EXPECT_EQ(plan.tiles(0).end(), 10);
  v1::PlanChange change;
  MakePlan::Encode({.layout = layout,
                    .from_revision = 1,
                    .moves = {{.from = 1, .from_generation = 9, .to = 0, .begin = 2, .end = 5}}},
                   &change);
  EXPECT_EQ(change.moves(0).from_uuid(), "GPU-0");
  EXPECT_EQ(change.moves(0).from_generation(), 9);
  EXPECT_EQ(change.moves(0).to_uuid(), "GPU-1");
  // The part for the plan's holder is equal.
  for (v1::PlanDevice& device : *plan.mutable_devices()) {
    device.clear_weight();
    device.clear_room_units();
    device.clear_left();
  }
  EXPECT_EQ(change.plan().devices_size(), 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(change.plan().devices(i).SerializeAsString(), plan.devices(i).SerializeAsString());
  }
  EXPECT_EQ(change.plan().tiles(0).end(), 10);
  EXPECT_EQ(change.plan().permit_units(), 2);
  EXPECT_EQ(change.plan().label(), "");
}

}  // namespace
}  // namespace berth::service
