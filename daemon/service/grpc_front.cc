#include "daemon/service/grpc_front.h"

#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/server_posix.h"

namespace berth::service {
namespace {

// The largest request is a few hundred bytes; responses are pages of at most 1,000 rows.
constexpr int kMaxRequestBytes = 64 * 1024;

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcFront>> GrpcFront::Start(
    std::vector<std::unique_ptr<grpc::Service>> services, const GrpcLimits& limits) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.streams_per_connection);
  // What nobody has a use for here takes its time with every call: a deadline is its client's to keep, who ends the
  // call by it, and the core's where it is part of what is asked; nobody compresses, counts calls, or has a line whose
  // width is to be found out.
  for (const char* const unused :
       {GRPC_ARG_ENABLE_DEADLINE_CHECKS, GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION,
        GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, GRPC_ARG_ENABLE_CHANNELZ, GRPC_ARG_HTTP2_BDP_PROBE}) {
    builder.AddChannelArgument(unused, 0);
  }
  grpc::ResourceQuota quota("berth");
  builder.SetResourceQuota(quota.Resize(limits.memory_bytes).SetMaxThreads(limits.threads));
  for (const auto& service : services) builder.RegisterService(service.get());
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return absl::InternalError("gRPC could not start a server");
  return std::unique_ptr<GrpcFront>(new GrpcFront(std::move(services), std::move(server)));
}

void GrpcFront::SetServing(bool serving) { server_->GetHealthCheckService()->SetServingStatus(serving); }

void GrpcFront::AddConnection(int fd) { grpc::AddInsecureChannelFromFd(server_.get(), fd); }

GrpcFront::~GrpcFront() { server_->Shutdown(std::chrono::system_clock::now()); }

}  // namespace berth::service
