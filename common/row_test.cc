#include "common/row.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr RowKey kFirst = {.kind = 1, .id = 7};
constexpr RowKey kSecond = {.kind = 1, .id = 7, .part = 2};

TEST(RowBatchTest, LaterChangesOfARowReplaceEarlierOnes) {
  RowBatch batch;
  batch.Put(kFirst, "one");
  batch.Put(kSecond, "");
  batch.Put(kFirst, std::string("t\0wo", 4));
  Rows rows;
  batch.ApplyTo(&rows);
  EXPECT_THAT(rows, ElementsAre(Pair(kFirst, std::string("t\0wo", 4)), Pair(kSecond, "")));
}

TEST(RowBatchTest, AnErasedRowIsGoneAndMayNeverHaveBeen) {
  Rows rows = {{kFirst, "one"}};
  RowBatch batch;
  batch.Erase(kFirst);
  batch.Erase(kSecond);
  batch.ApplyTo(&rows);
  EXPECT_THAT(rows, IsEmpty());
}

TEST(RowBatchTest, BytesThatEndInsideARowAreDataLossAfterTheWholeRows) {
  RowBatch batch;
  batch.Put(kFirst, "one");
  const size_t whole = batch.bytes().size();
  batch.Put(kSecond, "two");
  for (size_t size = whole + 1; size < batch.bytes().size(); ++size) {
    std::vector<RowKey> seen;
    const absl::Status status = RowBatch::Walk(
        batch.bytes().substr(0, size),
        [&](const RowKey& key, std::optional<absl::string_view>) { seen.push_back(key); });
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << size;
    EXPECT_THAT(seen, ElementsAre(kFirst)) << size;
  }
}

}  // namespace
}  // namespace berth
