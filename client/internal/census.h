// Census: what of Berth this process holds at the moment, over all of its sessions. For those who look for leaks.

#ifndef CLIENT_INTERNAL_CENSUS_H_
#define CLIENT_INTERNAL_CENSUS_H_

#include <atomic>
#include <cstdint>

namespace berth::internal {

// Each counted by its own unit of this library, with one relaxed step when it is taken and one when it goes.
struct Census {
  // Permits that guards are left of; nested guards of one thread are one.
  std::atomic<uint64_t> permits = 0;
  // Blocks that a Block or a Mapping is left of, and their bytes.
  std::atomic<uint64_t> blocks = 0;
  std::atomic<uint64_t> bytes = 0;
  // Reservations and plans that were not released.
  std::atomic<uint64_t> reservations = 0;
  std::atomic<uint64_t> plans = 0;
};

inline Census census;

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_CENSUS_H_
