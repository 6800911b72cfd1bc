// AnswerTimes: how long operators waited for their answers while clients used something up, and how much memory the
// broker had meanwhile. Whatever that is, an operator is answered within a second (docs/guarantees.md).
//
//   AnswerTimes times;
//   while (...) EXPECT_TRUE(Ok(times.Time([&] { return Look(); })));
//   times.Saw(node.pressure());
//   times.ExpectInTime("resets");   // prints the longest, too

#ifndef TESTS_SUPPORT_ANSWER_TIMES_H_
#define TESTS_SUPPORT_ANSWER_TIMES_H_

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/device.pb.h"
#include "gtest/gtest.h"

namespace berth::testing {

// Thread-compatible.
class AnswerTimes {
 public:
  static constexpr absl::Duration kInTime = absl::Seconds(1);

  // Calls it, and returns what it returned.
  template <typename Call>
  auto Time(Call call) {
    const absl::Time start = absl::Now();
    auto answer = call();
    longest_ = std::max(longest_, absl::Now() - start);
    ++answers_;
    return answer;
  }
  void Saw(const v1::Pressure& pressure) {
    memory_ = std::max(memory_, pressure.memory_bytes());
    bound_ = pressure.memory_bound_bytes();
  }

  // A sanitizer's program is slower than it is anywhere else, and has more memory.
  void ExpectInTime(const std::string& what) const {
    std::cout << what << ": " << answers_ << " answers to operators, the longest wait "
              << absl::ToInt64Milliseconds(longest_) << " ms; the broker had " << (memory_ >> 20) << " MiB at most"
              << std::endl;
    EXPECT_GT(answers_, 0);
#ifndef BERTH_SANITIZED
    EXPECT_LT(longest_, kInTime);
    EXPECT_LE(memory_, bound_);
#endif
  }

 private:
  int answers_ = 0;
  absl::Duration longest_;
  uint64_t memory_ = 0;
  uint64_t bound_ = 0;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ANSWER_TIMES_H_
