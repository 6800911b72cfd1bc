// Converts durations to their wire format.

#ifndef CLIENT_SDK_TRANSPORT_DURATION_H_
#define CLIENT_SDK_TRANSPORT_DURATION_H_

#include <algorithm>

#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"

namespace berth::internal {

// Converts a duration; values beyond the range of google.protobuf.Duration become its maximum.
inline void ToProto(absl::Duration duration, google::protobuf::Duration* out) {
  constexpr int64_t kMaxSeconds = 315'576'000'000;
  absl::Duration rest;
  out->set_seconds(
      absl::IDivDuration(std::min(duration, absl::Seconds(kMaxSeconds)), absl::Seconds(1), &rest));
  out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
}

}  // namespace berth::internal

#endif  // CLIENT_SDK_TRANSPORT_DURATION_H_
