// Bad input in requests: each request is refused with an error that names value and limit. It changes nothing, and
// connection and daemon stay alive.

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/admin.grpc.pb.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.grpc.pb.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/testing.h"
#include "tests/support/wire/raw_client.h"

namespace berth::testing {
namespace {

using Memory = v1::MemoryService::Stub;
using Permits = v1::PermitService::Stub;
using Sessions = v1::SessionService::Stub;
using Admin = v1::AdminService::Stub;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kBudget = 8 * kMiB;
constexpr uid_t kOtherUser = 1001;

class BadRequestTest : public ::testing::Test {
 protected:
  BadRequestTest()
      : daemon_({.flags = {absl::StrCat("--device-budget=", kBudget)}}),
        client_(std::make_unique<RawClient>(RawClient::Open(daemon_.folder()))) {
    with_client_ = daemon_.TakeAccounts();
  }

  void TearDown() override {
    EXPECT_TRUE(Ok(client_->Call(&Permits::GetPool, v1::GetPoolRequest()))) << "the connection is not alive";
    client_.reset();
    daemon_.ExpectAccountsBack();
  }

  // Expects the same accounting as before the bad request.
  void ExpectNothingChanged() {
    const Accounts now = daemon_.TakeAccounts();
    EXPECT_EQ(now.permits, with_client_.permits);
    EXPECT_EQ(now.waiters, with_client_.waiters);
    EXPECT_EQ(now.blocks, with_client_.blocks);
    EXPECT_EQ(now.imports, with_client_.imports);
    EXPECT_EQ(now.live + now.reserved + now.quarantined + now.retired, 0u);
  }

  v1::AcquirePermitRequest Acquire() {
    v1::AcquirePermitRequest request;
    *request.mutable_request() = client_->NextTag();
    request.set_holder_key("k");
    request.mutable_max_wait();
    return request;
  }

  v1::AllocateBlockRequest Allocate(uint64_t bytes) {
    v1::AllocateBlockRequest request;
    *request.mutable_request() = client_->NextTag();
    request.set_bytes(bytes);
    return request;
  }

