// Lane: which of a device's two workers.

#ifndef COMMON_LANE_H_
#define COMMON_LANE_H_

#include <array>
#include <cstdint>

namespace berth {

enum class Lane : uint32_t {
  // The worker that is always there. It has no CUDA context; the memory that it makes lives in fds.
  kMain = 0,
  // The context worker, which is there when it is needed. The memory that it makes dies with it.
  kContext = 1,
};

inline constexpr std::array<Lane, 2> kLanes = {Lane::kMain, Lane::kContext};

}  // namespace berth

#endif  // COMMON_LANE_H_
