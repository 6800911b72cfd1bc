// The servers of the benchmarks, each in a separate process: a daemon, and the bare echo that serves as its reference.

#ifndef TESTS_BENCH_SERVERS_H_
#define TESTS_BENCH_SERVERS_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/child_process.h"

namespace berth::bench {

// The programs that benchmarks start, and the daemons' flags.
struct Programs {
  std::string berthd;
  std::string echo_server;
  // The `berth` command.
  std::string berth;
  // The bench_client program.
  std::string client;
  // The daemon's --backend.
  std::string backend = "host";
};

// A new folder, removed with its content when destroyed. Its path is short enough for sockets.
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

// A server that reported it is ready. Destroying it stops the server and waits for its end.
class Server {
 public:
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The folder of its sockets.
  const std::string& folder() const { return folder_.path(); }
  int pid() const { return process_.pid(); }
  // Returns the daemon's current supervisor: the process that was started, or a replacement. Errors: kNotFound while
  // there is none.
  absl::StatusOr<pid_t> FindSupervisor() const;
  // Returns the daemon's current broker. Errors: kNotFound while there is none.
  absl::StatusOr<pid_t> FindBroker() const;
  // Stops the server and waits for its end. Returns the exit code, or 128 + the signal, of the started process. Call
  // once.
  int Stop();

 private:
  friend absl::StatusOr<std::unique_ptr<Server>> StartServer(TemporaryFolder folder,
                                                             std::vector<std::string> command,
                                                             std::vector<std::string> environment, int end_signal);
  Server(TemporaryFolder folder, ChildProcess process, int end_signal)
      : folder_(std::move(folder)), process_(std::move(process)), end_signal_(end_signal) {}

  const TemporaryFolder folder_;
  ChildProcess process_;
  const int end_signal_;
  bool stopped_ = false;
};

// Starts a daemon with a new folder. `flags` follow those of `programs`; `environment` holds its BERTH_ variables.
absl::StatusOr<std::unique_ptr<Server>> StartDaemon(const Programs& programs,
                                                    std::vector<std::string> flags = {},
                                                    std::vector<std::string> environment = {});

// Starts a daemon that sees no pid of its clients. Stop() kills it. Requires: root.
absl::StatusOr<std::unique_ptr<Server>> StartDaemonInPidNamespace(const Programs& programs,
                                                                  std::vector<std::string> environment = {});

// Lets users outside the daemon's groups use the sockets in its folder.
void OpenToAllUsers(const std::string& folder);

// Kills the process. Returns the time of its end, by MonotonicNanoseconds().
absl::StatusOr<int64_t> KillAndAwait(pid_t pid);

// Starts an echo server with `flags`; its socket is EchoSocket() of its folder.
absl::StatusOr<std::unique_ptr<Server>> StartEcho(const Programs& programs,
                                                  const std::vector<std::string>& flags = {});
std::string EchoSocket(const std::string& folder);

}  // namespace berth::bench

#endif  // TESTS_BENCH_SERVERS_H_
