// A test program as users write it, with tests that leak and tests that do not. gtest_test.cc runs it.

#include <sched.h>

#include <iostream>
#include <memory>
#include <optional>

#include <berth/block.h>
#include <berth/permit.h>
#include <berth/reservation.h>

#include "berth/v1/permit.pb.h"
#include "client/sdk/admin/inspector.h"
#include "client/testing/environment.h"
#include "client/testing/permit_fixture.h"
#include "gtest/gtest.h"

namespace {

using berth::Block;
using berth::MiB;
using berth::Permit;
using berth::Reservation;

std::shared_ptr<berth::Session> TheSession() { return berth::testing::Environment::Get()->session(); }

// Retains the lease for the rest of the program, as a forgotten static does.
template <typename T>
void Leak(absl::StatusOr<T> lease) {
  ASSERT_TRUE(lease.ok()) << lease.status();
  static auto* const leaked = new std::vector<T>;
  leaked->push_back(*std::move(lease));
}

class HeldTest : public berth::testing::PermitTest {};

TEST_F(HeldTest, PermitHasNameOfTest) {
  ASSERT_TRUE(permit());
  const auto permits = berth::Inspector(session()).ListPermits();
  ASSERT_TRUE(permits.ok()) << permits.status();
  ASSERT_EQ(permits->permits_size(), 1);
  EXPECT_EQ(permits->permits(0).label(), "HeldTest.PermitHasNameOfTest");
}

TEST_F(HeldTest, OwnAcquireNests) {
  const absl::StatusOr<Permit> nested = Permit::TryAcquire(session());
  EXPECT_TRUE(nested.ok()) << nested.status();
}

class TakenTest : public berth::testing::PermitTest {};

TEST_F(TakenTest, LosesItsPermitWhileItRuns) {
  std::cout << "taken" << std::endl;
  // The test that runs this program revokes the permit once it has read that line.
  while (!permit().revoked()) ::sched_yield();
}

// Requests a device by its options, and sets up further state.
class PlacedTest : public berth::testing::PermitTest {
 protected:
  berth::PermitOptions options() const override { return {.label = "placed", .device = "any"}; }

  void SetUp() override {
    PermitTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    absl::StatusOr<Block> block = Block::Allocate(session(), {.bytes = MiB(2)});
    ASSERT_TRUE(block.ok()) << block.status();
    block_.emplace(*std::move(block));
  }

  std::optional<Block> block_;
};

TEST_F(PlacedTest, DeviceIsAssigned) {
  EXPECT_EQ(permit().device_uuid(), "HOST-0");
  EXPECT_TRUE(block_->Map().ok());
}

TEST(CleanTest, EverythingIsReturned) {
  const absl::StatusOr<Permit> permit = Permit::Acquire(TheSession());
  const absl::StatusOr<Block> block = Block::Allocate(TheSession(), {.bytes = MiB(2)});
  const absl::StatusOr<Reservation> reservation =
      Reservation::Make(TheSession(), {.items = {{.bytes = MiB(2)}}});
  EXPECT_TRUE(permit.ok() && block.ok() && reservation.ok());
}

TEST(CleanTest, NeedsNoDaemon) { EXPECT_NE(berth::testing::Environment::Get(), nullptr); }

// A lease that a suite holds is no leak of its tests.
class SuiteTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    absl::StatusOr<Block> block = Block::Allocate(TheSession(), {.bytes = MiB(2)});
    ASSERT_TRUE(block.ok()) << block.status();
    block_.emplace(*std::move(block));
  }
  static void TearDownTestSuite() { block_.reset(); }

  static std::optional<Block> block_;
};
std::optional<Block> SuiteTest::block_;

TEST_F(SuiteTest, UsesTheSuitesBlock) { EXPECT_TRUE(block_->Map().ok()); }

class LeakySuiteTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    Leak(Block::Allocate(TheSession(), {.bytes = MiB(4), .label = "of a suite"}));
  }
};

TEST_F(LeakySuiteTest, IsNotToBlame) {}

TEST(LeakyTest, APermit) { Leak(Permit::Acquire(TheSession(), {.label = "forgotten permit"})); }

TEST(LeakyTest, ABlock) {
  Leak(Block::Allocate(TheSession(), {.bytes = MiB(6), .label = "forgotten block"}));
}

TEST(LeakyTest, AMapping) {
  const absl::StatusOr<Block> block = Block::Allocate(TheSession(), {.bytes = MiB(2)});
  ASSERT_TRUE(block.ok()) << block.status();
  Leak(block->Map());
}

TEST(LeakyTest, AReservation) { Leak(Reservation::Make(TheSession(), {.items = {{.bytes = MiB(2)}}})); }

TEST(LeakyTest, LaterTestIsNotBlamed) {}

}  // namespace
