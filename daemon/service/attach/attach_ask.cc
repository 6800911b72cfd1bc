// AttachServer: the RPCs that processes without gRPC call on their side channels.

#include <string.h>
#include <sys/socket.h>

#include <optional>
#include <span>

#include <berth/error.h>

#include "daemon/service/attach/attach_server.h"

namespace berth::service {
namespace {

// Returns the message as an Ask with the body that it counts, or nothing.
std::optional<attach::Ask> AsAsk(const Message& message) {
  attach::Ask ask;
  const size_t size = message.bytes.size();
  if (size < attach::Ask::kHeadBytes || size > sizeof(ask)) return std::nullopt;
  memcpy(&ask, message.bytes.data(), size);
  const bool whole = ask.bytes <= attach::Ask::kMaxBytes && size == attach::Ask::BytesOf(ask.bytes);
  return whole ? std::optional(ask) : std::nullopt;
}

}  // namespace

void AttachServer::OnAsk(const ConnectionPtr& connection, const Message& message) {
  const std::optional<attach::Ask> ask = AsAsk(message);
  if (!ask.has_value()) {
    return Refuse(connection, berth::Refuse(Reason::kInvalidField, "{field} of {value} bytes; expected {limit}",
                                            {{"field", "ask"},
                                             {"value", message.bytes.size()},
                                             {"limit", "a body of the length that the message states"}}));
  }
  const Peer& peer = connection->peer;
  Requester requester = {.caller = {.credentials = {.session = SessionId(ask->session),
                                                    .channel = connection->channel,
                                                    .secret = ask->secret},
                                    .tenant = peer.tenant,
                                    .admin = peer.role == Peer::Role::kAdmin},
                         .send =
                             [connection](std::span<const std::byte> answer) {
                               // A process that reads no answers is ended, and the loop sees the end.
                               if (!SendMessage(connection->socket.get(), answer).ok()) {
                                 ::shutdown(connection->socket.get(), SHUT_RDWR);
                               }
                             },
                         .who = [this, connection] { return WhoIs(*connection); }};
  if (const absl::Status served = calls_.Serve(*ask, std::move(requester)); !served.ok()) Refuse(connection, served);
}

}  // namespace berth::service
