// The words of a command line, as CLI11 should receive them.

#ifndef COMMON_COMMAND_LINE_H_
#define COMMON_COMMAND_LINE_H_

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace berth {

// Returns argv without the program's name, last word first, for CLI::App::parse(). Splits "--name=" into the name and
// an empty value: CLI11 would take the next word for the value.
inline std::vector<std::string> WordsForParser(int argc, const char* const* argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    const bool empty = absl::StartsWith(word, "--") && word.find('=') == word.size() - 1;
    if (empty) word.remove_suffix(1);
    words.emplace_back(word);
    if (empty) words.emplace_back();
  }
  std::reverse(words.begin(), words.end());
  return words;
}

}  // namespace berth

#endif  // COMMON_COMMAND_LINE_H_
