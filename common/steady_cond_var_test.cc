#include "common/steady_cond_var.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace berth {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

TEST(SteadyCondVarTest, SignalledWaiterWakesBeforeDeadline) {
  Mutex mu;
  SteadyCondVar notified;
  bool ready = false;
  std::thread teller([&] {
    MutexLock lock(&mu);
    ready = true;
    notified.Signal();
  });
  const absl::Time deadline = SteadyNow() + kPatience;
  MutexLock lock(&mu);
  bool late = false;
  while (!ready && !late) late = notified.WaitWithDeadline(&mu, deadline);
  EXPECT_TRUE(ready);
  teller.join();
}

TEST(SteadyCondVarTest, SignalAllWakesEveryWaiter) {
  Mutex mu;
  SteadyCondVar notified;
  bool ready = false;
  int waiting = 0, seen = 0;
  std::vector<std::thread> waiters;
  for (int i = 0; i < 8; ++i) {
    waiters.emplace_back([&] {
      const absl::Time deadline = SteadyNow() + kPatience;
      MutexLock lock(&mu);
      ++waiting;
      bool late = false;
      while (!ready && !late) late = notified.WaitWithDeadline(&mu, deadline);
      seen += ready ? 1 : 0;
    });
  }
  for (bool done = false; !done; std::this_thread::yield()) {
    MutexLock lock(&mu);
    done = ready = waiting == 8;
    if (done) notified.SignalAll();
  }
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(seen, 8);
}

TEST(SteadyCondVarTest, ExpiredDeadlineEndsWaitWithMutexHeld) {
  Mutex mu;
  SteadyCondVar notified;
  MutexLock lock(&mu);
  EXPECT_TRUE(notified.WaitWithDeadline(&mu, SteadyNow() - absl::Seconds(1)));
  EXPECT_TRUE(notified.WaitWithDeadline(&mu, absl::InfinitePast()));
  const absl::Time deadline = SteadyNow() + absl::Milliseconds(5);
  while (!notified.WaitWithDeadline(&mu, deadline)) continue;
  EXPECT_GE(SteadyNow(), deadline);
}

}  // namespace
}  // namespace berth
