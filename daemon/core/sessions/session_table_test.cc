#include "daemon/core/sessions/session_table.h"

#include <berth/error.h>

#include "gtest/gtest.h"

namespace berth::core {
namespace {

Secret SecretOf(uint8_t bit) {
  Secret secret;
  secret.bits[4] = bit;
  return secret;
}

TEST(SessionTableTest, AuthenticationNeedsSecretAndTenant) {
  Journal journal;
  SessionTable table(&journal);
  table.Open({.id = SessionId(1), .secret = SecretOf(1), .tenant = {.uid = 5}});
  EXPECT_TRUE(table.Authenticate(SessionId(1), SecretOf(1), {.uid = 5}).ok());
  EXPECT_TRUE(
      IsRefusal(table.Authenticate(SessionId(1), SecretOf(2), {.uid = 5}).status(), Reason::kBadCredentials));
  EXPECT_TRUE(
      IsRefusal(table.Authenticate(SessionId(1), SecretOf(1), {.uid = 6}).status(), Reason::kBadCredentials));
  EXPECT_TRUE(
      IsRefusal(table.Authenticate(SessionId(2), SecretOf(1), {.uid = 5}).status(), Reason::kBadCredentials));
  // The secret that stands in for an unknown session's does not authenticate it.
  EXPECT_TRUE(
      IsRefusal(table.Authenticate(SessionId(2), Secret(), {.uid = 5}).status(), Reason::kBadCredentials));
}

TEST(SessionTableTest, ChannelsBelongToTheirSessionUntilErased) {
  Journal journal;
  SessionTable table(&journal);
  const Session& session = table.Open({.id = SessionId(1)});
  table.Join(SessionId(1), ChannelId(7), {.pid = 3});
  EXPECT_EQ(table.FindChannel(ChannelId(7))->session, SessionId(1));
  EXPECT_EQ(session.channels.size(), 1);
  EXPECT_TRUE(table.CheckInvariants().ok());
  table.EraseChannel(ChannelId(7));
  EXPECT_TRUE(session.channels.empty());
  EXPECT_EQ(table.FindChannel(ChannelId(7)), nullptr);
  table.Erase(SessionId(1));
  EXPECT_EQ(table.Find(SessionId(1)), nullptr);
  EXPECT_TRUE(table.CheckInvariants().ok());
}

TEST(SessionTableTest, ListFollowsOpeningOrder) {
  Journal journal;
  SessionTable table(&journal);
  for (const uint64_t id : {9, 2, 5}) table.Open({.id = SessionId(id)});
  std::vector<uint64_t> ids;
  for (const Session* const session : table.List()) ids.push_back(session->id.value());
  EXPECT_EQ(ids, (std::vector<uint64_t>{9, 2, 5}));
}

TEST(SessionTableTest, InvariantsCatchSessionThatShouldHaveEnded) {
  Journal journal;
  SessionTable table(&journal);
  table.Open({.id = SessionId(1)});
  table.Change(SessionId(1)).state = SessionState::kEnding;
  EXPECT_FALSE(table.CheckInvariants().ok());
}

}  // namespace
}  // namespace berth::core
