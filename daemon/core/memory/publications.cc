// Published blocks: blocks with a name, owned by a tenant instead of the session that made them.

#include <cstdint>
#include <utility>

#include <berth/error.h>

#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "daemon/core/managers.h"
#include "daemon/core/memory/blocks.h"
#include "daemon/core/requests/fingerprint.h"
#include "daemon/core/requests/undo_step.h"

namespace berth::core {

void Blocks::Publish(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                     const PublishRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  LogRecord& log_record = core_.memory_log.AddLogRecord(*admitted, LogAction::kPublish);
  log_record.block = request.handle.block;
  log_record.label = request.name;
  // The client has unmapped these imports, whether or not publishing succeeds.
  EndImports(step, admitted->channel.id, request.let_go);
  absl::StatusOr<PublishResult> published = PublishAs(step, admitted->session, request);
  if (!published.ok()) return core_.requests.Answer(step, admitted->request, published.status());
  core_.requests.Answer(step, admitted->request, Response(*std::move(published)));
}

absl::StatusOr<PublishResult> Blocks::PublishAs(StepContext& step, const Session& session,
                                                const PublishRequest& request) {
  BERTH_ASSIGN_OR_RETURN(Block* const block, FindOwned(session.id, request.handle));
  if (const char* const why = WhyStale(*block); why != nullptr) return Stale(request.handle, why);
  // Refuses a CUDA_IPC block: it cannot be mapped read-only, and it does not live long.
  BERTH_RETURN_IF_ERROR(CheckTakes(*block, {.cuda_ipc = true}, /*read_only=*/true));
  Block* const named = block->published ? block : blocks_.FindByName(session.tenant, request.name);
  // A name of lost memory is useless, so the new block may take it.
  const bool replaces = named != nullptr && named != block && (request.replace || WhyStale(*named) != nullptr);
  if (named != nullptr && !replaces) {
    return Refuse(Reason::kNameTaken, "block {block} already has the name \"{name}\"",
                  {{"block", named->id.value()}, {"name", named->name}});
  }
  for (const auto& [id, import] : block->imports) {
    if (import.read_only != ReadOnly::kNo) continue;
    return Refuse(Reason::kBlockMapped, "block {block}: process {pid} ({process}) can write it through import {import}",
                  {{"block", block->id.value()},
                   {"pid", import.process.pid},
                   {"process", import.process.name},
                   {"import", id.value()}});
  }
  const uint64_t names = blocks_.CountNamesOf(session.tenant) - (replaces ? 1 : 0);
  const uint64_t limit =
      core_.sessions.tenant_use().QuotaOf(session.tenant).names.value_or(core_.config.limits.names_per_tenant);
  if (names >= limit) {
    return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                  {{"what", "names_per_tenant"}, {"current", names}, {"limit", limit}});
  }
  if (replaces) FreeBlock(step, *named, LogCause::kById);
  block->drawn_from = ReservationId();
  blocks_.Publish(*block, request.name);
  core_.budgets.ChargeTo(step, *block, SessionId(), block->charged_tenants);
  PublishResult result = {.block = DescribeBlock(*block), .replaced = replaces};
  result.block.name = request.name;
  return result;
}

void Blocks::Unpublish(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                       const UnpublishRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  LogRecord& log_record = core_.memory_log.AddLogRecord(*admitted, LogAction::kUnpublish);
  log_record.label = request.name;
  const Tenant& tenant = request.tenant.has_value() ? *request.tenant : admitted->session.tenant;
  if (!caller.admin && tenant != admitted->session.tenant) {
    return core_.requests.Answer(
        step, admitted->request,
        Refuse(Reason::kAdminOnly, "{verb} of another tenant's block needs admin.sock, which accepts operators only",
               {{"verb", "UnpublishBlock"}}));
  }
  Block* const block = blocks_.FindByName(tenant, request.name);
  if (block == nullptr) {
    return core_.requests.Answer(
        step, admitted->request,
        Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "published block"}, {"id", request.name}}));
  }
  const BlockState state = block->imports.empty() ? BlockState::kRetired : BlockState::kQuarantined;
  log_record.block = block->id;
  log_record.block_generation = block->generation;
  log_record.device = block->device;
  log_record.bytes = block->bytes;
  FreeBlock(step, *block, LogCause::kNone);
  core_.requests.Answer(step, admitted->request, Response(UnpublishResult{.state = state}));
}

bool Undo(const UndoStep& undo, const PublishResult& result) {
  Managers& core = undo.core;
  Block* const block = core.blocks.Find(result.block.handle.block);
  // A block that replaced another stays published: otherwise the name would have no block.
  if (block == nullptr || !block->published || block->name != result.block.name || result.replaced) return false;
  core.memory_log.Log(undo.step, core.memory_log.RecordOf(*block, LogAction::kUnpublish, LogCause::kForgotten));
  core.blocks.GiveBack(*block, undo.channel.session);
  // If the session's share is full meanwhile, only the tenant is charged for the block.
  const ByteBudget& share = core.budgets.SessionBudget(undo.channel.session, block->device);
  if (share.Judge(block->bytes) == ByteBudget::Verdict::kNow) {
    core.budgets.ChargeTo(undo.step, *block, undo.channel.session, block->charged_tenants);
  }
  return true;
}

}  // namespace berth::core
