#include <berth/cancellation.h>

#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(CancellationTest, HookRunsOnceAtCancel) {
  Cancellation cancellation;
  int calls = 0;
  Cancellation::Hook hook(&cancellation, [&] { ++calls; });
  EXPECT_FALSE(cancellation.cancelled());
  cancellation.Cancel();
  cancellation.Cancel();
  EXPECT_TRUE(cancellation.cancelled());
  EXPECT_EQ(calls, 1);
}

TEST(CancellationTest, LateHookRunsAtOnceDestroyedHookNever) {
  Cancellation cancellation;
  int calls = 0;
  {
    Cancellation::Hook gone(&cancellation, [&] { calls += 10; });
  }
  cancellation.Cancel();
  Cancellation::Hook late(&cancellation, [&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(CancellationTest, NullCancellationHasNoHook) {
  Cancellation::Hook hook(nullptr, [] { FAIL(); });
}

}  // namespace
}  // namespace berth
