#include "client/internal/request_book.h"

#include "common/error.h"

namespace berth::internal {

RequestBook::Tag RequestBook::NextLocked() {
  Tag tag = {.sequence = next_++};
  tag.answered_below = tag.sequence;
  for (const uint64_t sequence : open_) {
    if (tag.open.size() == kMaxNamed) {
      tag.answered_below = sequence;
      break;
    }
    tag.open.push_back(sequence);
  }
  open_.insert(tag.sequence);
  return tag;
}

absl::StatusOr<RequestBook::Tag> RequestBook::Begin() {
  MutexLock lock(&mu_);
  if (open_.size() >= kMaxOpen) {
    return Refuse(Reason::kLimit, "{what}: {current} are open, limit {limit}",
                  {{"what", "requests of one process"}, {"current", open_.size()}, {"limit", kMaxOpen}});
  }
  return NextLocked();
}

RequestBook::Tag RequestBook::BeginReturn() {
  MutexLock lock(&mu_);
  return NextLocked();
}

void RequestBook::Settle(uint64_t sequence) {
  MutexLock lock(&mu_);
  open_.erase(sequence);
}

size_t RequestBook::open() const {
  MutexLock lock(&mu_);
  return open_.size();
}

}  // namespace berth::internal
