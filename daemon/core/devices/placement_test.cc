#include "daemon/core/devices/placement.h"

#include <optional>
#include <string>
#include <vector>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
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
  // Returns the device's ordinal, -1 if the request waits for permits, -2 if it waits for something else.
  int Choose(const DeviceConstraint& constraint) {
    const Placement::Choice choice = placement_.Choose({.constraint = constraint});
    if (choice.verdict == Placement::Verdict::kFits) return static_cast<int>(choice.ordinal);
    return choice.verdict == Placement::Verdict::kWaits ? -1 : -2;
  }

  Placement placement_;
};

TEST_F(PlacementTest, FreeBytesExcludeChargedAndDeclared) {
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

TEST_F(PlacementTest, AnyPicksLeastUsedBestPicksMostFree) {
  const DeviceConstraint any{.pick = DevicePick::kAny};
  const DeviceConstraint best{.pick = DevicePick::kBest};
  EXPECT_EQ(Choose(any), 0);
  EXPECT_EQ(Choose(best), 0);
  placement_.Take(0, SessionId(1), GiB(10));
  EXPECT_EQ(Choose(any), 1);
  EXPECT_EQ(Choose(best), 0);
  placement_.Take(0, SessionId(1), GiB(30));
  EXPECT_EQ(Choose(best), 1);
  EXPECT_EQ(Choose({.pick = DevicePick::kNamed, .uuid = "A"}), 0);
}

TEST_F(PlacementTest, DeviceWithoutTheBytesIsNotChosen) {
  EXPECT_EQ(Choose({.pick = DevicePick::kAny, .declared = GiB(80)}), 0) << "80 and a context are just there";
  EXPECT_EQ(Choose({.pick = DevicePick::kAny, .declared = Bytes(GiB(80).count() + 1)}), -2);
  EXPECT_EQ(Choose({.pick = DevicePick::kAny, .min_free = GiB(81)}), 0);
  placement_.Take(0, SessionId(1), GiB(20));
  EXPECT_EQ(Choose({.pick = DevicePick::kAny, .declared = GiB(55)}), 0);
  EXPECT_EQ(Choose({.pick = DevicePick::kAny, .declared = GiB(60)}), -1) << "once the permit is back";
  EXPECT_EQ(Choose({.pick = DevicePick::kAny, .min_free = GiB(61)}), -1);
  // No release of permits frees bytes of blocks.
  Set(0, {.in_service = true, .ledger = GiB(80)});
  EXPECT_EQ(Choose({.pick = DevicePick::kAny, .declared = GiB(60)}), -2);
  Set(1, {.in_service = false});
  EXPECT_EQ(Choose({.pick = DevicePick::kNamed, .uuid = "B"}), -2);
}

TEST_F(PlacementTest, SessionIsChargedLargerOfDeclaredAndMeasured) {
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
  // Bytes that no release of permits frees are no reason for other requests to wait.
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

TEST_F(PlacementTest, ContextGrowthOrIslandChangeRechecksWaiters) {
  placement_.TakeChanges();
  placement_.SetContext(0, GiB(3));
  EXPECT_TRUE(placement_.TakeChanges().never);
  placement_.SetContext(0, GiB(2));
  EXPECT_FALSE(placement_.TakeChanges().never);
  placement_.SetIsland(0, 7);
  EXPECT_TRUE(placement_.TakeChanges().never);
  placement_.SetIsland(0, 7);
  EXPECT_FALSE(placement_.TakeChanges().never);
}

TEST_F(PlacementTest, OldReadingGrantsNoBytes) {
  const DeviceConstraint bytes{.pick = DevicePick::kNamed, .uuid = "A", .declared = GiB(1)};
  placement_.Measure(0, {.taken = absl::UnixEpoch(), .others = GiB(7)});
  placement_.SetNow(absl::UnixEpoch() + Placement::kFresh);
  EXPECT_EQ(Choose(bytes), 0);
  placement_.TakeChanges();
  placement_.SetNow(absl::UnixEpoch() + Placement::kFresh + absl::Nanoseconds(1));
  EXPECT_TRUE(placement_.TakeChanges().verdicts);
  EXPECT_EQ(Choose(bytes), -2);
  EXPECT_TRUE(placement_.OnlyOld(bytes));
  EXPECT_EQ(Choose({.pick = DevicePick::kNamed, .uuid = "A"}), 0) << "who wants no bytes needs no named values";
  EXPECT_EQ(Choose({.pick = DevicePick::kAny, .declared = GiB(1)}), 1) << "nobody ever read that one";
  EXPECT_FALSE(placement_.OnlyOld({.pick = DevicePick::kAny, .declared = GiB(1)}));
  // A stale reading also rejects bytes that the same gang would reserve there: their number is unknown, so no gauge
  // would end the wait.
  const std::vector<Placement::Ask> ask = {{.constraint = {.pick = DevicePick::kNamed, .uuid = "A"}}};
  EXPECT_EQ(placement_.ChooseAll(ask, {}).verdict, Placement::Verdict::kFits);
  EXPECT_EQ(placement_.ChooseAll(ask, {{0, Bytes(1)}}).verdict, Placement::Verdict::kSkipped);
  EXPECT_EQ(placement_.ChooseAll(ask, {{1, Bytes(1)}}).verdict, Placement::Verdict::kFits);
}

TEST_F(PlacementTest, ImpossibleConstraintIsRejectedWithReason) {
  EXPECT_TRUE(placement_.Check("p", {.constraint = {.pick = DevicePick::kAny, .declared = GiB(97)}}).ok());
  const absl::Status large = placement_.Check("p", {.constraint = {.pick = DevicePick::kAny, .declared = GiB(98)}});
  EXPECT_TRUE(IsRefusal(large, Reason::kOverCap)) << large;
  EXPECT_TRUE(IsRefusal(
      placement_.Check("p", {.constraint = {.pick = DevicePick::kNamed, .uuid = "B", .declared = GiB(51)}}),
      Reason::kOverCap));
  EXPECT_TRUE(IsRefusal(placement_.Check("p", {.constraint = {.pick = DevicePick::kNamed, .uuid = "C"}}),
                        Reason::kNotFound));
  EXPECT_TRUE(
      IsRefusal(placement_.Check("p", {.constraint = {.pick = DevicePick::kAny, .declared = Bytes(UINT64_MAX)}}),
                Reason::kOverCap));
  Set(1, {.dropped = true});
  EXPECT_TRUE(IsRefusal(placement_.Check("p", {.constraint = {.pick = DevicePick::kNamed, .uuid = "B"}}),
                        Reason::kDeviceStopped));
  Set(0, {.dropped = true});
  EXPECT_TRUE(
      IsRefusal(placement_.Check("p", {.constraint = {.pick = DevicePick::kBest}}), Reason::kDeviceStopped));
  EXPECT_TRUE(IsRefusal(Placement().Check("p", {.constraint = {.pick = DevicePick::kAny}}), Reason::kNotFound));
}

TEST_F(PlacementTest, ChangesReportPossibleNewVerdicts) {
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
  EXPECT_TRUE(placement_.TakeChanges().never);
}

// ---- Hints --------------------------------------------------------------------------------------------------

class HintsTest : public ::testing::Test {
 protected:
  HintsTest() {
    Add(0, "A", GiB(40), 70, 80);
    Add(1, "B", GiB(40), 90, 132);
    Add(2, "C", GiB(80), 90, 100);
    Add(3, "D", GiB(160), 80, 108);
    placement_.SetIsland(2, 1);
  }
  void Add(uint32_t ordinal, const std::string& uuid, Bytes total, uint32_t capability, uint32_t processors) {
    placement_.Add(
        ordinal,
        {.uuid = uuid,
         .total = total,
         .facts = {.sm_count = processors, .cc_major = capability / 10, .cc_minor = capability % 10}});
    placement_.SetIsland(ordinal, ordinal);
    placement_.Update(ordinal, {.in_service = true});
  }
  int Choose(const DeviceConstraint& constraint) {
    const Placement::Choice choice = placement_.Choose({.constraint = constraint});
    return choice.verdict == Placement::Verdict::kFits ? static_cast<int>(choice.ordinal) : -1;
  }
  absl::Status Check(const DeviceConstraint& constraint) const { return placement_.CheckConstraint(constraint); }

  Placement placement_;
};

TEST_F(HintsTest, HighestScoreUsesCurrentFreeBytes) {
  // 80 + 160; 132 + 160 + 150; 100 + 320 + 150; 108 + 640 + 150.
  EXPECT_EQ(Choose({.pick = DevicePick::kHighestScore}), 3);
  placement_.Update(3, {.in_service = true, .ledger = GiB(100)});
  EXPECT_EQ(Choose({.pick = DevicePick::kHighestScore}), 2) << "D has 498 left";
  placement_.Take(2, SessionId(1), GiB(40));
  EXPECT_EQ(Choose({.pick = DevicePick::kHighestScore}), 3) << "C has 410 left";
}

TEST_F(HintsTest, RoundRobinSkipsUnsuitableDevices) {
  const DeviceConstraint turn{.pick = DevicePick::kRoundRobin, .min_free = GiB(40)};
  std::vector<int> turns;
  for (int i = 0; i < 5; ++i) {
    turns.push_back(Choose(turn));
    placement_.Take(turns.back(), SessionId(1), Bytes());
  }
  EXPECT_EQ(turns, (std::vector<int>{0, 1, 2, 3, 0}));
  placement_.Update(1, {.in_service = false});
  EXPECT_EQ(Choose(turn), 2);
  placement_.MarkTurn(3);
  EXPECT_EQ(Choose(turn), 0);
}

TEST_F(HintsTest, CapabilityAndIslandExcludeDevices) {
  EXPECT_EQ(Choose({.pick = DevicePick::kBest, .min_capability = 90}), 2);
  EXPECT_EQ(Choose({.pick = DevicePick::kAny, .min_capability = 71, .island_of = "B"}), 2);
  EXPECT_EQ(Choose({.pick = DevicePick::kBest, .island_of = "A"}), 0);
  EXPECT_EQ(placement_.Fitting({.constraint = {.pick = DevicePick::kBest, .min_capability = 80}}),
            (std::vector<uint32_t>{3, 2, 1}));
  EXPECT_TRUE(placement_.Suits(1, {.pick = DevicePick::kAny, .island_of = "C"}));
  EXPECT_FALSE(placement_.Suits(3, {.pick = DevicePick::kAny, .island_of = "C"}));
}

TEST_F(HintsTest, ImpossibleConstraintNamesEachDevicesLack) {
  EXPECT_TRUE(Check({.pick = DevicePick::kAny, .min_capability = 90, .island_of = "C"}).ok());
  const absl::Status never = Check({.pick = DevicePick::kAny, .min_capability = 90, .island_of = "A"});
  EXPECT_TRUE(IsRefusal(never, Reason::kNoDevice));
  EXPECT_EQ(
      never.message(),
      "no eligible device: asked any device of compute capability 9.0 or more in the island of A; device 0 "
      "is "
      "of compute capability 7.0; device 1 is in another island; device 2 is in another island; device 3 is "
      "of compute capability 8.0");
  EXPECT_TRUE(IsRefusal(Check({.pick = DevicePick::kNamed, .uuid = "Z"}), Reason::kNotFound));
  EXPECT_TRUE(IsRefusal(Check({.pick = DevicePick::kAny, .island_of = "Z"}), Reason::kNotFound));
  EXPECT_TRUE(
      IsRefusal(Check({.pick = DevicePick::kNamed, .uuid = "A", .min_capability = 80}), Reason::kNoDevice));
}

TEST_F(HintsTest, LackOfEachDeviceIsNamed) {
  placement_.Update(0, {.in_service = true, .draining = "loud"});
  placement_.Update(1, {.in_service = false});
  placement_.Update(3, {.dropped = true});
  EXPECT_EQ(
      placement_.Lacking({.constraint = {.pick = DevicePick::kAny, .min_free = GiB(100)}}),
      "device 0 is being drained: loud; device 1 is out of service; device 2 is short of bytes: 85899345920 "
      "free of 107374182400; device 3 is gone from the node");
  EXPECT_TRUE(IsRefusal(Check({.pick = DevicePick::kNamed, .uuid = "A"}), Reason::kDeviceDraining));
  EXPECT_TRUE(IsRefusal(Check({.pick = DevicePick::kNamed, .uuid = "D"}), Reason::kDeviceStopped));
  EXPECT_TRUE(placement_.TakeChanges().never) << "who waits for these is looked at anew";
}

TEST_F(HintsTest, ConstraintResolvesToUuidsAndChoosesAmongThem) {
  DeviceConstraint constraint{.pick = DevicePick::kNamed, .uuid = "2", .island_of = "1", .among = {"D", "2", "0"}};
  ASSERT_TRUE(placement_.Resolve(&constraint).ok());
  EXPECT_EQ(constraint.uuid, "C");
  EXPECT_EQ(constraint.island_of, "B");
  EXPECT_EQ(constraint.among, (std::vector<std::string>{"A", "C", "D"}));
  const DeviceConstraint resolved = constraint;
  ASSERT_TRUE(placement_.Resolve(&constraint).ok());
  EXPECT_TRUE(constraint == resolved);

  EXPECT_EQ(Choose({.pick = DevicePick::kBest, .among = {"A", "C"}}), 2);
  EXPECT_EQ(placement_.Fitting({.constraint = {.pick = DevicePick::kBest, .among = {"A", "D"}}}),
            (std::vector<uint32_t>{3, 0}));
  EXPECT_EQ(Check({.pick = DevicePick::kNamed, .uuid = "B", .among = {"A"}}).message(),
            "no eligible device: asked device B; device 0 is not requested; device 1 is not requested; device 2 is not "
            "requested; device 3 is not requested");
  EXPECT_EQ(Check({.pick = DevicePick::kAny, .min_capability = 90, .among = {"A", "D"}}).message(),
            "no eligible device: asked one of A, D of compute capability 9.0 or more; device 0 is of compute "
            "capability 7.0; device 3 is of compute capability 8.0");
  const struct {
    std::vector<std::string> among;
    std::optional<std::string> visible;
    const char* lacking;
  } excluded[] = {{{"A", "2"}, std::nullopt, "it is none of A, C"},
                  {{"A", "2"}, "0", "it is none of A, C"}};
  for (const auto& each : excluded) {
    DeviceConstraint other{.pick = DevicePick::kNamed, .uuid = "1", .among = each.among, .visible = each.visible};
    EXPECT_EQ(placement_.Resolve(&other).message(),
              absl::StrCat("no eligible device: asked device B; ", each.lacking));
  }
  DeviceConstraint all{.pick = DevicePick::kAny, .among = {"3", "2", "1", "0"}, .visible = ""};
  ASSERT_TRUE(placement_.Resolve(&all).ok());
  EXPECT_EQ(all.among, (std::vector<std::string>{"A", "B", "C", "D"})) << "a list of all devices is still a list";
  DeviceConstraint any{.pick = DevicePick::kAny, .visible = "0"};
  ASSERT_TRUE(placement_.Resolve(&any).ok());
  EXPECT_TRUE(any == DeviceConstraint{.pick = DevicePick::kAny}) << "CUDA_VISIBLE_DEVICES lists no host memory";
}

TEST_F(HintsTest, StoppedDeviceIsRejectedUnlessAwaited) {
  const auto stop = [&](uint32_t ordinal) { placement_.Update(ordinal, {.stopped = "no answer"}); };
  const auto refused = [&](DeviceConstraint constraint) {
    const absl::Status status = Check(constraint);
    EXPECT_TRUE(status.ok() || IsRefusal(status, Reason::kDeviceStopped)) << status;
    constraint.wait_for_device = true;
    EXPECT_TRUE(Check(constraint).ok()) << Check(constraint);
    return !status.ok();
  };
  placement_.TakeChanges();
  stop(1);
  EXPECT_TRUE(placement_.TakeChanges().never) << "who waits for it is looked at anew";
  EXPECT_TRUE(refused({.pick = DevicePick::kNamed, .uuid = "B"}));
  EXPECT_FALSE(refused({.pick = DevicePick::kNamed, .uuid = "A"}));
  EXPECT_FALSE(refused({.pick = DevicePick::kAny}));
  EXPECT_FALSE(refused({.pick = DevicePick::kAny, .among = {"A", "B"}}));
  EXPECT_TRUE(refused({.pick = DevicePick::kAny, .among = {"B"}}));
  EXPECT_FALSE(refused({.pick = DevicePick::kAny, .min_capability = 90})) << "C serves";
  stop(2);
  EXPECT_TRUE(refused({.pick = DevicePick::kAny, .min_capability = 90}));
  EXPECT_EQ(Check({.pick = DevicePick::kAny, .min_capability = 90}).message(),
            "device of the requested kind is out of service: device 1: no answer; device 2: no answer");
  placement_.Update(2, {.dropped = true, .stopped = ""});
  EXPECT_TRUE(IsRefusal(Check({.pick = DevicePick::kNamed, .uuid = "C", .wait_for_device = true}),
                        Reason::kDeviceStopped))
      << "it never comes back";
  // A device that is being rebuilt returns without intervention.
  placement_.Update(0, {.in_service = false});
  EXPECT_TRUE(Check({.pick = DevicePick::kNamed, .uuid = "A"}).ok());
  EXPECT_FALSE(placement_.AnyServes({.pick = DevicePick::kAny, .among = {"A", "B"}}));
  EXPECT_TRUE(placement_.AnyServes({.pick = DevicePick::kAny, .among = {"A", "D"}}));
}

TEST_F(HintsTest, DrainedDevicesAreRejectedIfNamedUnlessAwaited) {
  placement_.Update(0, {.draining = "loud"});
  placement_.Update(1, {.draining = "hot"});
  placement_.Update(2, {.stopped = "no answer"});
  const DeviceConstraint a = {.pick = DevicePick::kNamed, .uuid = "A"};
  const DeviceConstraint any = {.pick = DevicePick::kAny};
  const auto among = [](std::vector<std::string> uuids) {
    return DeviceConstraint{.pick = DevicePick::kAny, .among = std::move(uuids)};
  };
  struct {
    const char* what;
    DeviceConstraint constraint;
    const char* text;
    Reason reason = Reason::kDeviceDraining;
  } const cases[] = {
      {"named", a, "device A is being drained: loud"},
      {"a list of one", among({"A"}), "device of the list is being drained: device 0: loud"},
      {"a list", among({"A", "B"}), "device of the list is being drained: device 0: loud; device 1: hot"},
      {"drained and stopped", among({"A", "C"}),
       "device of the list is out of service: device 0: loud; device 2: no answer", Reason::kDeviceStopped},
      {"a list with a device that serves", among({"A", "D"}), ""},
      {"any device", any, ""},
  };
  for (const auto& [what, constraint, text, reason] : cases) {
    const absl::Status status = Check(constraint);
    EXPECT_EQ(status.message(), text) << what;
    EXPECT_TRUE(status.ok() || IsRefusal(status, reason)) << what << ": " << status;
    DeviceConstraint patient = constraint;
    patient.wait_for_device = true;
    EXPECT_TRUE(Check(patient).ok()) << what << ": " << Check(patient);
  }
}

TEST_F(HintsTest, LackOfManyDevicesIsAbbreviated) {
  Placement placement;
  for (uint32_t i = 0; i < 56; ++i) placement.Add(i, {.uuid = std::to_string(i)});
  const std::string lacking = placement.Lacking({.constraint = {.pick = DevicePick::kAny}});
  EXPECT_LT(lacking.size(), 1'000u);
  EXPECT_NE(lacking.find("; and 40 more"), std::string::npos) << lacking;
}

}  // namespace
}  // namespace berth::core
