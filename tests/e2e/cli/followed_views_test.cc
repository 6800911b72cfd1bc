// Views that wait for news end with the reader of their output, though nothing new comes. They outlast a restart of the
// daemon, but not its stop.

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <berth/cancellation.h>
#include <berth/session.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

using Words = std::vector<std::string>;

enum class Kind { kPipe, kSocket, kHalfSocket, kTerminal };
constexpr std::pair<Kind, const char*> kKinds[] = {{Kind::kPipe, "pipe"},
                                                   {Kind::kSocket, "socket"},
                                                   {Kind::kHalfSocket, "socket that is only shut down for reading"},
                                                   {Kind::kTerminal, "terminal"}};

struct Ends {
  UniqueFd reader;
  UniqueFd program;
};

Ends MakeEnds(Kind kind) {
  int ends[2] = {-1, -1};
  const int made = kind == Kind::kPipe       ? ::pipe(ends)
                   : kind == Kind::kTerminal ? ::openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr)
                                             : ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
  if (made < 0) Fatal(OsError("output", errno), "view");
  for (const int fd : ends) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return {.reader = UniqueFd(ends[0]), .program = UniqueFd(ends[1])};
}

Ends MakeTcpEnds() {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  Ends ends;
  ends.program.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::bind(listener.get(), any, size) < 0 || ::listen(listener.get(), 1) < 0 ||
      ::getsockname(listener.get(), any, &size) < 0 || ::connect(ends.program.get(), any, size) < 0) {
    Fatal(OsError("connect", errno), "view");
  }
  ends.reader.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return ends;
}

// Returns the number of TCP segments that the socket has received.
uint32_t SegmentsTo(int socket) {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  EXPECT_EQ(::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size), 0);
  return info.tcpi_segs_in;
}

// Ends the reader.
void EndReader(Kind kind, Ends& ends) {
  if (kind == Kind::kHalfSocket) {
    EXPECT_EQ(::shutdown(ends.reader.get(), SHUT_RD), 0);
  } else {
    ends.reader.reset();
  }
}

class FollowedViewsTest : public ::testing::Test {
 protected:
  // Starts the view after `before`, shell words, with its standard output at the program's end.
  Subprocess Start(const Words& view, Ends& ends, const std::string& before) {
    const Words shell = {"/bin/bash", "-c", absl::StrCat(before, "exec \"$@\" >&", ends.program.get()), "sh",
                         ProgramPath("client/cli/berth")};
    Words argv = shell;
    argv.insert(argv.end(), view.begin(), view.end());
    Subprocess process = Subprocess::Start({.argv = argv,
                                            .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder())},
                                            .inherited_fd = ends.program.get()});
    ends.program.reset();
    return process;
  }
  // Waits until the view has shown the present state.
  static void AwaitOutput(const Ends& ends) {
    pollfd shown = {.fd = ends.reader.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&shown, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))), 1);
    char buffer[4096];
    EXPECT_GT(::read(ends.reader.get(), buffer, sizeof(buffer)), 0);
  }

  // Waits until the view has shown `text`.
  static void AwaitText(const Ends& ends, const std::string& text) {
    std::string shown;
    while (!absl::StrContains(shown, text)) {
      pollfd more = {.fd = ends.reader.get(), .events = POLLIN, .revents = 0};
      ASSERT_EQ(::poll(&more, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))), 1) << shown;
      char buffer[4096];
      const ssize_t got = ::read(ends.reader.get(), buffer, sizeof(buffer));
      ASSERT_GT(got, 0) << shown;
      shown.append(buffer, static_cast<size_t>(got));
    }
  }

  TestDaemon daemon_;
};

TEST_F(FollowedViewsTest, ViewsEndWithTheirReader) {
  // Something for `berth log` to show.
  Actor actor(daemon_);
  actor.Do("allocate b 4096");
  for (const Words& view : std::vector<Words>{{"devices", "--watch"},
                                              {"devices", "--watch", "--json"},
                                              {"log", "--follow"},
                                              {"log", "--follow", "--json"}}) {
    for (const auto& [kind, name] : kKinds) {
      SCOPED_TRACE(absl::StrCat(view[0], " to a ", name));
      Ends ends = MakeEnds(kind);
      Subprocess process = Start(view, ends, "");
      AwaitOutput(ends);
      EndReader(kind, ends);
      EXPECT_EQ(process.Wait(), 128 + SIGPIPE);
    }
  }
}

