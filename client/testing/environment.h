// Support for tests that use the node's GPUs, with GoogleTest. The test program has one session, each test that
// requests one has a permit, and a test that leaks fails.
//
//   #include "client/testing/permit_fixture.h"
//
//   class KernelTest : public berth::testing::PermitTest {};        // holds a permit from SetUp() to TearDown()
//   TEST_F(KernelTest, AddsVectors) { RunOnTheGpu(); }
//
// with //client/testing:main instead of GoogleTest's own main; or, in a custom main(),
//
//   testing::InitGoogleTest(&argc, argv);
//   berth::testing::Install();
//   return RUN_ALL_TESTS();
//
// Without a daemon the tests that need one are skipped, with a message. BERTH_REQUIRE=1 in the environment turns the
// skip into a failure: set it where a daemon must exist, as in CI.

#ifndef CLIENT_TESTING_ENVIRONMENT_H_
#define CLIENT_TESTING_ENVIRONMENT_H_

#include <memory>

#include <berth/session.h>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace berth::testing {

// Environment variable that requires a daemon; "" and "0" count as unset.
inline constexpr char kRequireVariable[] = "BERTH_REQUIRE";

struct EnvironmentOptions {
  // An empty label becomes the test program's name.
  SessionOptions session;
  // Whether to fail without a daemon, whatever the environment says.
  bool required = false;
};

// Opens the session, or joins the session of a `berth run` around the tests. Not thread-safe: one caller at a time.
class Environment final : public ::testing::Environment {
 public:
  explicit Environment(EnvironmentOptions options = {});
  ~Environment() override;

  void SetUp() override;
  // Leaves the session. Resources that are still held are released when the process ends.
  void TearDown() override;

  // Returns the Environment that was set up last; null where none is.
  static Environment* Get();

  // Null where there is no session; status() gives the reason.
  const std::shared_ptr<Session>& session() const { return session_; }
  const absl::Status& status() const { return status_; }
  bool required() const { return required_; }

 private:
  const EnvironmentOptions options_;
  const bool required_;
  std::shared_ptr<Session> session_;
  absl::Status status_;
};

// Registers an Environment and a LeakListener (leak_listener.h) with GoogleTest. Requires: called once, after
// InitGoogleTest().
void Install(EnvironmentOptions options = {});

}  // namespace berth::testing

#endif  // CLIENT_TESTING_ENVIRONMENT_H_
