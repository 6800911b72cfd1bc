#include "daemon/supervisor/testing/fake_broker.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/os/fd_passing.h"
#include "common/os/memfd.h"
#include "daemon/supervisor/fd_store/supervisor_fd_store.h"
#include "daemon/supervisor/processes/child_process.h"
#include "daemon/supervisor/processes/launch_supervisor.h"

namespace berth {
namespace {

using fd_store::Key;
using fd_store::KeyOf;
using fd_store::Kind;

std::string Text(Key key) { return absl::StrCat(static_cast<uint32_t>(key.kind), " ", key.id, "\n"); }

bool WaitReadable(int fd) {
  pollfd entry = {.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 10'000) == 1;
}

class FakeBroker {
 public:
  FakeBroker(Inheritance inherited, std::string (*create)(int socket))
      : facts_(inherited.facts), fd_store_(std::move(inherited.fd_store)), create_(create) {
    for (HeldFd& held : inherited.held) fds_[held.key] = std::move(held.fd);
  }

  int Run() {
    if (!fd_store_->Ready().ok()) return 1;
    while (true) {
      const int listener = fds_[KeyOf(fd_store::Listener::kBerthd)].get();
      pollfd entries[] = {{.fd = fd_store_->fd(), .events = POLLIN, .revents = 0},
                          {.fd = listener, .events = POLLIN, .revents = 0}};
      if (::poll(entries, 2, -1) < 0) return 1;
      if (!ReadNotices()) return 0;
      if ((entries[1].revents & POLLIN) != 0)
        Serve(UniqueFd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)));
      AnswerAwaits();
    }
  }

 private:
  // Returns false if a stop was requested.
  bool ReadNotices() {
    while (true) {
      absl::StatusOr<Notice> notice = fd_store_->ReadNotice();
      if (!notice.ok() && IsEndOfStream(notice.status()) && fd_store_->Succeed().ok()) continue;
      if (!notice.ok()) return IsWouldBlock(notice.status());
      if (std::holds_alternative<HandOverRequested>(*notice)) fd_store_->HandOver().IgnoreError();
      if (std::holds_alternative<StopRequested>(*notice) && getenv("BERTH_FAKE_BROKER") == nullptr)
        return false;
      if (const auto* news = std::get_if<WorkerNews>(&*notice)) {
        Record(*news);
      } else if (auto* up = std::get_if<WorkerUp>(&*notice)) {
        absl::StrAppend(&notices_, "up ", NameOf(up->device, up->worker_kind), "\n");
        fds_[KeyOf(up->worker_kind, up->device)] = std::move(up->socket);
      } else if (auto* monitor = std::get_if<MonitorUp>(&*notice)) {
        absl::StrAppend(&notices_, "monitor\n");
        fds_[KeyOf(Kind::kMonitor)] = std::move(monitor->socket);
      } else if (auto* up = std::get_if<ListenerUp>(&*notice)) {
        fds_[KeyOf(up->listener)] = std::move(up->socket);
      } else if (const auto* dropped = std::get_if<DroppedFd>(&*notice)) {
        absl::StrAppend(&notices_, "dropped ", Text(dropped->key));
      }
    }
  }

  // Returns "0" for a device's main worker, "0c" for its context worker.
  static std::string NameOf(uint32_t device, WorkerKind worker_kind) {
    return absl::StrCat(device, worker_kind == WorkerKind::kMain ? "" : "c");
  }

  void Record(const WorkerNews& news) {
    const std::string name = NameOf(news.device, news.worker_kind);
    status_[name] = absl::StrCat("left ", news.restarts_left, ", generation ", news.generation,
                                 news.dropped ? ", dropped: " : ": ", news.last_failure,
                                 news.drain_reason.empty() ? "" : "; drained: ", news.drain_reason);
    switch (news.state) {
      case fd_store::WorkerState::kRunning:
      case fd_store::WorkerState::kTesting:
        return;
      case fd_store::WorkerState::kGone:
        absl::StrAppend(&notices_, "down ", name, "\n");
        break;
      case fd_store::WorkerState::kIdle:
        if (!fds_.contains(KeyOf(news.worker_kind, news.device))) return;
        absl::StrAppend(&notices_, "down ", name, " idle\n");
        break;
      case fd_store::WorkerState::kStopped:
        absl::StrAppend(&notices_, "down ", name, " stopped\n");
        break;
      case fd_store::WorkerState::kLost:
        absl::StrAppend(&notices_, "down ", name, " lost\n");
        break;
      case fd_store::WorkerState::kAbandoned:
        absl::StrAppend(&notices_, "down ", name, " abandoned\n");
        break;
    }
    fds_.erase(KeyOf(news.worker_kind, news.device));
  }

