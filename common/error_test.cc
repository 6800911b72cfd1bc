#include <berth/error.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/errors.pb.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(ErrorTest, TextAndMetadataHaveSameValues) {
  const absl::Status status = Refuse(Reason::kOverCap, "permit pool {pool}: asked {asked}, cap {cap}",
                                     {{"pool", "gpu-tests"}, {"asked", 3}, {"cap", 2}});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "permit pool gpu-tests: asked 3, cap 2");
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  ASSERT_TRUE(details.has_value());
  EXPECT_EQ(details->reason, Reason::kOverCap);
  EXPECT_EQ(details->metadata,
            (std::map<std::string, std::string>{{"pool", "gpu-tests"}, {"asked", "3"}, {"cap", "2"}}));
  EXPECT_FALSE(details->retry_after.has_value());
}

TEST(ErrorTest, RefusalRetainsRetryTime) {
  const absl::Status status = RefuseWithRetry(Reason::kLimit, absl::Milliseconds(250), "full");
  EXPECT_EQ(GetErrorDetails(status)->retry_after, absl::Milliseconds(250));
}

TEST(ErrorTest, DetailsRoundTripThroughStatus) {
  const absl::Status status =
      RefuseWithRetry(Reason::kOverBudget, absl::Seconds(1), "{limit}", {{"limit", 5}});
  absl::Status other(status.code(), status.message());
  SetErrorDetails(*GetErrorDetails(status), &other);
  EXPECT_EQ(other, status);
}

TEST(ErrorTest, ForeignStatusHasNoDetails) {
  EXPECT_FALSE(GetErrorDetails(absl::InternalError("x")).has_value());
  EXPECT_FALSE(GetErrorDetails(absl::OkStatus()).has_value());
}

TEST(ErrorTest, MetadataIsAddedToAnyError) {
  absl::Status status = absl::InternalError("theirs");
  AddNamedValue({"label", "sphere"}, &status);
  AddNamedValue({"label", "another"}, &status);
  EXPECT_EQ(status.message(), "theirs");
  EXPECT_EQ(NamedValueOf(status, "label"), "sphere");
  EXPECT_EQ(NamedValueOf(status, "device"), std::nullopt);
  EXPECT_FALSE(GetErrorDetails(status).has_value());
  absl::Status refusal = Refuse(Reason::kNotFound, "no {kind}", {{"kind", "pool"}});
  AddNamedValue({"label", "sphere"}, &refusal);
  EXPECT_EQ(GetErrorDetails(refusal)->metadata.at("label"), "sphere");
}

// A value that looks like a placeholder must stay unchanged.
TEST(ErrorTest, PlaceholderIsReplacedOnce) {
  EXPECT_EQ(Refuse(Reason::kNotFound, "{kind} {id}", {{"kind", "{id}"}, {"id", "7"}}).message(), "{id} 7");
}

TEST(ErrorTest, ReasonNamesMatchWireNames) {
  for (int number = v1::ErrorReason_MIN + 1; number <= v1::ErrorReason_MAX; ++number) {
    const Reason reason = static_cast<Reason>(number);
    EXPECT_EQ(v1::ErrorReason_Name(static_cast<v1::ErrorReason>(number)),
              absl::StrCat("ERROR_REASON_", ReasonName(reason)));
    EXPECT_EQ(ReasonFromName(ReasonName(reason)), reason);
  }
  EXPECT_EQ(ReasonFromName("NO_SUCH_REASON"), std::nullopt);
}

}  // namespace
}  // namespace berth
