#include "client/internal/include_scan.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace berth::internal {
namespace {

// Of a line, and what a compiler may take for a part of one.
bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\v' || c == '\f' || c == '\r'; }

// Without the ends of lines that go on in the next; compilers differ in whether blanks may follow the backslash.
std::string Spliced(absl::string_view code) {
  std::string spliced;
  spliced.reserve(code.size());
  // What has been seen and not been taken yet begins there.
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

// Drops blanks and whole comments from the front.
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

// Whether `rest` begins with the name of a file that is the compiler's own.
bool NamesTheCompilersOwn(absl::string_view rest) {
  SkipBlanks(&rest);
  if (!absl::ConsumePrefix(&rest, "<")) return false;
  const size_t end = rest.find_first_of(">\n");
  if (end == absl::string_view::npos || rest[end] != '>') return false;
  const absl::string_view name = rest.substr(0, end);
  return !absl::StartsWith(name, "/") && !absl::StrContains(name, "..") && !absl::StrContains(name, '\\');
}

// Takes a word from the front.
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

// Whether what follows a # is no directive that reads a file, or reads one of the compiler's own.
bool DirectiveIsHarmless(absl::string_view rest) {
  SkipBlanks(&rest);
  const bool reads = ReadsAFile(TakeWord(&rest));
  // A letter may be written by its number.
  if (absl::StartsWith(rest, "\\")) return false;
  return !reads || NamesTheCompilersOwn(rest);
}

// Whether what follows `__has_` asks for no file, or for one of the compiler's own.
bool QuestionIsHarmless(absl::string_view rest) {
  if (!ReadsAFile(TakeWord(&rest))) return !absl::StartsWith(rest, "\\");
  SkipBlanks(&rest);
  return absl::ConsumePrefix(&rest, "(") && NamesTheCompilersOwn(rest);
}

// Of a source as the compiler reads it once lines are whole.
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
  // Whether trigraphs mean anything goes by the language's version.
  if (!absl::StrContains(code, "?\?")) return true;
  return IsHarmless(Spliced(absl::StrReplaceAll(code, {{"?\?=", "#"}, {"?\?/", "\\"}})));
}

}  // namespace berth::internal
