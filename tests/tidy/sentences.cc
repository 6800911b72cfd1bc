#include "tests/tidy/sentences.h"

#include <initializer_list>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace berth {
namespace {

bool EndsWithAny(absl::string_view path, std::initializer_list<absl::string_view> ends) {
  for (const absl::string_view end : ends) {
    if (absl::EndsWith(path, end)) return true;
  }
  return false;
}

// Returns the mark that begins each line of a comment in the file; empty for a page, and for a file without prose.
absl::string_view CommentMark(absl::string_view path, const std::vector<std::string>& lines) {
  if (EndsWithAny(path, {".h", ".cc", ".proto"})) return "//";
  if (absl::EndsWith(path, ".pml")) return "*";
  const bool script = !lines.empty() && absl::StartsWith(lines[0], "#!");
  return script || EndsWithAny(path, {".sh", ".bzl", ".bazel", ".py", ".toml"}) ? "#" : "";
}

// Returns the length of the mark at the start of a list item, "- ", "* " or "12. ", with its space; 0 for other text.
size_t ItemMark(absl::string_view text) {
  if (absl::StartsWith(text, "- ") || absl::StartsWith(text, "* ")) return 2;
  size_t digits = 0;
  while (digits < text.size() && absl::ascii_isdigit(text[digits])) ++digits;
  return digits > 0 && absl::StartsWith(text.substr(digits), ". ") ? digits + 2 : 0;
}

// Collects the words of one sentence after another.
class Reader {
 public:
  void Add(size_t line, absl::string_view text) {
    for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
      if (words_++ == 0) line_ = line;
      if (words_ <= 8) absl::StrAppend(&text_, word, " ");
      absl::string_view end = word;
      while (!end.empty() && absl::StrContains("`\")*'_", end.substr(end.size() - 1))) end.remove_suffix(1);
      if (absl::EndsWith(end, ":")) in_list_ = true;
      if (absl::EndsWith(end, ";") && in_list_) EndSentence();
      if (EndsWithAny(end, {".", "!", "?"}) && !EndsWithAny(end, {"e.g.", "i.e."})) EndBlock();
    }
  }

  // Ends the paragraph or list item.
  void EndBlock() {
    EndSentence();
    in_list_ = false;
  }

  std::vector<LongSentence> found;

 private:
  void EndSentence() {
    if (words_ > kMaxWordsOfSentence) found.push_back({line_, words_, text_});
    words_ = 0;
    text_.clear();
  }

  size_t line_ = 0;
  size_t words_ = 0;
  std::string text_;
  // A colon has introduced a list.
  bool in_list_ = false;
};

}  // namespace

std::vector<LongSentence> FindLongSentences(absl::string_view path, const std::vector<std::string>& lines) {
  const bool page = absl::EndsWith(path, ".md");
  const absl::string_view mark = CommentMark(path, lines);
  Reader reader;
  if (!page && mark.empty()) return {};
  bool code = false;
  bool item = false;
  for (size_t i = 0; i < lines.size(); ++i) {
    absl::string_view text = lines[i];
    if (page && absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "```")) {
      code = !code;
      text = "";
    }
    if (!page) {
      text = absl::StripLeadingAsciiWhitespace(text);
      // The first line of a model's comment.
      if (mark == "*") absl::ConsumePrefix(&text, "/");
      code = absl::StartsWith(text, "#!") || !absl::ConsumePrefix(&text, mark);
      absl::ConsumePrefix(&text, " ");
    }
    const absl::string_view stripped = absl::StripAsciiWhitespace(text);
    const size_t indent = text.find_first_not_of(' ');
    if (code || stripped.empty() || (page && (stripped[0] == '#' || stripped[0] == '|'))) {
      reader.EndBlock();
      item = item && stripped.empty() && !code;
    } else if (const size_t length = ItemMark(stripped); length > 0) {
      reader.EndBlock();
      reader.Add(i + 1, stripped.substr(length));
      item = true;
    } else if ((indent >= 2 && !item) || absl::StrContains(stripped, "   ")) {
      // A listing, or a table of a name and its meaning.
      reader.EndBlock();
    } else {
      if (indent == 0 && item) {
        if (!page) reader.EndBlock();
        item = false;
      }
      reader.Add(i + 1, stripped);
    }
  }
  reader.EndBlock();
  return std::move(reader.found);
}

}  // namespace berth