// As programs are started by Python's subprocess with restore_signals=False, and by many daemons.
TEST_F(FollowedViewsTest, ViewThatIgnoresSigpipeFails) {
  for (const auto& [kind, name] : kKinds) {
    SCOPED_TRACE(name);
    Ends ends = MakeEnds(kind);
    Subprocess process = Start({"devices", "--watch"}, ends, "trap '' PIPE; exec 2>/dev/null; ");
    AwaitOutput(ends);
    EndReader(kind, ends);
    EXPECT_EQ(process.Wait(), 1);
  }
}

TEST_F(FollowedViewsTest, ViewReportsWhyItCannotPrint) {
  const struct {
    const char* view;
    const char* output;
    const char* error;
  } rows[] = {{"devices --watch", ">/dev/full", "No space left on device"},
              {"devices --watch", ">&-", "Bad file descriptor"},
              // These have nothing to print.
              {"log --follow", ">&-", "Bad file descriptor"},
              {"log --follow --json", "1</dev/null", "Bad file descriptor"}};
  for (const auto& row : rows) {
    SCOPED_TRACE(absl::StrCat(row.view, " ", row.output));
    Subprocess view = Subprocess::Start(
        {.argv = {"/bin/sh", "-c", absl::StrCat("{ \"$0\" ", row.view, " 2>&3 ", row.output, "; } 3>&1"),
                  ProgramPath("client/cli/berth")},
         .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder())}});
    const std::string text = view.ReadAll();
    EXPECT_TRUE(absl::StrContains(text, row.error)) << text;
    EXPECT_EQ(view.Wait(), 1);
  }
}

// Neither a close nor a shutdown for writing is visible as such: both arrive as the end of the peer's data.
TEST_F(FollowedViewsTest, ViewEndsWithTcpPeerButNotWithItsData) {
  for (const bool closes : {true, false}) {
    SCOPED_TRACE(closes);
    Ends ends = MakeTcpEnds();
    Subprocess process = Start({"devices", "--watch", "--json"}, ends, "");
    AwaitOutput(ends);
    if (closes) {
      // The kernel forgets the closed socket sooner than by default.
      const int seconds = 1;
      ASSERT_EQ(::setsockopt(ends.reader.get(), IPPROTO_TCP, TCP_LINGER2, &seconds, sizeof(seconds)), 0);
      ends.reader.reset();
      EXPECT_EQ(process.Wait(), 128 + SIGPIPE);
      continue;
    }
    ASSERT_EQ(::shutdown(ends.reader.get(), SHUT_WR), 0);
    const uint32_t before = SegmentsTo(ends.reader.get());
    // The acknowledgement, and two questions whether the peer's socket exists.
    ASSERT_TRUE(Eventually([&] { return SegmentsTo(ends.reader.get()) >= before + 3; }));
    ASSERT_TRUE(Ok(daemon_.inspector().DrainDevice(0, "test")));
    AwaitOutput(ends);
    EXPECT_FALSE(process.IsGone());
    ASSERT_TRUE(Ok(daemon_.inspector().UndrainDevice(0)));
    process.Signal(SIGTERM);
    EXPECT_EQ(process.Wait(), 128 + SIGTERM);
  }
}

