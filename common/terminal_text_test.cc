#include "common/terminal_text.h"

#include <string>

#include <berth/error.h>

#include "common/code_points.h"
#include "common/label.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

struct Row {
  const char* name;
  std::string text;
  std::string terminal;
  std::string json;
};

// One example of each kind of unprintable code point, and printable neighbours.
const Row kUnprintable[] = {
    {"NUL", std::string("a\0b", 3), "a\\u{0}b", "a\\u0000b"},
    {"escape", "\x1b[31m", "\\u{1b}[31m", "\\u001b[31m"},
    {"carriage return", "a\rb", "a\\u{d}b", "a\rb"},
    {"delete", "\x7f", "\\u{7f}", "\\u007f"},
    {"next line", "\xc2\x85", "\\u{85}", "\\u0085"},
    {"soft hyphen", "\u00ad", "\\u{ad}", "\\u00ad"},
    {"Arabic letter mark", "\u061c", "\\u{61c}", "\\u061c"},
    {"zero width space", "a\u200bb", "a\\u{200b}b", "a\\u200bb"},
    {"joiner", "\u200d", "\\u{200d}", "\\u200d"},
    {"right-to-left mark", "\u200f", "\\u{200f}", "\\u200f"},
    {"line separator", "\u2028", "\\u{2028}", "\\u2028"},
    {"paragraph separator", "\u2029", "\\u{2029}", "\\u2029"},
    {"right-to-left override", "ok\u202etxt", "ok\\u{202e}txt", "ok\\u202etxt"},
    {"word joiner", "\u2060", "\\u{2060}", "\\u2060"},
    {"isolate", "\u2066\u2069", "\\u{2066}\\u{2069}", "\\u2066\\u2069"},
    {"byte order mark", "\ufeff", "\\u{feff}", "\\ufeff"},
    {"interlinear", "\ufff9", "\\u{fff9}", "\\ufff9"},
    {"musical", "\U0001d173", "\\u{1d173}", "\\ud834\\udd73"},
    {"tag", "\U000e0041", "\\u{e0041}", "\\udb40\\udc41"},
};

TEST(TerminalTextTest, UnprintableCodePointIsEscaped) {
  for (const Row& row : kUnprintable) {
    EXPECT_EQ(ToTerminal(row.text), row.terminal) << row.name;
    EXPECT_EQ(ToTerminalWord(row.text), row.terminal) << row.name;
    EXPECT_EQ(ToTerminalJson(row.text), row.json) << row.name;
    EXPECT_EQ(ToTerminal(ToTerminal(row.text)), row.terminal) << row.name;
  }
}

TEST(TerminalTextTest, LabelRejectsUnprintableCodePoint) {
  for (const Row& row : kUnprintable) {
    EXPECT_TRUE(IsRefusal(ValidateLabel("label", row.text), Reason::kInvalidField)) << row.name;
    EXPECT_TRUE(ValidateLabel("label", ToLabel(row.text)).ok()) << row.name;
    const absl::Status refused = ValidateLabel("label", row.text);
    EXPECT_EQ(ToTerminalWord(refused.message()), refused.message()) << "the refusal itself is safe to print";
  }
}

TEST(TerminalTextTest, PrintableTextIsUnchanged) {
  for (const std::string text : {"", "nightly #42", "Gr\u00f6\u00dfe \u00ac\u00ae", "\u6a21\u578b", "\U0001f642",
                                 "\u200a\u2010\u2027\u202f\u205f\u2070", "\ufe0f\ufffc\ufffd",
                                 "\U0001d172\U000e0100"}) {
    EXPECT_EQ(ToTerminal(text), text);
    EXPECT_EQ(ToTerminalJson(text), text);
    EXPECT_TRUE(ValidateLabel("label", text).ok()) << text;
  }
  EXPECT_EQ(ToTerminal("a\n\tb"), "a\n\tb");
  EXPECT_EQ(ToTerminalWord("a\n\tb"), "a\\u{a}\\u{9}b");
}

TEST(TerminalTextTest, InvalidUtf8ByteIsEscaped) {
  EXPECT_EQ(ToTerminal("a\xff\xc0\xaf"), "a\\xff\\xc0\\xaf");
  EXPECT_EQ(ToTerminal("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(ToTerminal("\xe2\x82"), "\\xe2\\x82") << "cut short";
}

TEST(CodePointsTest, CodePointIsReadWhole) {
  EXPECT_EQ(FirstCodePoint("\u00f6x").value, 0xf6u);
  EXPECT_EQ(FirstCodePoint("\u6a21x").value, 0x6a21u);
  EXPECT_EQ(FirstCodePoint("\U0010fffdx").value, 0x10fffdu);
  EXPECT_EQ(FirstCodePoint("\xf5\x80\x80\x80").bytes, 0u);
}

}  // namespace
}  // namespace berth
