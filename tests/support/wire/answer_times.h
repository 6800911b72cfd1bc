// AnswerTimes: how long operators waited for their answers while clients exhausted a resource, and how much memory the
// broker used meanwhile. The times are printed. In the soak nine of ten answers are expected within a second. Where
// BERTH_FAULT_ANSWER_MS is set, each answer is expected within so many milliseconds. On an idle machine 1000 holds. A
// debug build beside other tests takes up to two seconds for what a flood may send at once (load of 10 on two cores).
//
//   AnswerTimes times;
//   while (...) EXPECT_TRUE(Ok(times.Time([&] { return Look(); })));
//   times.Saw(node.pressure());
//   times.ExpectInTime("resets");

#ifndef TESTS_SUPPORT_WIRE_ANSWER_TIMES_H_
#define TESTS_SUPPORT_WIRE_ANSWER_TIMES_H_

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/device.pb.h"
#include "gtest/gtest.h"
#include "tests/support/environment.h"

namespace berth::testing {

// Thread-compatible.
class AnswerTimes {
 public:
  static constexpr absl::Duration kInTime = absl::Seconds(1);

  // Times a call and returns its result.
  template <typename Call>
  auto Time(Call call) {
    const absl::Time start = absl::Now();
    auto answer = call();
    times_.push_back(absl::Now() - start);
    return answer;
  }
  void Saw(const v1::Pressure& pressure) {
    memory_ = std::max(memory_, pressure.memory_bytes());
    bound_ = pressure.memory_bound_bytes();
  }

  // Requires: Time() was called. Expects nothing of a program that a sanitizer slows down and makes larger.
  void ExpectInTime(const std::string& what) {
    std::sort(times_.begin(), times_.end());
    std::cout << what << ": " << times_.size() << " answers to operators, the longest wait "
              << absl::ToInt64Milliseconds(times_.back()) << " ms; the broker had " << (memory_ >> 20)
              << " MiB at most" << std::endl;
#ifndef BERTH_SANITIZED
    if (Soaks()) {
      EXPECT_LT(times_[(times_.size() - 1) * 9 / 10], kInTime);
    }
    if (const uint64_t most = FromEnvironment("BERTH_FAULT_ANSWER_MS", 0); most > 0) {
      EXPECT_LT(times_.back(), absl::Milliseconds(most));
    }
    EXPECT_LE(memory_, bound_);
#endif
  }

 private:
  std::vector<absl::Duration> times_;
  uint64_t memory_ = 0;
  uint64_t bound_ = 0;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_WIRE_ANSWER_TIMES_H_
