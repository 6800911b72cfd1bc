#include "common/os/nonblocking_write.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/support/outputs.h"
#include "tests/support/testing.h"

namespace berth {
namespace {

using ::berth::testing::Drain;
using ::berth::testing::Output;

constexpr absl::string_view kLine = "one line\n";

class NonblockingWriteTest : public ::testing::Test {
 protected:
  NonblockingWriteTest() {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    outputs_ = testing::MakeOutputs(folder_);
    // Outputs that depend on a state of the program are tested with programs (tests/e2e/cli/notices_test.cc).
    std::erase_if(outputs_, [](const Output& output) { return !output.launcher.empty(); });
  }
  ~NonblockingWriteTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_ = "/tmp/berth-write-XXXXXX";
  std::vector<Output> outputs_;
};

TEST_F(NonblockingWriteTest, NoOutputDelaysOrSignalsWriter) {
  for (const Output& output : outputs_) {
    SCOPED_TRACE(output.name);
    const int flags = ::fcntl(output.fd.get(), F_GETFL);
    const ssize_t written = WriteWithoutBlocking(output.fd.get(), kLine.data(), kLine.size());
    const int error = errno;
    // A terminal passes text on asynchronously, and may have capacity again.
    const bool passed_on = output.full && written > 0 && ::isatty(output.fd.get()) != 0;
    if (!passed_on) {
      EXPECT_EQ(written, output.takes ? static_cast<ssize_t>(kLine.size()) : -1);
      EXPECT_TRUE(!output.full || error == EAGAIN) << error;
    }
    EXPECT_EQ(::fcntl(output.fd.get(), F_GETFL), flags);
    if (!output.takes && !output.full) EXPECT_EQ(Drain(output), "");
    sigset_t pending, blocked;
    ::sigpending(&pending);
    EXPECT_NE(::sigisemptyset(&pending), 0);
    ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    EXPECT_NE(::sigisemptyset(&blocked), 0);
  }
}

TEST_F(NonblockingWriteTest, DrainedOutputTakesTextAgain) {
  for (const Output& output : outputs_) {
    if (!output.full) continue;
    SCOPED_TRACE(output.name);
    std::string read;
    absl::string_view rest = kLine;
    EXPECT_TRUE(testing::Eventually([&] {
      read += Drain(output);
      const ssize_t written = WriteWithoutBlocking(output.fd.get(), rest.data(), rest.size());
      rest.remove_prefix(written > 0 ? static_cast<size_t>(written) : 0);
      return rest.empty();
    }));
    EXPECT_TRUE(testing::Eventually([&] {
      read += Drain(output);
      return absl::StrContains(read, "one line");
    }));
  }
}

// Such a process cannot open the pipe or the terminal again.
TEST_F(NonblockingWriteTest, OtherUsersOutputDelaysNoWriter) {
  if (!testing::IsRoot()) GTEST_SKIP() << "needs root: becomes another user";
  const auto write_as_other_user = [&] {
    constexpr uid_t kNobody = 65534;
    if (::setresgid(kNobody, kNobody, kNobody) < 0 || ::setresuid(kNobody, kNobody, kNobody) < 0) ::_exit(1);
    // Ends a process that waits.
    ::alarm(20);
    for (const Output& output : outputs_) {
      const bool written = WriteWithoutBlocking(output.fd.get(), kLine.data(), kLine.size()) > 0;
      if (written != output.takes && ::isatty(output.fd.get()) == 0) ::_exit(2);
    }
    ::_exit(0);
  };
  EXPECT_EXIT(write_as_other_user(), ::testing::ExitedWithCode(0), "");
}

TEST_F(NonblockingWriteTest, SignalForProcessStaysPending) {
  sigset_t set, before, pending;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &set, &before);
  ASSERT_EQ(::kill(::getpid(), SIGPIPE), 0);
  for (const Output& output : outputs_) {
    WriteWithoutBlocking(output.fd.get(), kLine.data(), kLine.size());
    ::sigpending(&pending);
    EXPECT_EQ(::sigismember(&pending, SIGPIPE), 1) << output.name;
  }
  const timespec now = {};
  EXPECT_EQ(::sigtimedwait(&set, nullptr, &now), SIGPIPE);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST_F(NonblockingWriteTest, OwnDescriptionLeavesSharedFlags) {
  for (Output& output : outputs_) {
    if (!output.full) continue;
    SCOPED_TRACE(output.name);
    const int shared = ::fcntl(output.fd.get(), F_GETFL);
    const UniqueFd fd(::dup(output.fd.get()));
    MakeOwnNonBlocking(fd.get());
    EXPECT_EQ(::fcntl(output.fd.get(), F_GETFL), shared);
    EXPECT_EQ(::fcntl(fd.get(), F_GETFD), 0);
    const bool can_be_opened = !absl::StrContains(output.name, "socket") && !absl::StrContains(output.name, "side");
    EXPECT_EQ((::fcntl(fd.get(), F_GETFL) & O_NONBLOCK) != 0, can_be_opened || (shared & O_NONBLOCK) != 0);
  }
}

// Opened again for writing, each of them would take text.
TEST_F(NonblockingWriteTest, FdForReadingIsNeverOpenedForWriting) {
  const std::string fifo = folder_ + "/mine";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  int terminal, program;
  ASSERT_EQ(::openpty(&terminal, &program, nullptr, nullptr, nullptr), 0);
  const UniqueFd sides[] = {UniqueFd(terminal), UniqueFd(program)};
  const UniqueFd reader(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  for (const std::string& path : {fifo, absl::StrCat("/proc/self/fd/", program)}) {
    for (const int flags : {O_RDONLY | O_NONBLOCK | O_NOCTTY, O_PATH}) {
      SCOPED_TRACE(absl::StrCat(path, " ", flags));
      const UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC));
      ASSERT_TRUE(fd) << errno;
      const int before = ::fcntl(fd.get(), F_GETFL);
      EXPECT_EQ(WriteWithoutBlocking(fd.get(), kLine.data(), kLine.size()), -1);
      EXPECT_EQ(errno, EBADF);
      MakeOwnNonBlocking(fd.get());
      EXPECT_EQ(::fcntl(fd.get(), F_GETFL), before);
      EXPECT_EQ(::write(fd.get(), kLine.data(), kLine.size()), -1);
    }
  }
  for (const int fd : {reader.get(), terminal}) {
    pollfd ready = {.fd = fd, .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&ready, 1, 0), 0);
  }
}

}  // namespace
}  // namespace berth
