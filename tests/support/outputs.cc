#include "tests/support/outputs.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pty.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/os/os_error.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// Starts its words in a background process group of a new session whose terminal is its standard error.
const std::vector<std::string>& InBackground() {
  static const auto* const kWords = new std::vector<std::string>{
      "/bin/sh", "-c", "exec /usr/bin/setsid -w -c /bin/sh -c 'set -m; \"$@\" & wait $!' sh \"$@\" <&2", "sh"};
  return *kWords;
}

UniqueFd Opened(int fd, const std::string& name) {
  if (fd < 0) Fatal(OsError("open", errno), name);
  return UniqueFd(fd);
}

// Writes until the fd takes no more, and leaves its flags as they were.
void Fill(int fd, const std::string& name) {
  const int flags = ::fcntl(fd, F_GETFL);
  ::fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  // A terminal passes text on asynchronously.
  pollfd ready = {.fd = fd, .events = POLLOUT, .revents = 0};
  do {
    for (const size_t size : {size_t{4096}, size_t{1}}) {
      const std::string text(size, '-');
      while (::write(fd, text.data(), text.size()) > 0) {
      }
      if (errno != EAGAIN) Fatal(OsError("write", errno), name);
    }
  } while (::poll(&ready, 1, 10) > 0);
  ::fcntl(fd, F_SETFL, flags);
}

Output Pipe(std::string name) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0) Fatal(OsError("pipe2", errno), name);
  return {.name = std::move(name), .fd = UniqueFd(ends[1]), .reader = UniqueFd(ends[0])};
}

// The end of a pipe from which another program reads.
Output Input(Output output) {
  output.fd.reset(::fcntl(output.reader.get(), F_DUPFD_CLOEXEC, 0));
  if (!output.fd) Fatal(OsError("dup", errno), output.name);
  return output;
}

Output TcpSocket(std::string name) {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::bind(listener.get(), any, size) < 0 || ::listen(listener.get(), 1) < 0 ||
      ::getsockname(listener.get(), any, &size) < 0 || ::connect(fd.get(), any, size) < 0) {
    Fatal(OsError("connect", errno), name);
  }
  UniqueFd reader = Opened(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC), name);
  return {.name = std::move(name), .fd = std::move(fd), .reader = std::move(reader)};
}

Output Socket(std::string name, int type) {
  int ends[2];
  if (::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) < 0) Fatal(OsError("socketpair", errno), name);
  return {.name = std::move(name), .fd = UniqueFd(ends[1]), .reader = UniqueFd(ends[0])};
}

// `fd` is the program's side.
Output Terminal(std::string name) {
  int ours, theirs;
  if (::openpty(&ours, &theirs, nullptr, nullptr, nullptr) < 0) Fatal(OsError("openpty", errno), name);
  for (const int fd : {ours, theirs}) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return {.name = std::move(name), .fd = UniqueFd(theirs), .reader = UniqueFd(ours)};
}

Output Filled(Output output) {
  Fill(output.fd.get(), output.name);
  output.full = true;
  return output;
}

Output Abandoned(Output output) {
  output.reader.reset();
  return output;
}

Output Taking(Output output) {
  output.takes = true;
  return output;
}

Output Fifo(std::string name, const std::string& path) {
  if (::mkfifo(path.c_str(), 0600) < 0) Fatal(OsError("mkfifo", errno), path);
  UniqueFd reader = Opened(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC), path);
  UniqueFd fd = Opened(::open(path.c_str(), O_WRONLY | O_CLOEXEC), path);
  return {.name = std::move(name), .fd = std::move(fd), .reader = std::move(reader)};
}

Output StoppedTerminal(std::string name) {
  Output output = Terminal(std::move(name));
  // As ^S does.
  if (::tcflow(output.fd.get(), TCOOFF) < 0) Fatal(OsError("tcflow", errno), output.name);
  output.full = true;
  return output;
}

Output BackgroundTerminal(std::string name) {
  Output output = Terminal(std::move(name));
  termios settings;
  ::tcgetattr(output.fd.get(), &settings);
  settings.c_lflag |= TOSTOP;
  ::tcsetattr(output.fd.get(), TCSANOW, &settings);
  output.launcher = InBackground();
  output.takes = true;
  return output;
}

// The other side of a terminal, whose program reads nothing.
Output TerminalsOtherSide(std::string name) {
  Output output = Terminal(std::move(name));
  termios settings;
  ::tcgetattr(output.fd.get(), &settings);
  ::cfmakeraw(&settings);
  ::tcsetattr(output.fd.get(), TCSANOW, &settings);
  std::swap(output.fd, output.reader);
  return Filled(std::move(output));
}

