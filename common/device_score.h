// What a device is worth beside others when work is split among them, and what of its memory may be given out: the two
// formulas that daemon and clients share.

#ifndef COMMON_DEVICE_SCORE_H_
#define COMMON_DEVICE_SCORE_H_

#include <cstdint>

#include "common/bytes.h"

namespace berth {

// Which formula a score was made by; rises when the formula changes.
inline constexpr uint32_t kDeviceScoreVersion = 1;

// What the score is made of.
struct ScoredDevice {
  uint32_t sm_count = 0;
  // Of the compute capability; 0 for what has none.
  uint32_t cc_major = 0;
  // Free now, less what is set aside: a score is of its moment.
  Bytes free;
};

// sm_count + 4 per GiB free + 100 where the compute capability is 8 or more (double-precision tensor cores) + 50 there
// (asynchronous copies). Any fraction of a GiB counts. Finite and never negative.
inline double DeviceScore(const ScoredDevice& device) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  constexpr uint32_t kDoubleTensorCores = 8;
  constexpr uint32_t kAsyncCopy = 8;
  double score = device.sm_count + 4.0 * (static_cast<double>(device.free.count()) / kGiB);
  if (device.cc_major >= kDoubleTensorCores) score += 100.0;
  if (device.cc_major >= kAsyncCopy) score += 50.0;
  return score;
}

// The smaller of what is free and half of what is there: the other half is for contexts, libraries' workspaces, and a
// second tile at a time.
constexpr Bytes DeviceBudget(Bytes free, Bytes total) {
  const Bytes half(total.count() / 2);
  return free < half ? free : half;
}

}  // namespace berth

#endif  // COMMON_DEVICE_SCORE_H_
