#include "berth/v1/permit.pb.h"
#include "berth/v1/placement.pb.h"
#include "daemon/service/rpc/permit_requests.h"

#include <string>
#include <utility>

#include <berth/error.h>

#include "gtest/gtest.h"

namespace berth::service {
namespace {

using Acquire = RpcTraits<core::AcquireRequest>;
using Gang = RpcTraits<core::GangRequest>;

const absl::Time kNow = absl::FromUnixSeconds(1'000'000);

v1::AcquirePermitRequest ValidAcquire() {
  v1::AcquirePermitRequest request;
  request.set_holder_key("thread-1");
  return request;
}

TEST(PermitRequestsTest, AcquireHasDefaults) {
  const auto request = Acquire::Decode(ValidAcquire(), kNow);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->pool, "gpu-tests");
  EXPECT_EQ(request->units, 1u);
  EXPECT_TRUE(request->wait);
  EXPECT_EQ(request->deadline, absl::InfiniteFuture());
}

TEST(PermitRequestsTest, ZeroWaitMeansNoWaitOthersDeadline) {
  v1::AcquirePermitRequest wire = ValidAcquire();
  wire.mutable_max_wait();
  EXPECT_FALSE(Acquire::Decode(wire, kNow)->wait);
  wire.mutable_max_wait()->set_nanos(1);
  EXPECT_TRUE(Acquire::Decode(wire, kNow)->wait);
  wire.mutable_max_wait()->set_seconds(90);
  EXPECT_EQ(Acquire::Decode(wire, kNow)->deadline, kNow + absl::Seconds(90) + absl::Nanoseconds(1));
}

TEST(PermitRequestsTest, InvalidAcquireNamesField) {
  const auto refused = [](auto change, const char* field) {
    v1::AcquirePermitRequest wire = ValidAcquire();
    change(wire);
    const auto request = Acquire::Decode(wire, kNow);
    EXPECT_TRUE(IsRefusal(request.status(), Reason::kInvalidField)) << field;
    EXPECT_EQ(GetErrorDetails(request.status())->metadata["field"], field);
  };
  refused([](auto& wire) { wire.clear_holder_key(); }, "holder_key");
  refused([](auto& wire) { wire.set_holder_key(std::string(129, 'x')); }, "holder_key");
  refused([](auto& wire) { wire.set_pool("a\nb"); }, "pool");
  refused([](auto& wire) { wire.set_priority(11); }, "priority");
  refused([](auto& wire) { wire.set_priority(-11); }, "priority");
  refused([](auto& wire) { wire.mutable_device()->set_declared_bytes(1); }, "device.pick");
  refused([](auto& wire) { wire.mutable_device()->set_min_free_bytes(1); }, "device.pick");
  refused([](auto& wire) { wire.mutable_device()->set_pick(v1::DeviceWish::NAMED); }, "device.uuid");
  refused([](auto& wire) { wire.mutable_device()->set_uuid("HOST-0"); }, "device.uuid");
  refused([](auto& wire) { wire.mutable_device()->set_pick(static_cast<v1::DeviceWish::Pick>(6)); },
          "device.pick");
  refused([](auto& wire) { wire.mutable_device()->set_uuid("a\nb"); }, "device.uuid");
  refused([](auto& wire) { wire.mutable_device()->set_min_capability(90); }, "device.pick");
  refused([](auto& wire) { wire.mutable_device()->set_island_of("HOST-0"); }, "device.pick");
  refused([](auto& wire) { wire.mutable_device()->set_island_of("a\nb"); }, "device.island_of");
  refused([](auto& wire) { wire.mutable_max_wait()->set_seconds(-1); }, "max_wait");
  refused([](auto& wire) { wire.mutable_max_wait()->set_nanos(1'000'000'000); }, "max_wait");
  refused([](auto& wire) { wire.mutable_max_wait()->set_seconds(INT64_MAX); }, "max_wait");
}

TEST(PermitRequestsTest, LabelIsCleaned) {
  v1::AcquirePermitRequest wire = ValidAcquire();
  wire.set_label("a\tb");
  EXPECT_EQ(Acquire::Decode(wire, kNow)->label, "a?b");
}

TEST(PermitRequestsTest, UnsetUnitsMeanSingleUnitAndZeroStaysZero) {
  v1::AcquirePermitRequest wire = ValidAcquire();
  wire.set_units(0);
  EXPECT_EQ(Acquire::Decode(wire, kNow)->units, 0u) << "the core refuses it";
  wire.set_units(3);
  EXPECT_EQ(Acquire::Decode(wire, kNow)->units, 3u);
  v1::AcquireGangRequest gang;
  gang.set_holder_key("thread-1");
  gang.add_members();
  gang.add_members()->set_units(0);
  EXPECT_EQ(Gang::Decode(gang, kNow)->members[0].units, 1u);
  EXPECT_EQ(Gang::Decode(gang, kNow)->members[1].units, 0u);
}

core::AcquireResult On(const std::string& uuid, core::MemoryKind kind, uint64_t permit) {
  core::AcquireResult result;
  result.acquisition = AcquisitionId(permit + 100);
  result.permit = PermitId(permit);
  result.epoch = 7;
  result.device = core::PlacedDevice{.ordinal = 2, .uuid = uuid, .kind = kind, .generation = 5};
  return result;
}

TEST(PermitRequestsTest, GrantNamesDeviceUuidAndEnvironment) {
  v1::AcquirePermitResponse wire;
  Acquire::Encode(On("GPU-a", core::MemoryKind::kCudaVmm, 9), &wire);
  EXPECT_EQ(wire.permit(), 9u);
  EXPECT_EQ(wire.acquisition(), 109u);
  EXPECT_EQ(wire.epoch(), 7u);
  EXPECT_EQ(wire.device().uuid(), "GPU-a");
  EXPECT_EQ(wire.device().ordinal(), 2u);
  EXPECT_EQ(wire.device().generation(), 5u);
  ASSERT_EQ(wire.environment_size(), 2);
  EXPECT_EQ(wire.environment().at("CUDA_VISIBLE_DEVICES"), "GPU-a");
  EXPECT_EQ(wire.environment().at("CUDA_DEVICE_ORDER"), "PCI_BUS_ID");
  // A device that is no GPU is not visible to GPU runtimes. A permit without a device changes no variable.
  v1::AcquirePermitResponse host, none;
  Acquire::Encode(On("HOST-0", core::MemoryKind::kHost, 1), &host);
  EXPECT_EQ(host.device().uuid(), "HOST-0");
  EXPECT_EQ(host.environment_size(), 0);
  Acquire::Encode(core::AcquireResult(), &none);
  EXPECT_FALSE(none.has_device());
  EXPECT_EQ(none.environment_size(), 0);
}

TEST(PermitRequestsTest, GangNamesEachDeviceOnce) {
  core::GangResult gang;
  for (const auto& [uuid, ordinal] : {std::pair("GPU-b", 1u), {"GPU-a", 0u}, {"GPU-b", 1u}}) {
    gang.permits.push_back(On(uuid, core::MemoryKind::kCudaVmm, gang.permits.size() + 1));
    gang.permits.back().device->ordinal = ordinal;
  }
  gang.permits.push_back(On("HOST-0", core::MemoryKind::kHost, 4));
  v1::AcquireGangResponse wire;
  Gang::Encode(gang, &wire);
  ASSERT_EQ(wire.permits_size(), 4);
  EXPECT_EQ(wire.environment().at("CUDA_VISIBLE_DEVICES"), "GPU-a,GPU-b") << "by their ordinals";
  EXPECT_EQ(wire.environment().at("CUDA_DEVICE_ORDER"), "PCI_BUS_ID");
  EXPECT_FALSE(wire.has_reservation());
}

}  // namespace
}  // namespace berth::service
