#include "tests/support/daemon/test_daemon.h"

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
#include <sstream>
#include <string>
#include <utility>

#include <berth/block.h>
#include <berth/bytes.h>
#include <berth/error.h>

#include "absl/base/config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/history.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/admin/history.h"
#include "common/os/os_error.h"
#include "daemon/ledger/ledger_file.h"
#include "daemon/supervisor/fd_store/node_record.h"
#include "gtest/gtest.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr char kBrokerName[] = "berth-broker";
constexpr char kWorkerName[] = "berth-worker";
constexpr char kContextWorkerName[] = "berth-context";
constexpr const char* kSockets[] = {"berthd.sock", "admin.sock", "attach.sock", "observer.sock",
                                    "admin-attach.sock"};

std::string MakeFolder() {
  // A socket's path must fit into 108 bytes; a test's own temporary folder often leaves too few.
  char path[] = "/tmp/berth-test-XXXXXX";
  if (::mkdtemp(path) == nullptr) Fatal(OsError("mkdtemp", errno), path);
  return path;
}

// Waits until the daemon serves or has ended. Returns whether it serves.
bool AwaitReady(int fd) {
  std::string text;
  char bytes[16];
  for (ssize_t got; (got = ::read(fd, bytes, sizeof(bytes))) > 0;)
    text.append(bytes, static_cast<size_t>(got));
  return text == "ready\n";
}

}  // namespace

TestDaemon::TestDaemon(const std::string& parent, bool stopped) : folder_(parent + "/run"), stopped_(stopped) {}

TestDaemon::TestDaemon(const TestDaemonOptions& options) : TestDaemon(MakeFolder(), /*stopped=*/true) {
  const std::string parent = std::filesystem::path(folder_).parent_path();
  guard_.emplace(Subprocess::Start({.argv = {ProgramPath("tests/support/daemon/daemon_guard"), parent},
                                    .outlives = true,
                                    .of_operator = true}));
  process_ = {.argv = {options.program[0] == '/' ? options.program : ProgramPath(options.program),
                       absl::StrCat("--folder=", folder_), "--backend=" + options.backend},
              .environment = {"BERTH_GPU_TEST_CONCURRENCY", "REALIZAR_GPU_TEST_CONCURRENCY", "BERTH_SESSION"},
              .pid_namespace = options.pid_namespace,
              .user_namespace = options.user_namespace,
              .errors = options.errors,
              .error_fd = options.error_fd,
              .fd_limit = options.fd_limit,
              .of_operator = true};
  for (const absl::string_view flag : {"--warm-blocks=0", "--context-idle=100ms"}) {
    const absl::string_view name = flag.substr(0, flag.find('='));
    const bool said = std::any_of(options.flags.begin(), options.flags.end(),
                                  [&](const std::string& other) { return absl::StartsWith(other, name); });
    if (!said) process_.argv.emplace_back(flag);
  }
  if (OtherUser().has_value()) process_.argv.push_back(absl::StrCat("--client-group=", kClientsGroup));
  for (const std::string& flag : options.flags) process_.argv.push_back(flag);
  if (!options.config.empty()) {
    config_path_ = absl::StrCat(parent, "/berthd.toml");
    std::ofstream(config_path_) << options.config;
    process_.argv.push_back(absl::StrCat("--config=", config_path_));
  }
  for (const std::string& entry : options.environment) process_.environment.push_back(entry);
  if (!Start()) Fatal(absl::UnavailableError("ended before it served"), "berthd");
  stopped_ = false;
  if (!options.closed_folder) OpenToClients();
  if (options.backend != "host") AwaitDrivers();
  // The daemon opens the history's files asynchronously, and answers a query after that. A daemon without a history
  // refuses the query.
  ListHistory(admin_session(), {}, 1).IgnoreError();
  accounts_at_start_ = TakeAccounts();
  for (const auto& [name, pid] : Processes()) memory_at_start_[name] = ResidentBytes(pid);
}

