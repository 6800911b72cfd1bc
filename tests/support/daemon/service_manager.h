// ServiceManager plays the service manager that starts the daemon, by systemd's protocol. It receives the daemon's
// messages on its own socket, stores the fds under their names, and restarts the daemon with them.
//
//   ServiceManager manager;
//   TestDaemon daemon({.environment = manager.environment()});
//   ...
//   daemon.KillSupervisorAndBroker();
//   daemon.StartAgain(manager.HandOver());

#ifndef TESTS_SUPPORT_DAEMON_SERVICE_MANAGER_H_
#define TESTS_SUPPORT_DAEMON_SERVICE_MANAGER_H_

#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"
#include "common/os/unique_fd.h"
#include "tests/support/subprocess.h"

namespace berth::testing {

// Thread-safe. As systemd, it stores a file once, whatever its names, and closes an fd that hangs up unless instructed
// otherwise.
class ServiceManager {
 public:
  // Stores at most `limit` fds.
  explicit ServiceManager(size_t limit = 1024);
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;
  ~ServiceManager();

  // Environment of the daemon that it starts.
  std::vector<std::string> environment() const;

  // Returns the names of the stored fds, in the order of their arrival.
  std::vector<std::string> names() const ABSL_LOCKS_EXCLUDED(mu_);
  // Counts the names that begin with `prefix`.
  size_t Count(absl::string_view prefix) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns all messages received, except barriers.
  std::vector<std::string> heard() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns a duplicate of the fd stored under `name`.
  UniqueFd Find(const std::string& name) const ABSL_LOCKS_EXCLUDED(mu_);

  // Returns duplicates for the start of a daemon. They are valid until the next call, or until an fd is taken back.
  std::vector<ListenFd> HandOver() const ABSL_LOCKS_EXCLUDED(mu_);
  // Closes the fds whose name satisfies `is_lost`.
  void Lose(const std::function<bool(const std::string& name)>& is_lost) ABSL_LOCKS_EXCLUDED(mu_);
  // Stores another fd.
  void Store(const std::string& name, UniqueFd fd) ABSL_LOCKS_EXCLUDED(mu_);

  // Stops receiving until Resume(); messages wait in the socket.
  void Pause() ABSL_LOCKS_EXCLUDED(mu_);
  void Resume() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct StoredFd {
    std::string name;
    UniqueFd fd;
  };

  void Run();
  void Hear(const std::string& message, std::vector<UniqueFd> fds) ABSL_LOCKS_EXCLUDED(mu_);

  const size_t limit_;
  std::string path_;
  UniqueFd socket_;
  UniqueFd stop_;

  mutable Mutex mu_;
  std::vector<StoredFd> stored_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> heard_ ABSL_GUARDED_BY(mu_);
  bool paused_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_DAEMON_SERVICE_MANAGER_H_
