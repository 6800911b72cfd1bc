#include "berth/v1/memory.pb.h"
#include "berth/v1/resources.pb.h"
#include "daemon/service/rpc/memory_requests.h"

#include <berth/error.h>

#include "daemon/broker/node_clock.h"
#include "gtest/gtest.h"

namespace berth::service {
namespace {

// A time of the core's clock, with a known wall time.
const absl::Time kNow = NodeClock::Real().FromWall(absl::FromUnixSeconds(1'000'000));

TEST(MemoryRequestsTest, HandleMustNameBlock) {
  v1::FreeBlockRequest wire;
  EXPECT_TRUE(IsRefusal(RpcTraits<core::FreeRequest>::Decode(wire, kNow).status(), Reason::kInvalidField));
  wire.mutable_handle()->set_block(7);
  EXPECT_TRUE(IsRefusal(RpcTraits<core::FreeRequest>::Decode(wire, kNow).status(), Reason::kInvalidField));
  wire.mutable_handle()->set_device_uuid("HOST-0");
  wire.add_let_go(3);
  const auto request = RpcTraits<core::FreeRequest>::Decode(wire, kNow);
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->handle.block, BlockId(7));
  EXPECT_EQ(request->let_go, std::vector<ImportId>{ImportId(3)});
}

TEST(MemoryRequestsTest, GrantMustNameGrantee) {
  v1::GrantBlockRequest wire;
  wire.mutable_handle()->set_block(7);
  wire.mutable_handle()->set_device_uuid("HOST-0");
  EXPECT_TRUE(IsRefusal(RpcTraits<core::GrantRequest>::Decode(wire, kNow).status(), Reason::kInvalidField));
  wire.mutable_tenant()->set_uid(1000);
  EXPECT_EQ(std::get<core::Tenant>(RpcTraits<core::GrantRequest>::Decode(wire, kNow)->grantee).uid, 1000u);
  wire.set_session(9);
  EXPECT_EQ(std::get<SessionId>(RpcTraits<core::GrantRequest>::Decode(wire, kNow)->grantee), SessionId(9));
}

TEST(MemoryRequestsTest, BlockRetainsItsFieldsOnConversion) {
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
  EXPECT_EQ(wire.tenant().uid(), 1000u);
}

// Memory that was made in advance, on a device that was lost. Its uid would be root's, and its time that of the boot.
TEST(MemoryRequestsTest, NeverAllocatedBlockHasNeitherTenantNorTime) {
  const core::BlockView view = {.bytes = MiB(2), .state = core::BlockState::kRetired};
  v1::Block wire;
  ToProto(view, &wire);
  EXPECT_FALSE(wire.has_tenant());
  EXPECT_FALSE(wire.has_create_time());
}

}  // namespace
}  // namespace berth::service
