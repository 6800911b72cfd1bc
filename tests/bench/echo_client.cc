#include "tests/bench/echo_client.h"

#include "client/status_conversion.h"
#include "common/session_capsule.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace berth::bench {
namespace {

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& socket) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(), arguments);
}

// About what an acquire carries.
EchoRequest MakeRequest() {
  EchoRequest request;
  request.set_payload(std::string(32, 'e'));
  return request;
}

}  // namespace

EchoClient::EchoClient(const std::string& socket)
    : stub_(EchoService::NewStub(MakeChannel(socket))),
      credentials_(EncodeCredentials(
          {.session = SessionId(RandomId()), .channel = ChannelId(RandomId()), .secret = RandomSecret()})),
      request_(MakeRequest()) {}

absl::Status EchoClient::Call() {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.AddMetadata(kCredentialsHeader, credentials_);
  EchoResponse response;
  return FromGrpc(stub_->Echo(&context, request_, &response));
}

}  // namespace berth::bench
