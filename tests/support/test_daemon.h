// TestDaemon: a berthd of a test's own, as a rule on the host backend, in a folder of its own under /tmp.

#ifndef TESTS_SUPPORT_TEST_DAEMON_H_
#define TESTS_SUPPORT_TEST_DAEMON_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/inspector.h"
#include "client/session.h"
#include "tests/support/books.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"

namespace berth::testing {

struct TestDaemonOptions {
  // One that takes berthd's flags: of the test's data, or by its whole path.
  std::string program = "daemon/berthd";
  // Beside --folder, --backend, and what makes the books come back to the same figures: --warm-blocks=0 and
  // --context-idle=100ms.
  std::vector<std::string> flags;
  // The text of its configuration file; none where empty.
  std::string config;
  // Added to an environment without the concurrency variables.
  std::vector<std::string> environment;
  bool pid_namespace = false;
  bool user_namespace = false;
  // Leave the folder as it is made; otherwise other users may reach the sockets of clients.
  bool closed_folder = false;
  std::string backend = "host";
  // As SubprocessOptions::errors.
  std::string errors;
  // File descriptors of each of its processes; 0 for as many as the test's.
  uint64_t fd_limit = 0;
};

// Not thread-safe. Destroying it stops the daemon if the test did not, and removes the folder. Where the test program
// ends without that, as by an abort, daemon_guard does.
class TestDaemon {
 public:
  // Starts the daemon, waits until it serves, and takes its books. Fatal where that fails.
  explicit TestDaemon(const TestDaemonOptions& options = {});
  TestDaemon(const TestDaemon&) = delete;
  TestDaemon& operator=(const TestDaemon&) = delete;
  ~TestDaemon();

  const std::string& folder() const { return folder_; }
  // Of its configuration file, where it has one.
  const std::string& config_path() const { return config_path_; }
  // The vault that was started first.
  Subprocess& vault() { return *vault_; }
  // The pid of the one that there is: that, or one that followed it.
  pid_t vault_pid() const;
  // SIGKILL; waits until another one has followed, which the daemon's clients need not.
  void KillVault();
  void KillBroker();
  // The second half of each, for who kills by himself: waits until another one than that has followed.
  void AwaitVaultAfter(pid_t before);
  void AwaitBrokerAfter(pid_t before);
  // Both, so that none follows, but for StartAgain().
  void KillVaultAndBroker();
  // What a service manager does that has kept these: once no process of the daemon's is left it is started again, in
  // the same way. Waits until it serves. Requires: it has died.
  void StartAgain(const std::vector<ListenFd>& kept);
  // Pids of the daemon's other processes: the broker's, fatal where there is none; those of the workers and context
  // workers that there are.
  pid_t broker() const;
  std::vector<pid_t> workers() const;
  std::vector<pid_t> context_workers() const;

  // An inspector on admin.sock. Its session is part of the books at the start, and is opened anew after a
  // broker's death.
  Inspector inspector();
  std::shared_ptr<Session> admin_session();

  // The books now. Fatal where the daemon does not say.
  Books TakeBooks();
  const Books& books_at_start() const { return books_at_start_; }
  // Expects the books to become what they were at the start, fd for fd, and the daemon's memory to have grown
  // by no more than kMemorySlack. Closing is asynchronous, so it waits.
  void ExpectBooksBack();
  // Waits until the books satisfy `condition`. Returns whether they did.
  bool BooksBecome(const std::function<bool(const Books&)>& condition);

  // Sends SIGTERM and expects the clean end that is promised: exit code 0, no process and no socket left. Prints how
  // long it took: the vault's own limits come to less than a second (daemon/vault/vault.cc).
  void Stop();

  // The daemon has ended, or will be killed, as the test wanted it: no clean stop is expected of it any more. What is
  // left of it at the end is killed.
  void Abandon() { stopped_ = true; }

  // What allocators and gRPC keep once they have had it; a leak of a test's clients would pass it.
  static constexpr uint64_t kMemorySlack = 48 << 20;

 private:
  // Starts it and waits until it serves.
  void Start();
  void KillWhatIsLeft();
  // Until every device's worker makes blocks. The driver opens pipes and a socket (@cuda-uvmfd-…) for it before, some
  // while after the daemon serves: counted sooner, each worker that follows would have more fds than the first.
  void AwaitDrivers();
  // All but the vault.
  std::vector<ChildInfo> Children() const;
  std::map<std::string, pid_t> Processes() const;

  std::string folder_;
  std::string config_path_;
  // How it is started.
  SubprocessOptions process_;
  std::optional<Subprocess> guard_;
  std::optional<Subprocess> vault_;
  std::shared_ptr<Session> admin_;
  Books books_at_start_;
  std::map<std::string, uint64_t> memory_at_start_;
  bool stopped_ = false;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_TEST_DAEMON_H_
