// TestDaemon: a berthd that a test owns, by default on the host backend, in a new folder under /tmp.

#ifndef TESTS_SUPPORT_DAEMON_TEST_DAEMON_H_
#define TESTS_SUPPORT_DAEMON_TEST_DAEMON_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <berth/session.h>

#include "client/sdk/admin/inspector.h"
#include "gtest/gtest.h"
#include "tests/support/accounts.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"

namespace berth::testing {

struct TestDaemonOptions {
  // A program that takes berthd's flags: a path in the test's data, or an absolute path.
  std::string program = "daemon/berthd";
  // Flags added to --folder, --backend, and to the two flags that make the accounting reproducible: --warm-blocks=0 and
  // --context-idle=100ms.
  std::vector<std::string> flags;
  // The text of its configuration file; empty for no file.
  std::string config;
  // Added to an environment without the concurrency variables.
  std::vector<std::string> environment;
  bool pid_namespace = false;
  bool user_namespace = false;
  // Leaves the folder's mode unchanged; otherwise other users may reach the sockets of clients.
  bool closed_folder = false;
  std::string backend = "host";
  // As SubprocessOptions::errors and error_fd.
  std::string errors;
  int error_fd = -1;
  // File descriptor limit of each of its processes; 0 for the test's own limit.
  uint64_t fd_limit = 0;
};

// Not thread-safe. Destroying it stops the daemon if the test did not, and removes the folder. Where the test program
// ends abnormally, daemon_guard does this.
class TestDaemon {
 public:
  // Starts the daemon, waits until it serves, and records its accounting. Fatal where that fails.
  explicit TestDaemon(const TestDaemonOptions& options = {});
  TestDaemon(const TestDaemon&) = delete;
  TestDaemon& operator=(const TestDaemon&) = delete;
  ~TestDaemon();

  const std::string& folder() const { return folder_; }
  // Path of its configuration file, where it has one.
  const std::string& config_path() const { return config_path_; }
  // The supervisor that was started first.
  Subprocess& supervisor() { return *supervisor_; }
  // Returns the pid of the current supervisor: the first one or a later one.
  pid_t supervisor_pid() const;
  // Sends SIGKILL and waits for the next supervisor; the daemon's clients need not wait for it. Requires: the broker
  // serves, e.g. after GetNode(). One that is starting starts no supervisor.
  void KillSupervisor();
  void KillBroker();
  // The second half of each, for a test that sends the signal itself: waits until another process than `before` serves.
  void AwaitSupervisorAfter(pid_t before);
  void AwaitBrokerAfter(pid_t before);
  // Stops the broker by SIGSTOP, and waits until it has stopped: its threads go on until the first one has seen the
  // signal. A SIGCONT to the returned process continues it.
  pid_t StopBroker();
  // Kills both, so that only StartAgain() starts new ones.
  void KillSupervisorAndBroker();
  // Restarts the daemon in the same way, as a service manager that stored `stored` does, once none of its processes is
  // left. Waits until it serves. Requires: the daemon has died, or was stopped.
  void StartAgain(const std::vector<ListenFd>& stored = {});
  // As StartAgain(). Returns whether it serves; where it has ended instead, it can be started again.
  bool TryStartAgain(const std::vector<ListenFd>& stored = {});
  // Sends `signal`, 0 for none, to each process of the daemon until none is left. Returns whether none is left.
  bool AwaitNone(int signal = 0) const;
  // Marks the state that a stopped or killed daemon left as that of another boot: the next daemon resumes nothing.
  void ForgetBoot();
  // Replaces or adds a flag for the next StartAgain(): the last flag with the same name counts.
  void AddFlag(const std::string& flag) { process_.argv.push_back(flag); }
  // Pids of the daemon's other processes: the broker's, fatal where there is none; those of the running workers and
  // context workers.
  pid_t broker() const;
  std::vector<pid_t> workers() const;
  std::vector<pid_t> context_workers() const;

  // An inspector on admin.sock. Its session is part of the accounting at the start; after a broker's death it is opened
  // anew.
  Inspector inspector();
  std::shared_ptr<Session> admin_session();
  // Returns the node as the current daemon reports it. After a reset the test's own session may have ended unnoticed.
  v1::Node GetNode();

  // Revokes every permit that is out now.
  void RevokePermits();

  // Reads the current accounting. Fatal where the daemon does not answer.
  Accounts TakeAccounts();
  const Accounts& accounts_at_start() const { return accounts_at_start_; }
  // Expects the accounting to return to its values at the start, fd for fd, and the daemon's memory to have grown by no
  // more than kMemorySlack. Closing is asynchronous, so it waits.
  void ExpectAccountsBack();
  // Waits until the accounting is what it was `before`, which TakeAccounts() returned; closing is asynchronous. Failure
  // describes both.
  ::testing::AssertionResult AccountsReturnTo(const Accounts& before);
  // Waits until the accounting satisfies `condition`. Returns whether it did.
  bool AccountsBecome(const std::function<bool(const Accounts&)>& condition);

  // Sends SIGTERM and expects the clean end that is promised: exit code 0, no process and no socket left. Prints the
  // time that it took: the supervisor's own limits sum to less than a second (daemon/supervisor/supervisor.cc).
  void Stop();

  // Marks the daemon's end as intended: the test has ended or will kill it, and no clean stop is expected. The
  // destructor kills remaining processes.
  void Abandon() { stopped_ = true; }

  // Memory that allocators and gRPC retain once they have had it; a leak of a test's clients would exceed it.
  static constexpr uint64_t kMemorySlack = 48 << 20;

 private:
  // The first step of the other constructor: the destructor cleans up even where a later step fails.
  TestDaemon(const std::string& parent, bool stopped);
  // Returns the answer of the daemon that serves now. The error that an ended session gets is no answer.
  template <typename Ask>
  auto AskNext(Ask ask) -> decltype(ask(inspector()));
  // Starts the daemon and waits. Returns true once it serves, false where it has ended.
  bool Start();
  // Lets other users reach the sockets of clients.
  void OpenToClients();
  void KillWhatIsLeft();
  // Until every device's worker makes blocks. The driver opens pipes and a socket (@cuda-uvmfd-…) for it before, some
  // while after the daemon serves: counted sooner, each worker that follows would have more fds than the first.
  void AwaitDrivers();
  // All but the supervisor.
  std::vector<ChildInfo> Children() const;
  std::map<std::string, pid_t> Processes() const;

  std::string folder_;
  std::string config_path_;
  // How the daemon is started.
  SubprocessOptions process_;
  std::optional<Subprocess> guard_;
  std::optional<Subprocess> supervisor_;
  std::shared_ptr<Session> admin_;
  Accounts accounts_at_start_;
  std::map<std::string, uint64_t> memory_at_start_;
  bool stopped_ = false;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_DAEMON_TEST_DAEMON_H_
