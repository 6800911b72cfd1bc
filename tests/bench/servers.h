// The servers that benchmarks talk to, each in a process of its own: a daemon, and the bare echo that is its
// yardstick.

#ifndef TESTS_BENCH_SERVERS_H_
#define TESTS_BENCH_SERVERS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/child_process.h"

namespace berth::bench {

// The programs that benchmarks start, and what the daemons among them are told.
struct Programs {
  std::string berthd;
  std::string echo_server;
  // The command line.
  std::string berth;
  // bench_client.
  std::string client;
  // Of the daemon's --backend.
  std::string backend = "host";
};

// A folder of its own, removed with all it holds when destroyed. Its path is short
// enough for sockets.
class TemporaryFolder {
 public:
  static absl::StatusOr<TemporaryFolder> Make(const std::string& under = "/tmp");
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// A server that said it is ready. Asked to stop when destroyed, and waited for.
class Server {
 public:
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Where its sockets are.
  const std::string& folder() const { return folder_.path(); }
  int pid() const { return process_.pid(); }
  // The daemon's vault that there is now: the process that was started, or one that followed it. Errors: kNotFound
  // while there is none.
  absl::StatusOr<pid_t> FindVault() const;
  // Asks it to stop and waits for that. Returns the exit code, or 128 + the signal, of what was started. Once.
  int Stop();

 private:
  friend absl::StatusOr<std::unique_ptr<Server>> StartServer(TemporaryFolder folder,
                                                             std::vector<std::string> command,
                                                             std::vector<std::string> environment);
  Server(TemporaryFolder folder, ChildProcess process)
      : folder_(std::move(folder)), process_(std::move(process)) {}

  const TemporaryFolder folder_;
  ChildProcess process_;
  bool stopped_ = false;
};

// Starts a daemon with a folder of its own. `flags` follow those of `programs`; `environment` is its BERTH_
// variables.
absl::StatusOr<std::unique_ptr<Server>> StartDaemon(const Programs& programs,
                                                    std::vector<std::string> flags = {},
                                                    std::vector<std::string> environment = {});

// Starts an echo server with `flags`; its socket is EchoSocket() of its folder.
absl::StatusOr<std::unique_ptr<Server>> StartEcho(const Programs& programs,
                                                  const std::vector<std::string>& flags = {});
std::string EchoSocket(const std::string& folder);

}  // namespace berth::bench

#endif  // TESTS_BENCH_SERVERS_H_
