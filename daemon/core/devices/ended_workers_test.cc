#include "daemon/core/devices/ended_workers.h"

#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

constexpr absl::Time kOrigin = absl::UnixEpoch();

TEST(EndedWorkersTest, SecondEndInTheWindowHoldsItsUser) {
  struct Row {
    const char* name;
    absl::Duration between;
    bool held;
  };
  for (const Row& row : {Row{"at once", absl::ZeroDuration(), true}, Row{"within", absl::Seconds(59), true},
                         Row{"after", absl::Seconds(60), false}}) {
    SCOPED_TRACE(row.name);
    EndedWorkers ended;
    const EndedWorkers::Key key = {.device = 1, .worker_kind = WorkerKind::kMain, .user = 1000};
    ended.OnEnded(kOrigin, key);
    EXPECT_FALSE(ended.HeldUntil(kOrigin, key).has_value());
    const absl::Time second = kOrigin + row.between;
    ended.OnEnded(second, key);
    EXPECT_EQ(ended.HeldUntil(second, key).has_value(), row.held);
    const absl::Time until = second + EndedWorkers::kWindow;
    EXPECT_EQ(ended.next_deadline(), row.held ? until : absl::InfiniteFuture());
    for (const EndedWorkers::Key& other : {EndedWorkers::Key{0, WorkerKind::kMain, 1000},
                                           EndedWorkers::Key{1, WorkerKind::kContext, 1000},
                                           EndedWorkers::Key{1, WorkerKind::kMain, 1001}}) {
      EXPECT_FALSE(ended.HeldUntil(second, other).has_value());
    }
    EXPECT_TRUE(ended.Forget(until - absl::Nanoseconds(1)).empty());
    EXPECT_EQ(ended.Forget(until).size(), row.held ? 1u : 0u);
    EXPECT_FALSE(ended.HeldUntil(until, key).has_value());
    EXPECT_EQ(ended.next_deadline(), absl::InfiniteFuture());
    // Only ends in the next window count.
    ended.OnEnded(until, key);
    EXPECT_FALSE(ended.HeldUntil(until, key).has_value());
  }
}

}  // namespace
}  // namespace berth::core
