#include "common/label.h"

#include <string>

#include <berth/error.h>

#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(LabelTest, PrintableTextUpToLimitIsAccepted) {
  for (const char* const text : {"", "nightly #42", "Größe", "模型", "🙂"}) {
    EXPECT_TRUE(ValidateLabel("label", text).ok()) << text;
  }
  EXPECT_TRUE(ValidateLabel("label", std::string(128, 'x')).ok());
}

TEST(LabelTest, LongLabelIsRejectedWithLengthAndLimit) {
  const absl::Status status = ValidateLabel("label", std::string(10'240, 'x'));
  EXPECT_TRUE(IsRefusal(status, Reason::kInvalidField));
  EXPECT_EQ(status.message(), "label: 10240 bytes, limit 128");
}

TEST(LabelTest, ControlCharactersAndInvalidUtf8AreRejected) {
  for (const std::string& text :
       {std::string("a\nb"), std::string("\x1b[31m"), std::string("a\0b", 3), std::string("\x7f"),
        std::string("\xc2\x85"), std::string("\xc0\xaf"), std::string("\xed\xa0\x80"),
        std::string("\xf5\x80\x80\x80"), std::string("\xe2\x82")}) {
    const absl::Status status = ValidateLabel("label", text);
    EXPECT_TRUE(IsRefusal(status, Reason::kInvalidField));
    // The refusal itself must be safe to print.
    for (const char c : status.message()) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
  }
}

TEST(LabelTest, AnyTextBecomesLabelAndLabelStaysUnchanged) {
  EXPECT_EQ(ToLabel(""), "");
  EXPECT_EQ(ToLabel("gr\u00f6\u00dfe-\u6e2c\u8a66 1"), "gr\u00f6\u00dfe-\u6e2c\u8a66 1");
  EXPECT_EQ(ToLabel("a\xff\x62\n\x7f\xc2\x80\xe6\xb8"), "a?b?????");
}

TEST(LabelTest, LongTextIsCutBetweenCharacters) {
  const std::string long_name(200, 'x');
  EXPECT_EQ(ToLabel(long_name), long_name.substr(0, 128));
  // 127 bytes, then a two-byte character.
  EXPECT_EQ(ToLabel(std::string(127, 'x') + "\u00f6"), std::string(127, 'x'));
  EXPECT_EQ(ToLabel(std::string(126, 'x') + "\u00f6y"), std::string(126, 'x') + "\u00f6");
  for (size_t length = 100; length <= 130; ++length) {
    for (const char* const tail :
         {"\u00f6\u00f6", "\u6e2c\u8a66", "\U0001f600", "\xf0\x9f\x98", "\xff\xff"}) {
      EXPECT_TRUE(ValidateLabel("label", ToLabel(std::string(length, 'x') + tail + tail)).ok())
          << length << tail;
    }
  }
}

TEST(LabelTest, LongMessageIsCutBetweenCharactersWithEllipsis) {
  EXPECT_EQ(ToMessage("", 4), "");
  EXPECT_EQ(ToMessage("abcd", 4), "abcd");
  EXPECT_EQ(ToMessage("abcde", 4), "abcd\u2026");
  EXPECT_EQ(ToMessage("abc\u00f6", 4), "abc\u2026");
  EXPECT_EQ(ToMessage("ab\u00f6d", 4), "ab\u00f6\u2026");
  EXPECT_EQ(ToMessage("a\n\xff", 4), "a??");
}

TEST(LabelTest, LogTextRetainsItsLines) {
  EXPECT_EQ(ToLog("a\n\tb\r\x1b\xff", 9), "a\n\tb???");
  EXPECT_EQ(ToLog("a\n\u00f6", 3), "a\n\u2026");
}

}  // namespace
}  // namespace berth
