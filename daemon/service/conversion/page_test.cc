#include "daemon/service/conversion/page.h"

#include <cstdint>
#include <string>

#include <berth/error.h>

#include "gtest/gtest.h"

namespace berth::service {
namespace {

TEST(PageTest, TokenNamesKeyOfNextPage) {
  for (const uint64_t key : {uint64_t{1}, uint64_t{0x1234567890abcdef}, UINT64_MAX}) {
    core::Page<int> page;
    page.last = key;
    EXPECT_EQ(NextPageToken(page), "") << "nothing comes after it";
    page.more = true;
    EXPECT_EQ(ReadPage(1, NextPageToken(page))->after, key);
  }
  EXPECT_EQ(ReadPage(1, "")->after, 0u);
}

TEST(PageTest, TokenOfOtherScopeRestartsList) {
  EXPECT_EQ(ReadPage(1, PageToken(7, 9), 9)->after, 7u);
  EXPECT_EQ(ReadPage(1, PageToken(7, 8), 9)->after, 0u);
  EXPECT_EQ(ReadPage(1, "", 9)->after, 0u);
  EXPECT_TRUE(IsRefusal(ReadPage(1, PageToken(7), 9).status(), Reason::kInvalidField));
  EXPECT_TRUE(IsRefusal(ReadPage(1, PageToken(7, 9)).status(), Reason::kInvalidField));
}

TEST(PageTest, PageSizeIsCutToLimit) {
  EXPECT_EQ(ReadPage(7, "")->rows, 7u);
  EXPECT_EQ(ReadPage(999, "")->rows, 999u);
  for (const int32_t size : {0, 1000, 1001, INT32_MAX}) EXPECT_EQ(ReadPage(size, "")->rows, 1000u) << size;
}

TEST(PageTest, InvalidPageRequestIsRejected) {
  EXPECT_TRUE(IsRefusal(ReadPage(-1, "").status(), Reason::kInvalidField));
  for (const std::string& token : {std::string("!!"), std::string("AAAA"), PageToken(1) + "AAAA",
                                   PageToken(1).substr(4), std::string(100'000, 'A')}) {
    EXPECT_TRUE(IsRefusal(ReadPage(1, token).status(), Reason::kInvalidField)) << token.substr(0, 40);
  }
}

}  // namespace
}  // namespace berth::service
