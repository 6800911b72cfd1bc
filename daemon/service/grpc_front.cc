#include "daemon/service/grpc_front.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "daemon/vault/child_process.h"
#include "grpc/support/log.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/server_posix.h"
#include "spdlog/spdlog.h"

namespace berth::service {
namespace {

// The largest request is a few hundred bytes; responses are pages of at most 1,000 rows.
constexpr int kMaxRequestBytes = 64 * 1024;

// gRPC goes on where the kernel lets it watch no more: who is on that connection is never heard, and its log alone says
// so. Another broker has what this one lacks (docs/design/0017).
void HearLog(gpr_log_func_args* line) {
  spdlog::error("gRPC: {}", line->message);
  if (absl::StrContains(line->message, "epoll_ctl failed")) ::_exit(kExitForWant);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcFront>> GrpcFront::Start(
    std::vector<std::unique_ptr<grpc::Service>> services, const GrpcLimits& limits) {
  gpr_set_log_function(HearLog);
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
