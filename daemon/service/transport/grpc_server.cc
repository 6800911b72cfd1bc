#include "daemon/service/transport/grpc_server.h"

#include <errno.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include <berth/bytes.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "common/os/process_capacity.h"
#include "common/status_macros.h"
#include "daemon/service/limits/standard_streams.h"
#include "daemon/supervisor/processes/child_process.h"
#include "grpc/support/log.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/server_posix.h"
#include "spdlog/spdlog.h"

namespace berth::service {
namespace {

// The largest request is a few hundred bytes; responses are pages of at most 1,000 entries.
constexpr int kMaxRequestBytes = 64 * 1024;

// Resources that gRPC takes at its start; without them it aborts or hangs. Three threads serve calls.
ProcessNeeds Needs() { return {.threads = GrpcThreads() + 3, .memory = MiB(16), .fds = 8}; }

// If the kernel lets gRPC watch no more fds, gRPC continues: it never reads that connection, and only its log says so.
// A restarted broker has the resources that this broker lacks (docs/design/0017).
void HearLog(gpr_log_func_args* line) {
  spdlog::error("gRPC: {}", line->message);
  if (absl::StrContains(line->message, "epoll_ctl failed")) ::_exit(kExitForWant);
  // gRPC aborts after this message. CheckCapacity() cannot exclude it, as other threads allocate at the same time.
  if (absl::StrContains(line->message, "Could not create grpc_sync_server worker-thread")) {
    spdlog::critical("{}; restarting the broker", std::string(NotStarted("a thread of gRPC", EAGAIN).message()));
    ::_exit(kExitForWant);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(std::vector<std::unique_ptr<grpc::Service>> services,
                                                              const ConnectionTable* connections,
                                                              const GrpcLimits& limits) {
  BERTH_RETURN_IF_ERROR(CheckCapacity("gRPC", Needs()));
  gpr_set_log_function(HearLog);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.streams_per_connection);
  // These features are unused here and cost time with every call. Clients enforce their own deadlines and cancel the
  // call, and the core enforces waits that are part of a request. No client compresses or reads call statistics, and a
  // local socket has no bandwidth to probe.
  for (const char* const unused :
       {GRPC_ARG_ENABLE_DEADLINE_CHECKS, GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION,
        GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, GRPC_ARG_ENABLE_CHANNELZ, GRPC_ARG_HTTP2_BDP_PROBE}) {
    builder.AddChannelArgument(unused, 0);
  }
  grpc::ResourceQuota quota("berth");
  builder.SetResourceQuota(quota.Resize(limits.memory_bytes).SetMaxThreads(limits.threads));
  if (connections != nullptr) {
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
    interceptors.push_back(std::make_unique<StandardStreams>(connections));
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
  }
  for (const auto& service : services) builder.RegisterService(service.get());
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return absl::InternalError("cannot start the gRPC server");
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(services), std::move(server)));
}

GrpcServer::GrpcServer(std::vector<std::unique_ptr<grpc::Service>> services, std::unique_ptr<grpc::Server> server)
    : services_(std::move(services)), server_(std::move(server)) {}

void GrpcServer::SetServing(bool serving) { server_->GetHealthCheckService()->SetServingStatus(serving); }

void GrpcServer::AddConnection(int fd) { grpc::AddInsecureChannelFromFd(server_.get(), fd); }

GrpcServer::~GrpcServer() { server_->Shutdown(std::chrono::system_clock::now()); }

}  // namespace berth::service