  TestDaemon daemon_;
  std::unique_ptr<RawClient> client_;
  Accounts with_client_;
};

TEST_F(BadRequestTest, BlockSizesAreLimited) {
  EXPECT_TRUE(Refused(client_->Call(&Memory::AllocateBlock, Allocate(0)), Reason::kInvalidField,
                      {{"field", "bytes"}, {"value", "0"}, {"limit", "1"}}));
  EXPECT_TRUE(Refused(client_->Call(&Memory::AllocateBlock, Allocate(kBudget + 1)), Reason::kOverBudget,
                      {{"layer", "device"},
                       {"device", "0"},
                       {"requested", absl::StrCat(kBudget + 2 * kMiB)},
                       {"current", "0"},
                       {"remaining", absl::StrCat(kBudget)},
                       {"limit", absl::StrCat(kBudget)}}));
  for (const uint64_t bytes : {UINT64_MAX, UINT64_MAX - 1, UINT64_MAX - 2 * kMiB, uint64_t{1} << 63}) {
    EXPECT_TRUE(Refused(client_->Call(&Memory::AllocateBlock, Allocate(bytes)), Reason::kOutOfRange,
                        {{"field", "bytes"}, {"value", absl::StrCat(bytes)}}));
  }
  EXPECT_TRUE(Refused(client_->Call(&Memory::AllocateBlock, Allocate((uint64_t{1} << 63) - 2 * kMiB)),
                      Reason::kOverBudget));
  ExpectNothingChanged();
}

TEST_F(BadRequestTest, MissingDeviceIsRejected) {
  v1::AllocateBlockRequest request = Allocate(1);
  request.set_device(1);
  EXPECT_TRUE(Refused(client_->Call(&Memory::AllocateBlock, request), Reason::kNotFound,
                      {{"kind", "device"}, {"id", "1"}}));
  request = Allocate(1);
  request.set_device(63);
  EXPECT_TRUE(Refused(client_->Call(&Memory::AllocateBlock, request), Reason::kNotFound, {{"id", "63"}}));
  for (const uint32_t ordinal : {64u, UINT32_MAX}) {
    request = Allocate(1);
    request.set_device(ordinal);
    EXPECT_TRUE(Refused(client_->Call(&Memory::AllocateBlock, request), Reason::kOutOfRange,
                        {{"field", "device"}, {"value", absl::StrCat(ordinal)}}));
  }
  request = Allocate(1);
  request.set_device_uuid("GPU-of-nobody");
  EXPECT_TRUE(
      Refused(client_->Call(&Memory::AllocateBlock, request), Reason::kNotFound, {{"id", "GPU-of-nobody"}}));
  ExpectNothingChanged();
}

TEST_F(BadRequestTest, NamingTextMustBePrintableAndShort) {
  const std::vector<std::string> texts = {"two\nlines", std::string(1, '\0'), "\x1b[2J",
                                          std::string(129, 'x'), std::string(10'240, 'y')};
  for (const std::string& text : texts) {
    v1::AcquirePermitRequest acquire = Acquire();
    acquire.set_holder_key(text);
    EXPECT_TRUE(Refused(client_->Call(&Permits::AcquirePermit, acquire), Reason::kInvalidField,
                        {{"field", "holder_key"}}));
    acquire = Acquire();
    acquire.set_pool(text);
    EXPECT_TRUE(
        Refused(client_->Call(&Permits::AcquirePermit, acquire), Reason::kInvalidField, {{"field", "pool"}}));
    v1::AllocateBlockRequest allocate = Allocate(1);
    allocate.set_device_uuid(text);
    const absl::Status refused = client_->Call(&Memory::AllocateBlock, allocate).status();
    EXPECT_TRUE(Refused(refused, Reason::kInvalidField, {{"field", "device_uuid"}}));
    // The error message is short and printable as well.
    EXPECT_LT(refused.message().size(), 512u);
  }
  // A value at the limit is accepted.
  v1::AcquirePermitRequest acquire = Acquire();
  acquire.set_holder_key(std::string(128, 'x'));
  const absl::StatusOr<v1::AcquirePermitResponse> permit = client_->Call(&Permits::AcquirePermit, acquire);
  ASSERT_TRUE(Ok(permit));
  v1::ReleasePermitRequest release;
  *release.mutable_request() = client_->NextTag();
  release.set_acquisition(permit->acquisition());
  EXPECT_TRUE(Ok(client_->Call(&Permits::ReleasePermit, release)));
  ExpectNothingChanged();
}

TEST_F(BadRequestTest, InvalidPermitRequestsAreRejected) {
  v1::AcquirePermitRequest acquire = Acquire();
  acquire.set_pool("of-nobody");
  EXPECT_TRUE(
      Refused(client_->Call(&Permits::AcquirePermit, acquire), Reason::kNotFound, {{"id", "of-nobody"}}));
  for (const uint64_t units : {uint64_t{3}, UINT64_MAX}) {
    acquire = Acquire();
    acquire.set_units(units);
    EXPECT_TRUE(Refused(client_->Call(&Permits::AcquirePermit, acquire), Reason::kOverCap,
                        {{"pool", "gpu-tests"}, {"asked", absl::StrCat(units)}, {"cap", "2"}}));
  }
  acquire = Acquire();
  acquire.set_units(0);
  EXPECT_TRUE(Refused(client_->Call(&Permits::AcquirePermit, acquire), Reason::kInvalidField,
                      {{"field", "units"}, {"value", "0"}, {"limit", "1"}}));
  v1::ListPermitsRequest permits_of;
  permits_of.set_pool("of-nobody");
  EXPECT_TRUE(Refused(client_->Call(&Permits::ListPermits, permits_of), Reason::kNotFound, {{"id", "of-nobody"}}));
  permits_of.set_pool("a\nb");
  EXPECT_TRUE(Refused(client_->Call(&Permits::ListPermits, permits_of), Reason::kInvalidField, {{"field", "pool"}}));
  acquire = Acquire();
  acquire.clear_holder_key();
  EXPECT_TRUE(Refused(client_->Call(&Permits::AcquirePermit, acquire), Reason::kInvalidField,
                      {{"field", "holder_key"}}));
  acquire = Acquire();
  acquire.mutable_max_wait()->set_seconds(-1);
  EXPECT_TRUE(Refused(client_->Call(&Permits::AcquirePermit, acquire), Reason::kInvalidField,
                      {{"field", "max_wait"}}));
  acquire.mutable_max_wait()->set_seconds(INT64_MAX);
  EXPECT_TRUE(Refused(client_->Call(&Permits::AcquirePermit, acquire), Reason::kInvalidField,
                      {{"field", "max_wait"}}));
  for (const int priority : {-11, 11, INT32_MIN, INT32_MAX}) {
    acquire = Acquire();
    acquire.set_priority(priority);
    EXPECT_TRUE(Refused(client_->Call(&Permits::AcquirePermit, acquire), Reason::kInvalidField,
                        {{"field", "priority"}, {"value", absl::StrCat(priority)}}));
  }
  v1::GetPoolRequest get;
  get.set_pool("of-nobody");
  EXPECT_TRUE(Refused(client_->Call(&Permits::GetPool, get), Reason::kNotFound, {{"id", "of-nobody"}}));
  v1::ListPoolsRequest list;
  list.set_page_size(-1);
  EXPECT_TRUE(Refused(client_->Call(&Permits::ListPools, list), Reason::kInvalidField,
                      {{"field", "page_size"}, {"value", "-1"}}));
  list.set_page_size(0);
  list.set_page_token("no token of ours");
  EXPECT_TRUE(
      Refused(client_->Call(&Permits::ListPools, list), Reason::kInvalidField, {{"field", "page_token"}}));
  ExpectNothingChanged();
}

TEST_F(BadRequestTest, InvalidGangRequestsAreRejected) {
  const auto refused = [&](const v1::AcquireGangRequest& request, Reason reason,
                           const std::map<std::string, std::string>& named_values = {}) {
    v1::AcquireGangRequest tagged = request;
    *tagged.mutable_request() = client_->NextTag();
    EXPECT_TRUE(Refused(client_->Call(&Permits::AcquireGang, tagged), reason, named_values));
  };
  v1::AcquireGangRequest gang;
  gang.set_holder_key("key");
  refused(gang, Reason::kInvalidField, {{"field", "members"}, {"value", "0"}});
  gang.add_members();
  v1::AcquireGangRequest other = gang;
  other.clear_holder_key();
  refused(other, Reason::kInvalidField, {{"field", "holder_key"}});
  other = gang;
  other.set_priority(11);
  refused(other, Reason::kInvalidField, {{"field", "priority"}});
  other = gang;
  other.mutable_max_wait()->set_nanos(-1);
  refused(other, Reason::kInvalidField, {{"field", "max_wait"}});
  other = gang;
  other.mutable_members(0)->set_pool("of-nobody");
  refused(other, Reason::kNotFound, {{"id", "of-nobody"}});
  other = gang;
  other.mutable_members(0)->set_units(UINT64_MAX);
  other.add_members()->set_units(UINT64_MAX);
  refused(other, Reason::kOverCap, {{"pool", "gpu-tests"}, {"cap", "2"}});
  other = gang;
  other.mutable_members(0)->set_units(0);
  refused(other, Reason::kInvalidField, {{"field", "units"}, {"value", "0"}});
  other = gang;
  other.mutable_members(0)->mutable_device()->set_declared_bytes(1);
  refused(other, Reason::kInvalidField, {{"field", "device.pick"}});
  other = gang;
  other.add_reserve();
  refused(other, Reason::kInvalidField, {{"field", "bytes"}});
  other = gang;
  for (int i = 0; i < 64; ++i) other.add_members();
  refused(other, Reason::kInvalidField, {{"field", "members"}, {"value", "65"}});
  ExpectNothingChanged();
}

TEST_F(BadRequestTest, HolderKeyOfOtherSessionDoesNotNest) {
  RawClient other = RawClient::Open(daemon_.folder());
  v1::AcquirePermitRequest acquire = Acquire();
  EXPECT_TRUE(Ok(client_->Call(&Permits::AcquirePermit, acquire)));
  *acquire.mutable_request() = other.NextTag();
  const absl::StatusOr<v1::AcquirePermitResponse> granted = other.Call(&Permits::AcquirePermit, acquire);
  ASSERT_TRUE(Ok(granted));
  EXPECT_FALSE(granted->nested());
  EXPECT_EQ(daemon_.TakeAccounts().units, 2u);
}

TEST_F(BadRequestTest, RepeatedOrForeignReleaseDoesNotRaiseCount) {
  v1::AcquirePermitRequest acquire = Acquire();
  const absl::StatusOr<v1::AcquirePermitResponse> permit = client_->Call(&Permits::AcquirePermit, acquire);
  ASSERT_TRUE(Ok(permit));
  RawClient other = RawClient::Open(daemon_.folder());
  v1::ReleasePermitRequest release;
  release.set_acquisition(permit->acquisition());
  *release.mutable_request() = other.NextTag();
  EXPECT_TRUE(Refused(other.Call(&Permits::ReleasePermit, release), Reason::kNotFound,
                      {{"id", absl::StrCat(permit->acquisition())}}));
  if (IsRoot()) {
    RawClient of_another_tenant = RawClient::Open(daemon_.folder(), "berthd.sock", kOtherUser);
    *release.mutable_request() = of_another_tenant.NextTag();
    EXPECT_TRUE(Refused(of_another_tenant.Call(&Permits::ReleasePermit, release), Reason::kNotFound,
                        {{"id", absl::StrCat(permit->acquisition())}}));
  }
  EXPECT_EQ(daemon_.TakeAccounts().units, 1u);

  *release.mutable_request() = client_->NextTag();
  EXPECT_TRUE(Ok(client_->Call(&Permits::ReleasePermit, release)));
  // A repeated request gets the same answer; another request for the same acquisition finds nothing.
  EXPECT_TRUE(Ok(client_->Call(&Permits::ReleasePermit, release)));
  for (int i = 0; i < 5; ++i) {
    *release.mutable_request() = client_->NextTag();
    EXPECT_TRUE(Refused(client_->Call(&Permits::ReleasePermit, release), Reason::kNotFound));
  }
  release.set_acquisition(0);
  *release.mutable_request() = client_->NextTag();
  EXPECT_TRUE(Refused(client_->Call(&Permits::ReleasePermit, release), Reason::kNotFound));
  EXPECT_EQ(daemon_.TakeAccounts().units, 0u);
  // The pool still grants two permits and no third.
  for (const char* const key : {"a", "b"}) {
    acquire = Acquire();
    acquire.set_holder_key(key);
    EXPECT_TRUE(Ok(client_->Call(&Permits::AcquirePermit, acquire)));
  }
  acquire = Acquire();
  acquire.set_holder_key("c");
  EXPECT_TRUE(Refused(client_->Call(&Permits::AcquirePermit, acquire), Reason::kNoPermit));
}

TEST_F(BadRequestTest, ImportOfBlockNeedsGrant) {
  const absl::StatusOr<v1::AllocateBlockResponse> made = client_->Call(&Memory::AllocateBlock, Allocate(1));
  ASSERT_TRUE(Ok(made));
  ASSERT_TRUE(Ok(client_->ReceiveBlock()));
  RawClient other = RawClient::Open(daemon_.folder());
  v1::ImportBlockRequest import;
  *import.mutable_handle() = made->block().handle();
  *import.mutable_request() = other.NextTag();
  const absl::Status denied = other.Call(&Memory::ImportBlock, import).status();
  EXPECT_TRUE(Refused(denied, Reason::kDenied, {{"kind", "block"}}));
  // The answer for a block that does not exist is the same.
  import.mutable_handle()->set_block(import.handle().block() ^ 1);
  *import.mutable_request() = other.NextTag();
  const absl::Status unknown = other.Call(&Memory::ImportBlock, import).status();
  EXPECT_TRUE(Refused(unknown, Reason::kDenied, {{"kind", "block"}}));
  EXPECT_EQ(denied.message().size(), unknown.message().size()) << denied << unknown;

  v1::FreeBlockRequest free_block;
  *free_block.mutable_handle() = made->block().handle();
  *free_block.mutable_request() = other.NextTag();
  EXPECT_TRUE(Refused(other.Call(&Memory::FreeBlock, free_block), Reason::kNotFound, {{"kind", "block"}}));
  v1::GrantBlockRequest grant;
  *grant.mutable_handle() = made->block().handle();
  *grant.mutable_request() = other.NextTag();
  grant.set_session(other.session_credentials().session.value());
  EXPECT_TRUE(Refused(other.Call(&Memory::GrantBlock, grant), Reason::kNotFound, {{"kind", "block"}}));
  *grant.mutable_request() = client_->NextTag();
  grant.clear_grantee();
  EXPECT_TRUE(Refused(client_->Call(&Memory::GrantBlock, grant), Reason::kInvalidField));
  EXPECT_EQ(daemon_.TakeAccounts().imports, 1u);

  free_block.mutable_handle()->set_block_generation(free_block.handle().block_generation() + 1);
  *free_block.mutable_request() = client_->NextTag();
  EXPECT_TRUE(Refused(client_->Call(&Memory::FreeBlock, free_block), Reason::kStale));
  *free_block.mutable_handle() = made->block().handle();
  free_block.add_let_go(made->import());
  *free_block.mutable_request() = client_->NextTag();
  EXPECT_TRUE(Ok(client_->Call(&Memory::FreeBlock, free_block)));
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.blocks == 0; }));
  *free_block.mutable_request() = client_->NextTag();
  EXPECT_FALSE(Ok(client_->Call(&Memory::FreeBlock, free_block)));
  ExpectNothingChanged();
}

TEST_F(BadRequestTest, EmptyOrForeignHandleNamesNoBlock) {
  v1::ImportBlockRequest import;
  *import.mutable_request() = client_->NextTag();
  EXPECT_TRUE(
      Refused(client_->Call(&Memory::ImportBlock, import), Reason::kInvalidField, {{"field", "handle"}}));
  import.mutable_handle()->set_block(UINT64_MAX);
  import.mutable_handle()->set_device_uuid("HOST-0");
  *import.mutable_request() = client_->NextTag();
  EXPECT_FALSE(Ok(client_->Call(&Memory::ImportBlock, import)));
  v1::FreeBlockRequest free_block;
  *free_block.mutable_request() = client_->NextTag();
  EXPECT_TRUE(
      Refused(client_->Call(&Memory::FreeBlock, free_block), Reason::kInvalidField, {{"field", "handle"}}));
  ExpectNothingChanged();
}

TEST_F(BadRequestTest, RequestIsBoundToItsPayload) {
  v1::AllocateBlockRequest allocate = Allocate(1);
  const absl::StatusOr<v1::AllocateBlockResponse> made = client_->Call(&Memory::AllocateBlock, allocate);
  ASSERT_TRUE(Ok(made));
  // The same request returns the same block, not a second one.
  const absl::StatusOr<v1::AllocateBlockResponse> again = client_->Call(&Memory::AllocateBlock, allocate);
  ASSERT_TRUE(Ok(again));
  EXPECT_EQ(again->block().handle().block(), made->block().handle().block());
  const std::string sequence = absl::StrCat(allocate.request().sequence());
  allocate.set_bytes(2);
  EXPECT_TRUE(Refused(client_->Call(&Memory::AllocateBlock, allocate), Reason::kRequestReused,
                      {{"sequence", sequence}}));
  // The same holds for another kind of request under the same number.
  v1::AcquirePermitRequest acquire = Acquire();
  *acquire.mutable_request() = allocate.request();
  EXPECT_TRUE(Refused(client_->Call(&Permits::AcquirePermit, acquire), Reason::kRequestReused));
  acquire.mutable_request()->set_sequence(0);
  EXPECT_TRUE(
      Refused(client_->Call(&Permits::AcquirePermit, acquire), Reason::kInvalidField, {{"value", "0"}}));
  acquire.clear_request();
  EXPECT_TRUE(Refused(client_->Call(&Permits::AcquirePermit, acquire), Reason::kInvalidField));
  EXPECT_EQ(daemon_.TakeAccounts().blocks, 1u);
}

TEST_F(BadRequestTest, ForgottenRequestIsRejectedOnArrival) {
  const v1::AcquirePermitRequest acquire = Acquire();
  v1::ForgetRequestRequest forget;
  forget.set_sequence(acquire.request().sequence());
  const absl::StatusOr<v1::ForgetRequestResponse> forgotten = client_->Call(&Sessions::ForgetRequest, forget);
  ASSERT_TRUE(Ok(forgotten));
  EXPECT_EQ(forgotten->outcome(), v1::ForgetRequestResponse::REMEMBERED);
  EXPECT_TRUE(Refused(client_->Call(&Permits::AcquirePermit, acquire), Reason::kRequestForgotten));
  ExpectNothingChanged();
}

TEST_F(BadRequestTest, UnsettledAnswersAreBounded) {
  v1::ReleasePermitRequest release;
  release.set_acquisition(12345);
  absl::Status status;
  int answered = 0;
  // The daemon caches 1,024 answers.
  for (; answered < 1100; ++answered) {
    *release.mutable_request() = client_->NextTag();
    status = client_->Call(&Permits::ReleasePermit, release).status();
    if (!IsRefusal(status, Reason::kNotFound)) break;
  }
  EXPECT_EQ(answered, 1024);
  EXPECT_TRUE(Refused(status, Reason::kLimit, {{"limit", "1024"}}));
  // Acknowledging answers makes capacity.
  *release.mutable_request() = client_->NextTag();
  release.mutable_request()->set_answered_below(release.request().sequence());
  EXPECT_TRUE(Refused(client_->Call(&Permits::ReleasePermit, release), Reason::kNotFound));
}

TEST_F(BadRequestTest, MessageOfMebibyteIsRejected) {
  v1::AcquirePermitRequest acquire = Acquire();
  acquire.set_label(std::string(kMiB, 'x'));
  const absl::Status status = client_->Call(&Permits::AcquirePermit, acquire).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  // gRPC's own message names both sizes.
  EXPECT_TRUE(absl::StrContains(status.message(), "65536")) << status;
  ExpectNothingChanged();
}

TEST_F(BadRequestTest, OperatorVerbsAreNotServedToClients) {
  v1::SetPoolRequest cap;
  cap.set_cap(9);
  EXPECT_TRUE(Refused(client_->Call(&Admin::SetPool, cap), Reason::kAdminOnly, {{"verb", "SetPool"}}));
  v1::SetBudgetRequest budget;
  budget.set_limit_bytes(1);
  EXPECT_TRUE(
      Refused(client_->Call(&Memory::SetBudget, budget), Reason::kAdminOnly, {{"verb", "SetBudget"}}));
  RawClient admin = RawClient::Open(daemon_.folder(), "admin.sock");
  cap.set_cap(0);
  EXPECT_TRUE(Refused(admin.Call(&Admin::SetPool, cap), Reason::kInvalidField,
                      {{"field", "cap"}, {"value", "0"}, {"limit", "1"}}));
  cap.set_cap(1);
  cap.set_pool("of-nobody");
  EXPECT_TRUE(Refused(admin.Call(&Admin::SetPool, cap), Reason::kNotFound, {{"id", "of-nobody"}}));
  budget.set_device(5);
  EXPECT_TRUE(Refused(admin.Call(&Memory::SetBudget, budget), Reason::kNotFound, {{"id", "5"}}));
  budget.set_device(0);
  budget.set_limit_bytes(UINT64_MAX);
  EXPECT_TRUE(Refused(admin.Call(&Memory::SetBudget, budget), Reason::kOutOfRange));
  v1::GetPoolRequest get;
  const absl::StatusOr<v1::Pool> pool = client_->Call(&Permits::GetPool, get);
  ASSERT_TRUE(Ok(pool));
  EXPECT_EQ(pool->cap(), 2u);
}

TEST_F(BadRequestTest, ProcessLeavingFdsUnreadIsLimitedAlone) {
  // 8 deliveries are in transit without an acknowledgement; the remaining requests wait in the daemon.
  std::vector<v1::BlockHandle> handles;
  absl::Status status;
  const absl::StatusOr<v1::AllocateBlockResponse> made = client_->Call(&Memory::AllocateBlock, Allocate(1));
  ASSERT_TRUE(Ok(made));
  v1::ImportBlockRequest import;
  *import.mutable_handle() = made->block().handle();
  int imported = 0;
  for (; imported < 2000; ++imported) {
    *import.mutable_request() = client_->NextTag();
    import.mutable_request()->set_answered_below(import.request().sequence());
    status = client_->Call(&Memory::ImportBlock, import).status();
    if (!status.ok()) break;
  }
  EXPECT_TRUE(Refused(status, Reason::kLimit));
  EXPECT_LE(imported, 1100);
  RawClient other = RawClient::Open(daemon_.folder());
  v1::AllocateBlockRequest allocate;
  *allocate.mutable_request() = other.NextTag();
  allocate.set_bytes(1);
  EXPECT_TRUE(Ok(other.Call(&Memory::AllocateBlock, allocate)));
  EXPECT_TRUE(Ok(other.ReceiveBlock()));
}

}  // namespace
}  // namespace berth::testing
