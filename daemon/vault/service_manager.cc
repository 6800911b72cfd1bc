#include "daemon/vault/service_manager.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "common/unique_fd.h"
#include "daemon/vault/vault_log.h"

namespace berth {

void TellServiceManager(const std::string& state) {
  const char* const set = getenv("NOTIFY_SOCKET");
  if (set == nullptr || *set == '\0') return;
  std::string path = set;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return Log("$NOTIFY_SOCKET is too long");
  // One of the abstract namespace is written with an @ for its first byte.
  if (path[0] == '@') path[0] = '\0';
  memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  if (!socket || ::sendto(socket.get(), state.data(), state.size(), MSG_NOSIGNAL,
                          reinterpret_cast<const sockaddr*>(&address), length) < 0) {
    Log("the service manager is not told %s: %s", state.c_str(), strerror(errno));
  }
}

}  // namespace berth
