// MemoryService, FenceService and ModuleService.

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "berth/v1/fence.grpc.pb.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/module.grpc.pb.h"
#include "berth/v1/resources.pb.h"
#include "common/status_macros.h"
#include "daemon/broker/event_loop.h"
#include "daemon/service/audit/allocation_log.h"
#include "daemon/service/conversion/fence_conversion.h"
#include "daemon/service/conversion/memory_conversion.h"
#include "daemon/service/conversion/module_conversion.h"
#include "daemon/service/conversion/page.h"
#include "daemon/service/rpc/fence_requests.h"
#include "daemon/service/rpc/memory_requests.h"
#include "daemon/service/rpc/module_requests.h"
#include "daemon/service/rpc/services.h"
#include "daemon/service/rpc/unary_call.h"

namespace berth::service {

// ---- MemoryService: blocks, reservations, budgets and the allocation log -------------------------------------

namespace {

// Serves an RPC that changes a block by its id: `method` is a member of the core.
template <typename Method>
grpc::ServerUnaryReactor* ChangeBlock(const ServiceContext& context, grpc::CallbackServerContext* call,
                                      const char* what, BlockId block, Method method, v1::Block* response) {
  const absl::StatusOr<core::Caller> caller = context.callers->Identify(*call);
  if (!caller.ok()) return FinishRefused(context, call, what, caller, caller.status());
  if (const absl::Status ledger = context.broker->CheckLedger(); !ledger.ok()) {
    return FinishRefused(context, call, what, caller, ledger);
  }
  absl::StatusOr<core::BlockView> view;
  context.broker->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    view = (core.*method)(now, *caller, block, effects);
  });
  if (view.ok()) ToProto(*view, response);
  return FinishDecided(context, call,
                       {.what = what, .facts = {{"block", absl::StrCat(block.value())}}, .caller = *caller},
                       view.status());
}

class MemoryService final : public v1::MemoryService::CallbackService {
 public:
  MemoryService(ServiceContext context, const AllocationLog* log) : context_(context), log_(*log) {}

