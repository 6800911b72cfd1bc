#include "daemon/supervisor/fd_store/service_manager_fd_store.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/os/os_error.h"
#include "daemon/supervisor/fd_store/service_manager.h"
#include "daemon/supervisor/supervisor_log.h"

namespace berth {
namespace {

using fd_store::Key;
using fd_store::KeyOf;
using fd_store::Kind;

constexpr char kPrefix[] = "berth-";

// Kinds that the manager stores, with their names.
constexpr std::pair<Kind, const char*> kNames[] = {
    {Kind::kListener, "listener"},     {Kind::kStatePage, "state"},       {Kind::kDeviceTable, "devices"},
    {Kind::kLifeline, "lifeline"},     {Kind::kChannel, "channel"},       {Kind::kPidfd, "process"},
    {Kind::kFencePage, "page"},        {Kind::kFolderLock, "lock"},       {Kind::kConfiguration, "configuration"},
    {Kind::kStoreRecord, "record"},
};

const char* NameOfKind(Kind kind) {
  const auto* const found =
      std::find_if(std::begin(kNames), std::end(kNames), [kind](const auto& name) { return name.first == kind; });
  return found == std::end(kNames) ? nullptr : found->second;
}

bool IsOfProcess(Kind kind) { return kind == Kind::kChannel || kind == Kind::kPidfd || kind == Kind::kFencePage; }

std::string RemovalOfName(absl::string_view name) { return absl::StrCat("FDSTOREREMOVE=1\nFDNAME=", name); }

// SD_LISTEN_FDS_START.
constexpr int kFirstHandedOver = 3;

std::string Variable(const char* name) {
  const char* const set = ::getenv(name);
  return set == nullptr ? "" : set;
}

}  // namespace

bool ServiceManagerFdStore::Stores(Kind kind) { return NameOfKind(kind) != nullptr; }

std::string ServiceManagerFdStore::NameOf(Key key) {
  const char* const name = NameOfKind(key.kind);
  return name == nullptr ? "" : absl::StrCat(kPrefix, name, "-", absl::Hex(key.id));
}

std::optional<Key> ServiceManagerFdStore::KeyOfName(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, kPrefix)) return std::nullopt;
  for (const auto& [kind, text] : kNames) {
    absl::string_view rest = name;
    uint64_t id = 0;
    if (!absl::ConsumePrefix(&rest, text) || !absl::ConsumePrefix(&rest, "-")) continue;
    // Each key has exactly one name.
    if (absl::SimpleHexAtoi(rest, &id) && NameOf(KeyOf(kind, id)) == absl::StrCat(kPrefix, name)) {
      return KeyOf(kind, id);
    }
  }
  return std::nullopt;
}

std::string ServiceManagerFdStore::RemovalOf(Key key) { return RemovalOfName(NameOf(key)); }

HeldFds ServiceManagerFdStore::Sort(std::vector<NamedFd> handed_over, const Send& send) {
  HeldFds stored;
  for (NamedFd& one : handed_over) {
    const std::optional<Key> key = KeyOfName(one.name);
    if (key.has_value() && stored.emplace(*key, std::move(one.fd)).second) continue;
    Log("ignoring fd \"%s\" from the service manager: %s", one.name.c_str(), key ? "duplicate name" : "unknown name");
    // A removal by the name of a duplicate would remove its first fd as well.
    if (!key.has_value() && !one.name.empty()) send(RemovalOfName(one.name), -1).IgnoreError();
  }
  return stored;
}

void ServiceManagerFdStore::Forget(const HeldFds& stored, const Send& send) {
  const MonotonicTime deadline = Now() + kBarrierPatience;
  for (const auto& [key, fd] : stored) {
    while (absl::IsUnavailable(send(RemovalOf(key), -1)) && Now() < deadline) ::poll(nullptr, 0, 1);
  }
}

void ServiceManagerFdStore::RecordStored(const HeldFds& stored) {
  std::vector<Key> gone;
  for (const auto& [key, place] : record_.places()) {
    if (!stored.contains(key)) gone.push_back(key);
  }
  for (const Key& key : gone) record_.Remove(key);
  for (const auto& [key, fd] : stored) record_.Add(key);
}

