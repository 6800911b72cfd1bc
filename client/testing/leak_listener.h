// LeakListener fails a test that ends with more Berth resources of this process than it began with: permits, blocks and
// their bytes, reservations, plans. The same holds for a test suite: TearDownTestSuite() must release what
// SetUpTestSuite() took.
//
// The listener counts the SDK's live objects in every session of this process. The listener does not see resources held
// by another process of the test, such as a forgotten child. Resources left by Permit::Leave() remain on purpose and
// are no leak.

#ifndef CLIENT_TESTING_LEAK_LISTENER_H_
#define CLIENT_TESTING_LEAK_LISTENER_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace berth::testing {

// Berth resources that this process holds.
struct Holdings {
  uint64_t permits = 0;
  uint64_t blocks = 0;
  uint64_t bytes = 0;
  uint64_t reservations = 0;
  uint64_t plans = 0;

  static Holdings Now();
};

// Describes what `after` has beyond `before`: "1 permit, 2 blocks of 12 MiB"; empty for nothing.
std::string DescribeLeak(const Holdings& before, const Holdings& after);

// GoogleTest calls it on one thread.
class LeakListener final : public ::testing::EmptyTestEventListener {
 public:
  // Time that threads left by the test have to release their resources.
  static constexpr absl::Duration kPatience = absl::Seconds(1);

  void OnTestSuiteStart(const ::testing::TestSuite& suite) override;
  void OnTestStart(const ::testing::TestInfo& test) override;
  void OnTestEnd(const ::testing::TestInfo& test) override;
  void OnTestSuiteEnd(const ::testing::TestSuite& suite) override;

 private:
  Holdings before_suite_;
  Holdings before_test_;
  // Whether tests leaked: the suite does not report their leaks again.
  bool tests_leaked_ = false;
};

}  // namespace berth::testing

#endif  // CLIENT_TESTING_LEAK_LISTENER_H_
