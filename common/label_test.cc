#include "common/label.h"

#include <string>

#include "common/error.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(LabelTest, TakesPrintableTextUpToTheLimit) {
  for (const char* const text : {"", "nightly #42", "Größe", "模型", "🙂"}) {
    EXPECT_TRUE(ValidateLabel("label", text).ok()) << text;
  }
  EXPECT_TRUE(ValidateLabel("label", std::string(128, 'x')).ok());
}

TEST(LabelTest, NamesFieldLengthAndLimitOfALongOne) {
  const absl::Status status = ValidateLabel("label", std::string(10'240, 'x'));
  EXPECT_TRUE(IsRefusal(status, Reason::kInvalidField));
  EXPECT_EQ(status.message(), "label: 10240 bytes, limit 128");
}

TEST(LabelTest, RefusesControlCharactersAndWhatIsNoUtf8) {
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

}  // namespace
}  // namespace berth
