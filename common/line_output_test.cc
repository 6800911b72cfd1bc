#include "common/line_output.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

// A pipe of one page.
struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
    ::fcntl(read.get(), F_SETFL, O_NONBLOCK);
    EXPECT_EQ(::fcntl(write.get(), F_SETPIPE_SZ, 4096), 4096);
  }
  // Reads up to `most` bytes, without waiting.
  std::string Read(size_t most = 1 << 20) {
    std::string text(most, '\0');
    const ssize_t got = ::read(read.get(), text.data(), most);
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return text;
  }

  UniqueFd read;
  UniqueFd write;
};

std::string Line(int number) { return absl::StrCat("line ", number, " ", std::string(90, '.'), "\n"); }

TEST(LineOutputTest, ReaderThatReturnsGetsAllRetainedLines) {
  Pipe pipe;
  LineOutput output(pipe.write.get(), "test");
  std::string all;
  for (int i = 0; i < 200; ++i) {
    all += Line(i);
    output.Write(Line(i));
  }
  EXPECT_TRUE(output.behind());
  std::string read;
  while (output.behind()) {
    read += pipe.Read();
    output.Flush();
  }
  EXPECT_EQ(read + pipe.Read(), all);
}

TEST(LineOutputTest, LinesAboveLimitAreCountedWhereTheyAreMissing) {
  Pipe pipe;
  LineOutput output(pipe.write.get(), "test");
  constexpr int kLines = 2000;
  for (int i = 0; i < kLines; ++i) output.Write(Line(i));
  std::string read;
  while (output.behind()) {
    read += pipe.Read();
    output.Flush();
  }
  output.Write("after\n");
  read += pipe.Read();
  const std::vector<std::string> lines = absl::StrSplit(read, '\n');
  ASSERT_GT(lines.size(), 3u);
  // All in order, the report, the line that came once the reader had returned.
  const size_t taken = lines.size() - 3;
  for (size_t i = 0; i < taken; ++i) EXPECT_TRUE(absl::StartsWith(lines[i], absl::StrCat("line ", i, " ")));
  EXPECT_EQ(lines[taken], absl::StrCat("test: ", kLines - taken,
                                       " lines are missing here: the reader of this output was too slow, or gone"));
  EXPECT_EQ(lines[taken + 1], "after");
  EXPECT_LE(taken * Line(1000).size(), LineOutput::kMaxRetained + 3 * 4096);
}

TEST(LineOutputTest, ReaderOfSingleBytesGetsWholeLinesInOrder) {
  Pipe pipe;
  LineOutput output(pipe.write.get(), "test");
  std::string read;
  int written = 0;
  while (read.size() < 3 * LineOutput::kMaxRetained) {
    output.Write(Line(written++));
    for (int i = 0; i < 7; ++i) read += pipe.Read(1);
  }
  while (output.behind()) {
    read += pipe.Read(1);
    output.Flush();
  }
  read += pipe.Read();
  int next = 0;
  int missing = 0;
  for (const absl::string_view line : absl::StrSplit(read, '\n', absl::SkipEmpty())) {
    if (absl::StartsWith(line, "test: ")) {
      int count = 0;
      ASSERT_EQ(::sscanf(std::string(line).c_str(), "test: %d line", &count), 1) << line;
      missing += count;
      next += count;
      continue;
    }
    ASSERT_EQ(absl::StrCat(line, "\n"), Line(next++));
  }
  EXPECT_EQ(next, written);
  EXPECT_GT(missing, 0);
}

TEST(LineOutputTest, NextProgramReportsLinesThatReaderDidNotTake) {
  Pipe pipe;
  LineOutput before(pipe.write.get(), "test");
  std::string all;
  for (int i = 0; i < 100; ++i) all += Line(i);
  before.Write(all);
  const LineOutput::Backlog backlog = before.backlog();
  EXPECT_TRUE(backlog.in_line) << "a page holds no whole number of these lines";
  LineOutput after(pipe.write.get(), "test");
  after.Continue(backlog);
  after.Flush();
  EXPECT_TRUE(after.behind());
  std::string read = pipe.Read();
  after.Write("after\n");
  read += pipe.Read();
  const std::vector<std::string> lines = absl::StrSplit(read, '\n');
  // The lines, the last of them in part; the report, the next line, and the end.
  ASSERT_GT(lines.size(), 4u);
  const size_t taken = lines.size() - 4;
  EXPECT_EQ(backlog.lines, 100 - taken);
  EXPECT_TRUE(absl::StartsWith(lines[taken], absl::StrCat("line ", taken)));
  EXPECT_EQ(lines[taken + 1], absl::StrCat("test: ", backlog.lines,
                                           " lines are missing here: the reader of this output was too slow, or gone"));
  EXPECT_EQ(lines[taken + 2], "after");
  EXPECT_EQ(after.backlog().lines, 0u);
}

TEST(LineOutputTest, OutputWithoutReaderOnlyCounts) {
  Pipe pipe;
  const UniqueFd write(::dup(pipe.write.get()));
  LineOutput output(write.get(), "test");
  pipe.read.reset();
  for (int i = 0; i < 10; ++i) output.Write(Line(i));
  EXPECT_FALSE(output.behind());
  Pipe next;
  ASSERT_GE(::dup2(next.write.get(), write.get()), 0);
  output.Write("after\n");
  EXPECT_EQ(next.Read(),
            "test: 10 lines are missing here: the reader of this output was too slow, or gone\nafter\n");
}

}  // namespace
}  // namespace berth
