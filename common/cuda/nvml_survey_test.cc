#include "common/cuda/nvml_survey.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include <berth/error.h>

#include "common/cuda/nvml.h"

namespace berth::cuda {
namespace {

TEST(NvmlSurveyTest, AbsentNvmlIsRefusedAsUnsupported) {
  const auto survey = NvmlSurvey::Open("GPU-none");
  if (Nvml::Get().ok()) GTEST_SKIP() << "this machine has NVML";
  EXPECT_EQ(getenv("BERTH_REQUIRE_CUDA"), nullptr) << survey.status();
  EXPECT_TRUE(IsRefusal(survey.status(), Reason::kUnsupported)) << survey.status();
}

TEST(NvmlSurveyTest, MetricAbsenceFollowsDriverCode) {
  const auto absence_of = [](int code) {
    return AbsenceOf(Refuse(Reason::kDriver, "{call} ({driver_code})",
                            {{"call", "nvmlDeviceGetMemoryInfo"}, {"driver_code", code}}));
  };
  EXPECT_EQ(absence_of(3), Absent(MetricAbsence::kNotSupported));
  EXPECT_EQ(absence_of(15), Absent(MetricAbsence::kLost));
  EXPECT_EQ(absence_of(16), Absent(MetricAbsence::kNeedsReset));
  EXPECT_EQ(WhyAbsent(absence_of(16)), "the device has to be reset");
  EXPECT_EQ(absence_of(999), Absent(MetricAbsence::kFailed, 999));
  EXPECT_EQ(AbsenceOf(Refuse(Reason::kUnsupported, "no {capability}", {{"capability", "NVML"}})),
            Absent(MetricAbsence::kNotInLibrary));
}

TEST(NvmlSurveyTest, EveryMetricIsKnownOrHasReason) {
  const absl::StatusOr<Nvml*> nvml = Nvml::Get();
  if (!nvml.ok()) GTEST_SKIP() << nvml.status();
  EXPECT_TRUE(IsRefusal(NvmlSurvey::Open("GPU-none").status(), Reason::kDriver));
  const absl::StatusOr<std::vector<std::string>> uuids = (*nvml)->Uuids();
  ASSERT_TRUE(uuids.ok()) << uuids.status();
  for (const std::string& uuid : *uuids) {
    const auto survey = NvmlSurvey::Open(uuid);
    ASSERT_TRUE(survey.ok()) << survey.status();
    DeviceMetrics metrics;
    (*survey)->Read(&metrics);
    EXPECT_TRUE(metrics[DeviceMetric::kTemperature].known());
    for (size_t i = 0; i < kDeviceMetrics; ++i) {
      const bool bytes = i == static_cast<size_t>(DeviceMetric::kTotalBytes) ||
                         i == static_cast<size_t>(DeviceMetric::kFreeBytes);
      if (!bytes) {
        EXPECT_NE(metrics.values[i].absence, MetricAbsence::kNotRead) << i;
      }
    }
    EXPECT_TRUE((*survey)->PciId().ok());
    (*survey)->TakeEvents();
  }
}

}  // namespace
}  // namespace berth::cuda
