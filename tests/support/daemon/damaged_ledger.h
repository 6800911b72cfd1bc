// DamageLedger: makes a daemon's ledger unreadable and lets the next broker find the damage.

#ifndef TESTS_SUPPORT_DAEMON_DAMAGED_LEDGER_H_
#define TESTS_SUPPORT_DAEMON_DAMAGED_LEDGER_H_

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <string>

#include <berth/session.h>

#include "absl/status/status.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/device.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {

// Requires: the supervisor is the process that was started first. Afterwards the broker grants nothing until a reset.
inline void DamageLedger(TestDaemon& daemon) {
  const std::string path = daemon.folder() + "/ledger";
  // Stops the supervisor, so that it starts no broker before the damage is done.
  daemon.supervisor().Signal(SIGSTOP);
  ASSERT_EQ(::kill(daemon.broker(), SIGKILL), 0);
  {
    // Writes in place: the daemon has this file open.
    const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file || ::pwrite(file.get(), "something", 9, 0) != 9) Fatal(OsError(path, errno), "the ledger");
  }
  daemon.supervisor().Signal(SIGCONT);
  ASSERT_TRUE(Eventually([&] { return !daemon.GetNode().ledger_fault().empty(); }));
}

// Resets such a daemon with a new operator session: the broker does not know the sessions that were in the ledger.
inline absl::Status ResetDamaged(const TestDaemon& daemon) {
  const auto session = Session::Open({.folder = daemon.folder(), .label = "reset", .admin = true, .always_new = true});
  return session.ok() ? Inspector(*session).ResetNode().status() : session.status();
}

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_DAEMON_DAMAGED_LEDGER_H_
