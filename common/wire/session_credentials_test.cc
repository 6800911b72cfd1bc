#include "common/wire/session_credentials.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/os/memfd.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(SessionCredentialsTest, CredentialsAreReadBackAndImmutable) {
  const SessionCredentials session_credentials = {
      .session = SessionId(7), .secret = RandomSecret(), .folder = "/run/berth"};
  const absl::StatusOr<UniqueFd> fd = WriteSessionCredentials(session_credentials);
  ASSERT_TRUE(fd.ok()) << fd.status();
  const absl::StatusOr<SessionCredentials> read = ReadSessionCredentials(fd->get());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->session, session_credentials.session);
  EXPECT_TRUE(read->secret == session_credentials.secret);
  EXPECT_EQ(read->folder, session_credentials.folder);
  EXPECT_EQ(::pwrite(fd->get(), "x", 1, 0), -1);
  EXPECT_EQ(::ftruncate(fd->get(), 0), -1);
}

TEST(SessionCredentialsTest, AnyFdHolderReopensCredentialsReadOnly) {
  const absl::StatusOr<UniqueFd> fd =
      WriteSessionCredentials({.session = SessionId(7), .secret = RandomSecret(), .folder = "/run"});
  ASSERT_TRUE(fd.ok()) << fd.status();
  struct stat file = {};
  ASSERT_EQ(::fstat(fd->get(), &file), 0);
  EXPECT_EQ(file.st_mode & 07777, 0444u);
  const absl::StatusOr<UniqueFd> again = ReopenReadOnly(fd->get());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ReadSessionCredentials(again->get())->session, SessionId(7));
  // Root can open any file for writing; the seal applies to root, too.
  const UniqueFd writable(::open(absl::StrCat("/proc/self/fd/", fd->get()).c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(::pwrite(writable.get(), "x", 1, 0), -1);
}

TEST(SessionCredentialsTest, OverlongFolderIsRejected) {
  EXPECT_FALSE(WriteSessionCredentials({.session = SessionId(1), .secret = {}, .folder = std::string(96, 'x')}).ok());
}

TEST(SessionCredentialsTest, InvalidCredentialsFileIsRejected) {
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(ReadSessionCredentials(null.get()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadSessionCredentials(-1).status().code(), absl::StatusCode::kInvalidArgument);
  // The right size, but still writable.
  const absl::StatusOr<UniqueFd> unsealed = CreateMemfd("x", 4096);
  EXPECT_EQ(ReadSessionCredentials(unsealed->get()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CredentialsTest, CredentialsRoundTripOverWire) {
  const Credentials credentials = {SessionId(1), ChannelId(2), RandomSecret()};
  const std::string bytes = EncodeCredentials(credentials);
  EXPECT_EQ(bytes.size(), 32u);
  const absl::StatusOr<Credentials> decoded = DecodeCredentials(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->session, credentials.session);
  EXPECT_EQ(decoded->channel, credentials.channel);
  EXPECT_TRUE(decoded->secret == credentials.secret);
}

TEST(CredentialsTest, CredentialsOfOtherSizeAreRejected) {
  EXPECT_FALSE(DecodeCredentials("").ok());
  EXPECT_FALSE(DecodeCredentials(std::string(31, 'x')).ok());
  EXPECT_FALSE(DecodeCredentials(std::string(33, 'x')).ok());
}

}  // namespace
}  // namespace berth
