#include "daemon/service/permit_conversion.h"

#include "common/error.h"
#include "gtest/gtest.h"

namespace berth::service {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'000'000);

v1::AcquirePermitRequest ValidAcquire() {
  v1::AcquirePermitRequest request;
  request.set_holder_key("thread-1");
  return request;
}

TEST(PermitConversionTest, AnAcquireHasDefaults) {
  const auto request = FromProto(ValidAcquire(), kNow);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->pool, "gpu-tests");
  EXPECT_EQ(request->units, 1u);
  EXPECT_TRUE(request->wait);
  EXPECT_EQ(request->deadline, absl::InfiniteFuture());
}

TEST(PermitConversionTest, ZeroWaitIsNoWaitAndOthersBecomeADeadline) {
  v1::AcquirePermitRequest wire = ValidAcquire();
  wire.mutable_max_wait();
  EXPECT_FALSE(FromProto(wire, kNow)->wait);
  wire.mutable_max_wait()->set_nanos(1);
  EXPECT_TRUE(FromProto(wire, kNow)->wait);
  wire.mutable_max_wait()->set_seconds(90);
  EXPECT_EQ(FromProto(wire, kNow)->deadline, kNow + absl::Seconds(90) + absl::Nanoseconds(1));
}

TEST(PermitConversionTest, NamesTheFieldOfABadAcquire) {
  const auto refused = [](auto change, const char* field) {
    v1::AcquirePermitRequest wire = ValidAcquire();
    change(wire);
    const auto request = FromProto(wire, kNow);
    EXPECT_TRUE(IsRefusal(request.status(), Reason::kInvalidField)) << field;
    EXPECT_EQ(GetErrorDetails(request.status())->metadata["field"], field);
  };
  refused([](auto& wire) { wire.clear_holder_key(); }, "holder_key");
  refused([](auto& wire) { wire.set_holder_key(std::string(129, 'x')); }, "holder_key");
  refused([](auto& wire) { wire.set_label("a\tb"); }, "label");
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

}  // namespace
}  // namespace berth::service
