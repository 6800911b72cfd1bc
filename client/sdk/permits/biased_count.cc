#include "client/sdk/permits/biased_count.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "absl/time/clock.h"
#include "client/sdk/transport/fork_guard.h"

namespace berth::internal {
namespace {

// The owner counts in a few instructions, but it may have been preempted among them.
constexpr absl::Duration kPause = absl::Microseconds(1);
// Time within which a core's stores have surely become visible.
constexpr absl::Duration kDrained = absl::Milliseconds(1);

int Membarrier(int command) { return static_cast<int>(::syscall(SYS_membarrier, command, 0, 0)); }

// Registered at program start: the registration of a process that already has threads takes the kernel 13 ms.
const bool has_barrier = Membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;

}  // namespace

BiasedCount::BiasedCount(bool owned)
    : made_at_(fork_depth.load(std::memory_order_relaxed)),
      mode_(owned && has_barrier ? Mode::kOwned : Mode::kShared),
      owner_(owned ? &thread_mark : nullptr),
      own_(mode_ == Mode::kOwned ? 1 : 0),
      shared_(mode_ == Mode::kOwned ? 0 : 1) {}

bool BiasedCount::Forked() const { return fork_depth.load(std::memory_order_relaxed) != made_at_; }

void BiasedCount::TakeOver() {
  Mode owned = Mode::kOwned;
  if (!mode_.compare_exchange_strong(owned, Mode::kTakenOver, std::memory_order_acq_rel)) {
    while (mode_.load(std::memory_order_acquire) != Mode::kShared && !Forked()) absl::SleepFor(kPause);
    return;
  }
  // The barrier may have been forbidden since, for example by a seccomp filter.
  if (Membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0) absl::SleepFor(kDrained);
  while (owner_counts_.load(std::memory_order_acquire) && !Forked()) absl::SleepFor(kPause);
  // In this order value() is never too low.
  shared_.fetch_add(own_.load(std::memory_order_acquire), std::memory_order_acq_rel);
  own_.store(0, std::memory_order_relaxed);
  mode_.store(Mode::kShared, std::memory_order_release);
}

}  // namespace berth::internal
