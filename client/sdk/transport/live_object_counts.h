// LiveObjectCounts: the live Berth objects of this process, over all of its sessions. Used to find leaks.

#ifndef CLIENT_SDK_TRANSPORT_LIVE_OBJECT_COUNTS_H_
#define CLIENT_SDK_TRANSPORT_LIVE_OBJECT_COUNTS_H_

#include <atomic>
#include <cstdint>

namespace berth::internal {

// Each unit of this library updates its own counter, with one relaxed step when an object is taken and one when it is
// released.
struct LiveObjectCounts {
  // Permits with live guards; nested guards of one thread count as one.
  std::atomic<uint64_t> permits = 0;
  // Blocks with a live Block or Mapping, and their bytes.
  std::atomic<uint64_t> blocks = 0;
  std::atomic<uint64_t> bytes = 0;
  // Reservations and plans that are not released.
  std::atomic<uint64_t> reservations = 0;
  std::atomic<uint64_t> plans = 0;
};

inline LiveObjectCounts live_object_counts;

}  // namespace berth::internal

#endif  // CLIENT_SDK_TRANSPORT_LIVE_OBJECT_COUNTS_H_
