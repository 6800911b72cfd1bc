// SocketTarget: the name by which gRPC connects to a Unix socket, whatever bytes the socket's path has.
//
// gRPC parses the name as a URI, so the path is percent-encoded. gRPC 1.51 splits the decoded path at commas all the
// same. A folder whose path has a comma is therefore named by an fd of this process.

#ifndef CLIENT_SDK_TRANSPORT_SOCKET_TARGET_H_
#define CLIENT_SDK_TRANSPORT_SOCKET_TARGET_H_

#include <string>

#include "common/os/unique_fd.h"

namespace berth::internal {

// Thread-safe.
class SocketTarget {
 public:
  // `path` is absolute, and the last part of it has no comma.
  explicit SocketTarget(const std::string& path);

  const std::string& uri() const { return uri_; }
  // Whether the folder is named by an fd.
  bool has_fd() const { return static_cast<bool>(fd_); }
  // Has the fd follow a folder that was deleted and created again.
  void Refresh() const;

 private:
  std::string folder_;
  // Empty if the path has no comma.
  UniqueFd fd_;
  std::string uri_;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_TRANSPORT_SOCKET_TARGET_H_
