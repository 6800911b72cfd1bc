// The one rule for text that callers hand in and others read: labels, holder keys, pool names; and for what is kept of
// errors.

#ifndef COMMON_LABEL_H_
#define COMMON_LABEL_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace berth {

// Errors: INVALID_FIELD naming `field` when `text` is longer than 128 bytes, is not UTF-8, or has a control character.
absl::Status ValidateLabel(absl::string_view field, absl::string_view text);

// Makes a label of any text, as of a file's name: what is not UTF-8, and control characters, become "?"; what is longer
// than a label is cut between two characters.
std::string ToLabel(absl::string_view text);

// The same with `limit` bytes, for messages that are kept: an ellipsis follows where something was cut off.
std::string ToMessage(absl::string_view text, size_t limit);

// The same for a program's output, such as a compiler's log: line ends and tabs stay.
std::string ToLog(absl::string_view text, size_t limit);

}  // namespace berth

#endif  // COMMON_LABEL_H_
