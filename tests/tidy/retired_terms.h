// The terms that docs/concepts/glossary.md retired, and where their spelling is fixed.

#ifndef TESTS_TIDY_RETIRED_TERMS_H_
#define TESTS_TIDY_RETIRED_TERMS_H_

#include <string>
#include <vector>

namespace berth {

// A term that the glossary retired, as words in lower case, and what to say instead. In a name the words are its parts:
// "lease word" is also LeaseWord and lease_word.
struct RetiredTerm {
  std::string term;
  std::string use;
  // The term has another, plain meaning in prose: only names of code may not have it.
  bool names_only = false;
};

const std::vector<RetiredTerm>& RetiredTerms();

// A text that may remain in the files whose paths have the prefix; an empty text is the whole file.
struct Unchanged {
  std::string path;
  std::string text;
};

// Names of the .proto files and of their generated code are not listed here: they are fixed, too.
const std::vector<Unchanged>& UnchangedTexts();

}  // namespace berth

#endif  // TESTS_TIDY_RETIRED_TERMS_H_
