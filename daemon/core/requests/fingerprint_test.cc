#include "daemon/core/requests/fingerprint.h"

#include <set>

#include "daemon/core/types/block_types.h"
#include "daemon/core/types/permit_types.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

TEST(FingerprintTest, FingerprintIsFnv1a) {
  EXPECT_EQ(Fingerprint().value(), 0xcbf29ce484222325);
  EXPECT_EQ(FingerprintOf(AcquisitionId(1)), FingerprintOf(AcquisitionId(1)));
  EXPECT_EQ(Fingerprint().Add(uint64_t{0}).value(), 0xa8c7f832281a39c5);
  // Computes the expected value byte by byte, as FNV-1a is defined.
  for (const uint64_t value : {uint64_t{1}, uint64_t{0x100}, uint64_t{0x12003400}, uint64_t{1} << 63, UINT64_MAX}) {
    uint64_t expected = 0xcbf29ce484222325;
    for (int i = 0; i < 8; ++i) expected = (expected ^ (value >> (8 * i) & 0xff)) * 0x100000001b3;
    EXPECT_EQ(Fingerprint().Add(value).value(), expected) << value;
  }
}

TEST(FingerprintTest, AdjacentTextsStayDistinct) {
  EXPECT_NE(Fingerprint().Add("ab").Add("c").value(), Fingerprint().Add("a").Add("bc").value());
  EXPECT_NE(Fingerprint().Add("").Add("a").value(), Fingerprint().Add("a").Add("").value());
}

TEST(FingerprintTest, EveryAcquireFieldButDeadlineCounts) {
  const AcquireRequest base{.pool = "p", .units = 1, .holder_key = "k", .label = "l"};
  std::set<uint64_t> seen = {FingerprintOf(base)};
  const auto differs = [&](auto change) {
    AcquireRequest request = base;
    change(request);
    return seen.insert(FingerprintOf(request)).second;
  };
  EXPECT_TRUE(differs([](AcquireRequest& r) { r.pool = "q"; }));
  EXPECT_TRUE(differs([](AcquireRequest& r) { r.units = 2; }));
  EXPECT_TRUE(differs([](AcquireRequest& r) { r.holder_key = "j"; }));
  EXPECT_TRUE(differs([](AcquireRequest& r) { r.label = "m"; }));
  EXPECT_TRUE(differs([](AcquireRequest& r) { r.wait = false; }));
  EXPECT_TRUE(differs([](AcquireRequest& r) { r.client_cap = 1; }));
  EXPECT_TRUE(differs([](AcquireRequest& r) { r.adoptable = true; }));
  EXPECT_TRUE(differs([](AcquireRequest& r) { r.independent = true; }));
  EXPECT_FALSE(differs([](AcquireRequest& r) { r.deadline = absl::UnixEpoch(); }));
}

TEST(FingerprintTest, EachBlockRequestFieldChangesFingerprint) {
  const BlockHandle handle{.node = 1,
                           .incarnation = 2,
                           .device_uuid = "u",
                           .block = BlockId(3),
                           .generation = 4,
                           .block_generation = 5};
  std::set<uint64_t> seen;
  const auto fresh = [&](uint64_t fingerprint) { return seen.insert(fingerprint).second; };
  EXPECT_TRUE(fresh(FingerprintOf(AllocateRequest{.device = 1, .bytes = Bytes(2)})));
  EXPECT_TRUE(fresh(FingerprintOf(AllocateRequest{.device = 2, .bytes = Bytes(2)})));
  EXPECT_TRUE(fresh(FingerprintOf(AllocateRequest{.device = 1, .bytes = Bytes(3)})));
  EXPECT_TRUE(fresh(FingerprintOf(AllocateRequest{.device = 1, .device_uuid = "u", .bytes = Bytes(2)})));
  EXPECT_TRUE(fresh(FingerprintOf(AllocateRequest{.device = 1, .bytes = Bytes(2), .label = "l"})));
  EXPECT_TRUE(fresh(FingerprintOf(FreeRequest{.handle = handle})));
  EXPECT_TRUE(fresh(FingerprintOf(FreeRequest{.handle = handle, .let_go = {ImportId(1)}})));
  EXPECT_TRUE(fresh(FingerprintOf(ImportRequest{.handle = handle})));
  EXPECT_TRUE(fresh(FingerprintOf(ImportRequest{.handle = handle, .read_only = true})));
  EXPECT_TRUE(fresh(FingerprintOf(ImportRequest{.name = "w"})));
  EXPECT_TRUE(fresh(FingerprintOf(ImportRequest{.name = "w", .publisher = Tenant{}})));
  EXPECT_TRUE(fresh(FingerprintOf(ImportRequest{.name = "w", .publisher = Tenant{.uid = 1}})));
  EXPECT_TRUE(fresh(FingerprintOf(PublishRequest{.handle = handle, .name = "w"})));
  EXPECT_TRUE(fresh(FingerprintOf(PublishRequest{.handle = handle, .name = "w", .replace = true})));
  EXPECT_TRUE(fresh(FingerprintOf(GrantRequest{.handle = handle, .grantee = SessionId(1)})));
  EXPECT_TRUE(fresh(FingerprintOf(GrantRequest{.handle = handle, .grantee = Tenant{.uid = 1}})));
  EXPECT_TRUE(
      fresh(FingerprintOf(GrantRequest{.handle = handle, .grantee = Tenant{.uid = 1, .container = "c"}})));
  for (int field = 0; field < 6; ++field) {
    BlockHandle other = handle;
    if (field == 0) ++other.node;
    if (field == 1) ++other.incarnation;
    if (field == 2) other.device_uuid = "v";
    if (field == 3) other.block = BlockId(9);
    if (field == 4) ++other.generation;
    if (field == 5) ++other.block_generation;
    EXPECT_TRUE(fresh(FingerprintOf(ImportRequest{.handle = other}))) << field;
    EXPECT_TRUE(fresh(FingerprintOf(FreeRequest{.handle = other}))) << field;
  }
  EXPECT_TRUE(fresh(FingerprintOf(AcquisitionId(1))));
}

}  // namespace
}  // namespace berth::core
