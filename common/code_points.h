// Code points of UTF-8 text, and which of them are unprintable.

#ifndef COMMON_CODE_POINTS_H_
#define COMMON_CODE_POINTS_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace berth {

struct CodePoint {
  uint32_t value = 0;
  // 0 if the text does not begin with valid UTF-8: overlong forms, surrogates and code points past U+10FFFF are
  // invalid.
  size_t bytes = 0;
};

// Reads the code point at the start of `text`. Requires: not empty.
CodePoint FirstCodePoint(absl::string_view text);

// Returns whether the code point shows nothing itself but moves, hides or reorders the text around it. These are
// controls, format characters, and line and paragraph separators (categories Cc, Cf, Zl, Zp of Unicode 15).
bool IsUnprintable(uint32_t code_point);

}  // namespace berth

#endif  // COMMON_CODE_POINTS_H_