void ServiceManagerFdStore::Reconcile(MonotonicTime now, const HeldFds& held, bool again) {
  for (const auto& [key, place] : record_.places()) {
    if (!held.contains(key)) {
      removals_.insert(key);
    } else if (Admit(key) && again) {
      outgoing_.insert(key);
    }
  }
  for (const auto& [key, fd] : held) {
    if (!record_.Contains(key)) Put(now, key);
  }
  if (!outgoing_.empty() || !removals_.empty()) Due(now);
}

bool ServiceManagerFdStore::Admit(Key key) {
  if (key.kind == Kind::kLifeline) {
    return lifelines_.contains(key.id) || (lifelines_.size() < kLifelines && lifelines_.insert(key.id).second);
  }
  if (!IsOfProcess(key.kind)) return own_.contains(key) || (own_.size() < kOwn && own_.insert(key).second);
  if (!processes_.contains(key.id) && processes_.size() >= kProcesses) return false;
  processes_[key.id].insert(key);
  return true;
}

void ServiceManagerFdStore::Put(MonotonicTime now, Key key) {
  if (!Stores(key.kind)) return;
  if (Admit(key)) {
    outgoing_.insert(key);
    return Due(now + kPause);
  }
  if (key.kind == Kind::kLifeline) {
    lifelines_left_out_.insert(key.id);
  } else if (IsOfProcess(key.kind)) {
    processes_left_out_[key.id].insert(key);
  }
  if (std::exchange(reported_full_, true)) return;
  Log("the service manager's fd store is full with %zu sessions and %zu processes; further ones end if supervisor "
      "and broker die at the same time",
      lifelines_.size(), processes_.size());
}

bool ServiceManagerFdStore::Drop(MonotonicTime now, Key key) {
  if (!Stores(key.kind)) return false;
  if (key.kind == Kind::kLifeline) lifelines_left_out_.erase(key.id);
  if (const auto found = processes_left_out_.find(key.id); found != processes_left_out_.end()) {
    found->second.erase(key);
    if (found->second.empty()) processes_left_out_.erase(found);
  }
  outgoing_.erase(key);
  Leave(now, key);
  if (!record_.Contains(key)) return false;
  removals_.insert(key);
  Due(now);
  return true;
}

void ServiceManagerFdStore::Leave(MonotonicTime now, Key key) {
  if (key.kind == Kind::kLifeline) {
    if (lifelines_.erase(key.id) == 0 || lifelines_left_out_.empty()) return;
    const uint64_t next = *lifelines_left_out_.begin();
    lifelines_left_out_.erase(lifelines_left_out_.begin());
    Put(now, KeyOf(Kind::kLifeline, next));
  } else if (const auto found = processes_.find(key.id); IsOfProcess(key.kind) && found != processes_.end()) {
    found->second.erase(key);
    if (!found->second.empty()) return;
    processes_.erase(found);
    if (processes_left_out_.empty()) return;
    const auto next = processes_left_out_.extract(processes_left_out_.begin());
    for (const Key& each : next.mapped()) Put(now, each);
  } else {
    own_.erase(key);
  }
  if (lifelines_left_out_.empty() && processes_left_out_.empty()) reported_full_ = false;
}

void ServiceManagerFdStore::Due(MonotonicTime when) { due_ = std::min(due_, when); }

MonotonicTime ServiceManagerFdStore::wake() const {
  const MonotonicTime due = std::max(due_, retry_at_);
  return barrier_.has_value() ? std::min(due, barrier_->deadline) : due;
}

std::vector<Key> ServiceManagerFdStore::Attend(MonotonicTime now, const HeldFds& held) {
  std::vector<Key> over;
  if (barrier_.has_value()) {
    pollfd entry = {.fd = barrier_->fd.get(), .events = 0, .revents = 0};
    if (::poll(&entry, 1, 0) == 1 || now >= barrier_->deadline) {
      over = std::move(barrier_->keys);
      barrier_.reset();
      if (!removed_.empty()) Due(now);
    }
  }
  if (now < std::max(due_, retry_at_)) return over;
  due_ = MonotonicTime::max();
  SendWaiting(now, held);
  if (!removed_.empty() && !barrier_.has_value()) RaiseBarrier(now);
  if (!outgoing_.empty() || !removals_.empty()) Due(now + kPause);
  return over;
}

