#include "tests/support/daemon/service_manager.h"

#include <errno.h>
#include <linux/kcmp.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/os/os_error.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr int kPausedMs = 5;

// Whether both fds refer to the same open file.
bool IsSameFile(int one, int other) {
  const pid_t pid = ::getpid();
  const long order = ::syscall(SYS_kcmp, pid, pid, KCMP_FILE, one, other);
  if (order < 0) Fatal(OsError("kcmp", errno), "service manager");
  return order == 0;
}

}  // namespace

ServiceManager::ServiceManager(size_t limit) : limit_(limit), stop_(::eventfd(0, EFD_CLOEXEC)) {
  char folder[] = "/tmp/berth-manager-XXXXXX";
  if (::mkdtemp(folder) == nullptr) Fatal(OsError("mkdtemp", errno), folder);
  path_ = absl::StrCat(folder, "/notify");
  socket_.reset(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
  if (!socket_ || ::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) < 0) {
    Fatal(OsError("bind", errno), path_);
  }
  thread_ = std::thread([this] { Run(); });
}

ServiceManager::~ServiceManager() {
  const uint64_t one = 1;
  if (::write(stop_.get(), &one, sizeof(one)) < 0) Fatal(OsError("write", errno), "service manager");
  thread_.join();
  std::filesystem::remove_all(std::filesystem::path(path_).parent_path());
}

std::vector<std::string> ServiceManager::environment() const { return {absl::StrCat("NOTIFY_SOCKET=", path_)}; }

void ServiceManager::Run() {
  while (true) {
    pollfd entries[] = {{.fd = stop_.get(), .events = POLLIN, .revents = 0},
                        {.fd = socket_.get(), .events = POLLIN, .revents = 0}};
    bool paused;
    {
      MutexLock lock(&mu_);
      paused = paused_;
    }
    ::poll(entries, paused ? 1 : 2, paused ? kPausedMs : -1);
    if (entries[0].revents != 0) return;
    if (paused || entries[1].revents == 0) continue;
    char bytes[4096];
    alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))];
    iovec space = {.iov_base = bytes, .iov_len = sizeof(bytes)};
    msghdr message = {};
    message.msg_iov = &space;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0) continue;
    std::vector<UniqueFd> fds;
    for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
      if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
      for (size_t i = 0; i < (head->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int fd;
        memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(int));
        fds.emplace_back(fd);
      }
    }
    Hear(std::string(bytes, static_cast<size_t>(got)), std::move(fds));
  }
}

void ServiceManager::Hear(const std::string& message, std::vector<UniqueFd> fds) {
  std::string name = "stored";
  bool stores = false;
  bool removes = false;
  for (absl::string_view line : absl::StrSplit(message, '\n')) {
    // Closes the fd that came with it, which tells the sender that its messages were received.
    if (line == "BARRIER=1") return;
    if (absl::ConsumePrefix(&line, "FDNAME=")) name = std::string(line);
    stores = stores || line == "FDSTORE=1";
    removes = removes || line == "FDSTOREREMOVE=1";
  }
  MutexLock lock(&mu_);
  heard_.push_back(message);
  if (removes) std::erase_if(stored_, [&](const StoredFd& stored) { return stored.name == name; });
  if (!stores) return;
  for (UniqueFd& fd : fds) {
    const bool there = std::any_of(stored_.begin(), stored_.end(),
                                   [&](const StoredFd& stored) { return IsSameFile(stored.fd.get(), fd.get()); });
    if (!there && stored_.size() < limit_) stored_.push_back({.name = name, .fd = std::move(fd)});
  }
}

std::vector<std::string> ServiceManager::names() const {
  MutexLock lock(&mu_);
  std::vector<std::string> names;
  for (const StoredFd& stored : stored_) names.push_back(stored.name);
  return names;
}

size_t ServiceManager::Count(absl::string_view prefix) const {
  const std::vector<std::string> all = names();
  return static_cast<size_t>(
      std::count_if(all.begin(), all.end(), [&](const std::string& name) { return absl::StartsWith(name, prefix); }));
}

std::vector<std::string> ServiceManager::heard() const {
  MutexLock lock(&mu_);
  return heard_;
}

UniqueFd ServiceManager::Find(const std::string& name) const {
  MutexLock lock(&mu_);
  for (const StoredFd& stored : stored_) {
    if (stored.name == name) return Must(DuplicateFd(stored.fd.get()), name);
  }
  return UniqueFd();
}

std::vector<ListenFd> ServiceManager::HandOver() const {
  MutexLock lock(&mu_);
  std::vector<ListenFd> all;
  for (const StoredFd& stored : stored_) all.push_back({.name = stored.name, .fd = stored.fd.get()});
  return all;
}

void ServiceManager::Lose(const std::function<bool(const std::string& name)>& is_lost) {
  MutexLock lock(&mu_);
  std::erase_if(stored_, [&](const StoredFd& stored) { return is_lost(stored.name); });
}

void ServiceManager::Store(const std::string& name, UniqueFd fd) {
  MutexLock lock(&mu_);
  stored_.push_back({.name = name, .fd = std::move(fd)});
}

void ServiceManager::Pause() {
  MutexLock lock(&mu_);
  paused_ = true;
}

void ServiceManager::Resume() {
  MutexLock lock(&mu_);
  paused_ = false;
}

}  // namespace berth::testing