void TestDaemon::OpenToClients() {
  const std::string parent = std::filesystem::path(folder_).parent_path();
  if (OtherUser().has_value()) {
    // Clients create their own files in the parent of the daemon's folder, and cannot rename the folder.
    if (::chown(parent.c_str(), 0, kClientsGroup) < 0 || ::chmod(parent.c_str(), 01770) < 0) {
      Fatal(OsError("chown, chmod", errno), parent);
    }
    return;
  }
  ::chmod(parent.c_str(), 0755);
  ::chmod(folder_.c_str(), 0755);
  for (const char* const socket : {"/berthd.sock", "/attach.sock"}) ::chmod((folder_ + socket).c_str(), 0666);
}

bool TestDaemon::Start() {
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
  supervisor_.emplace(Subprocess::Start(process));
  given.reset();
  return AwaitReady(ready.get());
}

void TestDaemon::StartAgain(const std::vector<ListenFd>& stored) {
  if (!TryStartAgain(stored)) Fatal(absl::UnavailableError("ended before it served"), "berthd");
}

bool TestDaemon::TryStartAgain(const std::vector<ListenFd>& stored) {
  const bool gone = Eventually([&] { return supervisor_->IsGone(); }) && AwaitNone();
  if (!gone) Fatal(absl::DeadlineExceededError("processes are left"), folder_);
  supervisor_.reset();
  process_.listen_fds = stored;
  const bool serves = Start();
  process_.listen_fds.clear();
  stopped_ = !serves;
  return serves;
}

void TestDaemon::ForgetBoot() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  const std::string path = folder_ + "/record";
  std::ostringstream record;
  record << std::ifstream(path, std::ios::binary).rdbuf();
  std::string bytes = record.str();
  const size_t at = bytes.find(boot);
  if (boot.empty() || at == std::string::npos) Fatal(absl::NotFoundError("no boot id"), path);
  bytes[at] = boot[0] == '0' ? '1' : '0';
  std::ofstream(path, std::ios::binary | std::ios::trunc) << NodeRecord::Seal(bytes);
  // Without a ledger of this boot, the record is believed.
  const std::string ledger = folder_ + "/ledger";
  LedgerIdentity identity = Must(LedgerFile::ReadIdentity(ledger));
  identity.boot = bytes.substr(at, boot.size());
  Must(LedgerFile::Create(ledger, identity));
}

void TestDaemon::AwaitDrivers() {
  const v1::ListDevicesResponse devices = Must(inspector().ListDevices());
  for (const v1::Device& device : devices.devices()) {
    absl::StatusOr<Block> block = Block::Allocate(admin_session(), {.bytes = Bytes(1), .device = device.ordinal()});
    // A stopped device has no worker to wait for.
    if (IsRefusal(block.status(), Reason::kDeviceStopped)) continue;
    Must(Must(std::move(block)).Free());
  }
  const bool back =
      AccountsBecome([](const Accounts& accounts) { return accounts.blocks == 0 && accounts.retired == 0; });
  if (!back) Fatal(absl::DeadlineExceededError("a freed block stays"), folder_);
}

// An abandoned daemon may be about to start a broker, and that broker a supervisor.
void TestDaemon::KillWhatIsLeft() {
  // A supervisor that lives starts what is killed here again.
  if (supervisor_.has_value() && !supervisor_->IsGone()) supervisor_->Signal(SIGKILL);
  EXPECT_TRUE(AwaitNone(SIGKILL)) << "processes of " << folder_ << " are left";
}

bool TestDaemon::AwaitNone(int signal) const {
  // A look misses a process that was forked meanwhile, and one that is about to run its program.
  int looks_without = 0;
  return Eventually([&] {
    const std::vector<ChildInfo> left = ProcessesWith("berthd", absl::StrCat("--folder=", folder_));
    for (const ChildInfo& process : left) ::kill(process.pid, signal);
    looks_without = left.empty() ? looks_without + 1 : 0;
    return looks_without == 3;
  });
}

TestDaemon::~TestDaemon() {
  stopped_ ? KillWhatIsLeft() : Stop();
  std::filesystem::remove_all(std::filesystem::path(folder_).parent_path());
}

