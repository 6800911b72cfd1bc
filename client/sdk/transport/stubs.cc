#include "client/sdk/transport/stubs.h"

#include <tuple>

#include "berth/v1/admin.grpc.pb.h"
#include "berth/v1/device.grpc.pb.h"
#include "berth/v1/fence.grpc.pb.h"
#include "berth/v1/history.grpc.pb.h"
#include "berth/v1/inventory.grpc.pb.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/module.grpc.pb.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/plan.grpc.pb.h"
#include "berth/v1/session.grpc.pb.h"
#include "client/sdk/transport/socket_target.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace berth::internal {
namespace {

std::shared_ptr<grpc::Channel> MakeGrpcChannel(const std::string& uri, absl::Duration accept_patience) {
  grpc::ChannelArguments arguments;
  // Each session has its own connection, because the daemon counts and cuts connections by session.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Reconnect quickly after a failed connection; gRPC's default backoff grows to two minutes.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // Despite its name, the option also limits how long one connection attempt may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, static_cast<int>(absl::ToInt64Milliseconds(accept_patience)));
  // A proxy from the environment does not apply to a Unix socket.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Disable features without a use here, because each costs time on every call. The minimal stack leaves deadlines out,
  // so enable them again. CallAttempts retries calls, channelz statistics are not read, and a local socket needs no
  // bandwidth probe.
  arguments.SetInt(GRPC_ARG_MINIMAL_STACK, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_DEADLINE_CHECKS, 1);
  for (const char* const unused : {GRPC_ARG_ENABLE_RETRIES, GRPC_ARG_ENABLE_CHANNELZ, GRPC_ARG_HTTP2_BDP_PROBE}) {
    arguments.SetInt(unused, 0);
  }
  return grpc::CreateCustomChannel(uri, grpc::InsecureChannelCredentials(), arguments);
}

gpr_timespec ToGrpc(absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  const timespec time = absl::ToTimespec(deadline);
  return {.tv_sec = time.tv_sec, .tv_nsec = static_cast<int32_t>(time.tv_nsec), .clock_type = GPR_CLOCK_MONOTONIC};
}

template <typename... Services>
struct StubsOf {
  explicit StubsOf(const std::shared_ptr<grpc::Channel>& channel) : stubs(Services::NewStub(channel)...) {}
  const std::tuple<std::unique_ptr<typename Services::Stub>...> stubs;
};

using AllStubs = StubsOf<v1::SessionService, v1::PermitService, v1::MemoryService, v1::FenceService, v1::PlanService,
                         v1::ModuleService, v1::DeviceService, v1::InventoryService, v1::NodeService, v1::AdminService,
                         v1::HistoryService>;

}  // namespace

struct Stubs::Channel {
  Channel(const std::string& socket, absl::Duration accept_patience)
      : target(socket), channel(MakeGrpcChannel(target.uri(), accept_patience)), all(channel) {}
  const SocketTarget target;
  const std::shared_ptr<grpc::Channel> channel;
  const AllStubs all;
};

Stubs::Stubs(const std::string& socket, absl::Duration accept_patience)
    : channel_(std::make_unique<const Channel>(socket, accept_patience)) {}

Stubs::~Stubs() = default;

template <typename Service>
typename Service::Stub& Stubs::Of() const {
  return *std::get<std::unique_ptr<typename Service::Stub>>(channel_->all.stubs);
}

template v1::SessionService::Stub& Stubs::Of<v1::SessionService>() const;
template v1::PermitService::Stub& Stubs::Of<v1::PermitService>() const;
template v1::MemoryService::Stub& Stubs::Of<v1::MemoryService>() const;
template v1::FenceService::Stub& Stubs::Of<v1::FenceService>() const;
template v1::PlanService::Stub& Stubs::Of<v1::PlanService>() const;
template v1::ModuleService::Stub& Stubs::Of<v1::ModuleService>() const;
template v1::DeviceService::Stub& Stubs::Of<v1::DeviceService>() const;
template v1::InventoryService::Stub& Stubs::Of<v1::InventoryService>() const;
template v1::NodeService::Stub& Stubs::Of<v1::NodeService>() const;
template v1::AdminService::Stub& Stubs::Of<v1::AdminService>() const;
template v1::HistoryService::Stub& Stubs::Of<v1::HistoryService>() const;

bool Stubs::connecting() const {
  return channel_->channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_CONNECTING;
}

bool Stubs::connected() const { return channel_->channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY; }

bool Stubs::AwaitConnecting(absl::Time until) const {
  return channel_->channel->WaitForStateChange(GRPC_CHANNEL_CONNECTING, ToGrpc(until));
}

void Stubs::FindSocket() const {
  if (channel_->target.has_fd() && !connected()) channel_->target.Refresh();
}

void Stubs::ConnectNow() const {
  channel_->target.Refresh();
  grpc::experimental::ChannelResetConnectionBackoff(channel_->channel.get());
}

void SetDeadline(absl::Time deadline, grpc::ClientContext* context) { context->set_deadline(ToGrpc(deadline)); }

}  // namespace berth::internal
