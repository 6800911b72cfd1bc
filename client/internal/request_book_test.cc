#include "client/internal/request_book.h"

#include "common/error.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

TEST(RequestBookTest, SequencesRiseFromOneAndOnlySettledOnesArePassed) {
  RequestBook book;
  const RequestBook::Tag first = *book.Begin();
  EXPECT_EQ(first.sequence, 1u);
  EXPECT_EQ(first.answered_below, 1u);
  const RequestBook::Tag second = *book.Begin();
  EXPECT_EQ(second.sequence, 2u);
  EXPECT_EQ(second.answered_below, 1u);
  book.Settle(second.sequence);
  EXPECT_EQ(book.Begin()->answered_below, 1u) << "the first is still open";
  book.Settle(first.sequence);
  EXPECT_EQ(book.Begin()->answered_below, 3u);
}

TEST(RequestBookTest, SettlingTwiceOrTheUnknownDoesNothing) {
  RequestBook book;
  const uint64_t sequence = book.Begin()->sequence;
  book.Settle(sequence);
  book.Settle(sequence);
  book.Settle(99);
  EXPECT_EQ(book.open(), 0u);
  EXPECT_EQ(book.Begin()->sequence, 2u);
}

TEST(RequestBookTest, AsksAreBoundedAndReturnsAreNot) {
  RequestBook book;
  for (size_t i = 0; i < RequestBook::kMaxOpen; ++i) ASSERT_TRUE(book.Begin().ok());
  EXPECT_TRUE(IsRefusal(book.Begin().status(), Reason::kLimit));
  EXPECT_EQ(book.BeginReturn().sequence, RequestBook::kMaxOpen + 1);
  book.Settle(1);
  book.Settle(2);
  EXPECT_EQ(book.Begin()->answered_below, 3u);
}

}  // namespace
}  // namespace berth::internal
