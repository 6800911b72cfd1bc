// PermitTest: a fixture whose tests each hold a permit, from before anything of the GPU is made until after all of it
// is gone. See environment.h for the program around it.

#ifndef CLIENT_TESTING_PERMIT_FIXTURE_H_
#define CLIENT_TESTING_PERMIT_FIXTURE_H_

#include <memory>
#include <optional>

#include "client/permit.h"
#include "client/session.h"
#include "gtest/gtest.h"

namespace berth::testing {

// Needs an Environment. A fixture that has a SetUp() of its own calls this one first, and returns if IsSkipped() or
// HasFatalFailure() afterwards; its TearDown() calls this one last.
class PermitTest : public ::testing::Test {
 protected:
  // What to acquire; waits without an end unless it says otherwise. Where it has no label, that is the test's name.
  virtual PermitOptions options() const { return {}; }

  // Acquires; skips the test where there is no daemon.
  void SetUp() override;
  // Gives back, and fails the test where that fails: a permit that was revoked meanwhile is no such failure.
  void TearDown() override;

  // The test program's.
  const std::shared_ptr<Session>& session() const;
  // Requires: SetUp() acquired it.
  Permit& permit() { return *permit_; }

 private:
  std::optional<Permit> permit_;
};

}  // namespace berth::testing

#endif  // CLIENT_TESTING_PERMIT_FIXTURE_H_
