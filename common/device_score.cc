#include "common/device_score.h"

namespace berth {
namespace {

constexpr uint32_t kDoubleTensorCores = 8;
constexpr uint32_t kAsyncCopy = 8;

}  // namespace

double DeviceScore(const ScoredDevice& device) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  double score = device.sm_count + 4.0 * (static_cast<double>(device.free.count()) / kGiB);
  if (device.cc_major >= kDoubleTensorCores) score += 100.0;
  if (device.cc_major >= kAsyncCopy) score += 50.0;
  return score;
}

}  // namespace berth
