#include "tests/support/actor/actor_wire.h"

#include <optional>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace berth::testing {

std::string EncodeAnswer(const absl::StatusOr<std::string>& answer) {
  if (answer.ok()) return absl::StrCat("ok ", *answer);
  const absl::Status& status = answer.status();
  std::string line =
      absl::StrCat("error\t", static_cast<int>(status.code()), "\t", absl::CEscape(status.message()));
  if (const std::optional<ErrorDetails> details = GetErrorDetails(status)) {
    absl::StrAppend(&line, "\t", ReasonName(details->reason));
    for (const auto& [name, value] : details->metadata)
      absl::StrAppend(&line, "\t", name, "=", absl::CEscape(value));
  }
  return line;
}

absl::StatusOr<std::string> DecodeAnswer(absl::string_view line) {
  if (absl::ConsumePrefix(&line, "ok")) return std::string(absl::StripLeadingAsciiWhitespace(line));
  const std::vector<std::string> fields = absl::StrSplit(line, '\t');
  int code = 0;
  std::string text;
  if (fields.size() < 3 || fields[0] != "error" || !absl::SimpleAtoi(fields[1], &code) ||
      !absl::CUnescape(fields[2], &text)) {
    return absl::InternalError(absl::StrCat("no answer: ", line));
  }
  absl::Status status(static_cast<absl::StatusCode>(code), text);
  if (fields.size() > 3) {
    const std::optional<Reason> reason = ReasonFromName(fields[3]);
    if (!reason.has_value()) return absl::InternalError(absl::StrCat("no answer: ", line));
    ErrorDetails details = {.reason = *reason};
    for (size_t i = 4; i < fields.size(); ++i) {
      const std::pair<std::string, std::string> named_value = absl::StrSplit(fields[i], absl::MaxSplits('=', 1));
      absl::CUnescape(named_value.second, &details.metadata[named_value.first]);
    }
    SetErrorDetails(details, &status);
  }
  return status;
}

}  // namespace berth::testing
