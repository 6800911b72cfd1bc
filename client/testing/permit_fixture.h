// PermitTest: a fixture whose tests each hold a permit, from before any GPU object is made until after all are
// destroyed. See environment.h for the program around it.

#ifndef CLIENT_TESTING_PERMIT_FIXTURE_H_
#define CLIENT_TESTING_PERMIT_FIXTURE_H_

#include <memory>
#include <optional>

#include <berth/permit.h>
#include <berth/session.h>

#include "gtest/gtest.h"

namespace berth::testing {

// Requires: an Environment. A fixture with its own SetUp() calls this SetUp() first, and returns if IsSkipped() or
// HasFatalFailure() afterwards. Its TearDown() calls this TearDown() last.
class PermitTest : public ::testing::Test {
 protected:
  // Returns the options of the permit. The default waits without limit. An empty label becomes the test's name.
  virtual PermitOptions options() const { return {}; }

  // Acquires the permit. Skips the test where there is no daemon.
  void SetUp() override;
  // Releases the permit. Fails the test where the release fails, or where the permit ended while the test ran.
  void TearDown() override;

  // The test program's session.
  const std::shared_ptr<Session>& session() const;
  // Requires: SetUp() acquired the permit.
  Permit& permit() { return *permit_; }

 private:
  std::optional<Permit> permit_;
};

}  // namespace berth::testing

#endif  // CLIENT_TESTING_PERMIT_FIXTURE_H_
