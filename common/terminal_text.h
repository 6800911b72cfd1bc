// Escapes untrusted text for a terminal: code points that move, hide or reorder visible text are written out.

#ifndef COMMON_TERMINAL_TEXT_H_
#define COMMON_TERMINAL_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace berth {

// Writes out each unprintable code point except line ends and tabs as "\u{202e}", and each byte that is invalid UTF-8
// as "\xff". Other text is unchanged; the function is idempotent.
std::string ToTerminal(absl::string_view text);
// Like ToTerminal(), for one cell or word: also writes out line ends and tabs.
std::string ToTerminalWord(absl::string_view text);

// Writes out the same code points of a JSON text as "\u202e". They occur only in strings, whose meaning does not
// change.
std::string ToTerminalJson(absl::string_view json);

}  // namespace berth

#endif  // COMMON_TERMINAL_TEXT_H_
