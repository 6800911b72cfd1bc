#include "daemon/device/memory/budget_resource.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include <berth/error.h>

#include "daemon/device/memory/testing/fake_resource.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using NamedValues = std::map<std::string, std::string>;

class BudgetResourceTest : public ::testing::Test {
 protected:
  MemoryBlock Make(Bytes bytes) {
    absl::StatusOr<MemoryBlock> block = budget_.Allocate(bytes, "");
    EXPECT_TRUE(block.ok()) << block.status();
    return block.ok() ? *std::move(block) : MemoryBlock{};
  }
  // Returns the error's details. Expects the allocation to be rejected without any change.
  NamedValues Refused(Bytes bytes) {
    const Bytes before = budget_.outstanding();
    const absl::Status status = budget_.Allocate(bytes, "").status();
    EXPECT_TRUE(IsRefusal(status, Reason::kOverBudget)) << status;
    EXPECT_EQ(budget_.outstanding(), before);
    const auto details = GetErrorDetails(status);
    return details.has_value() ? details->metadata : NamedValues();
  }

  FakeResource* const inner_ = new FakeResource;
  BudgetResource budget_ = BudgetResource(std::unique_ptr<MemoryResource>(inner_), MiB(8));
};

TEST_F(BudgetResourceTest, LimitIsGrantedExactly) {
  const MemoryBlock block = Make(MiB(8));
  EXPECT_EQ(budget_.outstanding(), MiB(8));
  const NamedValues named_values = Refused(MiB(2));
  EXPECT_EQ(named_values.at("layer"), "device_runtime");
  EXPECT_EQ(named_values.at("device"), "HOST-0");
  EXPECT_EQ(named_values.at("requested"), "2097152");
  EXPECT_EQ(named_values.at("current"), "8388608");
  EXPECT_EQ(named_values.at("remaining"), "0");
  EXPECT_EQ(named_values.at("limit"), "8388608");
}

TEST_F(BudgetResourceTest, RefusalReportsRemainingBytes) {
  const MemoryBlock block = Make(MiB(6));
  const NamedValues named_values = Refused(MiB(4));
  EXPECT_EQ(named_values.at("current"), "6291456");
  EXPECT_EQ(named_values.at("remaining"), "2097152");
  Make(MiB(2));
}

TEST_F(BudgetResourceTest, RefusalTextHasEveryValue) {
  EXPECT_EQ(
      budget_.Allocate(MiB(10), "").status().message(),
      "device_runtime budget on device HOST-0: requested 10485760 bytes, current 0, remaining 8388608, limit "
      "8388608");
}

TEST_F(BudgetResourceTest, RequestAboveLimitIsRejectedAtOnce) {
  const MemoryBlock block = Make(MiB(4));
  inner_->calls.clear();
  Refused(MiB(10));
  Refused(Bytes(UINT64_MAX));
  EXPECT_THAT(inner_->calls, IsEmpty());
}

TEST_F(BudgetResourceTest, ReapRunsOnceBeforeRefusal) {
  const MemoryBlock block = Make(MiB(6));
  inner_->calls.clear();
  Refused(MiB(4));
  EXPECT_THAT(inner_->calls, ElementsAre("Reap"));
}

TEST_F(BudgetResourceTest, LateFreeStaysChargedUntilReap) {
  inner_->frees_late = true;
  MemoryBlock block = Make(MiB(8));
  ASSERT_TRUE(budget_.Deallocate(block).ok());
  EXPECT_EQ(budget_.outstanding(), MiB(8));
  inner_->reap_error = absl::UnavailableError("not yet");
  Refused(MiB(2));
  inner_->reap_error = absl::OkStatus();
  // One Reap() frees the memory for the allocation.
  inner_->calls.clear();
  Make(MiB(8));
  EXPECT_THAT(inner_->calls, ElementsAre("Reap", "Allocate"));
}

TEST_F(BudgetResourceTest, ImmediateFreeIsUnchargedAtOnce) {
  MemoryBlock block = Make(MiB(8));
  ASSERT_TRUE(budget_.Deallocate(block).ok());
  EXPECT_EQ(budget_.outstanding(), Bytes(0));
  Make(MiB(8));
}

TEST_F(BudgetResourceTest, FailedAllocationIsNotCharged) {
  inner_->allocate_error = absl::InternalError("inside");
  EXPECT_TRUE(absl::IsInternal(budget_.Allocate(MiB(8), "").status()));
  inner_->allocate_error = absl::OkStatus();
  Make(MiB(8));
}

TEST_F(BudgetResourceTest, FailedFreeStaysChargedAndIsRepeatable) {
  MemoryBlock block = Make(MiB(8));
  inner_->deallocate_error = absl::InternalError("inside");
  EXPECT_FALSE(budget_.Deallocate(block).ok());
  Refused(MiB(2));
  inner_->deallocate_error = absl::OkStatus();
  EXPECT_TRUE(budget_.Deallocate(block).ok());
  Make(MiB(8));
}

TEST_F(BudgetResourceTest, FreeingUnknownBlockReturnsNoBudget) {
  MemoryBlock block = Make(MiB(8));
  MemoryBlock bogus = {.generation = block.generation + 1000, .device = block.device, .bytes = MiB(8)};
  EXPECT_FALSE(budget_.Deallocate(bogus).ok());
  Refused(MiB(2));
}

TEST_F(BudgetResourceTest, HandedOverBlockIsNotCharged) {
  MemoryBlock block = Make(MiB(8));
  ASSERT_TRUE(budget_.HandOver(block).ok());
  Make(MiB(8));
}

}  // namespace
}  // namespace berth
