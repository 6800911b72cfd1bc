// OpenToClients: lets clients of another user reach the sockets of a daemon that a test starts by itself. TestDaemon
// does this for its own daemon.

#ifndef TESTS_SUPPORT_DAEMON_CLIENT_FOLDER_H_
#define TESTS_SUPPORT_DAEMON_CLIENT_FOLDER_H_

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "common/os/os_error.h"
#include "tests/support/testing.h"

namespace berth::testing {

// As on a node, where the folder and its sockets belong to group `berth`. Does nothing where clients run as the test.
inline void OpenToClients(const std::string& folder) {
  if (!OtherUser().has_value()) return;
  for (const char* const name : {"", "/berthd.sock", "/attach.sock"}) {
    const std::string path = folder + name;
    const mode_t mode = *name == '\0' ? 0750 : 0660;
    if (::chown(path.c_str(), 0, kClientsGroup) < 0 || ::chmod(path.c_str(), mode) < 0) {
      Fatal(OsError("chown, chmod", errno), path);
    }
  }
}

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_DAEMON_CLIENT_FOLDER_H_
