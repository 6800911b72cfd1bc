#include "berth/v1/device.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/cli/format.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "berth/v1/permit.pb.h"
#include "common/time_span.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace berth::cli {
namespace {

TEST(FormatTest, AgeShowsTwoLargestUnits) {
  EXPECT_EQ(FormatAge(absl::Milliseconds(400)), "0s");
  EXPECT_EQ(FormatAge(absl::Seconds(-5)), "0s");
  EXPECT_EQ(FormatAge(absl::Seconds(59)), "59s");
  EXPECT_EQ(FormatAge(absl::Seconds(192)), "3m12s");
  EXPECT_EQ(FormatAge(absl::Seconds(60)), "1m00s");
  EXPECT_EQ(FormatAge(absl::Minutes(125)), "2h05m");
  EXPECT_EQ(FormatAge(absl::Hours(76)), "3d04h");
}

TEST(FormatTest, TimeSpansAreSecondsOrDurations) {
  EXPECT_EQ(*ParseTimeSpan("90"), absl::Seconds(90));
  EXPECT_EQ(*ParseTimeSpan("0"), absl::ZeroDuration());
  EXPECT_EQ(*ParseTimeSpan("0.5"), absl::Milliseconds(500));
  EXPECT_EQ(*ParseTimeSpan("1m30s"), absl::Seconds(90));
  EXPECT_EQ(*ParseTimeSpan("2h"), absl::Hours(2));
  EXPECT_EQ(*ParseTimeSpan("2d"), absl::Hours(48));
  EXPECT_EQ(*ParseTimeSpan("1d12h"), absl::Hours(36));
  EXPECT_EQ(*ParseTimeSpan("0.5d"), absl::Hours(12));
  for (const char* text :
       {"", "-1", "-1s", "soon", "inf", "nan", "5 apples", "1e300", "d", "-1d", "1d-2h", "1h2d", "infd", "0x5", "0X5d",
        "-0x1"}) {
    EXPECT_FALSE(ParseTimeSpan(text).ok()) << text;
  }
}

TEST(FormatTest, ShownMomentsAreReadAgain) {
  const absl::TimeZone zone = absl::FixedTimeZone(90 * 60);
  const absl::Time now = absl::FromUnixSeconds(1'772'359'200);  // 2026-03-01 10:00:00 UTC
  EXPECT_EQ(FormatMoment(now, zone), "2026-03-01 11:30:00+01:30");
  const absl::Time midnight = now - absl::Minutes(11 * 60 + 30);
  const std::vector<std::pair<const char*, absl::Time>> cases = {
      {"2h", now - absl::Hours(2)},
      {"1d", now - absl::Hours(24)},
      {"36500d", now - absl::Hours(24 * 36500)},
      {"0", now},
      {"9999999", now - absl::Seconds(9999999)},
      {"today", midnight},
      {"2026-03-01", midnight},
      {"2026-03-01 11:30", now},
      {"2026-03-01T11:30", now},
      {"2026-03-01 11:30:00", now},
      {"2026-03-01T11:30:00", now},
      {"2026-03-01T11:30:00.25", now + absl::Milliseconds(250)},
      {"2026-03-01 11:30:00+01:30", now},
      {"2026-03-01 10:00:00 +0000", now},
      {"2026-03-01T10:00:00Z", now},
      {"2026-03-01T09:00:00-01:00", now},
      {"@1772359200", now},
      {"@0", absl::UnixEpoch()}};
  for (const auto& [text, moment] : cases) {
    const absl::StatusOr<absl::Time> read = ParseMoment(text, now, zone);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, moment) << text;
  }
  for (const char* text :
       {"", "@", "@-1", "@nan", "@1e300", "-1d", "yesterday", "infinite-past", "2026-13-01", "2026-02-30",
        "2026-03-01 25:00", "2026-03-01 10:00:00 CET", "2026-03-01T", "10:00", "20260301T100000Z", "-5-01-01",
        "20260301", "1772359200", "1772359200.5", "1772359200000", "1e18", "99999d", "99999999999999999999d",
        "0000-01-01"}) {
    EXPECT_FALSE(ParseMoment(text, now, zone).ok()) << text;
  }
}

TEST(FormatTest, LastMomentIsEndOfShownSecond) {
  const absl::TimeZone zone = absl::FixedTimeZone(90 * 60);
  const absl::Time second = absl::FromUnixSeconds(1'772'359'200);
  const absl::Time last = second + absl::Nanoseconds(999'999'999);
  const std::string shown = FormatMoment(last, zone);
  EXPECT_EQ(*ParseMoment(shown, second, zone), second);
  for (const std::string& text : {shown, std::string("2026-03-01T10:00:00Z"), std::string("2026-03-01 11:30:00"),
                                  std::string("@1772359200"), std::string("2026-03-01 10:00:00 +0000")}) {
    EXPECT_EQ(*ParseLastMoment(text, second, zone), last) << text;
  }
  // Exact moments.
  EXPECT_EQ(*ParseLastMoment("2026-03-01T10:00:00.25Z", second, zone), second + absl::Milliseconds(250));
  EXPECT_EQ(*ParseLastMoment("2026-03-01 11:30", second, zone), second);
  EXPECT_EQ(*ParseLastMoment("2026-03-01T10:00:00.999999999Z", second, zone), last);
  EXPECT_EQ(*ParseLastMoment("2h", second, zone), second - absl::Hours(2));
  EXPECT_EQ(*ParseLastMoment("today", second, zone), *ParseMoment("today", second, zone));
  EXPECT_EQ(*ParseLastMoment("2026-03-01", second, zone), *ParseMoment("2026-03-01", second, zone));
  EXPECT_FALSE(ParseLastMoment("", second, zone).ok());
}

TEST(FormatTest, CountsBeginAtOne) {
  EXPECT_EQ(*ParseCount("1"), 1u);
  EXPECT_EQ(*ParseCount("18446744073709551615"), 18446744073709551615u);
  for (const char* text : {"", "0", "-1", "-18446744073709551615", "1.5", "two", "18446744073709551616"}) {
    EXPECT_FALSE(ParseCount(text).ok()) << text;
  }
}

TEST(FormatTest, IdsAreDecimal) {
  EXPECT_EQ(*ParseId("255"), 255u);
  EXPECT_EQ(*ParseId("18446744073709551615"), UINT64_MAX);
  for (const char* text : {"", "0", "-1", "+1", "ff", "0xff", "1 2", " 1", "1 ", "99999999999999999999"}) {
    EXPECT_FALSE(ParseId(text).ok()) << text;
  }
}

TEST(FormatTest, TenantIsNamedByUserOrUid) {
  const struct {
    const char* text;
    // The tenant, or a part of the error.
    const char* shown;
    bool ok = true;
  } kCases[] = {
      {"1000", "1000"},
      {"0", "0"},
      {"root", "0"},
      {"root:/docker/1", "0@/docker/1"},
      {"1000:/docker/1", "1000@/docker/1"},
      {"nobody-of-this-name", "\"nobody-of-this-name\" is not a uid or the name of a user on this system", false},
      {"", "\"\" is not a uid or the name", false},
      {"+1", "\"+1\" is not a uid or the name", false},
      {"-1", "\"-1\" is not a uid or the name", false},
      {"4294967296", "\"4294967296\" is not a uid or the name", false},
  };
  for (const auto& each : kCases) {
    const absl::StatusOr<v1::Tenant> tenant = ParseTenant(each.text);
    ASSERT_EQ(tenant.ok(), each.ok) << each.text << ": " << tenant.status();
    if (each.ok) {
      EXPECT_EQ(FormatTenant(*tenant), each.shown);
    } else {
      EXPECT_EQ(tenant.status().message().find(each.shown), 0u) << tenant.status();
    }
  }
}

TEST(FormatTest, ProcessAndTenantShowKnownFields) {
  v1::Process process;
  process.set_pid(12);
  EXPECT_EQ(FormatProcess(process), "12");
  process.set_name("train");
  EXPECT_EQ(FormatProcess(process), "train(12)");
  v1::Tenant tenant;
  tenant.set_uid(1000);
  EXPECT_EQ(FormatTenant(tenant), "1000");
  tenant.set_container("/docker/1");
  EXPECT_EQ(FormatTenant(tenant), "1000@/docker/1");
}

TEST(FormatTest, JsonHasEveryFieldUnderItsProtoName) {
  v1::ListPoolsResponse pools;
  pools.add_pools()->set_name("gpu-tests");
  const auto single = nlohmann::json::parse(*FormatJson(pools));
  EXPECT_EQ(single["pools"][0]["name"], "gpu-tests");
  EXPECT_EQ(single["pools"][0]["granted_total"], "0");
  const auto joined = nlohmann::json::parse(*FormatJson({{"a", &pools}, {"b", &pools}}));
  EXPECT_EQ(joined["b"]["pools"][0]["name"], "gpu-tests");
}

TEST(FormatTest, UnprintableMessageReturnsErrorNotPartialJson) {
  v1::Permit permit;
  permit.mutable_grant_time()->set_seconds(int64_t{1} << 60);
  EXPECT_EQ(FormatJson(permit).status().code(), absl::StatusCode::kInternal);
  const v1::Permit good;
  EXPECT_EQ(FormatJson({{"good", &good}, {"bad", &permit}}).status().code(), absl::StatusCode::kInternal);
}

TEST(FormatTest, PressureIsShownOnceItHadEffect) {
  v1::Pressure pressure;
  pressure.set_memory_bytes(20 << 20);
  pressure.set_memory_bound_bytes(64 << 20);
  EXPECT_EQ(FormatPressure(pressure), "");
  pressure.set_memory_restarts(2);
  EXPECT_EQ(FormatPressure(pressure),
            "\nThe broker uses 20 MiB of memory, limit 64 MiB; 2 earlier brokers ended because they exceeded it\n");
  pressure.set_memory_restarts(0);
  pressure.set_ended_connections(3);
  EXPECT_EQ(FormatPressure(pressure), "\n3 connections were closed because their calls exceeded the rate limit\n");
  pressure.set_ended_connections(0);
  pressure.set_refused_connections(4);
  EXPECT_EQ(FormatPressure(pressure),
            "\n4 connections were refused because they exceeded the rate limit of connections\n");
}

TEST(FormatTest, CapabilityHasTwoNumbers) {
  EXPECT_EQ(*ParseCapability("9.0"), 90u);
  EXPECT_EQ(*ParseCapability("12.1"), 121u);
  EXPECT_EQ(FormatCapability(86), "8.6");
  for (const char* const text : {"", "9", "9.", ".0", "9.10", "-1.0", "9.0.0", "x.y"}) {
    EXPECT_FALSE(ParseCapability(text).ok()) << text;
  }
}

}  // namespace
}  // namespace berth::cli
