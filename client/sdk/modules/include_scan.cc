#include "client/sdk/modules/include_scan.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace berth::internal {
namespace {

// Whether `c` is a blank within a line, including characters that some compilers accept as one.
bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\v' || c == '\f' || c == '\r'; }

// Joins continued lines; compilers differ in whether blanks may follow the backslash.
std::string Spliced(absl::string_view code) {
  std::string spliced;
  spliced.reserve(code.size());
  // Start of the text that is not yet copied.
  size_t begin = 0;
  for (size_t at = 0; (at = code.find('\\', at)) != absl::string_view::npos; ++at) {
    size_t end = at + 1;
    while (end < code.size() && IsBlank(code[end])) ++end;
    if (end == code.size() || code[end] != '\n') continue;
    absl::StrAppend(&spliced, code.substr(begin, at - begin));
    begin = end + 1;
    at = end;
  }
  absl::StrAppend(&spliced, code.substr(begin));
  return spliced;
}

// Removes blanks and whole comments from the front.
void SkipBlanks(absl::string_view* rest) {
  while (!rest->empty()) {
    if (IsBlank(rest->front())) {
      rest->remove_prefix(1);
    } else if (absl::StartsWith(*rest, "/*")) {
      const size_t end = rest->find("*/", 2);
      rest->remove_prefix(end == absl::string_view::npos ? rest->size() : end + 2);
    } else {
      return;
    }
  }
}

// Whether `rest` begins with the name of a compiler's own file.
bool NamesTheCompilersOwn(absl::string_view rest) {
  SkipBlanks(&rest);
  if (!absl::ConsumePrefix(&rest, "<")) return false;
  const size_t end = rest.find_first_of(">\n");
  if (end == absl::string_view::npos || rest[end] != '>') return false;
  const absl::string_view name = rest.substr(0, end);
  return !absl::StartsWith(name, "/") && !absl::StrContains(name, "..") && !absl::StrContains(name, '\\');
}

// Removes a word from the front and returns it.
absl::string_view TakeWord(absl::string_view* rest) {
  const auto is_of_a_word = [](char c) { return absl::ascii_isalnum(c) || c == '_'; };
  const auto end = std::find_if_not(rest->begin(), rest->end(), is_of_a_word);
  const absl::string_view word = rest->substr(0, static_cast<size_t>(end - rest->begin()));
  rest->remove_prefix(word.size());
  return word;
}

bool ReadsAFile(absl::string_view word) {
  return word == "include" || word == "include_next" || word == "import" || word == "embed";
}

// Whether the text after a # is no directive that reads a file, or reads a compiler's own file.
bool DirectiveIsHarmless(absl::string_view rest) {
  SkipBlanks(&rest);
  const bool reads = ReadsAFile(TakeWord(&rest));
  // A letter may be written as a numeric escape.
  if (absl::StartsWith(rest, "\\")) return false;
  return !reads || NamesTheCompilersOwn(rest);
}

// Whether the text after `__has_` queries no file, or a compiler's own file.
bool QuestionIsHarmless(absl::string_view rest) {
  if (!ReadsAFile(TakeWord(&rest))) return !absl::StartsWith(rest, "\\");
  SkipBlanks(&rest);
  return absl::ConsumePrefix(&rest, "(") && NamesTheCompilersOwn(rest);
}

// Checks a source whose continued lines are joined.
bool IsHarmless(absl::string_view code) {
  for (const absl::string_view introducer : {"#", "%:"}) {
    for (size_t at = 0; (at = code.find(introducer, at)) != absl::string_view::npos; ++at) {
      if (!DirectiveIsHarmless(code.substr(at + introducer.size()))) return false;
    }
  }
  constexpr absl::string_view kHas = "__has_";
  for (size_t at = 0; (at = code.find(kHas, at)) != absl::string_view::npos; ++at) {
    if (!QuestionIsHarmless(code.substr(at + kHas.size()))) return false;
  }
  return true;
}

}  // namespace

bool IncludesOnlyTheCompilersOwn(absl::string_view code) {
  if (!IsHarmless(Spliced(code))) return false;
  // The language version decides whether trigraphs have a meaning, so check both readings.
  if (!absl::StrContains(code, "?\?")) return true;
  return IsHarmless(Spliced(absl::StrReplaceAll(code, {{"?\?=", "#"}, {"?\?/", "\\"}})));
}

}  // namespace berth::internal
