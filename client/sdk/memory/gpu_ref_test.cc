#include <berth/gpu_ref.h>

#include <berth/error.h>

#include "client/sdk/memory/atomic_lease.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

class AccessTest : public testing::Test {
 protected:
  AccessTest() {
    values_ = {.page = &page_,
               .lease = &lease_,
               .memory = &page_.devices[3].generation,
               .device = 3,
               .generation = 1,
               .incarnation = 77};
    page_.incarnation = 77;
    page_.devices[3].generation = 1;
  }
  StatePageLayout page_ = {};
  internal::AtomicLease lease_ = internal::Lease::kLive;
  internal::AccessValues values_;
};

TEST_F(AccessTest, FirstFailingCheckIsExplained) {
  page_.incarnation = 78;
  EXPECT_EQ(internal::Explain(values_), AccessError::kOtherIncarnation);
  lease_ = internal::Lease::kEnded;
  EXPECT_EQ(internal::Explain(values_), AccessError::kLeaseEnded);
  lease_ = internal::Lease::kFreed;
  EXPECT_EQ(internal::Explain(values_), AccessError::kBlockFreed);
  page_.devices[3].generation = 2;
  EXPECT_EQ(internal::Explain(values_), AccessError::kContextRebuilt);
  page_.devices[3].shutting_down = 1;
  EXPECT_EQ(internal::Explain(values_), AccessError::kDeviceShuttingDown);
  page_.devices[3].dropped = 1;
  EXPECT_EQ(internal::Explain(values_), AccessError::kDeviceDropped);
  lease_ = internal::Lease::kLost;
  EXPECT_EQ(internal::Explain(values_), AccessError::kBlockLost);
}

TEST_F(AccessTest, IpcBlockFollowsContextWorkersGeneration) {
  values_.memory = &page_.devices[3].context_generation;
  page_.devices[3].context_generation = 2;
  EXPECT_EQ(internal::Explain(values_), AccessError::kContextRebuilt);
}

TEST_F(AccessTest, AccessErrorsHaveExpectedTexts) {
  EXPECT_EQ(AccessErrorText(AccessError::kDeviceDropped), "device state dropped");
  EXPECT_EQ(AccessErrorText(AccessError::kDeviceShuttingDown), "device shutting down");
  EXPECT_EQ(AccessErrorText(AccessError::kContextRebuilt), "context rebuilt");
  const absl::Status status = internal::AccessStatus(AccessError::kContextRebuilt);
  EXPECT_TRUE(IsRefusal(status, Reason::kStale));
  EXPECT_EQ(GetErrorDetails(status)->metadata.at("why"), "context rebuilt");
  EXPECT_EQ(internal::AccessStatus(AccessError::kBlockLost).message(),
            "block lost: its memory ended with the daemon that held it");
  EXPECT_TRUE(internal::AccessStatus(AccessError::kNone).ok());
}

TEST_F(AccessTest, ResultIsPointerOrReason) {
  int value = 5;
  const AccessResult<int> good(&value);
  EXPECT_TRUE(static_cast<bool>(good));
  EXPECT_EQ(good.data(), &value);
  EXPECT_TRUE(good.status().ok());
  const AccessResult<int> bad(AccessError::kBlockFreed);
  EXPECT_FALSE(static_cast<bool>(bad));
  EXPECT_EQ(bad.data(), nullptr);
  EXPECT_EQ(bad.status().message(), "block freed");
}

}  // namespace
}  // namespace berth
