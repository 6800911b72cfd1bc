#include "client/sdk/fences/stream_fence_value.h"

#include <algorithm>

#include "common/status_macros.h"

namespace berth::internal {

absl::StatusOr<uint64_t> StreamFenceValue::Queue(uint64_t place) {
  MutexLock lock(&mu_);
  BERTH_RETURN_IF_ERROR(stream_.Write(page_, slot_, last_ + 1));
  place_ = std::max(place_, place);
  return ++last_;
}

absl::StatusOr<uint64_t> StreamFenceValue::Publish(StreamEvent& event, uint64_t place) {
  MutexLock lock(&mu_);
  // The value under way covers this place. A new value would be higher and must not be reached before it.
  if (place <= place_) return last_;
  const uint64_t value = ++last_;
  BERTH_RETURN_IF_ERROR(stream_.Publish(event, page_, slot_, value));
  place_ = place;
  return value;
}

}  // namespace berth::internal
