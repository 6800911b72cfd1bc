#include "client/sdk/transport/open_requests.h"

#include <berth/error.h>

#include "gtest/gtest.h"

namespace berth::internal {
namespace {

TEST(OpenRequestsTest, SequencesRiseAndTagsNameOpenRequests) {
  OpenRequests requests;
  const OpenRequests::Tag first = *requests.Begin();
  EXPECT_EQ(first.sequence, 1u);
  EXPECT_EQ(first.answered_below, 1u);
  const OpenRequests::Tag second = *requests.Begin();
  EXPECT_EQ(second.sequence, 2u);
  EXPECT_EQ(second.answered_below, 2u);
  EXPECT_EQ(second.open, std::vector<uint64_t>{1});
  requests.Settle(second.sequence);
  EXPECT_EQ(requests.Begin()->open, std::vector<uint64_t>{1}) << "the second is settled though the first is open";
  requests.Settle(first.sequence);
  const OpenRequests::Tag last = *requests.Begin();
  EXPECT_EQ(last.answered_below, 4u);
  EXPECT_EQ(last.open, std::vector<uint64_t>{3});
}

TEST(OpenRequestsTest, RepeatedOrUnknownSettleIsIgnored) {
  OpenRequests requests;
  const uint64_t sequence = requests.Begin()->sequence;
  requests.Settle(sequence);
  requests.Settle(sequence);
  requests.Settle(99);
  EXPECT_EQ(requests.open(), 0u);
  EXPECT_EQ(requests.Begin()->sequence, 2u);
}

TEST(OpenRequestsTest, RequestsAreBoundedReturnsAreNot) {
  OpenRequests requests;
  for (size_t i = 0; i < OpenRequests::kMaxOpen; ++i) ASSERT_TRUE(requests.Begin().ok());
  EXPECT_TRUE(IsRefusal(requests.Begin().status(), Reason::kLimit));
  EXPECT_EQ(requests.BeginReturn().sequence, OpenRequests::kMaxOpen + 1);
  for (size_t i = requests.open(); i < OpenRequests::kMaxNamed + 2; ++i) requests.BeginReturn();
  const OpenRequests::Tag tag = requests.BeginReturn();
  EXPECT_EQ(tag.open.size(), OpenRequests::kMaxNamed);
  EXPECT_EQ(tag.answered_below, OpenRequests::kMaxNamed + 1) << "nothing unnamed passes for settled";
}

}  // namespace
}  // namespace berth::internal
