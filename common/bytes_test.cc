#include <berth/bytes.h>

#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(BytesTest, AmountsAreParsedWithAndWithoutUnits) {
  EXPECT_EQ(*ParseBytes("4096"), Bytes(4096));
  EXPECT_EQ(*ParseBytes(" 64KiB "), KiB(64));
  EXPECT_EQ(*ParseBytes("256 MiB"), MiB(256));
  EXPECT_EQ(*ParseBytes("1.5GiB"), MiB(1536));
  EXPECT_EQ(*ParseBytes("2TiB"), GiB(2048));
  EXPECT_EQ(*ParseBytes("7B"), Bytes(7));
  EXPECT_EQ(*ParseBytes("20G"), GiB(20));
  EXPECT_EQ(*ParseBytes("20g"), GiB(20));
  EXPECT_EQ(*ParseBytes("512m"), MiB(512));
  EXPECT_EQ(*ParseBytes("1.5 t"), GiB(1536));
  EXPECT_EQ(*ParseBytes("10GB"), Bytes(10'000'000'000));
  EXPECT_EQ(*ParseBytes("10gib"), GiB(10));
  EXPECT_EQ(*ParseBytes("3kb"), Bytes(3000));
  EXPECT_EQ(*ParseBytes("18446744073709551615"), Bytes(UINT64_MAX));
}

TEST(BytesTest, InvalidByteTextIsRejectedAndQuoted) {
  for (const char* const text :
       {"", "MiB", "-1", "+1", "1 parsec", "G", "5GG", "0x1G", "1e3", "99999999TiB", "99999999T",
        "18446744073709551616", "nan", "inf"}) {
    const absl::StatusOr<Bytes> bytes = ParseBytes(text);
    EXPECT_EQ(bytes.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(bytes.status().message().find(text), absl::string_view::npos);
  }
}

TEST(BytesTest, RoundUpReachesGranularityOrReportsOverflow) {
  EXPECT_EQ(Bytes(1).RoundUp(MiB(2)), MiB(2));
  EXPECT_EQ(MiB(2).RoundUp(MiB(2)), MiB(2));
  EXPECT_EQ(Bytes(MiB(2).count() + 1).RoundUp(MiB(2)), MiB(4));
  EXPECT_EQ(Bytes(UINT64_MAX).RoundUp(MiB(2)), std::nullopt);
}

TEST(BytesTest, SumsAreCheckedAndDifferencesEndAtZero) {
  EXPECT_EQ(CheckedAdd(Bytes(1), Bytes(2)), Bytes(3));
  EXPECT_EQ(CheckedAdd(Bytes(UINT64_MAX), Bytes(1)), std::nullopt);
  EXPECT_EQ(SaturatingSub(Bytes(1), Bytes(2)), Bytes(0));
}

TEST(BytesTest, BytesAreFormattedInLargestExactUnit) {
  EXPECT_EQ(FormatBytes(Bytes(0)), "0 B");
  EXPECT_EQ(FormatBytes(Bytes(4097)), "4,097 B");
  EXPECT_EQ(FormatBytes(MiB(256)), "256 MiB");
  EXPECT_EQ(FormatBytes(MiB(1536)), "1.5 GiB");
  EXPECT_EQ(FormatBytes(GiB(139)), "139 GiB");
}

}  // namespace
}  // namespace berth