std::map<std::string, pid_t> TestDaemon::Processes() const {
  std::map<std::string, pid_t> processes = {{"supervisor", supervisor_pid()}};
  for (const ChildInfo& child : Children()) processes[child.name] = child.pid;
  return processes;
}

std::vector<ChildInfo> TestDaemon::Children() const {
  std::vector<ChildInfo> children = ProcessesWith("berthd", absl::StrCat("--folder=", folder_));
  std::erase_if(children, [supervisor = supervisor_pid()](const ChildInfo& child) { return child.pid == supervisor; });
  return children;
}

pid_t TestDaemon::supervisor_pid() const {
  if (IsAlive(supervisor_->pid())) return supervisor_->pid();
  // A process that takes the lock over empties the file before it writes its pid.
  pid_t pid = 0;
  const bool named = Eventually([&] {
    std::ifstream lock(folder_ + "/berthd.lock");
    return static_cast<bool>(lock >> pid) && pid > 0;
  });
  if (!named) Fatal(absl::DeadlineExceededError("berthd.lock names no process"), folder_);
  return pid;
}

void TestDaemon::KillSupervisor() {
  const pid_t before = supervisor_pid();
  if (::kill(before, SIGKILL) < 0) Fatal(OsError("kill", errno), "supervisor");
  AwaitSupervisorAfter(before);
}

void TestDaemon::AwaitSupervisorAfter(pid_t before) {
  const bool followed = Eventually([&] { return supervisor_pid() != before && IsAlive(supervisor_pid()); });
  if (!followed) Fatal(absl::DeadlineExceededError("no supervisor follows"), folder_);
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

pid_t TestDaemon::StopBroker() {
  const pid_t pid = broker();
  if (::kill(pid, SIGSTOP) < 0) Fatal(OsError("kill", errno), "broker");
  if (!Eventually([pid] { return StateOf(pid) == 'T'; })) {
    Fatal(absl::DeadlineExceededError("the broker does not stop"), folder_);
  }
  return pid;
}

void TestDaemon::KillSupervisorAndBroker() {
  // Stops one, so that it does not replace the other. That is the parent: the kernel continues a stopped process whose
  // parent ends, as a member of an orphaned process group.
  pid_t parent = supervisor_pid();
  pid_t child = broker();
  const std::vector<ChildInfo> children = ChildrenOf(child);
  const auto is_parent = [parent](const ChildInfo& process) { return process.pid == parent; };
  if (std::any_of(children.begin(), children.end(), is_parent)) std::swap(parent, child);
  ::kill(parent, SIGSTOP);
  ::kill(child, SIGKILL);
  ::kill(parent, SIGKILL);
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
      session = Session::Open(
          {.folder = folder_, .label = "test", .admin = true, .always_new = true, .timeout = kPatience});
      return !absl::IsUnavailable(session.status());
    });
    admin_ = Must(std::move(session), "the test's own session");
  }
  return admin_;
}

Inspector TestDaemon::inspector() { return Inspector(admin_session()); }

// A broker that died ends its sessions; the next incarnation does not know them.
template <typename Ask>
auto TestDaemon::AskNext(Ask ask) -> decltype(ask(inspector())) {
  decltype(ask(inspector())) answer;
  Eventually([&] {
    answer = ask(inspector());
    return !absl::IsUnavailable(answer.status()) && !absl::IsUnauthenticated(answer.status());
  });
  return answer;
}

v1::Node TestDaemon::GetNode() {
  return Must(AskNext([](const Inspector& inspector) { return inspector.GetNode(); }));
}

void TestDaemon::RevokePermits() {
  const v1::ListPermitsResponse out = Must(inspector().ListPermits());
  for (const v1::Permit& permit : out.permits()) {
    EXPECT_TRUE(Ok(inspector().RevokePermit(PermitId(permit.id()))));
  }
}