TEST_F(FollowedViewsTest, ViewsGoOnAfterRestart) {
  Actor before(daemon_);
  before.Do("allocate b 4096");
  const struct {
    Words view;
    const char* news;
  } rows[] = {{{"devices", "--watch", "--json"}, "after the restart"},
              {{"--admin", "devices", "--watch", "--json"}, "after the restart"},
              {{"--observer", "devices", "--watch", "--json"}, "after the restart"},
              {{"log", "--follow", "--json"}, "4194304"}};
  std::vector<Ends> ends;
  std::vector<Subprocess> views;
  for (const auto& row : rows) {
    ends.push_back(MakeEnds(Kind::kPipe));
    views.push_back(Start(row.view, ends.back(), ""));
    AwaitOutput(ends.back());
  }
  before.Quit();
  daemon_.KillSupervisorAndBroker();
  daemon_.StartAgain();
  Actor after(daemon_);
  after.Do("allocate b 4194304");
  ASSERT_TRUE(Ok(daemon_.inspector().DrainDevice(0, "after the restart")));
  for (size_t i = 0; i < views.size(); ++i) {
    SCOPED_TRACE(rows[i].view[0]);
    AwaitText(ends[i], rows[i].news);
    views[i].Signal(SIGTERM);
    EXPECT_EQ(views[i].Wait(), 128 + SIGTERM);
  }
  ASSERT_TRUE(Ok(daemon_.inspector().UndrainDevice(0)));
  after.Quit();
}

// As the views of the next test, with a shorter time-out.
TEST_F(FollowedViewsTest, WatchesEndWithoutDaemon) {
  Cancellation cancellation;
  std::atomic<int> shown = 0;
  std::atomic<int> ended = 0;
  absl::Status results[2];
  {
    std::vector<std::jthread> watches;
    for (const bool observer : {false, true}) {
      const std::shared_ptr<Session> session = Must(Session::Open({.folder = daemon_.folder(),
                                                                   .observer = observer,
                                                                   .always_new = true,
                                                                   .timeout = absl::Milliseconds(1500)}));
      watches.emplace_back([&, session, result = &results[observer ? 1 : 0]] {
        bool first = true;
        *result = Inspector(session, &cancellation).WatchDevices([&](const v1::WatchDevicesResponse&) {
          if (std::exchange(first, false)) ++shown;
          return true;
        });
        ++ended;
      });
    }
    EXPECT_TRUE(Eventually([&] { return shown == 2; }));
    daemon_.Stop();
    EXPECT_TRUE(Eventually([&] { return ended == 2; }));
    cancellation.Cancel();
  }
  for (const absl::Status& result : results) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(result)) << result;
    EXPECT_TRUE(absl::StrContains(result.message(), "did not answer in time")) << result;
  }
}

TEST_F(FollowedViewsTest, ViewsEndWithoutDaemon) {
  if (!Soaks()) GTEST_SKIP() << "waits for the commands' own time-out";
  Actor actor(daemon_);
  actor.Do("allocate b 4096");
  std::vector<Ends> ends;
  std::vector<Subprocess> views;
  const std::string errors = daemon_.folder() + "/../errors";
  for (const Words& view : std::vector<Words>{{"devices", "--watch"},
                                              {"devices", "--watch", "--json"},
                                              {"--admin", "devices", "--watch"},
                                              {"--observer", "devices", "--watch"},
                                              {"log", "--follow"},
                                              {"--admin", "log", "--follow", "--json"}}) {
    ends.push_back(MakeEnds(Kind::kPipe));
    views.push_back(Start(view, ends.back(), absl::StrCat("exec 2>", errors, views.size(), "; ")));
    AwaitOutput(ends.back());
  }
  actor.Quit();
  daemon_.Stop();
  for (size_t i = 0; i < views.size(); ++i) {
    EXPECT_EQ(views[i].Wait(), 69);
    std::ifstream file(absl::StrCat(errors, i));
    const std::string said((std::istreambuf_iterator<char>(file)), {});
    EXPECT_TRUE(absl::StrContains(said, "did not answer in time")) << said;
  }
}

TEST_F(FollowedViewsTest, ViewWithReaderGoesOn) {
  for (const Kind kind : {Kind::kPipe, Kind::kSocket}) {
    Ends ends = MakeEnds(kind);
    Subprocess process = Start({"devices", "--watch", "--json"}, ends, "");
    AwaitOutput(ends);
    // A change is still shown.
    ASSERT_TRUE(Ok(daemon_.inspector().DrainDevice(0, "test")));
    AwaitOutput(ends);
    EXPECT_FALSE(process.IsGone());
    ASSERT_TRUE(Ok(daemon_.inspector().UndrainDevice(0)));
    process.Signal(SIGTERM);
    EXPECT_EQ(process.Wait(), 128 + SIGTERM);
  }
}

}  // namespace
}  // namespace berth::testing
