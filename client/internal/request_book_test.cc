#include "client/internal/request_book.h"

#include "common/error.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

TEST(RequestBookTest, SequencesRiseFromOneAndNameThoseThatAreOpen) {
  RequestBook book;
  const RequestBook::Tag first = *book.Begin();
  EXPECT_EQ(first.sequence, 1u);
  EXPECT_EQ(first.answered_below, 1u);
  const RequestBook::Tag second = *book.Begin();
  EXPECT_EQ(second.sequence, 2u);
  EXPECT_EQ(second.answered_below, 2u);
  EXPECT_EQ(second.open, std::vector<uint64_t>{1});
  book.Settle(second.sequence);
  EXPECT_EQ(book.Begin()->open, std::vector<uint64_t>{1}) << "the second is settled though the first is open";
  book.Settle(first.sequence);
  const RequestBook::Tag last = *book.Begin();
  EXPECT_EQ(last.answered_below, 4u);
  EXPECT_EQ(last.open, std::vector<uint64_t>{3});
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
  for (size_t i = book.open(); i < RequestBook::kMaxNamed + 2; ++i) book.BeginReturn();
  const RequestBook::Tag tag = book.BeginReturn();
  EXPECT_EQ(tag.open.size(), RequestBook::kMaxNamed);
  EXPECT_EQ(tag.answered_below, RequestBook::kMaxNamed + 1) << "nothing unnamed passes for settled";
}

}  // namespace
}  // namespace berth::internal