Accounts TestDaemon::TakeAccounts() {
  // The daemon serves before its workers are ready, and a new process has no name of its own at first. Processes that
  // change while they are counted are counted again.
  Accounts accounts;
  const auto counted = [&] {
    const std::map<std::string, pid_t> processes = Processes();
    const bool named = std::all_of(processes.begin(), processes.end(), [](const auto& process) {
      return process.first == "supervisor" || absl::StartsWith(process.first, "berth-");
    });
    if (!named) return false;
    // A process that is still to execute its program has its launcher's name.
    const std::vector<ChildInfo> children = Children();
    const auto is_launcher = [](const ChildInfo& child) { return child.name == "berth-launcher"; };
    if (std::count_if(children.begin(), children.end(), is_launcher) > 1) return false;
    accounts = Must(AskNext([](const Inspector& inspector) { return ReadAccounts(inspector); }), "accounts");
    // Fds that the broker has put into the fd store may be on their way to the supervisor, which sleeps when it has
    // read all.
    const char state = StateOf(processes.at("supervisor"));
    if (state == 'R' || state == 'D') return false;
    // ThreadSanitizer reads a program's files at any time, to find the gRPC calls that it must ignore.
#ifndef ABSL_HAVE_THREAD_SANITIZER
    for (const auto& [name, pid] : processes) accounts.fds[name] = CountFds(pid);
#endif
    return Processes() == processes;
  };
  if (!Eventually(counted)) {
    Fatal(absl::DeadlineExceededError("processes without a name, or a supervisor that never sleeps"), folder_);
  }
  return accounts;
}

bool TestDaemon::AccountsBecome(const std::function<bool(const Accounts&)>& condition) {
  return Within(kPatience, [&] { return condition(TakeAccounts()); });
}

::testing::AssertionResult TestDaemon::AccountsReturnTo(const Accounts& before) {
  const auto same = [&](Accounts accounts) {
    // Fds that were in transit then are closed.
    for (auto& [name, fds] : accounts.fds) {
      if (const auto then = before.fds.find(name); then != before.fds.end()) fds = std::max(fds, then->second);
    }
    if (accounts == before) return true;
    // The test's own session may have more connections than then.
    admin_ = nullptr;
    return false;
  };
  if (AccountsBecome(same)) return ::testing::AssertionSuccess();
  std::string text =
      absl::StrCat("accounts before: ", Describe(before), "\naccounts now: ", Describe(TakeAccounts()));
  for (const auto& [name, pid] : Processes()) absl::StrAppend(&text, "\n  fds of ", name, ":\n", DescribeFds(pid));
  return ::testing::AssertionFailure() << text;
}

void TestDaemon::ExpectAccountsBack() {
  EXPECT_TRUE(AccountsReturnTo(accounts_at_start_));
#ifndef BERTH_SANITIZED
  for (const auto& [name, pid] : Processes()) {
    EXPECT_LE(ResidentBytes(pid), memory_at_start_[name] + kMemorySlack) << "memory of " << name;
  }
#endif
}

void TestDaemon::Stop() {
  stopped_ = true;
  const std::vector<ChildInfo> children = Children();
  const pid_t supervisor = supervisor_pid();
  const absl::Time begin = absl::Now();
  ::kill(supervisor, SIGTERM);
  if (supervisor == supervisor_->pid()) {
    EXPECT_EQ(supervisor_->Wait(), 0) << "exit code of berthd";
  } else {
    EXPECT_TRUE(Eventually([&] { return !IsAlive(supervisor); }));
  }
  std::cout << "stopped in " << absl::Now() - begin << std::endl;
  // On a busy machine a killed process may take longer to end than a supervisor waits.
  const auto gone = [](const ChildInfo& child) { return !IsAlive(child.pid); };
  Eventually([&] { return std::all_of(children.begin(), children.end(), gone); });
  for (const ChildInfo& child : children) EXPECT_FALSE(IsAlive(child.pid)) << child.name << " is left";
  for (const char* const name : kSockets) {
    EXPECT_NE(::access(absl::StrCat(folder_, "/", name).c_str(), F_OK), 0) << name << " is left";
  }
}

}  // namespace berth::testing
