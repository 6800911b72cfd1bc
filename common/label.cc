#include "common/label.h"

#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/attach_wire.h"
#include "common/error.h"

namespace berth {
namespace {

// The length of the UTF-8 sequence at the start of `text`, or 0 if there is none. Overlong forms, surrogates and code
// points past U+10FFFF are none.
size_t SequenceLength(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if ((lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) > 0x9f) ||
      (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) > 0x8f)) {
    return 0;
  }
  return length;
}

bool IsControl(absl::string_view sequence) {
  const uint8_t first = static_cast<uint8_t>(sequence[0]);
  if (sequence.size() == 1) return first < 0x20 || first == 0x7f;
  // U+0080 to U+009F.
  return first == 0xc2 && static_cast<uint8_t>(sequence[1]) < 0xa0;
}

// Takes from the front of `*text` what comes to at most `limit` bytes. Returns it with a "?" for each control
// character, but for those of `allowed`, and for each byte that is not UTF-8.
std::string TakePrintable(absl::string_view* text, size_t limit, absl::string_view allowed = "") {
  std::string taken;
  while (!text->empty()) {
    const size_t length = SequenceLength(*text);
    const absl::string_view sequence = text->substr(0, length == 0 ? 1 : length);
    const bool control = length != 0 && IsControl(sequence) && !absl::StrContains(allowed, sequence);
    const absl::string_view printed = length == 0 || control ? "?" : sequence;
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
    const size_t length = SequenceLength(rest);
    if (length == 0 || IsControl(rest.substr(0, length))) {
      return Refuse(Reason::kInvalidField,
                    "{field}: \"{value}\" has a control character or is not UTF-8; limit {limit}",
                    {{"field", field}, {"value", absl::CHexEscape(text)}, {"limit", "printable UTF-8"}});
    }
    rest.remove_prefix(length);
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
