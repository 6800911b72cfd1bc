#include "client/internal/stream_word.h"

#include <algorithm>

#include "common/status_macros.h"

namespace berth::internal {

absl::StatusOr<uint64_t> StreamWord::Queue(uint64_t place) {
  MutexLock lock(&mu_);
  BERTH_RETURN_IF_ERROR(stream_.Write(page_, slot_, last_ + 1));
  place_ = std::max(place_, place);
  return ++last_;
}

absl::StatusOr<uint64_t> StreamWord::Publish(StreamEvent& event, uint64_t place) {
  MutexLock lock(&mu_);
  // A value of its own would be the higher one, and must not come before this.
  if (place <= place_) return last_;
  const uint64_t value = ++last_;
  BERTH_RETURN_IF_ERROR(stream_.Publish(event, page_, slot_, value));
  place_ = place;
  return value;
}

}  // namespace berth::internal
