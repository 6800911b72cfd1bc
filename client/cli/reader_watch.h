// ReaderWatch ends a view that waits for news once no process can read its output any more.
//
// A write to a pipe without a reader ends a program by SIGPIPE. A view that waits writes nothing, and would wait for
// ever: `berth devices --watch | head -1`.

#ifndef CLIENT_CLI_READER_WATCH_H_
#define CLIENT_CLI_READER_WATCH_H_

#include <memory>

#include <berth/cancellation.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"
#include "common/thread.h"

namespace berth::cli {

class ReaderWatch {
 public:
  // Watches stdout: the readers of a pipe, the other end of a socket, the terminal's side of a terminal. When the last
  // reader has gone, sends SIGPIPE to this process. If the process ignores SIGPIPE, cancels cancellation().
  //
  // A file always has readers. A TCP peer that closes its socket sends the same as one that only stops sending and
  // still reads. So TCP's keepalive, which this sets on the socket from then on, finds the end: a Linux peer's kernel
  // forgets the socket after 60 s (tcp_fin_timeout). The end of a datagram socket's peer is not seen before the next
  // write.
  static absl::StatusOr<std::unique_ptr<ReaderWatch>> Start();
  ReaderWatch(const ReaderWatch&) = delete;
  ReaderWatch& operator=(const ReaderWatch&) = delete;
  ~ReaderWatch();

  Cancellation* cancellation() { return &cancellation_; }
  // Returns `result`, or the error of stdout if its reader has gone.
  absl::Status ResultOf(const absl::Status& result) const;

 private:
  explicit ReaderWatch(UniqueFd stop) : stop_(std::move(stop)) {}
  void Run();

  const UniqueFd stop_;
  Cancellation cancellation_;
  Thread thread_;
};

}  // namespace berth::cli

#endif  // CLIENT_CLI_READER_WATCH_H_
