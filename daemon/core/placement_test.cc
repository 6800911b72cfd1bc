#include "daemon/core/placement.h"

#include "common/error.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

class PlacementTest : public ::testing::Test {
 protected:
  PlacementTest() {
    placement_.Add(0,
                   {.uuid = "A", .total = GiB(100), .reserve = GiB(2), .context = GiB(1), .others = GiB(7)});
    placement_.Add(1, {.uuid = "B", .total = GiB(50)});
    Set(0, {.in_service = true, .ledger = GiB(10)});
    Set(1, {.in_service = true});
  }

  void Set(uint32_t ordinal, const Placement::State& state) { placement_.Update(ordinal, state); }
  // The device's ordinal, or -1 where it waits for permits, -2 where it waits for something else.
  int Choose(const DeviceWish& wish) {
    const Placement::Choice choice = placement_.Choose({.wish = wish});
    if (choice.verdict == Placement::Verdict::kFits) return static_cast<int>(choice.ordinal);
    return choice.verdict == Placement::Verdict::kWaits ? -1 : -2;
  }

  Placement placement_;
};

TEST_F(PlacementTest, WhatIsFreeIsWhatNobodyHasOrMayTake) {
  EXPECT_EQ(placement_.FreeOn(0), GiB(81));
  placement_.Take(0, SessionId(1), GiB(20));
  EXPECT_EQ(placement_.FreeOn(0), GiB(60)) << "20 and a context";
  placement_.Take(0, SessionId(1), Bytes());
  EXPECT_EQ(placement_.FreeOn(0), GiB(60)) << "who declares nothing is charged nothing";
  Set(0, {.in_service = true, .ledger = GiB(75)});
  EXPECT_EQ(placement_.FreeOn(0), Bytes());
  placement_.Give(0, SessionId(1), GiB(20));
  EXPECT_EQ(placement_.FreeOn(0), GiB(16));
  EXPECT_EQ(placement_.DeclaredOn(0), Bytes());
  EXPECT_EQ(placement_.PermitsOn(0), 1u);
}

TEST_F(PlacementTest, AnyTakesTheLeastUsedAndBestTheMostFree) {
  const DeviceWish any{.pick = DevicePick::kAny};
  const DeviceWish best{.pick = DevicePick::kBest};
  EXPECT_EQ(Choose(any), 0);
  EXPECT_EQ(Choose(best), 0);
  placement_.Take(0, SessionId(1), GiB(10));
  EXPECT_EQ(Choose(any), 1);
  EXPECT_EQ(Choose(best), 0);
  placement_.Take(0, SessionId(1), GiB(30));
  EXPECT_EQ(Choose(best), 1);
  EXPECT_EQ(Choose({.pick = DevicePick::kNamed, .uuid = "A"}), 0);
}

TEST_F(PlacementTest, OnlyADeviceWithTheBytesIsTaken) {
  EXPECT_EQ(Choose({.pick = DevicePick::kAny, .declared = GiB(80)}), 0) << "80 and a context are just there";
  EXPECT_EQ(Choose({.pick = DevicePick::kAny, .declared = Bytes(GiB(80).count() + 1)}), -2);
  EXPECT_EQ(Choose({.pick = DevicePick::kAny, .min_free = GiB(81)}), 0);
  placement_.Take(0, SessionId(1), GiB(20));
  EXPECT_EQ(Choose({.pick = DevicePick::kAny, .declared = GiB(55)}), 0);
  EXPECT_EQ(Choose({.pick = DevicePick::kAny, .declared = GiB(60)}), -1) << "once the permit is back";
  EXPECT_EQ(Choose({.pick = DevicePick::kAny, .min_free = GiB(61)}), -1);
  // What blocks take no permit gives back.
  Set(0, {.in_service = true, .ledger = GiB(80)});
  EXPECT_EQ(Choose({.pick = DevicePick::kAny, .declared = GiB(60)}), -2);
  Set(1, {.in_service = false});
  EXPECT_EQ(Choose({.pick = DevicePick::kNamed, .uuid = "B"}), -2);
}

