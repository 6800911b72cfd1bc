// Answer format of an actor: one line per command, "ok <text>", or "error" with a status and its details, separated by
// tabs.

#ifndef TESTS_SUPPORT_ACTOR_ACTOR_WIRE_H_
#define TESTS_SUPPORT_ACTOR_ACTOR_WIRE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace berth::testing {

// `answer` must be one line.
std::string EncodeAnswer(const absl::StatusOr<std::string>& answer);

// Errors: the encoded error; kInternal for a line that EncodeAnswer() does not produce.
absl::StatusOr<std::string> DecodeAnswer(absl::string_view line);

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACTOR_ACTOR_WIRE_H_
