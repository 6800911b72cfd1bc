#include "common/cuda/nvml_survey.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "common/cuda/nvml.h"
#include "common/error.h"

namespace berth::cuda {
namespace {

TEST(NvmlSurveyTest, AbsenceIsARefusalThatSaysWhy) {
  const auto survey = NvmlSurvey::Open("GPU-none");
  if (Nvml::Get().ok()) GTEST_SKIP() << "this machine has NVML";
  EXPECT_EQ(getenv("BERTH_REQUIRE_CUDA"), nullptr) << survey.status();
  EXPECT_TRUE(IsRefusal(survey.status(), Reason::kUnsupported)) << survey.status();
}

TEST(NvmlSurveyTest, WhyThereIsNoFigureIsWhatTheDriverAnswered) {
  const auto absence_of = [](int code) {
    return AbsenceOf(Refuse(Reason::kDriver, "{call} ({driver_code})",
                            {{"call", "nvmlDeviceGetMemoryInfo"}, {"driver_code", code}}));
  };
  EXPECT_EQ(absence_of(3), Absent(FigureAbsence::kNotSupported));
  EXPECT_EQ(absence_of(15), Absent(FigureAbsence::kLost));
  EXPECT_EQ(absence_of(16), Absent(FigureAbsence::kNeedsReset));
  EXPECT_EQ(WhyAbsent(absence_of(16)), "the device has to be reset");
  EXPECT_EQ(absence_of(999), Absent(FigureAbsence::kFailed, 999));
  EXPECT_EQ(AbsenceOf(Refuse(Reason::kUnsupported, "no {capability}", {{"capability", "NVML"}})),
            Absent(FigureAbsence::kNotInLibrary));
}

TEST(NvmlSurveyTest, EveryFigureOfADeviceIsKnownOrSaysWhyNot) {
  const absl::StatusOr<Nvml*> nvml = Nvml::Get();
  if (!nvml.ok()) GTEST_SKIP() << nvml.status();
  EXPECT_TRUE(IsRefusal(NvmlSurvey::Open("GPU-none").status(), Reason::kDriver));
  const absl::StatusOr<std::vector<std::string>> uuids = (*nvml)->Uuids();
  ASSERT_TRUE(uuids.ok()) << uuids.status();
  for (const std::string& uuid : *uuids) {
    const auto survey = NvmlSurvey::Open(uuid);
    ASSERT_TRUE(survey.ok()) << survey.status();
    DeviceFigures figures;
    (*survey)->Read(&figures);
    EXPECT_TRUE(figures[DeviceFigure::kTemperature].known());
    for (size_t i = 0; i < kDeviceFigures; ++i) {
      const bool bytes = i == static_cast<size_t>(DeviceFigure::kTotalBytes) ||
                         i == static_cast<size_t>(DeviceFigure::kFreeBytes);
      if (!bytes) {
        EXPECT_NE(figures.values[i].absence, FigureAbsence::kNotRead) << i;
      }
    }
    EXPECT_TRUE((*survey)->PciId().ok());
    (*survey)->TakeEvents();
  }
}

}  // namespace
}  // namespace berth::cuda
