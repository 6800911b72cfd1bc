// FdCloser: closes file descriptors on a thread of its own. Where it is the last, the close of what a client had a hand
// in (a socket that lingers, a file of a file system of its own) waits for as long as that client likes.

#ifndef DAEMON_BROKER_FD_CLOSER_H_
#define DAEMON_BROKER_FD_CLOSER_H_

#include <functional>
#include <memory>
#include <thread>

#include "common/unique_fd.h"

namespace berth {

// Thread-safe.
class FdCloser {
 public:
  FdCloser();
  FdCloser(const FdCloser&) = delete;
  FdCloser& operator=(const FdCloser&) = delete;
  // Does not wait: a close under way goes on by itself, and at the latest ends with the process, whose own end the
  // kernel lets no socket delay.
  ~FdCloser();

  // Closes `fd` soon. One that waits keeps those behind it open. `then`, where there is one, is called once it is
  // closed, on the closer's thread and never again once this is destroyed: it must be short and not use the closer.
  void Close(UniqueFd fd, std::function<void()> then = nullptr);

 private:
  struct State;

  // Shared with the thread, which may outlive the closer.
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace berth

#endif  // DAEMON_BROKER_FD_CLOSER_H_
