#include "daemon/broker/node_clock.h"

#include <time.h>

#include <cstdlib>

namespace berth {
namespace {

// Limit below which two offsets count as equal, because the two clocks cannot be read at once. Setting a clock moves it
// by more, and rate adjustments affect both clocks.
constexpr int64_t kSameNanoseconds = 1'000'000;
// The clocks are read again if the thread was delayed between the reads for longer than this.
constexpr int64_t kCloseNanoseconds = 100'000;
constexpr int kTries = 4;

int64_t Read(clockid_t clock) {
  timespec now;
  ::clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

NodeClock& NodeClock::Real() {
  static auto* const kReal = new NodeClock([] { return Read(CLOCK_BOOTTIME); }, [] { return Read(CLOCK_REALTIME); });
  return *kReal;
}

absl::Time NodeClock::Now() const { return absl::UnixEpoch() + absl::Nanoseconds(boot_()); }

absl::Duration NodeClock::Offset() const {
  int64_t offset = 0;
  for (int tries = 0; tries < kTries; ++tries) {
    const int64_t before = boot_();
    const int64_t wall = wall_();
    const int64_t after = boot_();
    offset = wall - before - (after - before) / 2;
    if (after - before < kCloseNanoseconds) break;
  }
  const int64_t known = offset_.load(std::memory_order_relaxed);
  if (known != INT64_MIN && std::abs(offset - known) < kSameNanoseconds) return absl::Nanoseconds(known);
  offset_.store(offset, std::memory_order_relaxed);
  return absl::Nanoseconds(offset);
}

}  // namespace berth
