#include "tests/tidy/sentences.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

// Returns `count` words.
std::string Words(size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) absl::StrAppend(&text, i == 0 ? "" : " ", "word");
  return text;
}

TEST(SentencesTest, LongSentenceIsFoundInProseOnly) {
  const std::string w10 = Words(10), w16 = Words(16), w30 = Words(30), w31 = Words(31);
  const struct {
    const char* path;
    std::string text;
    // The line of the long sentence; 0 for none.
    size_t line;
  } kCases[] = {
      {"a.md", w30, 0},
      {"a.md", w31, 1},
      {"a.md", absl::StrCat("\n\n", w16, "\n", w16, "."), 3},
      {"a.md", absl::StrCat(w16, ".\n", w16, "."), 0},
      {"a.md", absl::StrCat(w16, "! ", w16, "? ", w16, ".) \"", w16, ".\" **", w16, ".** ", w16), 0},
      {"a.md", absl::StrCat(w16, "\n\n", w16), 0},
      {"a.md", absl::StrCat(w16, ", e.g. ", w16), 1},
      {"a.md", absl::StrCat(w16, "; ", w16), 1},
      {"a.md", absl::StrCat(w16, ": ", w16), 1},
      {"a.md", absl::StrCat(w10, ": ", w10, "; ", w16, "; ", w16, "; ", w16), 0},
      {"a.md", absl::StrCat(w10, ": ", w10, ". ", w16, "; ", w16), 1},
      {"a.md", absl::StrCat("- ", w16, "\n- ", w16, "\n1. ", w16, "\n12. ", w16), 0},
      {"a.md", absl::StrCat("- ", w16, "\n  ", w16), 1},
      {"a.md", absl::StrCat("- ", w16, "\n\n  ", w31), 3},
      {"a.md", absl::StrCat("# ", w31, "\n| ", w31, " |"), 0},
      {"a.md", absl::StrCat("```\n", w31, "\n```\n\n    ", w31), 0},
      {"a.md", absl::StrCat("```\n", w16, "\n```\n", w31), 4},
      {"a.h", absl::StrCat("// ", w16, "\n// ", w16), 1},
      {"a.cc", absl::StrCat("  // ", w16, "\n  int a;\n  // ", w16), 0},
      {"a.cc", absl::StrCat("  // ", w16, "\n  //\n  // ", w16), 0},
      {"a.cc", w31, 0},
      {"a.cc", absl::StrCat("//   ", w31, "\n// name   ", w31), 0},
      {"a.cc", absl::StrCat("// - ", w16, "\n//   ", w16), 1},
      {"a.cc", absl::StrCat("// - ", w16, "\n// ", w16), 0},
      {"a.proto", absl::StrCat("// ", w31), 1},
      {"a.sh", absl::StrCat("# ", w31), 1},
      {"run", absl::StrCat("#!/bin/bash\n# ", w31), 2},
      {"run", absl::StrCat("# ", w31), 0},
      {"a.pml", absl::StrCat("/* ", w16, "\n * ", w16, "\n */"), 1},
      {"BUILD.bazel", absl::StrCat("\n# ", w31), 2},
      {"a.json", absl::StrCat("# ", w31), 0},
  };
  for (const auto& [path, text, line] : kCases) {
    const std::vector<LongSentence> found = FindLongSentences(path, absl::StrSplit(text, '\n'));
    ASSERT_EQ(found.size(), line == 0 ? 0u : 1u) << path << "\n" << text;
    if (line > 0) EXPECT_EQ(found[0].line, line) << path << "\n" << text;
  }
}

TEST(SentencesTest, LongSentenceIsNamed) {
  const auto found = FindLongSentences("a.md", {absl::StrCat("First. Second ", Words(40), ".")});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].words, 41u);
  EXPECT_EQ(found[0].text, absl::StrCat("Second ", Words(7), " "));
}

}  // namespace
}  // namespace berth
