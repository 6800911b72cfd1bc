#include "client/sdk/permits/held_permit.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/sdk/permits/biased_count.h"
#include "client/sdk/transport/fork_guard.h"
#include "client/sdk/transport/live_object_counts.h"
#include "common/secret.h"

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

// Holdings that the thread remembers. The list is short: a thread holds in one or two pools. Ends with the thread.
class ThreadHeldPermits {
 public:
  static ThreadHeldPermits& Get() {
    thread_local ThreadHeldPermits held_permits;
    return held_permits;
  }
  ~ThreadHeldPermits() {
    if (SameProcess()) {
      for (HeldPermit* held_permit : list_) {
        held_permit->guards_.Share();
        held_permit->Unreference();
      }
    }
  }

  void Add(HeldPermit* held_permit) {
    Forget();
    list_.push_back(held_permit);
  }

  // Tries matching held permits until one is still held.
  HeldPermit* Nest(const HeldPermitKey& key, uint64_t units) {
    if (!SameProcess()) Forget();
    for (HeldPermit* held_permit : list_) {
      if (held_permit->Matches(key) && held_permit->units() >= units && !held_permit->end().has_value() &&
          held_permit->guards_.AddToSome())
        return held_permit;
    }
    return nullptr;
  }

 private:
  bool SameProcess() const { return fork_depth_ == fork_depth.load(std::memory_order_relaxed); }

  // Removes the held permits that are over. In a forked child removes all, because the permits are the parent's.
  void Forget() {
    if (!SameProcess()) {
      list_.clear();
      fork_depth_ = fork_depth.load(std::memory_order_relaxed);
    }
    size_t held = 0;
    for (HeldPermit* held_permit : list_) {
      if (held_permit->depth() > 0) {
        list_[held++] = held_permit;
      } else {
        held_permit->Unreference();
      }
    }
    list_.resize(held);
  }

  std::vector<HeldPermit*> list_;
  uint32_t fork_depth_ = fork_depth.load(std::memory_order_relaxed);
};

HeldPermit::HeldPermit(const HeldPermitKey& key, uint64_t units, std::unique_ptr<Releaser> releaser,
                       std::shared_ptr<const PermitRecord> record, std::string known_as, bool remembered)
    : session_(key.session),
      pool_(key.pool),
      holder_key_(!known_as.empty()        ? std::move(known_as)
                  : key.holder_key.empty() ? ThreadHolderKey()
                                           : std::string(key.holder_key)),
      of_thread_(key.holder_key.empty() || key.holder_key == ThreadHolderKey()),
      units_(units),
      record_(std::move(record)),
      guards_(/*owned=*/remembered),
      references_(remembered ? 2 : 1),
      releaser_(std::move(releaser)) {
  live_object_counts.permits.fetch_add(1, std::memory_order_relaxed);
}

HeldPermit* HeldPermit::Make(const HeldPermitKey& key, uint64_t units, std::unique_ptr<Releaser> releaser,
                             std::shared_ptr<const PermitRecord> record, std::string known_as) {
  auto* const held_permit = new HeldPermit(key, units, std::move(releaser), std::move(record), std::move(known_as),
                                           /*remembered=*/true);
  ThreadHeldPermits::Get().Add(held_permit);
  return held_permit;
}

HeldPermit* HeldPermit::MakeForNoThread(const HeldPermitKey& key, uint64_t units, std::unique_ptr<Releaser> releaser,
                                        std::shared_ptr<const PermitRecord> record) {
  return new HeldPermit(key, units, std::move(releaser), std::move(record), /*known_as=*/"", /*remembered=*/false);
}

HeldPermit* HeldPermit::Nest(const HeldPermitKey& key, uint64_t units) {
  return ThreadHeldPermits::Get().Nest(key, units);
}

void HeldPermit::Unreference() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

absl::Status HeldPermit::GiveBack() {
  live_object_counts.permits.fetch_sub(1, std::memory_order_relaxed);
  const std::unique_ptr<Releaser> releaser = std::move(releaser_);
  absl::Status status = releaser->Release();
  // The daemon sends the notice before it answers the release.
  if (const std::optional<EndNotice> ended = end()) status = ReleasedAfter(*ended);
  Unreference();
  return status;
}

void HeldPermit::Leave() {
  if (!guards_.Drop()) return;
  live_object_counts.permits.fetch_sub(1, std::memory_order_relaxed);
  releaser_.reset();
  Unreference();
}

const std::string& ThreadHolderKey() {
  static const uint64_t process = RandomId();
  static std::atomic<uint64_t> threads = 0;
  // Add a number of our own, because the kernel reuses thread IDs.
  thread_local const std::string key = absl::StrCat(
      "t", ::gettid(), "-", threads.fetch_add(1, std::memory_order_relaxed), "-", absl::Hex(process));
  return key;
}

// ---- biased_count.h ------------------------------------------------------------------------------------------

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