TEST_F(PlacementTest, ASessionHasTheMoreOfWhatItDeclaredAndWhatItsProcessesTake) {
  placement_.SetNow(absl::UnixEpoch());
  const auto measure = [&](Bytes others, std::map<SessionId, Bytes> sessions) {
    placement_.Measure(0, {.taken = absl::UnixEpoch(), .others = others, .sessions = std::move(sessions)});
  };
  placement_.Take(0, SessionId(1), GiB(20));
  measure(GiB(7), {{SessionId(1), GiB(5)}});
  EXPECT_EQ(placement_.FreeOn(0), GiB(60)) << "20 and a context";
  measure(GiB(7), {{SessionId(1), GiB(30)}});
  EXPECT_EQ(placement_.FreeOn(0), GiB(51));
  placement_.Take(0, SessionId(1), GiB(20));
  EXPECT_EQ(placement_.FreeOn(0), GiB(39)) << "two of 20, each with a context";
  measure(GiB(17), {{SessionId(1), GiB(30)}, {SessionId(2), GiB(4)}});
  EXPECT_EQ(placement_.FreeOn(0), GiB(25)) << "others and a session without a permit";
  EXPECT_EQ(placement_.OthersOn(0), GiB(17));
  // What no permit's return brings back is no reason to keep others waiting.
  EXPECT_EQ(Choose({.pick = DevicePick::kNamed, .uuid = "A", .min_free = GiB(67)}), -1);
  EXPECT_EQ(Choose({.pick = DevicePick::kNamed, .uuid = "A", .min_free = GiB(68)}), -2);
  placement_.Give(0, SessionId(1), GiB(20));
  placement_.Give(0, SessionId(1), GiB(20));
  EXPECT_EQ(placement_.FreeOn(0), GiB(37)) << "its processes have what they have";
  measure(GiB(7), {});
  EXPECT_EQ(placement_.FreeOn(0), GiB(81));
  placement_.Take(0, SessionId(1), GiB(20));
  placement_.SetContext(0, GiB(3));
  EXPECT_EQ(placement_.FreeOn(0), GiB(58)) << "a context that was measured";
  placement_.Give(0, SessionId(1), GiB(20));
  EXPECT_EQ(placement_.FreeOn(0), GiB(81));
}

TEST_F(PlacementTest, OldReadingsLetNobodyInToBytes) {
  const DeviceWish bytes{.pick = DevicePick::kNamed, .uuid = "A", .declared = GiB(1)};
  placement_.Measure(0, {.taken = absl::UnixEpoch(), .others = GiB(7)});
  placement_.SetNow(absl::UnixEpoch() + Placement::kFresh);
  EXPECT_EQ(Choose(bytes), 0);
  placement_.TakeChanges();
  placement_.SetNow(absl::UnixEpoch() + Placement::kFresh + absl::Nanoseconds(1));
  EXPECT_TRUE(placement_.TakeChanges().verdicts);
  EXPECT_EQ(Choose(bytes), -2);
  EXPECT_TRUE(placement_.OnlyOld(bytes));
  EXPECT_EQ(Choose({.pick = DevicePick::kNamed, .uuid = "A"}), 0) << "who wants no bytes needs no figures";
  EXPECT_EQ(Choose({.pick = DevicePick::kAny, .declared = GiB(1)}), 1) << "nobody ever read that one";
  EXPECT_FALSE(placement_.OnlyOld({.pick = DevicePick::kAny, .declared = GiB(1)}));
}

TEST_F(PlacementTest, WhatCanNeverBeIsSaid) {
  EXPECT_TRUE(placement_.Check("p", {.wish = {.pick = DevicePick::kAny, .declared = GiB(97)}}).ok());
  const absl::Status large = placement_.Check("p", {.wish = {.pick = DevicePick::kAny, .declared = GiB(98)}});
  EXPECT_TRUE(IsRefusal(large, Reason::kOverCap)) << large;
  EXPECT_TRUE(IsRefusal(
      placement_.Check("p", {.wish = {.pick = DevicePick::kNamed, .uuid = "B", .declared = GiB(51)}}),
      Reason::kOverCap));
  EXPECT_TRUE(IsRefusal(placement_.Check("p", {.wish = {.pick = DevicePick::kNamed, .uuid = "C"}}),
                        Reason::kNotFound));
  EXPECT_TRUE(
      IsRefusal(placement_.Check("p", {.wish = {.pick = DevicePick::kAny, .declared = Bytes(UINT64_MAX)}}),
                Reason::kOverCap));
  Set(1, {.dropped = true});
  EXPECT_TRUE(IsRefusal(placement_.Check("p", {.wish = {.pick = DevicePick::kNamed, .uuid = "B"}}),
                        Reason::kDeviceStopped));
  Set(0, {.dropped = true});
  EXPECT_TRUE(
      IsRefusal(placement_.Check("p", {.wish = {.pick = DevicePick::kBest}}), Reason::kDeviceStopped));
  EXPECT_TRUE(IsRefusal(Placement().Check("p", {.wish = {.pick = DevicePick::kAny}}), Reason::kNotFound));
}

TEST_F(PlacementTest, ItTellsWhenSomebodyMayBeJudgedOtherwise) {
  EXPECT_TRUE(placement_.TakeChanges().verdicts);
  EXPECT_FALSE(placement_.TakeChanges().verdicts);
  Set(0, {.in_service = true, .ledger = GiB(10)});
  EXPECT_FALSE(placement_.TakeChanges().verdicts);
  Set(0, {.in_service = true, .ledger = GiB(11)});
  EXPECT_TRUE(placement_.TakeChanges().verdicts) << "whom others are kept waiting for may stand aside";
  Set(0, {.in_service = true, .ledger = GiB(9)});
  EXPECT_TRUE(placement_.TakeChanges().verdicts);
  placement_.Take(1, SessionId(1), Bytes());
  EXPECT_FALSE(placement_.TakeChanges().verdicts);
  placement_.Give(1, SessionId(1), Bytes());
  EXPECT_TRUE(placement_.TakeChanges().verdicts);
  Set(1, {.dropped = true});
  EXPECT_TRUE(placement_.TakeChanges().dropped);
}

}  // namespace
}  // namespace berth::core
