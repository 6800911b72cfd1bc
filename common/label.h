// The validation rule for text that callers supply and other users read (labels, holder keys, pool names), and for
// stored error texts.

#ifndef COMMON_LABEL_H_
#define COMMON_LABEL_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace berth {

// Validates a label. Errors: INVALID_FIELD naming `field` if `text` is longer than 128 bytes, is not UTF-8, or has an
// unprintable code point (common/code_points.h).
absl::Status ValidateLabel(absl::string_view field, absl::string_view text);

// Converts any text, such as a file name, to a label: invalid UTF-8 and unprintable code points become "?". Text longer
// than a label is cut between two characters.
std::string ToLabel(absl::string_view text);

// Like ToLabel() with `limit` bytes, for stored messages: an ellipsis marks a cut.
std::string ToMessage(absl::string_view text, size_t limit);

// Like ToMessage(), for program output such as a compiler's log: line ends and tabs are preserved.
std::string ToLog(absl::string_view text, size_t limit);

}  // namespace berth

#endif  // COMMON_LABEL_H_
