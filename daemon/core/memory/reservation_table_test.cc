#include "daemon/core/memory/reservation_table.h"

#include "gtest/gtest.h"

namespace berth::core {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

TEST(ReservationTableTest, RowsAreFoundByIdSessionAndExpiry) {
  Journal journal;
  ReservationTable table(&journal);
  table.Add({.id = ReservationId(9), .session = SessionId(1), .expires = kStart + absl::Seconds(2)});
  table.Add({.id = ReservationId(3), .session = SessionId(2), .expires = kStart + absl::Seconds(1)});
  table.Add({.id = ReservationId(5), .session = SessionId(1)});
  EXPECT_EQ(table.CountOf(SessionId(1)), 2);
  EXPECT_EQ(table.OfSession(SessionId(1))[0]->id, ReservationId(9));
  EXPECT_EQ(table.Find(ReservationId(4)), nullptr);
  EXPECT_EQ(table.next_deadline(), kStart + absl::Seconds(1));
  EXPECT_EQ(table.FindExpired(kStart), nullptr);
  Reservation* const expired = table.FindExpired(kStart + absl::Seconds(1));
  ASSERT_NE(expired, nullptr);
  EXPECT_EQ(expired->id, ReservationId(3));
  table.Erase(*expired);
  EXPECT_EQ(table.FindExpired(kStart + absl::Seconds(1)), nullptr);
  EXPECT_EQ(table.next_deadline(), kStart + absl::Seconds(2));
  table.Erase(*table.Find(ReservationId(9)));
  EXPECT_EQ(table.next_deadline(), absl::InfiniteFuture());
  EXPECT_EQ(table.FindExpired(absl::InfiniteFuture()), nullptr);
  EXPECT_EQ(table.CountOf(SessionId(1)), 1);
}

TEST(ReservationTableTest, RowsAreVisitedOldestFirst) {
  Journal journal;
  ReservationTable table(&journal);
  for (const uint64_t id : {8, 2, 5}) table.Add({.id = ReservationId(id), .session = SessionId(1)});
  std::vector<uint64_t> ids;
  table.ForEach([&](const Reservation& row) { ids.push_back(row.id.value()); });
  EXPECT_EQ(ids, (std::vector<uint64_t>{8, 2, 5}));
}

}  // namespace
}  // namespace berth::core
