// The words and values of a command line, as CLI11 should receive them.

#ifndef COMMON_COMMAND_LINE_H_
#define COMMON_COMMAND_LINE_H_

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace berth {

// The value of a flag in "--name=", which CLI11 would take for the flag alone. No word of a command line contains it.
inline const std::string kEmptyFlagValue(1, '\0');

// Checks for CLI11, which return the error in a value. The first rejects the value that an unset variable of a script
// gives: an option without effect would go unnoticed.
inline std::string CheckNotBlank(const std::string& text) {
  if (!absl::StripAsciiWhitespace(text).empty()) return "";
  return absl::StrCat("the value is ", text.empty() ? "empty" : "blank", ": name a value, or leave the option out");
}
// CLI11 passes "true" and "false" for flags without a value.
inline std::string CheckFlag(const std::string& text) {
  if (text == "true" || text == "false") return "";
  return absl::StrCat(text == kEmptyFlagValue ? "the value is empty" : absl::StrCat("\"", text, "\" is not a value"),
                      ": it is a flag, which stands alone or takes =true or =false");
}

// Returns argv without the program's name, last word first, for CLI::App::parse(). Splits "--name=" into the name and
// an empty value: CLI11 would take the next word for the value. Leaves words after "--", which are no options, as they
// are. `is_flag(name)`: whether the name is a flag's.
template <typename IsFlag>
std::vector<std::string> WordsForParser(int argc, const char* const* argv, const IsFlag& is_flag) {
  std::vector<std::string> words;
  bool options_ended = false;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    options_ended = options_ended || word == "--";
    const bool empty = !options_ended && absl::StartsWith(word, "--") && word.find('=') == word.size() - 1;
    const bool flag = empty && is_flag(std::string(word.substr(0, word.size() - 1)));
    if (empty && !flag) word.remove_suffix(1);
    words.push_back(absl::StrCat(word, flag ? kEmptyFlagValue : ""));
    if (empty && !flag) words.emplace_back();
  }
  std::reverse(words.begin(), words.end());
  return words;
}

// Whether `name` is a flag of the CLI::App or of one of its subcommands.
template <typename App>
bool IsFlag(const App& app, const std::string& name) {
  const auto* const option = app.get_option_no_throw(name);
  if (option != nullptr) return option->get_items_expected_max() == 0;
  for (const App* const subcommand : app.get_subcommands([](const App*) { return true; })) {
    if (IsFlag(*subcommand, name)) return true;
  }
  return false;
}

}  // namespace berth

#endif  // COMMON_COMMAND_LINE_H_
