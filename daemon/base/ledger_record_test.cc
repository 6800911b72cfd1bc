#include "daemon/base/ledger_record.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr RecordKey kFirst = {.kind = 1, .id = 7};
constexpr RecordKey kSecond = {.kind = 1, .id = 7, .part = 2};

TEST(RecordBatchTest, LaterRecordChangeReplacesEarlier) {
  RecordBatch batch;
  batch.Put(kFirst, "one");
  batch.Put(kSecond, "");
  batch.Put(kFirst, std::string("t\0wo", 4));
  LedgerRecords records;
  batch.ApplyTo(&records);
  EXPECT_THAT(records, ElementsAre(Pair(kFirst, std::string("t\0wo", 4)), Pair(kSecond, "")));
}

TEST(RecordBatchTest, ErasedRecordIsGoneMissingIsIgnored) {
  LedgerRecords records = {{kFirst, "one"}};
  RecordBatch batch;
  batch.Erase(kFirst);
  batch.Erase(kSecond);
  batch.ApplyTo(&records);
  EXPECT_THAT(records, IsEmpty());
}

TEST(RecordBatchTest, TruncatedRecordIsDataLossAfterWholeRecords) {
  RecordBatch batch;
  batch.Put(kFirst, "one");
  const size_t whole = batch.bytes().size();
  batch.Put(kSecond, "two");
  for (size_t size = whole + 1; size < batch.bytes().size(); ++size) {
    std::vector<RecordKey> seen;
    const absl::Status status = RecordBatch::Walk(
        batch.bytes().substr(0, size),
        [&](const RecordKey& key, std::optional<absl::string_view>) { seen.push_back(key); });
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << size;
    EXPECT_THAT(seen, ElementsAre(kFirst)) << size;
  }
}

}  // namespace
}  // namespace berth
