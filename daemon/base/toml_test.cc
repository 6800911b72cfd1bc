#include "daemon/base/toml.h"

#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

absl::StatusOr<toml::table> Read(const std::string& text) {
  const std::string path = absl::StrCat(testing::TempDir(), "/toml-", ::getpid());
  std::ofstream(path) << text;
  absl::StatusOr<toml::table> table = ReadToml(path);
  ::unlink(path.c_str());
  return table;
}

TEST(TomlTest, FileIsReadAsTable) {
  const absl::StatusOr<toml::table> table = Read("[pools.gpu-tests]\ncap = 4\n");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->at_path("pools.gpu-tests.cap").value<int>(), 4);
}

TEST(TomlTest, InvalidTextIsRejectedWithLine) {
  const absl::Status status = Read("a = 1\nb = \n").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_TRUE(absl::StrContains(status.message(), ":2: ")) << status;
  EXPECT_FALSE(ReadToml("/nowhere").ok());
}

TEST(TomlTest, UnreadableOrEndlessFileIsRejected) {
  for (const char* const path : {"/", "/dev/null", "/dev/zero"}) {
    const absl::Status status = ReadToml(path).status();
    EXPECT_EQ(status.message(), absl::StrCat(path, " is not a regular file"));
  }
  const absl::Status status = Read(std::string((4 << 20) + 1, '\n')).status();
  EXPECT_TRUE(absl::StrContains(status.message(), " has more than 4 MiB")) << status;
}

TEST(TomlTest, ErrorNamesItsText) {
  const absl::StatusOr<toml::table> table = ParseToml("a = 1\n", "file");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->at_path("a").value<int>(), 1);
  EXPECT_TRUE(absl::StartsWith(ParseToml("a = 1\nb = \n", "file").status().message(), "file:2: "));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseToml("[@]", "file").status()));
}

// The library would recurse until the stack ends.
TEST(TomlTest, DeepTextIsRejectedWithLine) {
  const auto repeat = [](const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  };
  constexpr int kLevels = 50'000;
  const std::string rows[] = {"a = 1\n[" + repeat("b.", kLevels) + "b]\n",
                              "a = 1\n[[" + repeat("b.", kLevels) + "b]]\n",
                              "a = 1\n" + repeat("b.", kLevels) + "b = 1\n",
                              "a = 1\nb = {" + repeat("b.", kLevels) + "b = 1}\n",
                              "a = 1\nb = [{" + repeat("\"b\" . ", kLevels) + "b = 1}]\n",
                              "a = 1\nb = " + repeat("[", kLevels), "a = 1\nb = " + repeat("{b = ", kLevels)};
  for (const std::string& text : rows) {
    const absl::Status status = ParseToml(text, "file").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(absl::StartsWith(status.message(), "file:2: ")) << text.substr(0, 20) << ": " << status;
  }
  EXPECT_TRUE(ParseToml("# " + repeat(".", kLevels) + "\na.b.c.d = 1.5\n", "file").ok());
}

TEST(TomlTest, TextOutsideLibraryAssumptionsIsRejected) {
  // The library assumes that a key begins after the bracket.
  for (const char* const text : {"[@]", "[]", "[=]", "[", "[[#]]", "[.a]", "[\n]"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Read(text).status())) << text;
  }
  // The library takes a non-ASCII character for whitespace, or for nothing.
  for (const char* const text : {"\u00e9 = 1", "[\u00e9]", "a \u00e9= 1", "a = \u00e9", "a = 1\n\u2026"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Read(text).status())) << text;
  }
  const absl::StatusOr<toml::table> table = Read("# \u00e9\na = \"\u00e9\"\n");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->at_path("a").value<std::string>(), "\u00e9");
}

}  // namespace
}  // namespace berth