void ServiceManagerFdStore::SendWaiting(MonotonicTime now, const HeldFds& held) {
  size_t budget = kBurst;
  while (!removals_.empty() && budget > 0) {
    const Key key = *removals_.begin();
    if (!SendOne(now, RemovalOf(key), -1, &budget)) return;
    removals_.erase(removals_.begin());
    record_.Remove(key);
    removed_.push_back(key);
  }
  while (!outgoing_.empty() && budget > 0) {
    const Key key = *outgoing_.begin();
    const auto found = held.find(key);
    const bool before = record_.Contains(key);
    if (found != held.end() && record_.Add(key)) {
      const std::string state = absl::StrCat("FDSTORE=1\nFDPOLL=0\nFDNAME=", NameOf(key));
      if (!SendOne(now, state, found->second.get(), &budget)) {
        if (!before) record_.Remove(key);
        return;
      }
    }
    outgoing_.erase(outgoing_.begin());
  }
}

bool ServiceManagerFdStore::SendOne(MonotonicTime now, const std::string& state, int fd, size_t* budget) {
  const absl::Status sent = send_(state, fd);
  if (sent.ok()) {
    said_unsent_ = false;
    retry_at_ = MonotonicTime::min();
    next_pause_ = kPause;
    --*budget;
    return true;
  }
  if (!std::exchange(said_unsent_, true)) {
    Log("cannot send to the service manager: %s; retrying", std::string(sent.message()).c_str());
  }
  retry_at_ = now + next_pause_;
  next_pause_ = std::min(2 * next_pause_, kLongestPause);
  Due(retry_at_);
  return false;
}

void ServiceManagerFdStore::RaiseBarrier(MonotonicTime now) {
  int ends[2];
  // Without a barrier the keys count as released; the manager may then be the last to close them.
  Barrier barrier = {.fd = UniqueFd(), .keys = std::move(removed_), .deadline = now};
  removed_.clear();
  if (::pipe2(ends, O_CLOEXEC) == 0) {
    barrier.fd.reset(ends[0]);
    // The manager closes its duplicate once it has processed every earlier message.
    const UniqueFd given(ends[1]);
    if (send_("BARRIER=1", given.get()).ok()) barrier.deadline = now + kBarrierPatience;
  }
  barrier_ = std::move(barrier);
}

// ---- service_manager.h ---------------------------------------------------------------------------------------

bool HasServiceManager() { return !Variable("NOTIFY_SOCKET").empty(); }

absl::Status SendToServiceManager(const std::string& state, int fd) {
  std::string path = Variable("NOTIFY_SOCKET");
  if (path.empty()) return absl::FailedPreconditionError("no service manager: NOTIFY_SOCKET is not set");
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return absl::InvalidArgumentError("$NOTIFY_SOCKET is too long");
  // A leading @ stands for the zero byte of an abstract name.
  if (path[0] == '@') path[0] = '\0';
  memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return OsError("socket", errno);

  iovec bytes = {.iov_base = const_cast<char*>(state.data()), .iov_len = state.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_name = &address;
  message.msg_namelen = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &fd, sizeof(fd));
  }
  return ::sendmsg(socket.get(), &message, MSG_NOSIGNAL) < 0 ? OsError("sendmsg(service manager)", errno)
                                                             : absl::OkStatus();
}

void NotifyServiceManager(const std::string& state) {
  const absl::Status sent = SendToServiceManager(state);
  if (sent.ok() || absl::IsFailedPrecondition(sent)) return;
  Log("cannot notify the service manager of %s: %s", state.c_str(), std::string(sent.message()).c_str());
}

std::vector<NamedFd> TakeHandedOver() {
  std::vector<NamedFd> taken;
  int pid = 0;
  int count = 0;
  if (!absl::SimpleAtoi(Variable("LISTEN_PID"), &pid) || pid != ::getpid()) return taken;
  const std::string names = Variable("LISTEN_FDNAMES");
  const std::vector<std::string> named = absl::StrSplit(names, ':');
  if (!absl::SimpleAtoi(Variable("LISTEN_FDS"), &count)) count = 0;
  for (int i = 0; i < count; ++i) {
    // A number that is not open was not handed over.
    if (::fcntl(kFirstHandedOver + i, F_SETFD, FD_CLOEXEC) < 0) break;
    const auto at = static_cast<size_t>(i);
    taken.push_back({.name = at < named.size() ? named[at] : "", .fd = UniqueFd(kFirstHandedOver + i)});
  }
  for (const char* const name : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}) ::unsetenv(name);
  return taken;
}

}  // namespace berth
