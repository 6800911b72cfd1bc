// What tests across processes say often: must work, was refused for a reason, becomes true in time.

#ifndef TESTS_SUPPORT_TESTING_H_
#define TESTS_SUPPORT_TESTING_H_

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/error.h"
#include "gtest/gtest.h"

namespace berth::testing {

// How long a condition is waited for on a machine that is busy with other tests. A healthy one needs
// milliseconds.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

// Ends the test program: for what no test is about and none can go on without.
[[noreturn]] void Fatal(const absl::Status& status, absl::string_view what);

inline void Must(const absl::Status& status, absl::string_view what = "") {
  if (!status.ok()) Fatal(status, what);
}

template <typename T>
T Must(absl::StatusOr<T> result, absl::string_view what = "") {
  if (!result.ok()) Fatal(result.status(), what);
  return *std::move(result);
}

// Use: EXPECT_TRUE(Ok(actor.Ask("acquire a")));
::testing::AssertionResult Ok(const absl::Status& status);

template <typename T>
::testing::AssertionResult Ok(const absl::StatusOr<T>& result) {
  return Ok(result.status());
}

// Whether `status` is a refusal for `reason` that carries at least these figures, each of them in its text
// too.
::testing::AssertionResult Refused(const absl::Status& status, Reason reason,
                                   const std::map<std::string, std::string>& figures = {});

template <typename T>
::testing::AssertionResult Refused(const absl::StatusOr<T>& result, Reason reason,
                                   const std::map<std::string, std::string>& figures = {}) {
  return Refused(result.status(), reason, figures);
}

// Looks at `condition` again and again until it holds. Returns whether it did within `patience`.
bool Eventually(const std::function<bool()>& condition, absl::Duration patience = kPatience);

// Whether this process may change users and namespaces.
bool IsRoot();

// The path of a program that the test has as data, e.g. "daemon/berthd".
std::string ProgramPath(absl::string_view name);

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_TESTING_H_
