#include "common/session_capsule.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/memfd.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(SessionCapsuleTest, HoldsWhatProvesTheSessionAndCannotBeChanged) {
  const SessionCapsule capsule = {.session = SessionId(7), .secret = RandomSecret(), .folder = "/run/berth"};
  const absl::StatusOr<UniqueFd> fd = WriteCapsule(capsule);
  ASSERT_TRUE(fd.ok()) << fd.status();
  const absl::StatusOr<SessionCapsule> read = ReadCapsule(fd->get());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->session, capsule.session);
  EXPECT_TRUE(read->secret == capsule.secret);
  EXPECT_EQ(read->folder, capsule.folder);
  EXPECT_EQ(::pwrite(fd->get(), "x", 1, 0), -1);
  EXPECT_EQ(::ftruncate(fd->get(), 0), -1);
}

TEST(SessionCapsuleTest, RefusesAFolderThatDoesNotFit) {
  EXPECT_FALSE(WriteCapsule({.session = SessionId(1), .secret = {}, .folder = std::string(96, 'x')}).ok());
}

TEST(SessionCapsuleTest, RefusesWhatIsNoCapsule) {
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(ReadCapsule(null.get()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadCapsule(-1).status().code(), absl::StatusCode::kInvalidArgument);
  // The right size, but somebody could still write it.
  const absl::StatusOr<UniqueFd> unsealed = CreateMemfd("x", 4096);
  EXPECT_EQ(ReadCapsule(unsealed->get()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CredentialsTest, SurviveTheWire) {
  const Credentials credentials = {SessionId(1), ChannelId(2), RandomSecret()};
  const std::string bytes = EncodeCredentials(credentials);
  EXPECT_EQ(bytes.size(), 32u);
  const absl::StatusOr<Credentials> decoded = DecodeCredentials(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->session, credentials.session);
  EXPECT_EQ(decoded->channel, credentials.channel);
  EXPECT_TRUE(decoded->secret == credentials.secret);
}

TEST(CredentialsTest, OfAnotherSizeAreRefused) {
  EXPECT_FALSE(DecodeCredentials("").ok());
  EXPECT_FALSE(DecodeCredentials(std::string(31, 'x')).ok());
  EXPECT_FALSE(DecodeCredentials(std::string(33, 'x')).ok());
}

}  // namespace
}  // namespace berth
