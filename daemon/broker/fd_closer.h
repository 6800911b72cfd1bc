// FdCloser: closes file descriptors on its own thread. The last close of an fd that a client controls can block for as
// long as that client likes. Examples are a lingering socket and a file of the client's own file system.

#ifndef DAEMON_BROKER_FD_CLOSER_H_
#define DAEMON_BROKER_FD_CLOSER_H_

#include <functional>
#include <memory>

#include "common/os/unique_fd.h"
#include "common/thread.h"

namespace berth {

// Thread-safe.
class FdCloser {
 public:
  FdCloser();
  FdCloser(const FdCloser&) = delete;
  FdCloser& operator=(const FdCloser&) = delete;
  // Does not wait: a close in progress continues by itself, at the latest until the process ends. The kernel lets no
  // socket delay the end of a process.
  ~FdCloser();

  // Closes `fd` soon. A close that blocks delays those queued behind it. Calls `then`, if set, after the close, on the
  // closer's thread, and never after the closer's destruction. `then` must be short and must not use the closer.
  void Close(UniqueFd fd, std::function<void()> then = nullptr);

 private:
  struct State;

  // Shared with the thread, which may outlive the closer.
  const std::shared_ptr<State> state_;
  Thread thread_;
};

}  // namespace berth

#endif  // DAEMON_BROKER_FD_CLOSER_H_
