// A run inside a run, as another user, in another PID namespace, or without the session's variable: the message it
// gets. The gate tries every second way to wait for an ancestor, as each takes seconds.

#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include <cstddef>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/ids.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/permit.pb.h"
#include "client/sdk/admin/inspector.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// As su and sudo do; kSudo also removes the caller's variable. A test's programs often lie below a folder that is
// closed to other users: the one capability only allows passage there.
#define BERTH_SU                                                                                            \
  "/usr/bin/setpriv --reuid=65533 --regid=65533 --clear-groups --inh-caps=+dac_read_search "                \
  "--ambient-caps=+dac_read_search "
constexpr char kSu[] = BERTH_SU;
constexpr char kSudo[] = BERTH_SU "/usr/bin/env -u BERTH_SESSION ";
// As sudo to root, which may read the environment of each process.
constexpr char kSudoToRoot[] =
    "/usr/bin/setpriv --reuid=65533 --regid=65533 --clear-groups --inh-caps=+dac_read_search,+sys_ptrace "
    "--ambient-caps=+dac_read_search,+sys_ptrace /usr/bin/env -u BERTH_SESSION ";
constexpr char kStripped[] = "/usr/bin/env -u BERTH_SESSION ";
constexpr char kContainer[] = "/usr/bin/unshare --pid --fork --mount-proc ";
constexpr char kCloseFds[] =
    "/bin/bash -c 'for fd in /proc/self/fd/9[67]?; do eval \"exec ${fd##*/}>&-\"; done; exec \"$@\"' - ";

class NestedUserTest : public ::testing::Test {
 protected:
  NestedUserTest() : daemon_({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}}) {}
  void SetUp() override {
    if (!IsRoot() || OtherUser().has_value()) GTEST_SKIP() << "needs root: changes users";
  }
  void TearDown() override { daemon_.ExpectAccountsBack(); }

  // Starts a script in which $BERTH is the command, and whose output has its stderr.
  Subprocess Start(const std::string& script) {
    return Subprocess::Start(
        {.argv = {"/bin/sh", "-c", absl::StrCat("exec 2>&1; ", script)},
         .environment = {absl::StrCat("BERTH=", ProgramPath("client/cli/berth")),
                         absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION"}});
  }
  // Returns the script's output and its exit code.
  std::pair<std::string, int> Script(const std::string& script) {
    Subprocess shell = Start(script);
    std::string said = shell.ReadAll();
    const int code = shell.Wait();
    return {std::move(said), code};
  }
  // Ends the script's waiting command once it has begun to explain its wait. Returns the script's output.
  std::string Wait(const std::string& script) {
    Subprocess shell = Start(script);
    std::string said;
    while (!absl::StrContains(said, "waiting for pool gpu-tests"))
      absl::StrAppend(&said, Must(shell.ReadLine(), said), "\n");
    const v1::ListPermitsResponse permits = Must(daemon_.inspector().ListPermits());
    for (const v1::Waiter& waiter : permits.waiters()) {
      EXPECT_TRUE(Ok(daemon_.inspector().EndSession(SessionId(waiter.session()))));
    }
    absl::StrAppend(&said, shell.ReadAll());
    EXPECT_NE(shell.Wait(), 0) << said;
    return said;
  }

  TestDaemon daemon_;
};

TEST_F(NestedUserTest, SessionOfOtherOwnerIsNamed) {
  if (!MayUnshare(CLONE_NEWPID | CLONE_NEWNS)) GTEST_SKIP() << "needs the right to make PID and mount namespaces";
  struct Row {
    std::string inside;
    std::string says;
  };
  for (const Row& row : {
           Row{kSu, "belongs to user 0, and this process is user 65533: unset BERTH_SESSION"},
           Row{absl::StrCat(kSu, kCloseFds), " of user 0 cannot be read as user 65533"},
           Row{kContainer, "belongs to another container, or to a process outside this one: unset BERTH_SESSION"},
           Row{absl::StrCat(kContainer, kCloseFds), "is in another PID namespace, e.g. in another container"},
       }) {
    const auto [said, code] =
        Script(absl::StrCat("$BERTH run -- ", row.inside, "$BERTH run --no-wait -- /bin/echo ran"));
    EXPECT_TRUE(absl::StrContains(said, row.says)) << row.inside << ": " << said;
    EXPECT_TRUE(absl::StrContains(said, "unset ")) << said;
    EXPECT_FALSE(absl::StrContains(said, "ran")) << said;
    EXPECT_TRUE(code == 69 || code == 125) << code;
  }
}

TEST_F(NestedUserTest, WaitForAncestorNamesIt) {
  struct Row {
    std::string outer;
    std::string inside;
    // Empty where the holder is no ancestor, and no message about one is expected.
    std::string says;
  };
  const Row rows[] = {
      {"$BERTH run -- ", kStripped, "is an ancestor of this process"},
      {"$BERTH run --exec -- /bin/sh -c '\"$@\"; exit $?' - ", kStripped, "is an ancestor of this process"},
      {"$BERTH run -- ", kSudo, "an ancestor of this process"},
      {"$BERTH ctest-run -- /usr/bin/timeout 60 ", kStripped, "is an ancestor of this process"},
      {"$BERTH run --exec -- /bin/sh -c '\"$@\"; exit $?' - ", kSudoToRoot, "a holder may be the session of sh("},
      {"eval \"$($BERTH acquire --shell)\"; /bin/sh -c '\"$@\"; exit $?' - ", kStripped,
       "), which is an ancestor of this process"},
      {"eval \"$($BERTH acquire --shell)\"; /bin/sh -c '\"$@\"; exit $?' - ", kSudoToRoot,
       "a holder may be the session of sh("},
      {"", kStripped, ""},
      {"", kSudoToRoot, ""},
  };
  const bool may_read = Script(absl::StrCat(kSudoToRoot, "/bin/true")).second == 0;
  if (!may_read) printf("not possible here: a process that may read the environment of each other\n");
  const size_t stride = GateOrSoak(2, 1);
  for (size_t i = 0; i < std::size(rows); i += stride) {
    const Row& row = rows[i];
    if (!may_read && row.inside == kSudoToRoot) continue;
    std::optional<Actor> stranger;
    if (row.says.empty()) stranger.emplace(daemon_).Do("acquire p");
    const std::string said = Wait(absl::StrCat(row.outer, row.inside, "$BERTH run -- /bin/echo ran"));
    EXPECT_EQ(absl::StrContains(said, "ancestor"), !row.says.empty()) << row.outer << row.inside << said;
    EXPECT_TRUE(absl::StrContains(said, row.says)) << row.outer << row.inside << said;
  }
}

// A process of another PID namespace cannot see its ancestors, and is another tenant.
TEST_F(NestedUserTest, WaitInOtherPidNamespaceNamesNoAncestor) {
  if (!MayUnshare(CLONE_NEWPID | CLONE_NEWNS)) GTEST_SKIP() << "needs the right to make PID and mount namespaces";
  const std::string said =
      Wait(absl::StrCat("$BERTH run -- ", kContainer, kStripped, "$BERTH run -- /bin/echo ran"));
  EXPECT_TRUE(absl::StrContains(said, "held by another tenant for ")) << said;
  EXPECT_FALSE(absl::StrContains(said, "ancestor")) << said;
}

}  // namespace
}  // namespace berth::testing
