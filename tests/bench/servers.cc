#include "tests/bench/servers.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"
#include "tests/bench/stopwatch.h"
#include "tests/support/proc.h"

namespace berth::bench {
namespace {

constexpr absl::Duration kStartPatience = absl::Seconds(30);
// In memory, like /run, the usual place of a daemon's folder: on a disk a ledger pays for the journal with every new
// page.
constexpr char kMemoryFolder[] = "/dev/shm";

std::vector<std::string> DaemonCommand(const Programs& programs, const TemporaryFolder& folder) {
  return {programs.berthd, absl::StrCat("--folder=", folder.path()), absl::StrCat("--backend=", programs.backend),
          absl::StrCat("--ready-fd=", kChildPipeFd)};
}

}  // namespace

absl::StatusOr<TemporaryFolder> TemporaryFolder::Make(const std::string& under) {
  std::string path = absl::StrCat(under, "/berth-bench-", std::string(6, 'X'));
  if (::mkdtemp(path.data()) == nullptr) return OsError("mkdtemp", errno);
  return TemporaryFolder(std::move(path));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

Server::~Server() {
  if (!stopped_) Stop();
}

absl::StatusOr<pid_t> Server::FindSupervisor() const {
  pid_t pid = 0;
  std::ifstream(folder() + "/berthd.lock") >> pid;
  if (!testing::IsAlive(pid)) return absl::NotFoundError("the daemon has no supervisor");
  return pid;
}

absl::StatusOr<pid_t> Server::FindBroker() const {
  for (const testing::ChildInfo& process :
       testing::ProcessesWith("berthd", absl::StrCat("--folder=", folder()))) {
    if (process.name == "berth-broker") return process.pid;
  }
  return absl::NotFoundError("the daemon has no broker");
}

void OpenToAllUsers(const std::string& folder) {
  ::chmod(folder.c_str(), 0755);
  for (const char* const socket : {"/berthd.sock", "/attach.sock"}) ::chmod((folder + socket).c_str(), 0666);
}

absl::StatusOr<int64_t> KillAndAwait(pid_t pid) {
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) return OsError("pidfd_open", errno);
  if (::kill(pid, SIGKILL) < 0) return OsError("kill", errno);
  BERTH_RETURN_IF_ERROR(AwaitReadable(pidfd.get(), kStartPatience));
  return MonotonicNanoseconds();
}

int Server::Stop() {
  stopped_ = true;
  if (end_signal_ == SIGKILL) {
    // The pid in the daemon's lock is that of another PID namespace.
    process_.Signal(SIGKILL);
    return process_.Wait();
  }
  // A replaced supervisor is not a child of this process, so waitpid() does not work for it.
  UniqueFd follower;
  if (const absl::StatusOr<pid_t> supervisor = FindSupervisor(); supervisor.ok() && *supervisor != process_.pid()) {
    follower.reset(static_cast<int>(::syscall(SYS_pidfd_open, *supervisor, 0)));
    ::kill(*supervisor, SIGTERM);
  }
  process_.Signal(SIGTERM);
  const int code = process_.Wait();
  if (follower) AwaitReadable(follower.get(), kStartPatience).IgnoreError();
  return code;
}

absl::StatusOr<std::unique_ptr<Server>> StartServer(TemporaryFolder folder, std::vector<std::string> command,
                                                    std::vector<std::string> environment, int end_signal = SIGTERM) {
  BERTH_ASSIGN_OR_RETURN(Pipe ready, MakePipe());
  const std::string name = command[0];
  // The daemon's log is not part of the measurement.
  BERTH_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start({.command = std::move(command),
                                                                    .environment = std::move(environment),
                                                                    .pipe = ready.write.get(),
                                                                    .output = STDERR_FILENO}));
  ready.write.reset();
  BERTH_RETURN_IF_ERROR(AwaitReadable(ready.read.get(), kStartPatience));
  char said = 0;
  if (::read(ready.read.get(), &said, 1) != 1) {
    return absl::InternalError(absl::StrCat(name, " ended with ", process.Wait(), " before it was ready"));
  }
  return std::unique_ptr<Server>(new Server(std::move(folder), std::move(process), end_signal));
}

absl::StatusOr<std::unique_ptr<Server>> StartDaemon(const Programs& programs, std::vector<std::string> flags,
                                                    std::vector<std::string> environment) {
  BERTH_ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::Make(kMemoryFolder));
  std::vector<std::string> command = DaemonCommand(programs, folder);
  command.insert(command.end(), flags.begin(), flags.end());
  return StartServer(std::move(folder), std::move(command), std::move(environment));
}

absl::StatusOr<std::unique_ptr<Server>> StartDaemonInPidNamespace(const Programs& programs,
                                                                  std::vector<std::string> environment) {
  BERTH_ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::Make(kMemoryFolder));
  std::vector<std::string> command = {"/usr/bin/unshare", "--pid", "--mount-proc", "--fork", "--kill-child"};
  for (std::string& word : DaemonCommand(programs, folder)) command.push_back(std::move(word));
  return StartServer(std::move(folder), std::move(command), std::move(environment), SIGKILL);
}

absl::StatusOr<std::unique_ptr<Server>> StartEcho(const Programs& programs, const std::vector<std::string>& flags) {
  BERTH_ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::Make());
  std::vector<std::string> command = {programs.echo_server, EchoSocket(folder.path())};
  command.insert(command.end(), flags.begin(), flags.end());
  return StartServer(std::move(folder), std::move(command), {});
}

std::string EchoSocket(const std::string& folder) { return folder + "/echo.sock"; }

}  // namespace berth::bench
