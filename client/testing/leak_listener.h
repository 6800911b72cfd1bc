// LeakListener fails a test that ends with more of Berth than it began with: permits, blocks, their bytes,
// reservations of this process. A test suite, too: what SetUpTestSuite() took, TearDownTestSuite() gives back.
//
// It looks at what the SDK's objects hold, in every session of this process; that another process of the test (a child
// that it forgot) holds something is not seen. What Permit::Leave() left is meant to stay and no leak.

#ifndef CLIENT_TESTING_LEAK_LISTENER_H_
#define CLIENT_TESTING_LEAK_LISTENER_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace berth::testing {

// What this process holds of Berth.
struct Holdings {
  uint64_t permits = 0;
  uint64_t blocks = 0;
  uint64_t bytes = 0;
  uint64_t reservations = 0;
  uint64_t plans = 0;

  static Holdings Now();
};

// What `after` has beyond `before`, in words: "1 permit, 2 blocks of 12 MiB"; empty for nothing.
std::string DescribeLeak(const Holdings& before, const Holdings& after);

// Driven by GoogleTest, on one thread.
class LeakListener final : public ::testing::EmptyTestEventListener {
 public:
  // How long a thread that the test left may still take to give back.
  static constexpr absl::Duration kPatience = absl::Seconds(1);

  void OnTestSuiteStart(const ::testing::TestSuite& suite) override;
  void OnTestStart(const ::testing::TestInfo& test) override;
  void OnTestEnd(const ::testing::TestInfo& test) override;
  void OnTestSuiteEnd(const ::testing::TestSuite& suite) override;

 private:
  Holdings before_suite_;
  Holdings before_test_;
  // What tests leaked is theirs, and not the suite's once more.
  bool tests_leaked_ = false;
};

}  // namespace berth::testing

#endif  // CLIENT_TESTING_LEAK_LISTENER_H_
