// ServiceManager plays the one that starts the daemon, by systemd's protocol: it hears what the daemon says on a socket
// of its own, keeps the fds that it is given under their names, and starts the daemon again with them.
//
//   ServiceManager manager;
//   TestDaemon daemon({.environment = manager.environment()});
//   ...
//   daemon.KillVaultAndBroker();
//   daemon.StartAgain(manager.HandOver());

#ifndef TESTS_SUPPORT_SERVICE_MANAGER_H_
#define TESTS_SUPPORT_SERVICE_MANAGER_H_

#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"
#include "common/unique_fd.h"
#include "tests/support/subprocess.h"

namespace berth::testing {

// Thread-safe. As systemd it takes a file once, whatever its names, and closes what hangs up unless told not to.
class ServiceManager {
 public:
  // Keeps at most so many.
  explicit ServiceManager(size_t limit = 1024);
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;
  ~ServiceManager();

  // Of the daemon that it starts.
  std::vector<std::string> environment() const;

  // The names of what it has, in the order in which it came.
  std::vector<std::string> names() const ABSL_LOCKS_EXCLUDED(mu_);
  // How many of them begin so.
  size_t Count(absl::string_view prefix) const ABSL_LOCKS_EXCLUDED(mu_);
  // All messages that it has heard, but for barriers.
  std::vector<std::string> heard() const ABSL_LOCKS_EXCLUDED(mu_);
  // What it has, for who knows what to look for.
  UniqueFd Find(const std::string& name) const ABSL_LOCKS_EXCLUDED(mu_);

  // What a daemon is started with: duplicates. They are valid until the next call, or until something is taken back.
  std::vector<ListenFd> HandOver() const ABSL_LOCKS_EXCLUDED(mu_);
  // Closes what a name is told of.
  void Lose(const std::function<bool(const std::string& name)>& is_lost) ABSL_LOCKS_EXCLUDED(mu_);
  // Has it keep that, too.
  void Keep(const std::string& name, UniqueFd fd) ABSL_LOCKS_EXCLUDED(mu_);

  // It hears nothing until it is resumed: messages wait in its socket.
  void Pause() ABSL_LOCKS_EXCLUDED(mu_);
  void Resume() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Kept {
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
  std::vector<Kept> kept_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> heard_ ABSL_GUARDED_BY(mu_);
  bool paused_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_SERVICE_MANAGER_H_
