// A daemon for supervisor tests: the test's own program in the daemon's roles (supervisor_test_main.cc). Supervisor,
// worker and inventory are real; the broker executes the test's commands.

#ifndef DAEMON_SUPERVISOR_TESTING_SUPERVISOR_TEST_DAEMON_H_
#define DAEMON_SUPERVISOR_TESTING_SUPERVISOR_TEST_DAEMON_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/os/process.h"
#include "common/os/unique_fd.h"
#include "common/wire/state_page.h"

namespace berth {

inline constexpr int kPatienceMs = 60'000;

// Returns whether the condition becomes true within kPatienceMs.
inline bool Becomes(const std::function<bool()>& condition) {
  for (int i = 0; i < kPatienceMs; ++i) {
    if (condition()) return true;
    ::poll(nullptr, 0, 1);
  }
  return false;
}

inline bool WaitReadable(int fd) {
  pollfd entry = {.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, kPatienceMs) == 1;
}

inline std::string ReadToEnd(int fd) {
  std::string text;
  char buffer[4096];
  while (WaitReadable(fd)) {
    const ssize_t got = ::read(fd, buffer, sizeof(buffer));
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

inline UniqueFd OpenPidfd(int pid) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

inline const std::vector<std::string> kDefaultFlags = {"--role=vault", "--backend=host", "--host-devices=2",
                                                       "--host-bytes=64MiB"};

// A daemon in its own process.
class Daemon {
 public:
  explicit Daemon(const std::string& folder, const std::map<std::string, std::string>& environment = {},
                  std::vector<std::string> flags = kDefaultFlags,
                  const std::string& program = "/proc/self/exe") {
    int ready[2];
    int messages[2];
    if (::pipe2(ready, O_CLOEXEC) < 0 || ::pipe2(messages, O_CLOEXEC) < 0) abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      // The stop limits (common/patience.h) are upper bounds, except where a test waits for one.
      ::setenv("BERTH_TEST_PATIENCE", "10", /*overwrite=*/0);
      for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
      ::dup2(messages[1], STDERR_FILENO);
      // The fd store has no outputs that the test itself inherited.
      ::syscall(SYS_close_range, 3, ~0U, CLOSE_RANGE_CLOEXEC);
      ::fcntl(ready[1], F_SETFD, 0);
      flags.insert(flags.begin(), "berthd");
      flags.push_back(absl::StrCat("--folder=", folder));
      flags.push_back(absl::StrCat("--ready-fd=", ready[1]));
      std::vector<char*> argv;
      for (std::string& flag : flags) argv.push_back(flag.data());
      argv.push_back(nullptr);
      ::execv(program.c_str(), argv.data());
      ::_exit(125);
    }
    ::close(ready[1]);
    ::close(messages[1]);
    ready_.reset(ready[0]);
    messages_.reset(messages[0]);
    pidfd_ = OpenPidfd(pid_);
  }
  ~Daemon() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }

  bool AwaitReady() { return ReadToEnd(ready_.get()) == "ready\n"; }
  int pid() const { return pid_; }
  void Signal(int number) const { ::kill(pid_, number); }

  // Waits for the daemon to exit. Returns the exit code; -1 for a signal, -2 if the daemon still runs after
  // kPatienceMs.
  int AwaitExit() {
    if (!WaitReadable(pidfd_.get())) return -2;
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // Reads what the daemon logs until it contains `text`. Returns false if it does not within kPatienceMs of silence.
  bool AwaitMessage(absl::string_view text) {
    char buffer[4096];
    while (!absl::StrContains(seen_, text)) {
      const ssize_t got = WaitReadable(messages_.get()) ? ::read(messages_.get(), buffer, sizeof(buffer)) : 0;
      if (got <= 0) return false;
      seen_.append(buffer, static_cast<size_t>(got));
    }
    return true;
  }
  // Returns everything that the daemon logged. Requires: the daemon and its children have ended.
  std::string Messages() { return seen_ += ReadToEnd(messages_.get()); }

  std::vector<int> Children() const {
    std::ifstream file(absl::StrCat("/proc/", pid_, "/task/", pid_, "/children"));
    std::vector<int> children;
    for (int pid; file >> pid;) children.push_back(pid);
    return children;
  }
  // Returns pidfds of all the daemon's children.
  std::vector<UniqueFd> ChildrenPidfds() const {
    std::vector<UniqueFd> pidfds;
    for (const int pid : Children()) pidfds.push_back(OpenPidfd(pid));
    return pidfds;
  }
  // Returns the pid of the child with that name, 0 if there is none. A child has its name once it has answered a
  // request.
  int Child(const std::string& name) const {
    for (const int pid : Children()) {
      if (ProcessName(pid) == name) return pid;
    }
    return 0;
  }

  // Returns a mapping of the daemon's state page.
  StatePage Page() const {
    for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid_, "/fd"))) {
      std::error_code closed;
      const std::string target = std::filesystem::read_symlink(entry, closed).string();
      if (!absl::StrContains(target, "memfd:berth-state")) continue;
      const UniqueFd fd(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
      return *StatePage::MapReadOnly(fd.get());
    }
    abort();
  }

