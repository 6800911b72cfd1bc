// The devices that a pool's caps name, and the nested acquires that share a device.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

using Caps = std::map<std::string, uint64_t>;
using CapChanges = std::map<std::string, std::optional<uint64_t>>;

class CoreDevicePermitTest : public ::testing::Test {
 protected:
  void Start(const Config& config) { h_ = std::make_unique<CoreHarness>(config); }
  absl::Status SetCaps(const CapChanges& caps, bool stored = false) {
    absl::Status status;
    h_->Do([&](Core& core, Effects* effects) {
      status = core.SetPool(h_->now, "wide", {.device_caps = caps, .stored = stored}, effects).status();
    });
    return status;
  }
  Caps caps() const { return h_->Pool("wide").config.device_caps; }

  std::unique_ptr<CoreHarness> h_ = std::make_unique<CoreHarness>();
};

TEST_F(CoreDevicePermitTest, CapIsSetForUuidOfNamedDevice) {
  for (const auto& [name, uuid] : std::map<std::string, std::string>{{"0", "GPU-1a2b"},
                                                                     {"1", "GPU-1a3c"},
                                                                     {"GPU-1a2b", "GPU-1a2b"},
                                                                     {"GPU-1a3", "GPU-1a3c"}}) {
    SCOPED_TRACE(name);
    Config config = CoreHarness::DefaultConfig();
    config.devices[0].uuid = "GPU-1a2b";
    config.devices[1].uuid = "GPU-1a3c";
    Start(config);
    EXPECT_EQ(SetCaps({{name, 1}}), absl::OkStatus());
    EXPECT_EQ(caps(), (Caps{{uuid, 1}}));
    Peer a = h_->Open();
    AcquireRequest request{.pool = "wide", .units = 2, .holder_key = "1"};
    request.device = {.pick = DevicePick::kNamed, .uuid = uuid};
    EXPECT_TRUE(h_->Refused(h_->Acquire(a, request), Reason::kOverCap));
    EXPECT_EQ(SetCaps({{name, std::nullopt}}), absl::OkStatus());
    EXPECT_EQ(caps(), Caps());
  }
}

TEST_F(CoreDevicePermitTest, CapOfNoOneDeviceIsRefused) {
  const struct {
    const char* name;
    CapChanges caps;
    Reason reason;
  } kCases[] = {
      {"ordinal of no device", {{"2", 1}}, Reason::kNotFound},
      {"UUID of no device", {{"DEVICE-2", 1}}, Reason::kNotFound},
      {"more than a UUID", {{"DEVICE-01", 1}}, Reason::kNotFound},
      {"empty", {{"", 1}}, Reason::kNotFound},
      {"prefix of both", {{"DEVICE-", 1}}, Reason::kInvalidField},
      {"one of two caps", {{"DEVICE-0", 1}, {"7", 2}}, Reason::kNotFound},
      {"one device twice", {{"DEVICE-0", 1}, {"0", 2}}, Reason::kInvalidField},
      {"removal of no cap", {{"DEVICE-2", std::nullopt}}, Reason::kNotFound},
  };
  for (const auto& [name, changes, reason] : kCases) {
    SCOPED_TRACE(name);
    const absl::Status refused = SetCaps(changes);
    EXPECT_TRUE(IsRefusal(refused, reason)) << refused;
    EXPECT_EQ(caps(), Caps());
    if (reason == Reason::kNotFound) {
      EXPECT_EQ(NamedValueOf(refused, "devices"), "0 (DEVICE-0), 1 (DEVICE-1)");
      EXPECT_NE(refused.message().find("its ordinal, its UUID or a unique prefix"), absl::string_view::npos) << refused;
    }
  }
  // The pool has no caps, so its permits need no device.
  Peer a = h_->Open();
  EXPECT_FALSE(h_->MustAcquire(a, {.pool = "wide", .holder_key = "1"}).device.has_value());
}

TEST_F(CoreDevicePermitTest, CapOfAbsentDeviceCanBeRemoved) {
  Config config = CoreHarness::DefaultConfig();
  config.pools[1].device_caps = {{"GPU-gone", 1}, {"DEVICE-1", 2}};
  Start(config);
  EXPECT_TRUE(IsRefusal(SetCaps({{"GPU-gone", 2}}), Reason::kNotFound)) << "changes need a device";
  EXPECT_EQ(SetCaps({{"GPU-gone", std::nullopt}}), absl::OkStatus());
  EXPECT_EQ(caps(), (Caps{{"DEVICE-1", 2}}));
}

TEST_F(CoreDevicePermitTest, StoredCapKeepsAbsentDevice) {
  EXPECT_EQ(SetCaps({{"GPU-gone", 1}, {"1", 2}}, /*stored=*/true), absl::OkStatus());
  EXPECT_EQ(caps(), (Caps{{"GPU-gone", 1}, {"DEVICE-1", 2}}));
}

TEST_F(CoreDevicePermitTest, UnidentifiedDeviceGetsNoCap) {
  Config config = CoreHarness::DefaultConfig();
  config.devices[1].uuid = "unknown-1";
  Start(config);
  for (const char* const name : {"1", "unknown-1", "unk"}) {
    EXPECT_TRUE(IsRefusal(SetCaps({{name, 1}}), Reason::kInvalidField)) << name;
  }
  EXPECT_EQ(caps(), Caps());
  EXPECT_EQ(SetCaps({{"0", 1}}), absl::OkStatus());
}

TEST_F(CoreDevicePermitTest, NestedAcquiresOfDeviceCountEachOther) {
  Peer a = h_->Open(), b = h_->Open();
  const auto acquire = [&](Peer& peer, const std::string& key, DevicePick pick, bool adoptable = false) {
    return h_->MustAcquire(peer, {.pool = "wide", .holder_key = key, .adoptable = adoptable, .device = {.pick = pick}});
  };
  const AcquireResult lease = acquire(a, "lease", DevicePick::kAny, /*adoptable=*/true);
  EXPECT_EQ(lease.device_sharers, 0u);
  acquire(b, "other", DevicePick::kAny, /*adoptable=*/true);
  EXPECT_EQ(acquire(a, "without a device", DevicePick::kNone).device_sharers, 0u);
  const AcquireResult first = acquire(a, "first", DevicePick::kAny);
  ASSERT_TRUE(first.nested);
  EXPECT_EQ(first.device_sharers, 0u);
  EXPECT_EQ(acquire(a, "second", DevicePick::kBest).device_sharers, 1u);
  EXPECT_EQ(acquire(a, "third", DevicePick::kAny).device_sharers, 2u);
  h_->Release(a, first.acquisition);
  EXPECT_EQ(acquire(a, "fourth", DevicePick::kAny).device_sharers, 2u);
}

}  // namespace
}  // namespace berth::core
