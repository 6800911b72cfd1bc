#include "daemon/device/monitor/event_log.h"

#include <vector>

#include "gtest/gtest.h"

namespace berth {
namespace {

monitor::Survey SurveyOf(const EventLog& log) {
  monitor::Survey survey;
  log.CopyTo(&survey);
  return survey;
}

DeviceMetrics Counters(uint64_t corrected, uint64_t uncorrected) {
  DeviceMetrics metrics;
  metrics[DeviceMetric::kCorrectedErrors] = Known(corrected);
  metrics[DeviceMetric::kUncorrectedErrors] = Known(uncorrected);
  return metrics;
}

TEST(EventLogTest, RepeatedXidIsSingleEntryWithCount) {
  EventLog log;
  log.Add(DeviceEventKind::kXid, 74, 1);
  for (int i = 0; i < 10'000; ++i) log.Add(DeviceEventKind::kXid, 31, 10 + i);
  const monitor::Survey survey = SurveyOf(log);
  EXPECT_EQ(survey.events_total, 10'001u);
  ASSERT_EQ(survey.event_count, 2u);
  EXPECT_EQ(survey.events[0].code, 74u);
  EXPECT_EQ(survey.events[0].count, 1u);
  EXPECT_EQ(survey.events[0].number, 1u);
  EXPECT_EQ(survey.events[1].code, 31u);
  EXPECT_EQ(survey.events[1].count, 10'000u);
  EXPECT_EQ(survey.events[1].heard_ns, 10'009);
  EXPECT_EQ(survey.events[1].number, 10'001u);
  // A repeated event becomes the latest.
  log.Add(DeviceEventKind::kXid, 74, 20'000);
  EXPECT_EQ(SurveyOf(log).events[1].code, 74u);
  EXPECT_EQ(SurveyOf(log).events[1].count, 2u);
}

TEST(EventLogTest, LatestEventsAreRetainedAndAllCounted) {
  EventLog log;
  for (uint64_t code = 1; code <= 20; ++code) log.Add(DeviceEventKind::kXid, code, 1);
  const monitor::Survey survey = SurveyOf(log);
  EXPECT_EQ(survey.events_total, 20u);
  ASSERT_EQ(survey.event_count, monitor::Survey::kMaxEvents);
  EXPECT_EQ(survey.events[0].code, 13u);
  EXPECT_EQ(survey.events[7].code, 20u);
}

TEST(EventLogTest, ReportedAndCountedErrorIsCountedOnce) {
  EventLog log;
  log.AddRises(Counters(5, 7), 1);
  EXPECT_EQ(log.total(), 0u) << "what was there before";
  log.AddRises(Counters(5, 9), 2);
  log.Add(DeviceEventKind::kUncorrectedEcc, 0, 3);
  log.Add(DeviceEventKind::kUncorrectedEcc, 0, 3);
  EXPECT_EQ(log.total(), 2u);
  log.Add(DeviceEventKind::kCorrectedEcc, 0, 4);
  log.AddRises(Counters(6, 9), 5);
  EXPECT_EQ(log.total(), 3u);
  // Only the counter shows errors that the driver does not report as events.
  log.AddRises(Counters(106, 10), 6);
  const monitor::Survey survey = SurveyOf(log);
  EXPECT_EQ(survey.events_total, 104u);
  ASSERT_EQ(survey.event_count, 2u);
  EXPECT_EQ(survey.events[0].kind, DeviceEventKind::kCorrectedEcc);
  EXPECT_EQ(survey.events[0].count, 101u);
  EXPECT_EQ(survey.events[1].kind, DeviceEventKind::kUncorrectedEcc);
  EXPECT_EQ(survey.events[1].count, 3u);
  EXPECT_EQ(survey.events[1].heard_ns, 6);
}

TEST(EventLogTest, ResetOrUnreadCounterIsNoError) {
  EventLog log;
  log.AddRises(Counters(0, 9), 1);
  log.AddRises(DeviceMetrics(), 2);
  log.AddRises(Counters(0, 9), 3);
  log.AddRises(Counters(0, 0), 4);
  EXPECT_EQ(log.total(), 0u);
  log.AddRises(Counters(0, 2), 5);
  EXPECT_EQ(log.total(), 2u);
}

TEST(EventLogTest, EventsMergeByKindAndCode) {
  std::vector<monitor::Event> latest;
  StoreLatest({.code = 31, .count = 4, .heard_ns = 1}, &latest);
  StoreLatest({.code = 79, .heard_ns = 2}, &latest);
  StoreLatest({.code = 31, .count = 2, .heard_ns = 3}, &latest);
  StoreLatest({.kind = DeviceEventKind::kUncorrectedEcc, .code = 79, .heard_ns = 4}, &latest);
  ASSERT_EQ(latest.size(), 3u);
  EXPECT_EQ(latest[0].code, 79u);
  EXPECT_EQ(latest[1].count, 6u);
  EXPECT_EQ(latest[1].heard_ns, 3);
  EXPECT_EQ(latest[2].kind, DeviceEventKind::kUncorrectedEcc);
}

}  // namespace
}  // namespace berth
