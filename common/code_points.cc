#include "common/code_points.h"

#include <algorithm>
#include <iterator>

namespace berth {
namespace {

struct Range {
  uint32_t first;
  uint32_t last;
};

// Sorted.
constexpr Range kUnprintable[] = {
    {0x0000, 0x001F},   {0x007F, 0x009F},   {0x00AD, 0x00AD},   {0x0600, 0x0605},   {0x061C, 0x061C},
    {0x06DD, 0x06DD},   {0x070F, 0x070F},   {0x0890, 0x0891},   {0x08E2, 0x08E2},   {0x180E, 0x180E},
    {0x200B, 0x200F},   {0x2028, 0x202E},   {0x2060, 0x206F},   {0xFEFF, 0xFEFF},   {0xFFF9, 0xFFFB},
    {0x110BD, 0x110BD}, {0x110CD, 0x110CD}, {0x13430, 0x1343F}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A},
    {0xE0000, 0xE007F},
};

}  // namespace

CodePoint FirstCodePoint(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {.value = lead, .bytes = 1};
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  uint32_t value = lead & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3fu);
  }
  if ((lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) > 0x9f) || (lead == 0xf0 && byte(1) < 0x90) ||
      (lead == 0xf4 && byte(1) > 0x8f)) {
    return {};
  }
  return {.value = value, .bytes = bytes};
}

bool IsUnprintable(uint32_t code_point) {
  const auto* const at = std::lower_bound(std::begin(kUnprintable), std::end(kUnprintable), code_point,
                                          [](const Range& range, uint32_t value) { return range.last < value; });
  return at != std::end(kUnprintable) && at->first <= code_point;
}

}  // namespace berth
