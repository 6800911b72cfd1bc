#include "tests/support/wire/raw_client.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/resources.pb.h"
#include "common/os/os_error.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel_posix.h"

namespace berth::testing {

AttachSocket AttachSocket::Connect(const std::string& folder) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = folder + "/attach.sock";
  memcpy(address.sun_path, path.c_str(), std::min(path.size() + 1, sizeof(address.sun_path) - 1));
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) < 0) {
    Fatal(OsError("connect", errno), path);
  }
  return AttachSocket(std::move(socket));
}

AttachSocket AttachSocket::Connect(const std::string& folder, PeerProcess& peer) {
  return AttachSocket(peer.Connect(folder + "/attach.sock", SOCK_SEQPACKET));
}

absl::Status AttachSocket::Send(absl::string_view bytes, std::span<const int> fds) {
  return SendMessage(socket_.get(), std::as_bytes(std::span(bytes.data(), bytes.size())), fds);
}

absl::StatusOr<Message> AttachSocket::Receive(absl::Duration patience) {
  pollfd entry = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
  if (::poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) != 1) {
    return absl::DeadlineExceededError("nothing came on attach.sock");
  }
  return ReceiveMessage(socket_.get());
}

bool AttachSocket::HangsUp() {
  const absl::StatusOr<Message> message = Receive();
  return !message.ok() && (IsEndOfStream(message.status()) || absl::IsUnavailable(message.status()));
}

absl::Status ToStatus(const attach::Refused& refused) {
  absl::Status status(static_cast<absl::StatusCode>(refused.code), refused.text);
  if (refused.reason != 0) SetErrorDetails({.reason = static_cast<Reason>(refused.reason)}, &status);
  return status;
}

RawClient RawClient::Open(const std::string& folder, absl::string_view socket, PeerProcess process) {
  AttachSocket lifeline = AttachSocket::Connect(folder, process);
  Must(lifeline.Send(MakeHello("raw")), "hello");
  const auto [welcome, credentials_fds] = Must(lifeline.Receive<attach::Welcome>(), "welcome");
  if (welcome.kind != attach::Kind::kWelcome || credentials_fds.size() != 1)
    Fatal(absl::InternalError("welcome"), folder);
  const SessionCredentials session_credentials =
      Must(ReadSessionCredentials(credentials_fds[0].get()), "session credentials");
  AttachSocket channel = AttachSocket::Connect(folder, process);
  attach::Join join;
  join.session = session_credentials.session.value();
  join.secret = session_credentials.secret;
  Must(channel.Send(join), "join");
  const auto [joined, page_fds] = Must(channel.Receive<attach::Joined>(), "joined");
  if (joined.kind != attach::Kind::kJoined || page_fds.size() != 1)
    Fatal(absl::InternalError("joined"), folder);
  UniqueFd connection = process.Connect(absl::StrCat(folder, "/", socket), SOCK_STREAM);
  Must(SetNonBlocking(connection.get()), "gRPC's connection");
  auto grpc_channel = grpc::CreateInsecureChannelFromFd("raw", connection.release());
  return RawClient(std::move(process), std::move(lifeline), std::move(channel), session_credentials,
                   ChannelId(joined.channel), std::move(grpc_channel));
}

RawClient::RawClient(PeerProcess process, AttachSocket lifeline, AttachSocket channel,
                     SessionCredentials session_credentials, ChannelId id, std::shared_ptr<grpc::ChannelInterface> grpc)
    : process_(std::move(process)),
      lifeline_(std::move(lifeline)),
      channel_(std::move(channel)),
      session_credentials_(std::move(session_credentials)),
      credentials_({.session = session_credentials_.session, .channel = id, .secret = session_credentials_.secret}),
      grpc_(std::move(grpc)) {}

grpc::Status RawClient::Send(const std::optional<std::string>& metadata, absl::Duration timeout,
                             absl::FunctionRef<grpc::Status(grpc::ClientContext*)> send) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  if (metadata.has_value()) context.AddMetadata(kCredentialsHeader, *metadata);
  return send(&context);
}

v1::RequestTag RawClient::NextTag() {
  v1::RequestTag tag;
  tag.set_sequence(++last_sequence_);
  tag.set_answered_below(1);
  return tag;
}

absl::StatusOr<v1::AcquirePermitResponse> RawClient::TryAcquire(absl::string_view holder_key) {
  v1::AcquirePermitRequest request;
  *request.mutable_request() = NextTag();
  request.set_holder_key(std::string(holder_key));
  request.mutable_max_wait();
  return Call(&v1::PermitService::Stub::AcquirePermit, request);
}

absl::StatusOr<std::pair<attach::Delivery, UniqueFd>> RawClient::ReceiveBlock() {
  auto received = channel_.Receive<attach::Delivery>();
  if (!received.ok()) return received.status();
  auto& [delivery, fds] = *received;
  if (delivery.what != attach::DeliveryKind::kBlock || fds.size() != 1) {
    return absl::InternalError(absl::StrCat("a delivery with ", fds.size(), " fds is no block"));
  }
  return std::pair(delivery, std::move(fds[0]));
}

attach::Hello MakeHello(absl::string_view label) {
  attach::Hello hello;
  memcpy(hello.label, label.data(), std::min(label.size(), sizeof(hello.label)));
  return hello;
}

}  // namespace berth::testing