Output LimitedFile(std::string name, const std::string& path) {
  UniqueFd fd = Opened(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), path);
  if (::ftruncate(fd.get(), 4096) < 0) Fatal(OsError("ftruncate", errno), path);
  return {.name = std::move(name), .fd = std::move(fd), .launcher = {"/usr/bin/prlimit", "--fsize=4096", "--"}};
}

Output FullCounter(std::string name) {
  UniqueFd fd = Opened(::eventfd(0, EFD_CLOEXEC), name);
  const uint64_t most = UINT64_MAX - 1;
  if (::write(fd.get(), &most, sizeof(most)) < 0) Fatal(OsError("write", errno), name);
  return {.name = std::move(name), .fd = std::move(fd)};
}

}  // namespace

int Output::error_fd() const { return closed ? kClosedFd : fd.get(); }

std::vector<Output> MakeOutputs(const std::string& folder) {
  std::filesystem::create_directories(folder);
  std::vector<Output> all;
  all.push_back(Taking(Pipe("pipe")));
  all.push_back(Taking(Socket("socket", SOCK_STREAM)));
  all.push_back(Taking(Socket("datagram socket", SOCK_DGRAM)));
  all.push_back(Taking(TcpSocket("TCP socket")));
  all.push_back(Taking(Terminal("terminal")));
  all.push_back(BackgroundTerminal("terminal with TOSTOP, from the background"));
  all.push_back({.name = "closed", .closed = true});
  all.push_back({.name = "full disk", .fd = Opened(::open("/dev/full", O_WRONLY | O_CLOEXEC), "/dev/full")});
  all.push_back({.name = "read-only", .fd = Opened(::open("/dev/zero", O_RDONLY | O_CLOEXEC), "/dev/zero")});
  all.push_back(Input(Pipe("read end of a pipe")));
  all.push_back(Input(Fifo("read end of a FIFO", absl::StrCat(folder, "/input"))));
  all.push_back({.name = "folder", .fd = Opened(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC), "/")});
  all.push_back(LimitedFile("file at its size limit", absl::StrCat(folder, "/limited")));
  all.push_back(Filled(Pipe("full pipe")));
  all.push_back(Filled(Pipe("full non-blocking pipe")));
  ::fcntl(all.back().fd.get(), F_SETFL, ::fcntl(all.back().fd.get(), F_GETFL) | O_NONBLOCK);
  all.push_back(Filled(Fifo("full FIFO", absl::StrCat(folder, "/fifo"))));
  all.push_back(Filled(Socket("full socket", SOCK_STREAM)));
  all.push_back(Filled(Socket("full packet socket", SOCK_SEQPACKET)));
  all.push_back(Filled(Socket("full datagram socket", SOCK_DGRAM)));
  all.push_back(Filled(Terminal("full terminal")));
  all.push_back(StoppedTerminal("stopped terminal"));
  all.push_back(TerminalsOtherSide("full terminal, other side"));
  all.push_back(Abandoned(Pipe("pipe without a reader")));
  all.push_back(Abandoned(Fifo("FIFO without a reader", absl::StrCat(folder, "/left"))));
  all.push_back(Abandoned(Socket("socket without a peer", SOCK_STREAM)));
  all.push_back(Abandoned(Socket("datagram socket without a peer", SOCK_DGRAM)));
  all.push_back(Abandoned(Terminal("hung-up terminal")));
  all.push_back(FullCounter("full eventfd"));
  return all;
}

std::vector<Output> MakeOutputs(const std::string& folder, const std::vector<std::string>& names) {
  std::vector<Output> all = MakeOutputs(folder);
  std::erase_if(all, [&](const Output& output) { return !absl::c_linear_search(names, output.name); });
  if (all.size() != names.size()) Fatal(absl::NotFoundError(absl::StrJoin(names, ", ")), "outputs");
  return all;
}

std::string Drain(const Output& output) {
  if (output.full && ::isatty(output.fd.get()) != 0) ::tcflow(output.fd.get(), TCOON);
  std::string text;
  // As long as a datagram can be.
  std::vector<char> buffer(256 << 10);
  pollfd ready = {.fd = output.reader.get(), .events = POLLIN, .revents = 0};
  while (::poll(&ready, 1, 0) > 0) {
    const ssize_t got = ::read(output.reader.get(), buffer.data(), buffer.size());
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  return text;
}

}  // namespace berth::testing
