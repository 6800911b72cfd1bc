#include "tests/bench/echo_client.h"

#include "client/sdk/transport/status_conversion.h"
#include "common/wire/session_credentials.h"
#include "grpcpp/client_context.h"
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

// Returns a request about as large as an acquire.
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

struct EchoWaiters::Waiting {
  grpc::ClientContext context;
  EchoResponse response;
};

EchoWaiters::EchoWaiters(const std::string& socket, uint64_t connections, uint64_t calls) : request_(MakeRequest()) {
  for (uint64_t i = 0; i < connections; ++i) stubs_.push_back(EchoService::NewStub(MakeChannel(socket)));
  for (uint64_t i = 0; i < calls; ++i) {
    Waiting& call = *calls_.emplace_back(std::make_unique<Waiting>());
    {
      MutexLock lock(&mu_);
      ++open_;
    }
    stubs_[i % connections]->async()->Wait(&call.context, &request_, &call.response, [this](const grpc::Status&) {
      MutexLock lock(&mu_);
      --open_;
      changed_.SignalAll();
    });
  }
}

uint64_t EchoWaiters::open() {
  MutexLock lock(&mu_);
  return open_;
}

EchoWaiters::~EchoWaiters() {
  for (const auto& call : calls_) call->context.TryCancel();
  MutexLock lock(&mu_);
  while (open_ > 0) changed_.Wait(&mu_);
}

}  // namespace berth::bench
