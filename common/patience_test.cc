#include "common/patience.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

// Returns the factor of a process with this environment, which reads it once.
int FactorWith(const char* text) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    text == nullptr ? ::unsetenv("BERTH_TEST_PATIENCE") : ::setenv("BERTH_TEST_PATIENCE", text, 1);
    const bool scales = Patient(absl::Seconds(2)) == absl::Seconds(2 * PatienceFactor()) &&
                        Patient(std::chrono::seconds(2)) == std::chrono::seconds(2 * PatienceFactor());
    ::_exit(scales && PatienceFactor() <= 100 ? PatienceFactor() : 255);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WEXITSTATUS(status);
}

TEST(PatienceTest, EnvironmentSetsTheFactorOfUnoptimisedBuilds) {
#ifdef NDEBUG
  constexpr int kTen = 1;
#else
  constexpr int kTen = 10;
#endif
  EXPECT_EQ(FactorWith("10"), kTen);
  for (const char* const text : {static_cast<const char*>(nullptr), "", "1", "0", "-3", "ten", "1.5"}) {
    EXPECT_EQ(FactorWith(text), 1) << (text == nullptr ? "unset" : text);
  }
}

TEST(PatienceTest, EnvironmentReplacesOneBound) {
  const char* const variable = "BERTH_TEST_BOUND_MS";
  for (const char* const text : {"", "0", "-3", "ten", "1.5"}) {
    ASSERT_EQ(::setenv(variable, text, 1), 0);
    EXPECT_EQ(PatientUnless(variable, absl::Seconds(2)), Patient(absl::Seconds(2))) << text;
  }
  ASSERT_EQ(::setenv(variable, "300", 1), 0);
#ifdef NDEBUG
  EXPECT_EQ(PatientUnless(variable, absl::Seconds(2)), absl::Seconds(2));
#else
  EXPECT_EQ(PatientUnless(variable, absl::Seconds(2)), absl::Milliseconds(300));
#endif
  ASSERT_EQ(::unsetenv(variable), 0);
  EXPECT_EQ(PatientUnless(variable, absl::Seconds(2)), Patient(absl::Seconds(2)));
}

}  // namespace
}  // namespace berth