  grpc::ServerUnaryReactor* AllocateBlock(grpc::CallbackServerContext* context,
                                          const v1::AllocateBlockRequest* request,
                                          v1::AllocateBlockResponse* response) override {
    return SubmitRequest<core::AllocateRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* FreeBlock(grpc::CallbackServerContext* context, const v1::FreeBlockRequest* request,
                                      v1::FreeBlockResponse* response) override {
    return SubmitRequest<core::FreeRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* GrantBlock(grpc::CallbackServerContext* context, const v1::GrantBlockRequest* request,
                                       v1::GrantBlockResponse* response) override {
    return SubmitRequest<core::GrantRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* ImportBlock(grpc::CallbackServerContext* context, const v1::ImportBlockRequest* request,
                                        v1::ImportBlockResponse* response) override {
    return SubmitRequest<core::ImportRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* PublishBlock(grpc::CallbackServerContext* context, const v1::PublishBlockRequest* request,
                                         v1::PublishBlockResponse* response) override {
    return SubmitRequest<core::PublishRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* UnpublishBlock(grpc::CallbackServerContext* context,
                                           const v1::UnpublishBlockRequest* request,
                                           v1::UnpublishBlockResponse* response) override {
    return SubmitRequest<core::UnpublishRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* ReserveBytes(grpc::CallbackServerContext* context, const v1::ReserveBytesRequest* request,
                                         v1::Reservation* response) override {
    return SubmitRequest<core::ReserveRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* ReleaseReservation(grpc::CallbackServerContext* context,
                                               const v1::ReleaseReservationRequest* request,
                                               v1::ReleaseReservationResponse* response) override {
    return SubmitRequest<ReservationId>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* ListReservations(grpc::CallbackServerContext* context,
                                             const v1::ListReservationsRequest* request,
                                             v1::ListReservationsResponse* response) override {
    return ServePage(
        context_, context, *request, response,
        [](const core::Core& core, const core::Caller& caller, const core::PageRequest& page) {
          return core.ListReservations(caller, page);
        },
        [&](const core::ReservationView& view) { ToProto(view, response->add_reservations()); });
  }

  grpc::ServerUnaryReactor* SetBudget(grpc::CallbackServerContext* context, const v1::SetBudgetRequest* request,
                                      v1::SetBudgetResponse* response) override {
    using Traits = RpcTraits<core::SetBudgetRequest>;
    const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
    if (!caller.ok()) return FinishRefused(context_, context, Traits::kAuditName, caller, caller.status());
    if (const absl::Status ledger = context_.broker->CheckLedger(); !ledger.ok()) {
      return FinishRefused(context_, context, Traits::kAuditName, caller, ledger);
    }
    const absl::StatusOr<core::SetBudgetRequest> converted = Traits::Decode(*request, EventLoop::SteadyNow());
    if (!converted.ok()) return FinishRefused(context_, context, Traits::kAuditName, caller, converted.status());
    absl::StatusOr<std::vector<core::BudgetView>> views;
    context_.broker->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
      views = core.SetBudget(now, *caller, *converted, effects);
    });
    // A session's budget is not stored in the settings file.
    if (caller->admin) context_.settings->Save();
    AuditRecord record = {.what = Traits::kAuditName, .caller = *caller};
    Traits::AddFacts(*converted, &record.facts);
    if (views.ok()) {
      for (const core::BudgetView& view : *views) ToProto(view, response->add_budgets());
    }
    return FinishDecided(context_, context, std::move(record), views.status());
  }

  grpc::ServerUnaryReactor* ListBudgets(grpc::CallbackServerContext* context, const v1::ListBudgetsRequest* request,
                                        v1::ListBudgetsResponse* response) override {
    return ServePage(
        context_, context, *request, response,
        [](const core::Core& core, const core::Caller& caller, const core::PageRequest& page) {
          return core.ListBudgets(caller, page);
        },
        [&](const core::BudgetView& view) { ToProto(view, response->add_budgets()); });
  }

  grpc::ServerUnaryReactor* RecallBlock(grpc::CallbackServerContext* context, const v1::RecallBlockRequest* request,
                                        v1::Block* response) override {
    return ChangeBlock(context_, context, "recall", BlockId(request->block()), &core::Core::Recall, response);
  }

  grpc::ServerUnaryReactor* FreeBlockById(grpc::CallbackServerContext* context,
                                          const v1::FreeBlockByIdRequest* request, v1::Block* response) override {
    return ChangeBlock(context_, context, "free_by_id", BlockId(request->block()), &core::Core::FreeById, response);
  }

  grpc::ServerUnaryReactor* ListLogRecords(grpc::CallbackServerContext* context,
                                           const v1::ListLogRecordsRequest* request,
                                           v1::ListLogRecordsResponse* response) override {
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

  grpc::ServerUnaryReactor* ListBlocks(grpc::CallbackServerContext* context, const v1::ListBlocksRequest* request,
                                       v1::ListBlocksResponse* response) override {
    return ServePage(
        context_, context, *request, response,
        [](const core::Core& core, const core::Caller& caller, const core::PageRequest& page) {
          return core.ListBlocks(caller, page);
        },
        [&](const core::BlockView& view) { ToProto(view, response->add_blocks()); });
  }

  grpc::ServerUnaryReactor* GetUsage(grpc::CallbackServerContext* context, const v1::GetUsageRequest*,
                                     v1::Usage* response) override {
    return ServeLook(
        context_, context,
        [](const core::Core& core, const core::Caller& caller) {
          return absl::StatusOr<core::UsageView>(core.GetUsage(caller));
        },
        [&](const core::UsageView& view) { ToProto(view, response); });
  }

 private:
  const ServiceContext context_;
  const AllocationLog& log_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeMemoryService(const ServiceContext& context, const AllocationLog* log) {
  return std::make_unique<MemoryService>(context, log);
}

// ---- FenceService: streams, and the uses of blocks on them ---------------------------------------------------

namespace {

class FenceService final : public v1::FenceService::CallbackService {
 public:
  explicit FenceService(ServiceContext context) : context_(context) {}

  grpc::ServerUnaryReactor* OpenStream(grpc::CallbackServerContext* context, const v1::OpenStreamRequest* request,
                                       v1::OpenStreamResponse* response) override {
    return SubmitRequest<core::OpenStreamRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* CloseStream(grpc::CallbackServerContext* context, const v1::CloseStreamRequest* request,
                                        v1::CloseStreamResponse* response) override {
    return SubmitRequest<core::CloseStreamRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* PrepareUse(grpc::CallbackServerContext* context, const v1::PrepareUseRequest* request,
                                       v1::PrepareUseResponse* response) override {
    return SubmitRequest<core::PrepareUseRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* FinishUse(grpc::CallbackServerContext* context, const v1::FinishUseRequest* request,
                                      v1::FinishUseResponse* response) override {
    return SubmitRequest<core::FinishUseRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* AbandonUse(grpc::CallbackServerContext* context, const v1::AbandonUseRequest* request,
                                       v1::AbandonUseResponse* response) override {
    return SubmitRequest<core::AbandonUseRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* ClearTorn(grpc::CallbackServerContext* context, const v1::ClearTornRequest* request,
                                      v1::Block* response) override {
    const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
    if (!caller.ok()) return FinishRefused(context_, context, "clear_torn", caller, caller.status());
    if (const absl::Status ledger = context_.broker->CheckLedger(); !ledger.ok()) {
      return FinishRefused(context_, context, "clear_torn", caller, ledger);
    }
    absl::StatusOr<core::BlockView> view;
    context_.broker->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
      view = core.ClearTorn(now, *caller, BlockId(request->block()), effects);
    });
    if (view.ok()) ToProto(*view, response);
    return FinishDecided(
        context_, context,
        {.what = "clear_torn", .facts = {{"block", absl::StrCat(request->block())}}, .caller = *caller}, view.status());
  }

  grpc::ServerUnaryReactor* ListStreams(grpc::CallbackServerContext* context, const v1::ListStreamsRequest* request,
                                        v1::ListStreamsResponse* response) override {
    return ServePage(
        context_, context, *request, response,
        [](const core::Core& core, const core::Caller& caller, const core::PageRequest& page) {
          return core.ListStreams(caller, page);
        },
        [&](const core::StreamView& view) { ToProto(view, response->add_streams()); });
  }

 private:
  const ServiceContext context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeFenceService(const ServiceContext& context) {
  return std::make_unique<FenceService>(context);
}

// ---- ModuleService: the cache of compiled modules ------------------------------------------------------------

namespace {

// A page of modules, and the cache's metrics.
struct ModuleList {
  core::Page<core::ModuleView> modules;
  core::ModuleUsage usage;
};

class ModuleService final : public v1::ModuleService::CallbackService {
 public:
  explicit ModuleService(ServiceContext context) : context_(context) {}

  grpc::ServerUnaryReactor* ObtainModule(grpc::CallbackServerContext* context, const v1::ObtainModuleRequest* request,
                                         v1::ObtainModuleResponse* response) override {
    return SubmitRequest<core::ObtainModuleRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* StoreModule(grpc::CallbackServerContext* context, const v1::StoreModuleRequest* request,
                                        v1::StoreModuleResponse* response) override {
    return SubmitRequest<core::StoreModuleRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* AbandonModule(grpc::CallbackServerContext* context,
                                          const v1::AbandonModuleRequest* request,
                                          v1::AbandonModuleResponse* response) override {
    return SubmitRequest<core::AbandonModuleRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* ListModules(grpc::CallbackServerContext* context, const v1::ListModulesRequest* request,
                                        v1::ListModulesResponse* response) override {
    const absl::StatusOr<core::PageRequest> page = ReadPage(request->page_size(), request->page_token());
    return ServeLook(
        context_, context,
        [&](const core::Core& core, const core::Caller& caller) -> absl::StatusOr<ModuleList> {
          BERTH_RETURN_IF_ERROR(page.status());
          return ModuleList{.modules = core.ListModules(caller, *page), .usage = core.GetModuleUsage(caller)};
        },
        [&](const ModuleList& list) {
          for (const core::ModuleView& view : list.modules) ToProto(view, response->add_modules());
          ToProto(list.usage, response->mutable_usage());
          response->set_next_page_token(NextPageToken(list.modules));
        });
  }

 private:
  const ServiceContext context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeModuleService(const ServiceContext& context) {
  return std::make_unique<ModuleService>(context);
}

}  // namespace berth::service
