#include <vector>

#include "daemon/broker/event_loop.h"
#include "daemon/service/memory_conversion.h"
#include "daemon/service/services.h"
#include "daemon/service/unary_call.h"

namespace berth::service {
namespace {

// Serves a verb that changes a block by its id: `method` is a member of the core's.
template <typename Method>
grpc::ServerUnaryReactor* ChangeBlock(const ServiceContext& context, grpc::CallbackServerContext* call,
                                      const char* what, BlockId block, Method method, v1::Block* response) {
  const absl::StatusOr<core::Caller> caller = context.callers->Identify(*call);
  if (!caller.ok()) return FinishRefused(context, call, what, caller, caller.status());
  absl::StatusOr<core::BlockView> view;
  context.broker->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    view = (core.*method)(now, *caller, block, effects);
  });
  if (view.ok()) ToProto(*view, response);
  return FinishDecided(context, call,
                       {.what = what, .facts = {{"block", AuditId(block.value())}}, .caller = *caller},
                       view.status());
}

}  // namespace

grpc::ServerUnaryReactor* MemoryService::AllocateBlock(grpc::CallbackServerContext* context,
                                                       const v1::AllocateBlockRequest* request,
                                                       v1::AllocateBlockResponse* response) {
  return SubmitRequest<core::AllocateResult>(context_, context, request->request(),
                                             FromProto(*request, EventLoop::SteadyNow()), response,
                                             &core::Core::Allocate);
}

grpc::ServerUnaryReactor* MemoryService::FreeBlock(grpc::CallbackServerContext* context,
                                                   const v1::FreeBlockRequest* request,
                                                   v1::FreeBlockResponse* response) {
  return SubmitRequest<core::FreeResult>(context_, context, request->request(),
                                         FromProto(*request), response, &core::Core::Free);
}

grpc::ServerUnaryReactor* MemoryService::GrantBlock(grpc::CallbackServerContext* context,
                                                    const v1::GrantBlockRequest* request,
                                                    v1::GrantBlockResponse* response) {
  return SubmitRequest<core::GrantResult>(context_, context, request->request(),
                                          FromProto(*request), response, &core::Core::Grant);
}

grpc::ServerUnaryReactor* MemoryService::ImportBlock(grpc::CallbackServerContext* context,
                                                     const v1::ImportBlockRequest* request,
                                                     v1::ImportBlockResponse* response) {
  return SubmitRequest<core::ImportResult>(context_, context, request->request(),
                                           FromProto(*request), response, &core::Core::Import);
}

grpc::ServerUnaryReactor* MemoryService::PublishBlock(grpc::CallbackServerContext* context,
                                                      const v1::PublishBlockRequest* request,
                                                      v1::PublishBlockResponse* response) {
  return SubmitRequest<core::PublishResult>(context_, context, request->request(),
                                            FromProto(*request), response, &core::Core::Publish);
}

grpc::ServerUnaryReactor* MemoryService::UnpublishBlock(grpc::CallbackServerContext* context,
                                                        const v1::UnpublishBlockRequest* request,
                                                        v1::UnpublishBlockResponse* response) {
  return SubmitRequest<core::UnpublishResult>(context_, context, request->request(),
                                              FromProto(*request), response, &core::Core::Unpublish);
}

grpc::ServerUnaryReactor* MemoryService::ReserveBytes(grpc::CallbackServerContext* context,
                                                      const v1::ReserveBytesRequest* request,
                                                      v1::Reservation* response) {
  return SubmitRequest<core::ReserveResult>(context_, context, request->request(),
                                            FromProto(*request), response, &core::Core::Reserve);
}

grpc::ServerUnaryReactor* MemoryService::ReleaseReservation(grpc::CallbackServerContext* context,
                                                            const v1::ReleaseReservationRequest* request,
                                                            v1::ReleaseReservationResponse* response) {
  const absl::StatusOr<ReservationId> reservation(ReservationId(request->reservation()));
  return SubmitRequest<core::ReleaseReservationResult>(context_, context,
                                                       request->request(), reservation, response,
                                                       &core::Core::ReleaseReservation);
}

grpc::ServerUnaryReactor* MemoryService::ListReservations(grpc::CallbackServerContext* context,
                                                          const v1::ListReservationsRequest* request,
                                                          v1::ListReservationsResponse* response) {
  return ServePage(
      context_, context, *request, response,
      [](const core::Core& core, const core::Caller& caller, const core::PageRequest& page) {
        return core.ListReservations(caller, page);
      },
      [&](const core::ReservationView& view) { ToProto(view, response->add_reservations()); });
}

