#include "tests/support/test_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <utility>

#include "absl/base/config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/block.h"
#include "common/bytes.h"
#include "common/error.h"
#include "common/os_error.h"
#include "gtest/gtest.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr char kBrokerName[] = "berth-broker";
constexpr char kWorkerName[] = "berth-worker";
constexpr char kContextWorkerName[] = "berth-context";
constexpr const char* kSockets[] = {"berthd.sock", "admin.sock", "attach.sock", "observer.sock",
                                    "admin-attach.sock"};
// The longest that a daemon is waited for to open it.
constexpr absl::Duration kHistoryPatience = absl::Seconds(2);

std::string MakeFolder() {
  // A socket's path has to fit into 108 bytes, which a test's own temporary folder often does not leave.
  char path[] = "/tmp/berth-test-XXXXXX";
  if (::mkdtemp(path) == nullptr) Fatal(OsError("mkdtemp", errno), path);
  return path;
}

void AwaitReady(int fd) {
  std::string text;
  char bytes[16];
  for (ssize_t got; (got = ::read(fd, bytes, sizeof(bytes))) > 0;)
    text.append(bytes, static_cast<size_t>(got));
  if (text != "ready\n") Fatal(absl::UnavailableError("ended before it served"), "berthd");
}

}  // namespace

TestDaemon::TestDaemon(const TestDaemonOptions& options) : folder_(MakeFolder()) {
  guard_.emplace(
      Subprocess::Start({.argv = {ProgramPath("tests/support/daemon_guard"), folder_}, .outlives = true}));
  process_ = {
      .argv = {options.program[0] == '/' ? options.program : ProgramPath(options.program),
               absl::StrCat("--folder=", folder_, "/run"), "--backend=" + options.backend},
      .environment = {"BERTH_GPU_TEST_CONCURRENCY", "REALIZAR_GPU_TEST_CONCURRENCY", "BERTH_SESSION"},
      .pid_namespace = options.pid_namespace,
      .user_namespace = options.user_namespace,
      .errors = options.errors,
      .fd_limit = options.fd_limit};
  for (const absl::string_view flag : {"--warm-blocks=0", "--context-idle=100ms"}) {
    const absl::string_view name = flag.substr(0, flag.find('='));
    const bool said = std::any_of(options.flags.begin(), options.flags.end(),
                                  [&](const std::string& other) { return absl::StartsWith(other, name); });
    if (!said) process_.argv.emplace_back(flag);
  }
  for (const std::string& flag : options.flags) process_.argv.push_back(flag);
  if (!options.config.empty()) {
    config_path_ = absl::StrCat(folder_, "/berthd.toml");
    std::ofstream(config_path_) << options.config;
    process_.argv.push_back(absl::StrCat("--config=", config_path_));
  }
  for (const std::string& entry : options.environment) process_.environment.push_back(entry);
  folder_ += "/run";
  Start();
  if (!options.closed_folder) {
    const std::string parent = std::filesystem::path(folder_).parent_path();
    ::chmod(parent.c_str(), 0755);
    ::chmod(folder_.c_str(), 0755);
    ::chmod(absl::StrCat(folder_, "/berthd.sock").c_str(), 0666);
    ::chmod(absl::StrCat(folder_, "/attach.sock").c_str(), 0666);
  }
  if (options.backend != "host") AwaitDrivers();
  // The history's files are opened behind everybody's back, unless there is to be none, or cannot be.
  Eventually([&] { return absl::StrContains(DescribeFds(broker()), "history.db-wal"); }, kHistoryPatience);
  books_at_start_ = TakeBooks();
  for (const auto& [name, pid] : Processes()) memory_at_start_[name] = ResidentBytes(pid);
}

void TestDaemon::Start() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0) Fatal(OsError("pipe2", errno), "berthd");
  const UniqueFd ready(ends[0]);
  UniqueFd given(ends[1]);
  SubprocessOptions process = process_;
  if (!process.listen_fds.empty()) {
    given.reset(::fcntl(given.get(), F_DUPFD_CLOEXEC, static_cast<int>(3 + process.listen_fds.size())));
    if (!given) Fatal(OsError("fcntl", errno), "berthd");
  }
  process.argv.push_back(absl::StrCat("--ready-fd=", given.get()));
  process.inherited_fd = given.get();
  vault_.emplace(Subprocess::Start(process));
  given.reset();
  AwaitReady(ready.get());
}

