#include "daemon/service/services.h"
#include "daemon/service/unary_call.h"

namespace berth::service {

grpc::ServerUnaryReactor* MemoryService::AllocateBlock(grpc::CallbackServerContext* context,
                                                       const v1::AllocateBlockRequest* request,
                                                       v1::AllocateBlockResponse* response) {
  return SubmitRequest<core::AllocateResult>(*context_.callers, context_.broker, context, request->request(),
                                             FromProto(*request), response, &core::Core::Allocate);
}

grpc::ServerUnaryReactor* MemoryService::FreeBlock(grpc::CallbackServerContext* context,
                                                   const v1::FreeBlockRequest* request,
                                                   v1::FreeBlockResponse* response) {
  return SubmitRequest<core::FreeResult>(*context_.callers, context_.broker, context, request->request(),
                                         FromProto(*request), response, &core::Core::Free);
}

grpc::ServerUnaryReactor* MemoryService::GrantBlock(grpc::CallbackServerContext* context,
                                                    const v1::GrantBlockRequest* request,
                                                    v1::GrantBlockResponse* response) {
  return SubmitRequest<core::GrantResult>(*context_.callers, context_.broker, context, request->request(),
                                          FromProto(*request), response, &core::Core::Grant);
}

grpc::ServerUnaryReactor* MemoryService::ImportBlock(grpc::CallbackServerContext* context,
                                                     const v1::ImportBlockRequest* request,
                                                     v1::ImportBlockResponse* response) {
  return SubmitRequest<core::ImportResult>(*context_.callers, context_.broker, context, request->request(),
                                           FromProto(*request), response, &core::Core::Import);
}

grpc::ServerUnaryReactor* MemoryService::ListBlocks(grpc::CallbackServerContext* context,
                                                    const v1::ListBlocksRequest* request,
                                                    v1::ListBlocksResponse* response) {
  return ServePage(
      *context_.callers, context_.broker, context, *request, response,
      [](const core::Core& core, const core::Caller& caller, const core::PageRequest& page) {
        return core.ListBlocks(caller, page);
      },
      [&](const core::BlockView& view) { ToProto(view, response->add_blocks()); });
}

grpc::ServerUnaryReactor* MemoryService::GetUsage(grpc::CallbackServerContext* context,
                                                  const v1::GetUsageRequest*, v1::Usage* response) {
  return ServeLook(
      *context_.callers, context_.broker, context,
      [](const core::Core& core, const core::Caller& caller) {
        return absl::StatusOr<core::UsageView>(core.GetUsage(caller));
      },
      [&](const core::UsageView& view) { ToProto(view, response); });
}

}  // namespace berth::service
