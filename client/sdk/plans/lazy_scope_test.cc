#include <berth/lazy_scope.h>

#include <mutex>
#include <thread>

#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(LazyScopeTest, ScopeIsPerThreadAndNests) {
  EXPECT_FALSE(LazyScope::Inside());
  {
    LazyScope outer;
    {
      LazyScope inner;
      EXPECT_TRUE(LazyScope::Inside());
    }
    EXPECT_TRUE(LazyScope::Inside());
    std::thread([] { EXPECT_FALSE(LazyScope::Inside()); }).join();
  }
  EXPECT_FALSE(LazyScope::Inside());
}

TEST(LazyScopeTest, CallOnceCountsAsLazyScope) {
  std::once_flag once;
  bool inside = false;
  std::call_once(once, [&] { inside = LazyScope::Inside(); });
  EXPECT_TRUE(inside);
  EXPECT_FALSE(LazyScope::Inside());
  std::once_flag failing;
  EXPECT_THROW(std::call_once(failing, [] { throw 1; }), int);
  EXPECT_FALSE(LazyScope::Inside()) << "also after one that threw";
}

}  // namespace
}  // namespace berth
