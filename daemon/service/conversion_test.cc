#include "daemon/service/conversion.h"

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

TEST(ConversionTest, AnAcquireHasDefaults) {
  const auto request = FromProto(ValidAcquire(), kNow);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->pool, "gpu-tests");
  EXPECT_EQ(request->units, 1u);
  EXPECT_TRUE(request->wait);
  EXPECT_EQ(request->deadline, absl::InfiniteFuture());
}

TEST(ConversionTest, ZeroWaitIsNoWaitAndOthersBecomeADeadline) {
  v1::AcquirePermitRequest wire = ValidAcquire();
  wire.mutable_max_wait();
  EXPECT_FALSE(FromProto(wire, kNow)->wait);
  wire.mutable_max_wait()->set_nanos(1);
  EXPECT_TRUE(FromProto(wire, kNow)->wait);
  wire.mutable_max_wait()->set_seconds(90);
  EXPECT_EQ(FromProto(wire, kNow)->deadline, kNow + absl::Seconds(90) + absl::Nanoseconds(1));
}

TEST(ConversionTest, NamesTheFieldOfABadAcquire) {
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
  refused([](auto& wire) { wire.mutable_device()->set_pick(static_cast<v1::DeviceWish::Pick>(4)); },
          "device.pick");
  refused([](auto& wire) { wire.mutable_device()->set_uuid("a\nb"); }, "device.uuid");
  refused([](auto& wire) { wire.mutable_max_wait()->set_seconds(-1); }, "max_wait");
  refused([](auto& wire) { wire.mutable_max_wait()->set_nanos(1'000'000'000); }, "max_wait");
  refused([](auto& wire) { wire.mutable_max_wait()->set_seconds(INT64_MAX); }, "max_wait");
}

TEST(ConversionTest, AHandleMustNameABlock) {
  v1::FreeBlockRequest wire;
  EXPECT_TRUE(IsRefusal(FromProto(wire).status(), Reason::kInvalidField));
  wire.mutable_handle()->set_block(7);
  EXPECT_TRUE(IsRefusal(FromProto(wire).status(), Reason::kInvalidField));
  wire.mutable_handle()->set_device_uuid("HOST-0");
  wire.add_let_go(3);
  const auto request = FromProto(wire);
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->handle.block, BlockId(7));
  EXPECT_EQ(request->let_go, std::vector<ImportId>{ImportId(3)});
}

TEST(ConversionTest, AGrantMustNameAGrantee) {
  v1::GrantBlockRequest wire;
  wire.mutable_handle()->set_block(7);
  wire.mutable_handle()->set_device_uuid("HOST-0");
  EXPECT_TRUE(IsRefusal(FromProto(wire).status(), Reason::kInvalidField));
  wire.mutable_tenant()->set_uid(1000);
  EXPECT_EQ(std::get<core::Tenant>(FromProto(wire)->grantee).uid, 1000u);
  wire.set_session(9);
  EXPECT_EQ(std::get<SessionId>(FromProto(wire)->grantee), SessionId(9));
}

TEST(ConversionTest, ABlockKeepsItsFiguresOnTheWayOut) {
  const core::BlockView view = {
      .handle = {.node = 1,
                 .incarnation = 2,
                 .device_uuid = "HOST-0",
                 .block = BlockId(3),
                 .generation = 4,
                 .block_generation = 5},
      .device = 6,
      .bytes = MiB(2),
      .kind = core::MemoryKind::kHost,
      .state = core::BlockState::kQuarantined,
      .tenant = {.uid = 1000},
      .label = "x",
      .live_since = kNow,
      .imports = {{.id = ImportId(8), .read_only = core::ReadOnly::kEnforced, .since = kNow}}};
  v1::Block wire;
  ToProto(view, &wire);
  EXPECT_EQ(wire.handle().block_generation(), 5u);
  EXPECT_EQ(wire.state(), v1::Block::QUARANTINED);
  EXPECT_EQ(wire.bytes(), 2u << 20);
  EXPECT_EQ(wire.create_time().seconds(), 1'000'000);
  ASSERT_EQ(wire.imports_size(), 1);
  EXPECT_EQ(wire.imports(0).read_only(), v1::READ_ONLY_ENFORCED);
}

TEST(ConversionTest, TimesBeforeTheEpochKeepTheirNanosPositive) {
  google::protobuf::Timestamp wire;
  ToProto(absl::UnixEpoch() - absl::Nanoseconds(1), &wire);
  EXPECT_EQ(wire.seconds(), -1);
  EXPECT_EQ(wire.nanos(), 999'999'999);
}

}  // namespace
}  // namespace berth::service
