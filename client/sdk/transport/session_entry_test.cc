#include "client/sdk/transport/session_entry.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "client/sdk/transport/environment.h"
#include "common/os/process_start.h"
#include "common/os/unique_fd.h"
#include "common/wire/session_credentials.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

// An fd number that is not open in this process.
constexpr int kClosed = 900;

UniqueFd SessionCredentialsOf(uint64_t session) {
  return WriteSessionCredentials({.session = SessionId(session), .secret = RandomSecret(), .folder = "/run/berth"})
      .value();
}

// Returns the name that this process would give session `session` with its credentials under fd `session_credentials`.
SessionName NameOf(uint64_t session, int session_credentials) {
  return {.lifeline = kClosed,
          .session_credentials = session_credentials,
          .opener = ::getpid(),
          .opener_start = StartTicksOf(::getpid())->value(),
          .pid_namespace = PidNamespace(),
          .session = SessionId(session)};
}

// Returns the PID of a process that has been reaped.
pid_t GonePid() {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  ::waitpid(pid, nullptr, 0);
  return pid;
}

TEST(SessionEntryTest, InheritedCredentialsOfNamedSessionAreTaken) {
  const UniqueFd session_credentials = SessionCredentialsOf(7);
  SessionName name = NameOf(7, session_credentials.get());
  name.opener = GonePid();
  EXPECT_TRUE(HasInherited(name));
  const auto found = FindSessionCredentials(name);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->session, SessionId(7));
}

TEST(SessionEntryTest, CredentialsOfAnotherSessionAreRejectedEverywhere) {
  const UniqueFd other = SessionCredentialsOf(8);
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (const int fd : {other.get(), null.get(), kClosed}) {
    const SessionName name = NameOf(7, fd);
    EXPECT_FALSE(HasInherited(name));
    // The owner process is this process, too.
    EXPECT_TRUE(absl::IsNotFound(FindSessionCredentials(name).status())) << fd << FindSessionCredentials(name).status();
  }
}

TEST(SessionEntryTest, NameWithoutSocketIsFoundByFdOnly) {
  const UniqueFd session_credentials = SessionCredentialsOf(7);
  SessionName name = {.lifeline = kClosed, .session_credentials = session_credentials.get()};
  EXPECT_EQ(FindSessionCredentials(name)->session, SessionId(7));
  name.session_credentials = kClosed;
  EXPECT_TRUE(absl::IsFailedPrecondition(FindSessionCredentials(name).status()))
      << FindSessionCredentials(name).status();
}

TEST(SessionEntryTest, EndedOwnerProcessHasNoCredentials) {
  SessionName name = NameOf(7, kClosed);
  name.opener = GonePid();
  EXPECT_TRUE(absl::IsNotFound(FindSessionCredentials(name).status())) << FindSessionCredentials(name).status();
}

TEST(SessionEntryTest, OwnerProcessOfOtherPidNamespaceIsRejected) {
  SessionName name = NameOf(7, kClosed);
  ++name.pid_namespace;
  const absl::Status refused = FindSessionCredentials(name).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "another PID namespace")) << refused;
}

// Process 1 belongs to root and is unreadable for other users.
TEST(SessionEntryTest, UnreadableOwnerProcessIsReportedIfStartTimeMatches) {
  // The real user ID counts for signals, too; the saved one allows the return.
  const uid_t before = ::geteuid();
  if (before == 0 && ::setresuid(65533, 65533, 0) != 0) GTEST_SKIP() << "cannot become another user";
  const absl::Cleanup restore = [before] { ASSERT_EQ(::setresuid(before, before, before), 0); };
  SessionName name = NameOf(7, kClosed);
  name.opener = 1;
  const std::optional<uint64_t> start = *StartTicksOf(1);
  const bool readable = ::faccessat(AT_FDCWD, "/proc/1/fd", R_OK, AT_EACCESS) == 0;
  if (!start.has_value() || readable) GTEST_SKIP() << "process 1 is this user's, or not shown";
  name.opener_start = *start;
  const absl::Status refused = FindSessionCredentials(name).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "that of process 1 of user 0 cannot be read as user")) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "Permission denied")) << refused;
  ++name.opener_start;
  EXPECT_TRUE(absl::IsNotFound(FindSessionCredentials(name).status())) << FindSessionCredentials(name).status();
}

}  // namespace
}  // namespace berth::internal
