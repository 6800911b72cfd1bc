// Finds the sentences that are too long to read, in pages and in the comments of sources.

#ifndef TESTS_TIDY_SENTENCES_H_
#define TESTS_TIDY_SENTENCES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace berth {

inline constexpr size_t kMaxWordsOfSentence = 30;

struct LongSentence {
  // The line on which the sentence begins, from 1.
  size_t line;
  size_t words;
  // The first words.
  std::string text;
};

// Returns the sentences of a file that have too many words. A page is prose but for its code blocks, headings and
// tables. In other files the comments that fill their lines are prose, but for indented listings.
//
// A sentence ends at a full stop, an exclamation or a question mark, and at the end of its paragraph or list item. It
// also ends at each semicolon of a list that a colon introduced. Files of other kinds have no sentences.
std::vector<LongSentence> FindLongSentences(absl::string_view path, const std::vector<std::string>& lines);

}  // namespace berth

#endif  // TESTS_TIDY_SENTENCES_H_
