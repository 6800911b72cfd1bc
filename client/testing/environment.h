// For tests that use the node's GPUs, with GoogleTest: one session for the test program, a permit for each test that
// wants one, and a failure for a test that leaks.
//
//   #include "client/testing/permit_fixture.h"
//
//   class KernelTest : public berth::testing::PermitTest {};        // holds a permit from SetUp() to TearDown()
//   TEST_F(KernelTest, AddsVectors) { RunOnTheGpu(); }
//
// with //client/testing:main in the place of GoogleTest's own main; or, in a main() of one's own,
//
//   testing::InitGoogleTest(&argc, argv);
//   berth::testing::Install();
//   return RUN_ALL_TESTS();
//
// Without a daemon the tests that need one are skipped, aloud. BERTH_REQUIRE=1 in the environment makes that a
// failure: set it where there must be a daemon, as in CI.

#ifndef CLIENT_TESTING_ENVIRONMENT_H_
#define CLIENT_TESTING_ENVIRONMENT_H_

#include <memory>

#include "absl/status/status.h"
#include "client/session.h"
#include "gtest/gtest.h"

namespace berth::testing {

// Whether there must be a daemon where it is set to anything but "" and "0".
inline constexpr char kRequireVariable[] = "BERTH_REQUIRE";

struct EnvironmentOptions {
  // The label is the test program's name unless it is set.
  SessionOptions session;
  // Fail without a daemon, whatever the environment says.
  bool required = false;
};

// Opens the session, or joins the one of a `berth run` around the tests. One caller at a time.
class Environment final : public ::testing::Environment {
 public:
  explicit Environment(EnvironmentOptions options = {});
  ~Environment() override;

  void SetUp() override;
  // Leaves the session. What still is out of it then comes back when the process ends.
  void TearDown() override;

  // The one that was set up last; null where none is.
  static Environment* Get();

  // Null where there is none: status() says why.
  const std::shared_ptr<Session>& session() const { return session_; }
  const absl::Status& status() const { return status_; }
  bool required() const { return required_; }

 private:
  const EnvironmentOptions options_;
  const bool required_;
  std::shared_ptr<Session> session_;
  absl::Status status_;
};

// Gives GoogleTest an Environment and a LeakListener (leak_listener.h). Call it once, after InitGoogleTest().
void Install(EnvironmentOptions options = {});

}  // namespace berth::testing

#endif  // CLIENT_TESTING_ENVIRONMENT_H_
