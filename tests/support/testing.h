// Common test helpers: a call must succeed, is refused for a reason, or a condition becomes true in time.

#ifndef TESTS_SUPPORT_TESTING_H_
#define TESTS_SUPPORT_TESTING_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace berth::testing {

// How long a test waits for a condition on a machine that is busy with other tests. A healthy machine needs
// milliseconds.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

// Ends the test case after a failure of its environment, without which the case cannot continue: prints the status and
// throws, which GoogleTest reports as the failure of the case. Ends the program where no GoogleTest catches it: on
// another thread, in a forked child, in a destructor.
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

// Whether `status` is a refusal for `reason` that carries at least these values, each of them in its text, too.
::testing::AssertionResult Refused(const absl::Status& status, Reason reason,
                                   const std::map<std::string, std::string>& named_values = {});

template <typename T>
::testing::AssertionResult Refused(const absl::StatusOr<T>& result, Reason reason,
                                   const std::map<std::string, std::string>& named_values = {}) {
  return Refused(result.status(), reason, named_values);
}

// Polls `condition` until it holds, first every 2 ms, later every 50 ms. Returns whether it held within `patience`. A
// wait that ended is noted in the test's report: tests/run has a second look at a test that failed for nothing else.
bool Eventually(const std::function<bool()>& condition, absl::Duration patience = kPatience);

// As Eventually(), without the note: for accounts, and for what may stay false.
bool Within(absl::Duration patience, const std::function<bool()>& condition);

// Whether this process may change its user.
bool IsRoot();
// Whether this process may make namespaces of these kinds, such as CLONE_NEWPID. Mounting needs the same right as
// CLONE_NEWNS. Root in a container often has none of these rights.
bool MayUnshare(int kinds);

// Moves this process into a mount namespace of its own: mounts end with this process and those that it starts, however
// they end. Returns whether it may. Requires: no thread has been started, e.g. during static initialization.
bool EnterOwnMounts();

// Returns the user that a test's clients run as, beside a daemon of root's: where BERTH_TEST_OTHER_USER is set to
// anything but "", as `tests/run --other-user` does. Returns nothing where clients run as the test does.
std::optional<uid_t> OtherUser();
// Return the user and the group of clients: another user's, or the test's own.
uid_t ClientUid();
gid_t ClientGid();
// Gives a file, or a folder with all its contents, to clients of another user; does nothing where clients run as the
// test.
void GiveToClients(const std::string& path);
// The group whose members reach the sockets then, as group `berth` does on a node. A client has it beside its own
// group.
inline constexpr gid_t kClientsGroup = 65532;

// Returns the path of a program or file that is data of the test, e.g. "daemon/berthd". Where clients are another
// user's, returns the path of a copy that every user may read: the test's data often lies below a home folder.
std::string ProgramPath(absl::string_view name);

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_TESTING_H_
