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

// Marks a word after "--": CLI11 would take it for an option of an enclosing command, or for a command.
inline constexpr char kArgumentMark = '\0';
// Removes the mark, if the word has it.
inline std::string WithoutMark(const std::string& word) {
  return !word.empty() && word[0] == kArgumentMark ? word.substr(1) : word;
}
// Returns the error in the value of an option if it is a word after "--". CLI11 would take it for the value.
inline std::string CheckNotArgument(const std::string& text) {
  return !text.empty() && text[0] == kArgumentMark ? "the value is missing before \"--\"" : "";
}

// Checks for CLI11, which return the error in a value. The first rejects the value that an unset variable of a script
// gives: an option without effect would go unnoticed.
inline std::string CheckNotBlank(const std::string& text) {
  if (const std::string missing = CheckNotArgument(text); !missing.empty()) return missing;
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
// an empty value: CLI11 would take the next word for the value. Leaves out the first "--", and marks the later words,
// which are arguments. `is_flag(name)`: whether the name is a flag's.
template <typename IsFlag>
std::vector<std::string> WordsForParser(int argc, const char* const* argv, const IsFlag& is_flag) {
  std::vector<std::string> words;
  bool options_ended = false;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    if (options_ended) {
      words.push_back(absl::StrCat(absl::string_view(&kArgumentMark, 1), word));
      continue;
    }
    options_ended = word == "--";
    if (options_ended) continue;
    const bool empty = absl::StartsWith(word, "--") && word.find('=') == word.size() - 1;
    const bool flag = empty && is_flag(std::string(word.substr(0, word.size() - 1)));
    if (empty && !flag) word.remove_suffix(1);
    words.push_back(absl::StrCat(word, flag ? kEmptyFlagValue : ""));
    if (empty && !flag) words.emplace_back();
  }
  std::reverse(words.begin(), words.end());
  return words;
}

// Completes the text of an error that CLI::App::exit() prints. CLI11's own text ends at the mark of an argument that no
// command takes.
template <typename App>
std::string WithArguments(const App& app, std::string text) {
  std::string words;
  bool marked = false;
  for (const std::string& word : app.remaining(/*recurse=*/true)) {
    marked = marked || (!word.empty() && word[0] == kArgumentMark);
    absl::StrAppend(&words, " ", WithoutMark(word));
  }
  if (!marked || !absl::StartsWith(text, "The following argument")) return text;
  return absl::StrCat("The following words were not expected:", words, "\nRun with --help for more information.\n");
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
