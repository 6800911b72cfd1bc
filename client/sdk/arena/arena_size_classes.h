// ArenaSizeClasses: the sizes of an arena's allocations, counted in granules (the arena's alignment).

#ifndef CLIENT_SDK_ARENA_ARENA_SIZE_CLASSES_H_
#define CLIENT_SDK_ARENA_ARENA_SIZE_CLASSES_H_

#include <bit>
#include <cstdint>

#include <berth/arena_options.h>

namespace berth::internal {

// A value type. Classes are numbered from 0 by rising size.
class ArenaSizeClasses {
 public:
  // Limit of granules: 64 TiB at the smallest granule.
  static constexpr uint64_t kMaxGranules = uint64_t{1} << 38;
  // Enough for the classes of either policy.
  static constexpr uint32_t kCount = 288;

  explicit constexpr ArenaSizeClasses(ArenaPolicy policy) : policy_(policy) {}

  // Returns the smallest class that holds `granules`. Requires: 1 to kMaxGranules.
  constexpr uint32_t Ceil(uint64_t granules) const {
    if (policy_ == ArenaPolicy::kPowerOfTwo) return std::bit_width(granules - 1);
    if (granules <= kSteps) return granules - 1;
    // `granules` lies in (2^exponent, 2^(exponent + 1)], which is cut into kSteps steps.
    const uint32_t shift = std::bit_width(granules - 1) - 1 - kStepBits;
    return kSteps * shift + ((granules - 1) >> shift);
  }

  // Returns the largest class that fits in `granules`. Requires: as Ceil().
  constexpr uint32_t Floor(uint64_t granules) const {
    const uint32_t ceil = Ceil(granules);
    return Granules(ceil) == granules ? ceil : ceil - 1;
  }

  constexpr uint64_t Granules(uint32_t size_class) const {
    if (policy_ == ArenaPolicy::kPowerOfTwo) return uint64_t{1} << size_class;
    if (size_class < kSteps) return size_class + 1;
    const uint32_t shift = size_class / kSteps - 1;
    return (kSteps + size_class % kSteps + 1) << shift;
  }

 private:
  static constexpr uint32_t kStepBits = 3;
  static constexpr uint64_t kSteps = 1 << kStepBits;

  ArenaPolicy policy_;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_ARENA_ARENA_SIZE_CLASSES_H_
