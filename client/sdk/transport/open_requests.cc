#include "client/sdk/transport/open_requests.h"

#include <berth/error.h>

namespace berth::internal {

OpenRequests::Tag OpenRequests::NextLocked() {
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

absl::StatusOr<OpenRequests::Tag> OpenRequests::Begin() {
  MutexLock lock(&mu_);
  if (open_.size() >= kMaxOpen) {
    return Refuse(Reason::kLimit, "{what}: {current} are open, limit {limit}",
                  {{"what", "requests of one process"}, {"current", open_.size()}, {"limit", kMaxOpen}});
  }
  return NextLocked();
}

OpenRequests::Tag OpenRequests::BeginReturn() {
  MutexLock lock(&mu_);
  return NextLocked();
}

void OpenRequests::Settle(uint64_t sequence) {
  MutexLock lock(&mu_);
  open_.erase(sequence);
}

size_t OpenRequests::open() const {
  MutexLock lock(&mu_);
  return open_.size();
}

}  // namespace berth::internal
