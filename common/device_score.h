// The relative weight of a device when work is split over several devices, and the allocatable part of its memory: the
// two formulas that daemon and clients share.

#ifndef COMMON_DEVICE_SCORE_H_
#define COMMON_DEVICE_SCORE_H_

#include <cstdint>

#include <berth/bytes.h>

namespace berth {

// Version of the score formula; rises when the formula changes.
inline constexpr uint32_t kDeviceScoreVersion = 1;

// Inputs of the score.
struct ScoredDevice {
  uint32_t sm_count = 0;
  // Major number of the compute capability; 0 if the device has none.
  uint32_t cc_major = 0;
  // Free bytes now, less reserved bytes; the score is a snapshot.
  Bytes free;
};

// Returns sm_count + 4 per GiB free + 100 if the compute capability is 8 or more (double-precision tensor cores) + 50
// for the same (asynchronous copies). Fractions of a GiB count. Finite and never negative.
inline double DeviceScore(const ScoredDevice& device) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  constexpr uint32_t kDoubleTensorCores = 8;
  constexpr uint32_t kAsyncCopy = 8;
  double score = device.sm_count + 4.0 * (static_cast<double>(device.free.count()) / kGiB);
  if (device.cc_major >= kDoubleTensorCores) score += 100.0;
  if (device.cc_major >= kAsyncCopy) score += 50.0;
  return score;
}

// Returns the smaller of the free bytes and half of the total: the other half is for contexts, library workspaces, and
// a second tile.
constexpr Bytes DeviceBudget(Bytes free, Bytes total) {
  const Bytes half(total.count() / 2);
  return free < half ? free : half;
}

}  // namespace berth

#endif  // COMMON_DEVICE_SCORE_H_
