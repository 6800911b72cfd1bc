#include "tests/support/testing.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace berth::testing {
namespace {

// Between two looks at a condition.
constexpr int kLookAgainMs = 2;

}  // namespace

void Fatal(const absl::Status& status, absl::string_view what) {
  fprintf(stderr, "FATAL: %s: %s\n", std::string(what).c_str(), status.ToString().c_str());
  abort();
}

::testing::AssertionResult Ok(const absl::Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << status.ToString();
}

::testing::AssertionResult Refused(const absl::Status& status, Reason reason,
                                   const std::map<std::string, std::string>& figures) {
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  if (!details.has_value() || details->reason != reason) {
    return ::testing::AssertionFailure()
           << "expected " << ReasonName(reason) << ", got " << status.ToString();
  }
  for (const auto& [name, value] : figures) {
    const auto it = details->metadata.find(name);
    if (it == details->metadata.end() || it->second != value) {
      return ::testing::AssertionFailure()
             << "expected figure " << name << " to be \"" << value << "\", got "
             << (it == details->metadata.end() ? "none" : it->second) << " in " << status.ToString();
    }
    if (!absl::StrContains(status.message(), value)) {
      return ::testing::AssertionFailure()
             << "figure " << name << " (" << value << ") is missing in the text: " << status.ToString();
    }
  }
  return ::testing::AssertionSuccess();
}

bool Eventually(const std::function<bool()>& condition, absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  while (!condition()) {
    if (absl::Now() > deadline) return condition();
    ::poll(nullptr, 0, kLookAgainMs);
  }
  return true;
}

bool IsRoot() { return ::geteuid() == 0; }

std::string ProgramPath(absl::string_view name) {
  const char* const folder = getenv("TEST_SRCDIR");
  const char* const workspace = getenv("TEST_WORKSPACE");
  if (folder != nullptr && workspace != nullptr) return absl::StrCat(folder, "/", workspace, "/", name);
  char here[4096];
  if (::getcwd(here, sizeof(here)) == nullptr) Fatal(absl::InternalError("getcwd"), name);
  return absl::StrCat(here, "/", name);
}

}  // namespace berth::testing
