#include "client/internal/request_book.h"

#include "common/error.h"

namespace berth::internal {

RequestBook::Tag RequestBook::NextLocked() {
  const uint64_t sequence = next_++;
  open_.insert(sequence);
  return {.sequence = sequence, .answered_below = *open_.begin()};
}

absl::StatusOr<RequestBook::Tag> RequestBook::Begin() {
  absl::MutexLock lock(&mu_);
  if (open_.size() >= kMaxOpen) {
    return Refuse(Reason::kLimit, "{what}: {current} are open, limit {limit}",
                  {{"what", "requests of one process"}, {"current", open_.size()}, {"limit", kMaxOpen}});
  }
  return NextLocked();
}

RequestBook::Tag RequestBook::BeginReturn() {
  absl::MutexLock lock(&mu_);
  return NextLocked();
}

void RequestBook::Settle(uint64_t sequence) {
  absl::MutexLock lock(&mu_);
  open_.erase(sequence);
}

size_t RequestBook::open() const {
  absl::MutexLock lock(&mu_);
  return open_.size();
}

}  // namespace berth::internal
