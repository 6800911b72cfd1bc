#include "common/label.h"

#include <berth/error.h>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/code_points.h"
#include "common/wire/attach_wire.h"

namespace berth {
namespace {

// Takes at most `limit` bytes from the front of `*text`. Returns them with a "?" for each unprintable code point that
// is not in `allowed`, and for each byte that is not UTF-8.
std::string TakePrintable(absl::string_view* text, size_t limit, absl::string_view allowed = "") {
  std::string taken;
  while (!text->empty()) {
    const CodePoint point = FirstCodePoint(*text);
    const absl::string_view sequence = text->substr(0, point.bytes == 0 ? 1 : point.bytes);
    const bool hidden = point.bytes == 0 || (IsUnprintable(point.value) && !absl::StrContains(allowed, sequence));
    const absl::string_view printed = hidden ? "?" : sequence;
    if (taken.size() + printed.size() > limit) break;
    taken.append(printed.data(), printed.size());
    text->remove_prefix(sequence.size());
  }
  return taken;
}

}  // namespace

absl::Status ValidateLabel(absl::string_view field, absl::string_view text) {
  if (text.size() > attach::kMaxLabelBytes) {
    return Refuse(Reason::kInvalidField, "{field}: {value} bytes, limit {limit}",
                  {{"field", field}, {"value", text.size()}, {"limit", attach::kMaxLabelBytes}});
  }
  for (absl::string_view rest = text; !rest.empty();) {
    const CodePoint point = FirstCodePoint(rest);
    if (point.bytes == 0 || IsUnprintable(point.value)) {
      return Refuse(Reason::kInvalidField,
                    "{field}: \"{value}\" has a control or format character or is not UTF-8; expected {limit}",
                    {{"field", field}, {"value", absl::CHexEscape(text)}, {"limit", "printable UTF-8"}});
    }
    rest.remove_prefix(point.bytes);
  }
  return absl::OkStatus();
}

std::string ToLabel(absl::string_view text) { return TakePrintable(&text, attach::kMaxLabelBytes); }

std::string ToMessage(absl::string_view text, size_t limit) {
  const std::string message = TakePrintable(&text, limit);
  return text.empty() ? message : message + "\u2026";
}

std::string ToLog(absl::string_view text, size_t limit) {
  const std::string log = TakePrintable(&text, limit, "\n\t");
  return text.empty() ? log : log + "\u2026";
}

}  // namespace berth