grpc::ServerUnaryReactor* MemoryService::SetBudget(grpc::CallbackServerContext* context,
                                                   const v1::SetBudgetRequest* request,
                                                   v1::SetBudgetResponse* response) {
  const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
  if (!caller.ok()) return FinishRefused(context_, context, "set_budget", caller, caller.status());
  const absl::StatusOr<core::SetBudgetRequest> converted = FromProto(*request);
  if (!converted.ok()) return FinishRefused(context_, context, "set_budget", caller, converted.status());
  absl::StatusOr<std::vector<core::BudgetView>> views;
  context_.broker->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    views = core.SetBudget(now, *caller, *converted, effects);
  });
  AuditRecord record = {.caller = *caller};
  record.what = AddFacts(*converted, &record.facts);
  if (views.ok()) {
    for (const core::BudgetView& view : *views) ToProto(view, response->add_budgets());
  }
  return FinishDecided(context_, context, std::move(record), views.status());
}

grpc::ServerUnaryReactor* MemoryService::ListBudgets(grpc::CallbackServerContext* context,
                                                     const v1::ListBudgetsRequest* request,
                                                     v1::ListBudgetsResponse* response) {
  return ServePage(
      context_, context, *request, response,
      [](const core::Core& core, const core::Caller& caller, const core::PageRequest& page) {
        return core.ListBudgets(caller, page);
      },
      [&](const core::BudgetView& view) { ToProto(view, response->add_budgets()); });
}

grpc::ServerUnaryReactor* MemoryService::RecallBlock(grpc::CallbackServerContext* context,
                                                     const v1::RecallBlockRequest* request,
                                                     v1::Block* response) {
  return ChangeBlock(context_, context, "recall", BlockId(request->block()), &core::Core::Recall, response);
}

grpc::ServerUnaryReactor* MemoryService::FreeBlockById(grpc::CallbackServerContext* context,
                                                       const v1::FreeBlockByIdRequest* request,
                                                       v1::Block* response) {
  return ChangeBlock(context_, context, "free_by_id", BlockId(request->block()), &core::Core::FreeById, response);
}

grpc::ServerUnaryReactor* MemoryService::ListLogRecords(grpc::CallbackServerContext* context,
                                                        const v1::ListLogRecordsRequest* request,
                                                        v1::ListLogRecordsResponse* response) {
  const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
  if (!caller.ok()) return FinishRefused(context_, context, kAnyCall, caller, caller.status());
  const absl::Status known =
      context_.broker->Read([&](const core::Core& core) { return core.Authenticate(*caller); });
  if (!known.ok()) return FinishRefused(context_, context, kAnyCall, caller, known);
  const absl::StatusOr<core::PageRequest> page =
      ReadPage(request->page_size(), request->page_token(), log_.incarnation());
  if (!page.ok()) return FinishNow(context, page.status());
  const core::Page<core::LogRecord> records = log_.List(*caller, *page);
  for (const core::LogRecord& record : records) ToProto(record, response->add_records());
  response->set_follow_token(PageToken(records.last, log_.incarnation()));
  if (records.more) response->set_next_page_token(response->follow_token());
  response->set_unwritten_total(log_.unwritten());
  return FinishNow(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* MemoryService::ListBlocks(grpc::CallbackServerContext* context,
                                                    const v1::ListBlocksRequest* request,
                                                    v1::ListBlocksResponse* response) {
  return ServePage(
      context_, context, *request, response,
      [](const core::Core& core, const core::Caller& caller, const core::PageRequest& page) {
        return core.ListBlocks(caller, page);
      },
      [&](const core::BlockView& view) { ToProto(view, response->add_blocks()); });
}

grpc::ServerUnaryReactor* MemoryService::GetUsage(grpc::CallbackServerContext* context,
                                                  const v1::GetUsageRequest*, v1::Usage* response) {
  return ServeLook(
      context_, context,
      [](const core::Core& core, const core::Caller& caller) {
        return absl::StatusOr<core::UsageView>(core.GetUsage(caller));
      },
      [&](const core::UsageView& view) { ToProto(view, response); });
}

}  // namespace berth::service
