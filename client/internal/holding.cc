#include "client/internal/holding.h"

#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/internal/census.h"
#include "client/internal/fork_guard.h"
#include "common/secret.h"

namespace berth::internal {

// What the thread remembers. Short: a thread holds in one or two pools. Ends with the thread.
class ThreadHoldings {
 public:
  static ThreadHoldings& Get() {
    thread_local ThreadHoldings holdings;
    return holdings;
  }
  ~ThreadHoldings() {
    if (SameProcess()) {
      for (Holding* holding : list_) {
        holding->guards_.Share();
        holding->Unreference();
      }
    }
  }

  void Add(Holding* holding) {
    Forget();
    list_.push_back(holding);
  }

  // Those that match are tried until one is still held.
  Holding* Nest(const HoldingKey& key, uint64_t units) {
    if (!SameProcess()) Forget();
    for (Holding* holding : list_) {
      if (holding->Matches(key) && holding->units() >= units && !holding->revoked() &&
          holding->guards_.AddToSome())
        return holding;
    }
    return nullptr;
  }

 private:
  bool SameProcess() const { return fork_depth_ == fork_depth.load(std::memory_order_relaxed); }

  // Drops what is over; in a forked child everything, for the permit is the parent's.
  void Forget() {
    if (!SameProcess()) {
      list_.clear();
      fork_depth_ = fork_depth.load(std::memory_order_relaxed);
    }
    size_t kept = 0;
    for (Holding* holding : list_) {
      if (holding->depth() > 0) {
        list_[kept++] = holding;
      } else {
        holding->Unreference();
      }
    }
    list_.resize(kept);
  }

  std::vector<Holding*> list_;
  uint32_t fork_depth_ = fork_depth.load(std::memory_order_relaxed);
};

Holding::Holding(const HoldingKey& key, uint64_t units, std::unique_ptr<Releaser> releaser,
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
  census.permits.fetch_add(1, std::memory_order_relaxed);
}

Holding* Holding::Make(const HoldingKey& key, uint64_t units, std::unique_ptr<Releaser> releaser,
                       std::shared_ptr<const PermitRecord> record, std::string known_as) {
  auto* const holding = new Holding(key, units, std::move(releaser), std::move(record), std::move(known_as),
                                    /*remembered=*/true);
  ThreadHoldings::Get().Add(holding);
  return holding;
}

Holding* Holding::MakeForNoThread(const HoldingKey& key, uint64_t units, std::unique_ptr<Releaser> releaser,
                                  std::shared_ptr<const PermitRecord> record) {
  return new Holding(key, units, std::move(releaser), std::move(record), /*known_as=*/"", /*remembered=*/false);
}

Holding* Holding::Nest(const HoldingKey& key, uint64_t units) {
  return ThreadHoldings::Get().Nest(key, units);
}

void Holding::Unreference() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

absl::Status Holding::GiveBack() {
  census.permits.fetch_sub(1, std::memory_order_relaxed);
  const std::unique_ptr<Releaser> releaser = std::move(releaser_);
  const absl::Status status = releaser->Release();
  Unreference();
  return status;
}

void Holding::Leave() {
  if (!guards_.Drop()) return;
  census.permits.fetch_sub(1, std::memory_order_relaxed);
  releaser_.reset();
  Unreference();
}

const std::string& ThreadHolderKey() {
  static const uint64_t process = RandomId();
  static std::atomic<uint64_t> threads = 0;
  // A number of our own beside the kernel's, which it gives again.
  thread_local const std::string key = absl::StrCat(
      "t", ::gettid(), "-", threads.fetch_add(1, std::memory_order_relaxed), "-", absl::Hex(process));
  return key;
}

}  // namespace berth::internal