  // Kills the child with that name and waits until it has ended.
  void KillChild(const std::string& name) const {
    const int pid = Child(name);
    ASSERT_NE(pid, 0) << name;
    const UniqueFd pidfd = OpenPidfd(pid);
    ::kill(pid, SIGKILL);
    ASSERT_TRUE(WaitReadable(pidfd.get()));
  }

 private:
  int pid_;
  UniqueFd pidfd_;
  UniqueFd ready_;
  UniqueFd messages_;
  std::string seen_;  // The messages read so far.
};

class SupervisorTest : public ::testing::Test {
 protected:
  SupervisorTest() {
    folder_ = "/tmp/berth" + std::string(6, 'X');
    ::mkdtemp(folder_.data());
  }
  ~SupervisorTest() override {
    EXPECT_TRUE(Becomes([this] { return KillWhatIsLeft() == 0; })) << "processes of " << folder_ << " are left";
    std::filesystem::remove_all(folder_);
  }

  std::unique_ptr<Daemon> StartReady() {
    auto daemon = std::make_unique<Daemon>(folder_);
    EXPECT_TRUE(daemon->AwaitReady());
    return daemon;
  }

  // Connects to the socket. Returns an empty fd, with errno set, on failure.
  UniqueFd Connect(const std::string& name, int type = SOCK_STREAM) const {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    const std::string path = absl::StrCat(folder_, "/", name);
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) < 0) socket.reset();
    return socket;
  }

  // Returns the broker's answer. A broker that is starting answers once it serves.
  std::string Ask(const std::string& command) const {
    const UniqueFd socket = Connect("berthd.sock");
    if (!socket || ::write(socket.get(), command.data(), command.size()) < 0) return "no broker";
    return ReadToEnd(socket.get());
  }
  std::vector<std::string> Facts() const { return absl::StrSplit(Ask("facts"), ' '); }

  bool Exists(const std::string& name) const {
    return std::filesystem::exists(absl::StrCat(folder_, "/", name));
  }

  std::string folder_;

 private:
  // Kills all processes of the folder, or of one below it, and returns their number. A broker restarts a killed
  // supervisor, which would recreate the folder.
  int KillWhatIsLeft() const {
    int left = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      std::ifstream file(entry.path() / "cmdline");
      std::string words;
      std::getline(file, words, '\n');
      int pid = 0;
      const std::string flag = "--folder=" + folder_;
      const bool runs = absl::StrContains(words, flag + '\0') || absl::StrContains(words, flag + '/');
      if (!runs || !absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
      ++left;
      ::kill(pid, SIGKILL);
    }
    return left;
  }
};

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_TESTING_SUPERVISOR_TEST_DAEMON_H_
