// Checks durations, and converts them to their wire format.

#ifndef CLIENT_SDK_TRANSPORT_DURATION_H_
#define CLIENT_SDK_TRANSPORT_DURATION_H_

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"

namespace berth::internal {

// Errors: kInvalidArgument naming the option and its value if the value is negative.
inline absl::Status CheckNotNegative(absl::string_view option, absl::Duration value) {
  if (value >= absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, " is ", absl::FormatDuration(value), ": expected 0 or more"));
}

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