  void Serve(UniqueFd connection) {
    char buffer[256];
    const ssize_t got = ::read(connection.get(), buffer, sizeof(buffer));
    if (got <= 0) return;
    const std::string line(buffer, static_cast<size_t>(got));
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 2));
    if (words[0] == "await") {
      awaits_.emplace_back(line.substr(6), std::move(connection));
      return;
    }
    uint64_t id = 0;
    const bool named = words[0] == "command" || words[0] == "status";
    if (words.size() > 1 && !named && !absl::SimpleAtoi(words[1], &id)) return;
    Say(connection, Do(words, id));
  }

  std::string Do(const std::vector<std::string>& words, uint64_t id) {
    if (words[0] == "facts") {
      return absl::StrCat(facts_.node, " ", facts_.incarnation, " ", facts_.epoch, " ", facts_.device_count, " ",
                          facts_.begun);
    }
    if (words[0] == "held") {
      std::string text;
      for (const auto& [key, fd] : fds_) text += Text(key);
      return text;
    }
    if (words[0] == "text") return ReadText(fds_[KeyOf(Kind::kBlock, id)].get());
    if (words[0] == "put") return Put(id, words[2]).ToString();
    if (words[0] == "put-and-die") {
      fd_store_->Drop(KeyOf(Kind::kBlock, 1));
      WaitReadable(fd_store_->fd());
      Put(id, words[2]).IgnoreError();
      ::kill(::getpid(), SIGKILL);
    }
    if (words[0] == "pid") return absl::StrCat(::getpid());
    if (words[0] == "die") ::kill(::getpid(), SIGKILL);
    if (words[0] == "drop") {
      fd_store_->Drop(KeyOf(Kind::kBlock, id));
      put_.erase(id);
      return "OK";
    }
    if (words[0] == "create") return create_(fds_[KeyOf(Kind::kWorker, id)].get());
    if (words[0] == "create-context") return create_(fds_[KeyOf(Kind::kContextWorker, id)].get());
    if (words[0] == "command") return SendCommand(words[1], words[2]);
    if (words[0] == "status") return status_[words[1]];
    if (words[0] == "garbage") return SendStruct(fd_store_->fd(), facts_).ToString();
    return "unknown command";
  }

  std::string SendCommand(const std::string& verb, absl::string_view device) {
    uint32_t ordinal = 0;
    const WorkerKind worker_kind = absl::ConsumeSuffix(&device, "c") ? WorkerKind::kContext : WorkerKind::kMain;
    if (!absl::SimpleAtoi(device, &ordinal)) return "no device";
    const std::map<std::string, WorkerCommand> commands = {
        {"kill", WorkerCommand::kKill},
        {"restart", WorkerCommand::kRestart},
        {"enable", WorkerCommand::kEnable},
        {"reset", WorkerCommand::kReset},
        {"drop", WorkerCommand::kDrop},
        {"start", WorkerCommand::kStart},
        {"end", WorkerCommand::kEnd},
        {"lose", WorkerCommand::kLose},
        {"drain", WorkerCommand::kDrain},
        {"undrain", WorkerCommand::kUndrain},
        {"kill-monitor", WorkerCommand::kKillMonitor},
        {"upgrade", WorkerCommand::kUpgrade},
        {"stop", WorkerCommand::kStop}};
    fd_store_->SendCommand(ordinal, worker_kind, commands.at(verb), absl::StrCat("ordered to ", verb));
    return "OK";
  }

  absl::Status Put(uint64_t id, const std::string& text) {
    absl::StatusOr<UniqueFd> fd = CreateMemfd("test", 0);
    if (!fd.ok()) return fd.status();
    if (::write(fd->get(), text.data(), text.size()) < 0) return absl::InternalError("write");
    const absl::Status status = fd_store_->Put(KeyOf(Kind::kBlock, id), fd->get(), FdOwner::kClient);
    if (status.ok()) put_[id] = *std::move(fd);
    return status;
  }

  static std::string ReadText(int fd) {
    char buffer[64];
    const ssize_t got = ::pread(fd, buffer, sizeof(buffer), 0);
    return got < 0 ? "nothing" : std::string(buffer, static_cast<size_t>(got));
  }

  void AnswerAwaits() {
    std::erase_if(awaits_, [&](const auto& await) {
      if (!absl::StrContains(notices_, await.first)) return false;
      Say(await.second, notices_);
      return true;
    });
  }

  static void Say(const UniqueFd& connection, const std::string& text) {
    ::send(connection.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }

  const fd_store::Facts facts_;
  const std::unique_ptr<SupervisorFdStore> fd_store_;
  std::string (*const create_)(int socket);
  std::map<Key, UniqueFd> fds_;
  // Blocks that this broker has put.
  std::map<uint64_t, UniqueFd> put_;
  std::string notices_;
  // Last status by worker name.
  std::map<std::string, std::string> status_;
  std::vector<std::pair<std::string, UniqueFd>> awaits_;
};

}  // namespace

int RunFakeBroker(int supervisor_fd, const std::vector<std::string>& supervisor_flags,
                  std::string (*create)(int socket)) {
  const char* const set = getenv("BERTH_FAKE_BROKER");
  const std::string behaviour = set == nullptr ? "" : set;
  if (behaviour == "fail") return 3;
  if (behaviour == "mistake") return kExitForConfiguration;
  if (behaviour == "starve") {
    // Enough for the supervisor's poll(), and fewer than it has open.
    const rlimit few = {.rlim_cur = 10, .rlim_max = 10};
    return ::prlimit(::getppid(), RLIMIT_NOFILE, &few, nullptr) < 0 ? 1 : kExitForWant;
  }
  absl::StatusOr<Inheritance> inherited = SupervisorFdStore::Receive(UniqueFd(supervisor_fd));
  if (!inherited.ok()) return 1;
  if (behaviour == "once" && inherited->facts.epoch > 1) return 3;
  ::signal(SIGCHLD, SIG_IGN);
  inherited->fd_store->SetReplacement(
      {.start = [supervisor_flags] { return LaunchSupervisor(supervisor_flags); }, .on_replaced = [] {}});
  return FakeBroker(*std::move(inherited), create).Run();
}

}  // namespace berth
