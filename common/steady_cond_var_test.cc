#include "common/steady_cond_var.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace berth {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

TEST(SteadyCondVarTest, WhoIsToldGoesOnBeforeItsDeadline) {
  Mutex mu;
  SteadyCondVar told;
  bool ready = false;
  std::thread teller([&] {
    MutexLock lock(&mu);
    ready = true;
    told.Signal();
  });
  const absl::Time deadline = SteadyNow() + kPatience;
  MutexLock lock(&mu);
  bool late = false;
  while (!ready && !late) late = told.WaitWithDeadline(&mu, deadline);
  EXPECT_TRUE(ready);
  teller.join();
}

TEST(SteadyCondVarTest, AllThatWaitAreTold) {
  Mutex mu;
  SteadyCondVar told;
  bool ready = false;
  int waiting = 0, seen = 0;
  std::vector<std::thread> waiters;
  for (int i = 0; i < 8; ++i) {
    waiters.emplace_back([&] {
      const absl::Time deadline = SteadyNow() + kPatience;
      MutexLock lock(&mu);
      ++waiting;
      bool late = false;
      while (!ready && !late) late = told.WaitWithDeadline(&mu, deadline);
      seen += ready ? 1 : 0;
    });
  }
  for (bool done = false; !done; std::this_thread::yield()) {
    MutexLock lock(&mu);
    done = ready = waiting == 8;
    if (done) told.SignalAll();
  }
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(seen, 8);
}

TEST(SteadyCondVarTest, ADeadlineThatIsOverEndsTheWaitWithTheMutexHeld) {
  Mutex mu;
  SteadyCondVar told;
  MutexLock lock(&mu);
  EXPECT_TRUE(told.WaitWithDeadline(&mu, SteadyNow() - absl::Seconds(1)));
  EXPECT_TRUE(told.WaitWithDeadline(&mu, absl::InfinitePast()));
  const absl::Time deadline = SteadyNow() + absl::Milliseconds(5);
  while (!told.WaitWithDeadline(&mu, deadline)) continue;
  EXPECT_GE(SteadyNow(), deadline);
}

}  // namespace
}  // namespace berth
