// A client that speaks Berth's wire protocol without the SDK. It may send invalid data, and it repeats, acknowledges or
// forgets nothing unless the test does so.

#ifndef TESTS_SUPPORT_WIRE_RAW_CLIENT_H_
#define TESTS_SUPPORT_WIRE_RAW_CLIENT_H_

#include <sys/types.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/sdk/transport/status_conversion.h"
#include "common/os/fd_passing.h"
#include "common/os/unique_fd.h"
#include "common/wire/attach_wire.h"
#include "common/wire/session_credentials.h"
#include "tests/support/peer_process.h"
#include "tests/support/testing.h"

namespace grpc {
class ChannelInterface;
class ClientContext;
class Status;
}  // namespace grpc

namespace berth::v1 {
class AcquirePermitResponse;
class RequestTag;
}  // namespace berth::v1

namespace berth::testing {

// One connection to attach.sock. Move-only.
class AttachSocket {
 public:
  // Fatal where no process listens in `folder`. The peer that the daemon sees is this process, or `peer`.
  static AttachSocket Connect(const std::string& folder);
  static AttachSocket Connect(const std::string& folder, PeerProcess& peer);

  absl::Status Send(absl::string_view bytes, std::span<const int> fds = {});
  template <typename T>
  absl::Status Send(const T& message, std::span<const int> fds = {}) {
    return Send(absl::string_view(reinterpret_cast<const char*>(&message), sizeof(message)), fds);
  }

  // Waits for the next message. Errors: as ReceiveMessage(); kDeadlineExceeded.
  absl::StatusOr<Message> Receive(absl::Duration patience = kPatience);
  // Waits for the next message and decodes it as a T. Errors: those that a Refused carries; kInternal for any other
  // message.
  template <typename T>
  absl::StatusOr<std::pair<T, std::vector<UniqueFd>>> Receive();

  // Whether the daemon closes the connection without sending a message.
  bool HangsUp();

  int fd() const { return socket_.get(); }
  void Close() { socket_.reset(); }

 private:
  explicit AttachSocket(UniqueFd socket) : socket_(std::move(socket)) {}
  UniqueFd socket_;
};

// Converts a Refused to a status with its reason.
absl::Status ToStatus(const attach::Refused& refused);

template <typename T>
absl::StatusOr<std::pair<T, std::vector<UniqueFd>>> AttachSocket::Receive() {
  absl::StatusOr<Message> message = Receive();
  if (!message.ok()) return message.status();
  if (message->bytes.size() == sizeof(attach::Refused)) {
    attach::Refused refused;
    memcpy(&refused, message->bytes.data(), sizeof(refused));
    return ToStatus(refused);
  }
  std::pair<T, std::vector<UniqueFd>> result;
  if (message->bytes.size() != sizeof(T)) return absl::InternalError("a message of another size");
  memcpy(&result.first, message->bytes.data(), sizeof(T));
  result.second = std::move(message->fds);
  return result;
}

// A session with one side channel, and stubs that carry its credentials. Move-only. Destroying it ends the session and
// the process that represents the client.
class RawClient {
 public:
  // Fatal where the daemon refuses. `socket` is the gRPC socket; on admin.sock the client is the test's user.
  static RawClient Open(const std::string& folder, absl::string_view socket = "berthd.sock", uid_t uid = 0) {
    return Open(folder, socket, PeerProcess::Start({.uid = uid, .of_operator = socket == "admin.sock"}));
  }
  // As above, for a client that the daemon sees as `process`.
  static RawClient Open(const std::string& folder, absl::string_view socket, PeerProcess process);

  // The credentials that every call carries. A test may change them.
  Credentials& credentials() { return credentials_; }
  PeerProcess& process() { return process_; }
  AttachSocket& lifeline() { return lifeline_; }
  AttachSocket& channel() { return channel_; }
  const SessionCredentials& session_credentials() const { return session_credentials_; }
  const std::shared_ptr<grpc::ChannelInterface>& grpc_channel() const { return grpc_; }

  // Returns a tag with the next sequence number that acknowledges no answer.
  v1::RequestTag NextTag();

  // Use: client.Call(&v1::PermitService::Stub::GetPool, request). The caller includes the .grpc.pb.h of the service.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                const std::type_identity_t<Request>& request,
                                absl::Duration timeout = kPatience) {
    return CallAs(EncodeCredentials(credentials_), method, request, timeout);
  }

  // As above, with any metadata, or none.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> CallAs(const std::optional<std::string>& metadata,
                                  grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                               Response*),
                                  const std::type_identity_t<Request>& request,
                                  absl::Duration timeout = kPatience) {
    Response response;
    const auto status = StatusOf(metadata, method, request, &response, timeout);
    if (!status.ok()) return FromGrpc(status);
    return response;
  }

  // As above, but returns gRPC's status unchanged.
  template <typename Stub, typename Request, typename Response>
  auto StatusOf(const std::optional<std::string>& metadata,
                grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                const std::type_identity_t<Request>& request, Response* response, absl::Duration timeout = kPatience) {
    return Send(metadata, timeout,
                [&](grpc::ClientContext* context) { return (Stub(grpc_).*method)(context, request, response); });
  }

  // Requests a unit of the default pool without waiting.
  absl::StatusOr<v1::AcquirePermitResponse> TryAcquire(absl::string_view holder_key = "k");

  // Receives the delivery of a block: its fd. Errors: as AttachSocket::Receive.
  absl::StatusOr<std::pair<attach::Delivery, UniqueFd>> ReceiveBlock();

 private:
  RawClient(PeerProcess process, AttachSocket lifeline, AttachSocket channel, SessionCredentials session_credentials,
            ChannelId id, std::shared_ptr<grpc::ChannelInterface> grpc);
  // Calls `send` with a context that has the metadata and the timeout.
  static grpc::Status Send(const std::optional<std::string>& metadata, absl::Duration timeout,
                           absl::FunctionRef<grpc::Status(grpc::ClientContext*)> send);

  PeerProcess process_;
  AttachSocket lifeline_;
  AttachSocket channel_;
  SessionCredentials session_credentials_;
  Credentials credentials_;
  std::shared_ptr<grpc::ChannelInterface> grpc_;
  uint64_t last_sequence_ = 0;
};

// Returns a Hello whose label may have any bytes.
attach::Hello MakeHello(absl::string_view label);

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_WIRE_RAW_CLIENT_H_
