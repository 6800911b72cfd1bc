// ParseTimeSpan: a length of time as people write it, in options, flags and configuration files.

#ifndef COMMON_TIME_SPAN_H_
#define COMMON_TIME_SPAN_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace berth {

// Parses "90", "90s", "1m30s", "2h", "2d", "1d12h", "100ms"; a bare number is seconds.
// Errors: kInvalidArgument naming the text, also for a negative or infinite length.
absl::StatusOr<absl::Duration> ParseTimeSpan(absl::string_view text);

}  // namespace berth

#endif  // COMMON_TIME_SPAN_H_