void TestDaemon::StartAgain(const std::vector<ListenFd>& kept) {
  const bool gone = Eventually([&] {
    return ProcessesWith("berthd", absl::StrCat("--folder=", folder_)).empty() && vault_->IsGone();
  });
  if (!gone) Fatal(absl::DeadlineExceededError("processes are left"), folder_);
  vault_.reset();
  process_.listen_fds = kept;
  Start();
  process_.listen_fds.clear();
  stopped_ = false;
}

void TestDaemon::AwaitDrivers() {
  const v1::ListDevicesResponse devices = Must(inspector().ListDevices());
  for (const v1::Device& device : devices.devices()) {
    absl::StatusOr<Block> block = Block::Allocate(admin_session(), {.bytes = Bytes(1), .device = device.ordinal()});
    // There is nobody to wait for.
    if (IsRefusal(block.status(), Reason::kDeviceStopped)) continue;
    Must(Must(std::move(block)).Free());
  }
  const bool back = BooksBecome([](const Books& books) { return books.blocks == 0 && books.retired == 0; });
  if (!back) Fatal(absl::DeadlineExceededError("a freed block stays"), folder_);
}

// One that was abandoned may be about to start a broker, and that another vault.
void TestDaemon::KillWhatIsLeft() {
  const bool ended = Eventually([&] {
    const std::vector<ChildInfo> left = ProcessesWith("berthd", absl::StrCat("--folder=", folder_));
    for (const ChildInfo& process : left) ::kill(process.pid, SIGKILL);
    return left.empty();
  });
  EXPECT_TRUE(ended) << "processes of " << folder_ << " are left";
}

TestDaemon::~TestDaemon() {
  stopped_ ? KillWhatIsLeft() : Stop();
  std::filesystem::remove_all(std::filesystem::path(folder_).parent_path());
}

std::map<std::string, pid_t> TestDaemon::Processes() const {
  std::map<std::string, pid_t> processes = {{"vault", vault_pid()}};
  for (const ChildInfo& child : Children()) processes[child.name] = child.pid;
  return processes;
}

std::vector<ChildInfo> TestDaemon::Children() const {
  std::vector<ChildInfo> children = ProcessesWith("berthd", absl::StrCat("--folder=", folder_));
  std::erase_if(children, [vault = vault_pid()](const ChildInfo& child) { return child.pid == vault; });
  return children;
}

pid_t TestDaemon::vault_pid() const {
  if (IsAlive(vault_->pid())) return vault_->pid();
  std::ifstream lock(folder_ + "/berthd.lock");
  pid_t pid = 0;
  lock >> pid;
  return pid;
}

void TestDaemon::KillVault() {
  const pid_t before = vault_pid();
  if (::kill(before, SIGKILL) < 0) Fatal(OsError("kill", errno), "vault");
  AwaitVaultAfter(before);
}

void TestDaemon::AwaitVaultAfter(pid_t before) {
  const bool followed = Eventually([&] { return vault_pid() != before && IsAlive(vault_pid()); });
  if (!followed) Fatal(absl::DeadlineExceededError("no vault follows"), folder_);
}

void TestDaemon::KillBroker() {
  const pid_t before = broker();
  if (::kill(before, SIGKILL) < 0) Fatal(OsError("kill", errno), "broker");
  AwaitBrokerAfter(before);
}

void TestDaemon::AwaitBrokerAfter(pid_t before) {
  const auto is_next = [before](const ChildInfo& child) { return child.name == kBrokerName && child.pid != before; };
  const bool followed = Eventually([&] {
    const std::vector<ChildInfo> children = Children();
    return std::any_of(children.begin(), children.end(), is_next);
  });
  if (!followed) Fatal(absl::DeadlineExceededError("no broker follows"), folder_);
}

void TestDaemon::KillVaultAndBroker() {
  // It shall not start another broker, nor that one another vault.
  const pid_t vault = vault_pid();
  ::kill(vault, SIGSTOP);
  ::kill(broker(), SIGKILL);
  ::kill(vault, SIGKILL);
  stopped_ = true;
}

pid_t TestDaemon::broker() const {
  for (const ChildInfo& child : Children()) {
    if (child.name == kBrokerName) return child.pid;
  }
  Fatal(absl::NotFoundError("no broker"), folder_);
}

std::vector<pid_t> TestDaemon::workers() const {
  std::vector<pid_t> pids;
  for (const ChildInfo& child : Children()) {
    if (absl::StartsWith(child.name, kWorkerName)) pids.push_back(child.pid);
  }
  return pids;
}

