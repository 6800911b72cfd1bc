// AttachServer: ends every session at once.

#include <limits>
#include <vector>

#include "common/os/fd_passing.h"
#include "daemon/service/attach/attach_server.h"

namespace berth::service {

void AttachServer::NotifyEnded(int socket, const EndNotice& end) {
  // Deliveries that the core still sends have smaller numbers, so the process ignores them.
  const attach::Delivery last = {.what = attach::DeliveryKind::kEnded,
                                 .number = std::numeric_limits<uint64_t>::max(),
                                 .owner = end.uid,
                                 .why = static_cast<uint64_t>(end.reason)};
  // A process whose channel accepts no more learns of the end from the next daemon.
  SendStruct(socket, last).IgnoreError();
}

void AttachServer::NotifyEnded(const EndNotice& end) {
  std::vector<ConnectionPtr> all;
  {
    MutexLock lock(&mu_);
    for (const auto& [channel, connection] : channels_) all.push_back(connection);
  }
  for (const ConnectionPtr& connection : all) NotifyEnded(connection->socket.get(), end);
}

}  // namespace berth::service
