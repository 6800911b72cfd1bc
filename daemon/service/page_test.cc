#include "daemon/service/page.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace berth::service {
namespace {

std::string KeyOf(uint64_t row) { return SortableKey(row); }

// Reads all pages of `rows` at `size` rows each, letting `between` change the rows after each page.
template <typename Between>
std::vector<uint64_t> ReadAll(std::vector<uint64_t> rows, int32_t size, Between between) {
  std::vector<uint64_t> read;
  std::string token;
  do {
    std::string next;
    EXPECT_TRUE(EmitPage(
                    rows, size, token, KeyOf, [&](uint64_t row) { read.push_back(row); }, &next)
                    .ok());
    token = next;
    between(rows);
  } while (!token.empty());
  return read;
}

TEST(PageTest, PagesMakeUpTheList) {
  const std::vector<uint64_t> rows = {1, 2, 3, 4, 5};
  for (const int32_t size : {1, 2, 3, 5, 6, 0, 5000}) {
    EXPECT_EQ(ReadAll(rows, size, [](auto&) {}), rows) << size;
  }
  EXPECT_TRUE(ReadAll({}, 2, [](auto&) {}).empty());
}

TEST(PageTest, RowsThatGoDoNotShiftOthers) {
  EXPECT_EQ(ReadAll({1, 2, 3, 4}, 2, [](auto& rows) { rows.erase(rows.begin()); }),
            (std::vector<uint64_t>{1, 2, 3, 4}));
}

TEST(PageTest, ALargePageIsCutToTheLimit) {
  std::vector<uint64_t> rows(1500);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = i;
  std::string next;
  int read = 0;
  ASSERT_TRUE(EmitPage(
                  rows, 1'000'000, "", KeyOf, [&](uint64_t) { ++read; }, &next)
                  .ok());
  EXPECT_EQ(read, 1000);
  EXPECT_FALSE(next.empty());
}

TEST(PageTest, RefusesWhatIsNoPage) {
  std::string next;
  const std::vector<uint64_t> rows = {1};
  const auto ignore = [](uint64_t) {};
  EXPECT_TRUE(IsRefusal(EmitPage(rows, -1, "", KeyOf, ignore, &next), Reason::kInvalidField));
  EXPECT_TRUE(IsRefusal(EmitPage(rows, 1, "!!", KeyOf, ignore, &next), Reason::kInvalidField));
}

}  // namespace
}  // namespace berth::service
