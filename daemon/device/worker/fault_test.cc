#include "daemon/device/worker/fault.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include <berth/error.h>

#include "common/cuda/driver.h"

namespace berth {
namespace {

const std::map<FaultDirective, std::set<int>>& Table() {
  static const auto* const kTable = new std::map<FaultDirective, std::set<int>>{
      {FaultDirective::kGoOn, {1, 2, 304, 600, 800, 801}},
      {FaultDirective::kRestartWorker, {3, 4, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999}},
      {FaultDirective::kStopDevice, {802, 803}},
      {FaultDirective::kLoseDevice, {46, 100, 101, 214, 220}},
  };
  return *kTable;
}

TEST(FaultTest, EveryCodeHasDirectiveUnknownEscalates) {
  for (int code = 1; code <= 1000; ++code) {
    FaultDirective expected = FaultDirective::kEscalate;
    for (const auto& [directive, codes] : Table()) {
      if (codes.contains(code)) expected = directive;
    }
    EXPECT_EQ(DirectiveOf(code), expected) << code;
  }
}

TEST(FaultTest, DirectiveFollowsCodeNotText) {
  EXPECT_EQ(DirectiveOf(cuda::DriverError("cuMemCreate", 700, "CUDA_ERROR_OUT_OF_MEMORY")),
            FaultDirective::kRestartWorker);
  EXPECT_EQ(DirectiveOf(cuda::DriverError("cuMemCreate", 2, "CUDA_ERROR_ILLEGAL_ADDRESS")),
            FaultDirective::kGoOn);
  EXPECT_EQ(DirectiveOf(cuda::DriverError("cuMemCreate", 12345, "?")), FaultDirective::kEscalate);
}

TEST(FaultTest, ErrorWithoutDriverCodeIsNoFault) {
  EXPECT_EQ(DirectiveOf(absl::OkStatus()), FaultDirective::kGoOn);
  EXPECT_EQ(DirectiveOf(absl::InternalError("CUDA_ERROR_ILLEGAL_ADDRESS")), FaultDirective::kGoOn);
  EXPECT_EQ(DirectiveOf(Refuse(Reason::kInvalidField, "no")), FaultDirective::kGoOn);
  EXPECT_EQ(DirectiveOf(Refuse(Reason::kOutOfMemory, "{driver_code}", {{"driver_code", 0}})),
            FaultDirective::kGoOn);
  EXPECT_EQ(DirectiveOf(Refuse(Reason::kDriver, "{driver_code}", {{"driver_code", "many"}})),
            FaultDirective::kGoOn);
}

TEST(FaultTest, EachEndingDirectiveHasUniqueExitCode) {
  std::set<WorkerExit> exits = {WorkerExit::kDone, WorkerExit::kFailed};
  for (const FaultDirective directive : {FaultDirective::kRestartWorker, FaultDirective::kStopDevice,
                                         FaultDirective::kLoseDevice, FaultDirective::kEscalate}) {
    EXPECT_TRUE(exits.insert(ExitFor(directive)).second);
  }
}

}  // namespace
}  // namespace berth
