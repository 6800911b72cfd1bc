#include "tests/chaos/overlap.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/chaos/history.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint32_t kPool = 1;
constexpr int64_t kAlive = std::numeric_limits<int64_t>::max();

HistoryEvent Granted(int64_t at, uint64_t interval, uint64_t units = 1) {
  return {.kind = HistoryEvent::Kind::kGranted, .pool = kPool, .at = at, .interval = interval, .units = units};
}
HistoryEvent Releasing(int64_t at, uint64_t interval) {
  return {.kind = HistoryEvent::Kind::kReleasing, .at = at, .interval = interval};
}

// For several processes, each with the time at which it was last seen alive.
uint64_t MostOf(const std::vector<std::pair<std::vector<HistoryEvent>, int64_t>>& processes) {
  std::vector<HeldInterval> all;
  for (const auto& [events, last_alive] : processes) {
    const std::vector<HeldInterval> intervals = Must(HeldIntervalsOf(events, last_alive));
    all.insert(all.end(), intervals.begin(), intervals.end());
  }
  return GreatestOverlap(all, kPool);
}

TEST(OverlapTest, ConsecutiveIntervalsDoNotOverlap) {
  EXPECT_EQ(MostOf({{{Granted(10, 0), Releasing(20, 0), Granted(30, 1), Releasing(40, 1)}, kAlive},
                    {{Granted(20, 0), Releasing(30, 0)}, kAlive}}),
            1u);
}

TEST(OverlapTest, OverlappingHistoryIsFound) {
  // The second was granted one nanosecond before the first released.
  EXPECT_EQ(MostOf({{{Granted(10, 0), Releasing(20, 0)}, kAlive}, {{Granted(19, 0), Releasing(30, 0)}, kAlive}}), 2u);
  // The same with several units, among many correct intervals.
  std::vector<HistoryEvent> right;
  for (int i = 0; i < 1000; ++i) {
    right.push_back(Granted(i * 10, static_cast<uint64_t>(i), 2));
    right.push_back(Releasing(i * 10 + 5, static_cast<uint64_t>(i)));
  }
  EXPECT_EQ(MostOf({{right, kAlive}}), 2u);
  EXPECT_EQ(MostOf({{right, kAlive}, {{Granted(5006, 0, 3), Releasing(5010, 0)}, kAlive}}), 3u);
  EXPECT_EQ(MostOf({{right, kAlive}, {{Granted(5004, 0, 3), Releasing(5010, 0)}, kAlive}}), 5u);
}

TEST(OverlapTest, KilledHolderHoldsWhileSeenAlive) {
  const std::vector<HistoryEvent> killed = {Granted(10, 0)};
  EXPECT_EQ(MostOf({{killed, 25}, {{Granted(20, 0)}, kAlive}}), 2u) << "granted before the holder's death";
  EXPECT_EQ(MostOf({{killed, 20}, {{Granted(20, 0)}, kAlive}}), 1u);
  EXPECT_EQ(MostOf({{killed, 5}, {{Granted(20, 0)}, kAlive}}), 1u) << "it may have been dead by then";
}

TEST(OverlapTest, OverlapIgnoresOtherPools) {
  std::vector<HeldInterval> intervals = Must(HeldIntervalsOf({Granted(10, 0), Granted(10, 1)}, kAlive));
  EXPECT_EQ(GreatestOverlap(intervals, kPool), 2u);
  EXPECT_EQ(GreatestOverlap(intervals, kPool + 1), 0u);
}

TEST(OverlapTest, ImpossibleHistoryIsDataLoss) {
  EXPECT_TRUE(absl::IsDataLoss(HeldIntervalsOf({Releasing(10, 0)}, kAlive).status()));
  EXPECT_TRUE(absl::IsDataLoss(HeldIntervalsOf({Granted(10, 0), Releasing(9, 0)}, kAlive).status()));
  EXPECT_TRUE(
      absl::IsDataLoss(HeldIntervalsOf({Granted(10, 0), Releasing(11, 0), Releasing(12, 0)}, kAlive).status()));
}

TEST(OverlapTest, HistoryOfKilledProcessIsReadable) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/history-", ::getpid());
  const pid_t pid = ::fork();
  if (pid == 0) {
    absl::StatusOr<History> history = History::Create(path);
    if (!history.ok()) ::_exit(1);
    history->Releasing(history->Granted(kPool, 2));
    history->Granted(kPool, 3);
    history->Step();
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFSIGNALED(status));
  const History history = Must(History::Open(path));
  ::unlink(path.c_str());
  EXPECT_EQ(history.steps(), 1u);
  const std::vector<HeldInterval> intervals = Must(HeldIntervalsOf(history.Read(), MonotonicNanoseconds()));
  ASSERT_EQ(intervals.size(), 2u);
  EXPECT_EQ(intervals[0].units, 2u);
  EXPECT_EQ(intervals[1].units, 3u);
  EXPECT_LE(intervals[0].until, intervals[1].from);
}

}  // namespace
}  // namespace berth::testing
