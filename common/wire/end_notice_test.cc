#include <berth/end_notice.h>

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

constexpr EndReason kLast = EndReason::kMemoryLost;

TEST(EndNoticeTest, EachReasonHasUniqueText) {
  std::set<std::string> texts;
  for (uint32_t reason = 0; reason <= static_cast<uint32_t>(kLast) + 1; ++reason) {
    const std::string text = Describe({.reason = static_cast<EndReason>(reason), .uid = 1234});
    EXPECT_TRUE(texts.insert(text).second) << text;
  }
}

TEST(EndNoticeTest, OperatorIsNamedByUid) {
  for (uint32_t reason = 0; reason <= static_cast<uint32_t>(kLast); ++reason) {
    const std::string text = Describe({.reason = static_cast<EndReason>(reason), .uid = 1234});
    EXPECT_EQ(absl::StrContains(text, "operator"), absl::StrContains(text, "uid 1234")) << text;
  }
}

TEST(EndNoticeTest, EndedSessionUnitsAreNotFreedByReason) {
  EXPECT_TRUE(FreesUnits(EndReason::kRevoked) && FreesUnits(EndReason::kHoldLimit) && FreesUnits(EndReason::kReset));
  EXPECT_FALSE(FreesUnits(EndReason::kSessionEnded) || FreesUnits(EndReason::kLifelineClosed) ||
               FreesUnits(EndReason::kChannelBroken));
}

}  // namespace
}  // namespace berth