std::vector<pid_t> TestDaemon::context_workers() const {
  std::vector<pid_t> pids;
  for (const ChildInfo& child : Children()) {
    if (absl::StartsWith(child.name, kContextWorkerName)) pids.push_back(child.pid);
  }
  return pids;
}

std::shared_ptr<Session> TestDaemon::admin_session() {
  if (admin_ == nullptr || !admin_->status().ok()) {
    admin_ = nullptr;
    absl::StatusOr<std::shared_ptr<Session>> session;
    Eventually([&] {
      session = Session::Open({.folder = folder_, .label = "test", .admin = true, .always_new = true});
      return !absl::IsUnavailable(session.status());
    });
    admin_ = Must(std::move(session), "the test's own session");
  }
  return admin_;
}

Inspector TestDaemon::inspector() { return Inspector(admin_session()); }

Books TestDaemon::TakeBooks() {
  // The daemon serves while its workers are still on their way, and a process has no name of its own at
  // first.
  const auto all_named = [&] {
    const std::vector<ChildInfo> children = Children();
    return std::all_of(children.begin(), children.end(),
                       [](const ChildInfo& child) { return absl::StartsWith(child.name, "berth-"); });
  };
  if (!Eventually(all_named)) Fatal(absl::DeadlineExceededError("processes without a name"), folder_);
  absl::StatusOr<Books> account;
  // A broker that died takes the session along; the next one serves a new one.
  Eventually([&] {
    account = ReadBooks(inspector());
    return !absl::IsUnavailable(account.status());
  });
  Books books = Must(std::move(account), "books");
  // What the broker has put into custody by then is on its way to the vault, which sleeps when it has read it all.
  const auto asleep = [&] {
    const char state = StateOf(vault_pid());
    return state != 'R' && state != 'D';
  };
  if (!Eventually(asleep)) Fatal(absl::DeadlineExceededError("the vault never sleeps"), folder_);
  // ThreadSanitizer reads a program's files, at any time, to see which gRPC it has to overlook.
#ifndef ABSL_HAVE_THREAD_SANITIZER
  for (const auto& [name, pid] : Processes()) books.fds[name] = CountFds(pid);
#endif
  return books;
}

bool TestDaemon::BooksBecome(const std::function<bool(const Books&)>& condition) {
  return Eventually([&] { return condition(TakeBooks()); });
}

void TestDaemon::ExpectBooksBack() {
  const auto same = [&](Books books) {
    // What was on its way at the start is gone.
    for (auto& [name, fds] : books.fds) {
      const auto at_start = books_at_start_.fds.find(name);
      if (at_start != books_at_start_.fds.end()) fds = std::max(fds, at_start->second);
    }
    if (books == books_at_start_) return true;
    // The test's own session may have more connections than at the start.
    admin_ = nullptr;
    return false;
  };
  if (!BooksBecome(same)) {
    std::string text = absl::StrCat("books at the start: ", Describe(books_at_start_),
                                    "\nbooks now: ", Describe(TakeBooks()));
    for (const auto& [name, pid] : Processes())
      absl::StrAppend(&text, "\n  fds of ", name, ":\n", DescribeFds(pid));
    ADD_FAILURE() << text;
  }
#ifndef BERTH_SANITIZED
  for (const auto& [name, pid] : Processes()) {
    EXPECT_LE(ResidentBytes(pid), memory_at_start_[name] + kMemorySlack) << "memory of " << name;
  }
#endif
}

void TestDaemon::Stop() {
  stopped_ = true;
  const std::vector<ChildInfo> children = Children();
  const pid_t vault = vault_pid();
  const absl::Time begin = absl::Now();
  ::kill(vault, SIGTERM);
  if (vault == vault_->pid()) {
    EXPECT_EQ(vault_->Wait(), 0) << "exit code of berthd";
  } else {
    EXPECT_TRUE(Eventually([&] { return !IsAlive(vault); }));
  }
  std::cout << "stopped in " << absl::Now() - begin << std::endl;
  // On a busy machine what is killed may take longer to be gone than a vault waits.
  const auto gone = [](const ChildInfo& child) { return !IsAlive(child.pid); };
  Eventually([&] { return std::all_of(children.begin(), children.end(), gone); });
  for (const ChildInfo& child : children) EXPECT_FALSE(IsAlive(child.pid)) << child.name << " is left";
  for (const char* const name : kSockets) {
    EXPECT_NE(::access(absl::StrCat(folder_, "/", name).c_str(), F_OK), 0) << name << " is left";
  }
}

}  // namespace berth::testing
