#include "daemon/device/budget_resource.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "common/error.h"
#include "daemon/device/fake_resource.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Figures = std::map<std::string, std::string>;

class BudgetResourceTest : public ::testing::Test {
 protected:
  MemoryBlock Make(Bytes bytes) {
    absl::StatusOr<MemoryBlock> block = budget_.Allocate(bytes, "");
    EXPECT_TRUE(block.ok()) << block.status();
    return block.ok() ? *std::move(block) : MemoryBlock{};
  }
  // The refusal's figures. Expects one, and that it changed nothing.
  Figures Refused(Bytes bytes) {
    const Bytes before = budget_.outstanding();
    const absl::Status status = budget_.Allocate(bytes, "").status();
    EXPECT_TRUE(IsRefusal(status, Reason::kOverBudget)) << status;
    EXPECT_EQ(budget_.outstanding(), before);
    const auto details = GetErrorDetails(status);
    return details.has_value() ? details->metadata : Figures();
  }

  FakeResource* const inner_ = new FakeResource;
  BudgetResource budget_ = BudgetResource(std::unique_ptr<MemoryResource>(inner_), MiB(8));
};

TEST_F(BudgetResourceTest, ExactlyTheLimitIsGrantedAndNoMore) {
  const MemoryBlock block = Make(MiB(8));
  EXPECT_EQ(budget_.outstanding(), MiB(8));
  const Figures figures = Refused(MiB(2));
  EXPECT_EQ(figures.at("layer"), "device_runtime");
  EXPECT_EQ(figures.at("device"), "HOST-0");
  EXPECT_EQ(figures.at("requested"), "2097152");
  EXPECT_EQ(figures.at("current"), "8388608");
  EXPECT_EQ(figures.at("remaining"), "0");
  EXPECT_EQ(figures.at("limit"), "8388608");
}

TEST_F(BudgetResourceTest, ARefusalSaysWhatIsLeft) {
  const MemoryBlock block = Make(MiB(6));
  const Figures figures = Refused(MiB(4));
  EXPECT_EQ(figures.at("current"), "6291456");
  EXPECT_EQ(figures.at("remaining"), "2097152");
  Make(MiB(2));
}

TEST_F(BudgetResourceTest, TheTextHasEveryFigure) {
  EXPECT_EQ(
      budget_.Allocate(MiB(10), "").status().message(),
      "device_runtime budget on device HOST-0: requested 10485760 bytes, current 0, remaining 8388608, limit "
      "8388608");
}

TEST_F(BudgetResourceTest, WhatPassesTheLimitAloneIsRefusedAtOnce) {
  const MemoryBlock block = Make(MiB(4));
  inner_->calls.clear();
  Refused(MiB(10));
  Refused(Bytes(UINT64_MAX));
  EXPECT_THAT(inner_->calls, IsEmpty());
}

TEST_F(BudgetResourceTest, ReapsOnceBeforeItRefuses) {
  const MemoryBlock block = Make(MiB(6));
  inner_->calls.clear();
  Refused(MiB(4));
  EXPECT_THAT(inner_->calls, ElementsAre("Reap"));
}

TEST_F(BudgetResourceTest, AFreeThatComesLateStaysChargedUntilItIsReaped) {
  inner_->frees_late = true;
  MemoryBlock block = Make(MiB(8));
  ASSERT_TRUE(budget_.Deallocate(block).ok());
  EXPECT_EQ(budget_.outstanding(), MiB(8));
  inner_->reap_error = absl::UnavailableError("not yet");
  Refused(MiB(2));
  inner_->reap_error = absl::OkStatus();
  // One reap, and what it brought back is had.
  inner_->calls.clear();
  Make(MiB(8));
  EXPECT_THAT(inner_->calls, ElementsAre("Reap", "Allocate"));
}

TEST_F(BudgetResourceTest, AFreeIsFreeAtOnceWhereItComesAtOnce) {
  MemoryBlock block = Make(MiB(8));
  ASSERT_TRUE(budget_.Deallocate(block).ok());
  EXPECT_EQ(budget_.outstanding(), Bytes(0));
  Make(MiB(8));
}

TEST_F(BudgetResourceTest, WhatFailedInsideCostsNothing) {
  inner_->allocate_error = absl::InternalError("inside");
  EXPECT_TRUE(absl::IsInternal(budget_.Allocate(MiB(8), "").status()));
  inner_->allocate_error = absl::OkStatus();
  Make(MiB(8));
}

TEST_F(BudgetResourceTest, AFailedFreeStaysChargedAndCanBeTriedAgain) {
  MemoryBlock block = Make(MiB(8));
  inner_->deallocate_error = absl::InternalError("inside");
  EXPECT_FALSE(budget_.Deallocate(block).ok());
  Refused(MiB(2));
  inner_->deallocate_error = absl::OkStatus();
  EXPECT_TRUE(budget_.Deallocate(block).ok());
  Make(MiB(8));
}

TEST_F(BudgetResourceTest, FreeingWhatIsNotThereGivesNothingBack) {
  MemoryBlock block = Make(MiB(8));
  MemoryBlock bogus = {.generation = block.generation + 1000, .device = block.device, .bytes = MiB(8)};
  EXPECT_FALSE(budget_.Deallocate(bogus).ok());
  Refused(MiB(2));
}

TEST_F(BudgetResourceTest, WhatIsHandedOverIsNotChargedHere) {
  MemoryBlock block = Make(MiB(8));
  ASSERT_TRUE(budget_.HandOver(block).ok());
  Make(MiB(8));
}

}  // namespace
}  // namespace berth
