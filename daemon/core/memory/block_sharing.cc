// The sharing of blocks: grants, imports, and published blocks.

#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "daemon/core/managers.h"
#include "daemon/core/memory/blocks.h"
#include "daemon/core/requests/fingerprint.h"
#include "daemon/core/requests/undo_step.h"

namespace berth::core {
namespace {

absl::Status WritesPublished() {
  return Refuse(Reason::kInvalidField, "invalid {field} {value}: a published block is {limit}",
                {{"field", "read_only"}, {"value", "false"}, {"limit", "read only"}});
}

}  // namespace

// ---- Imports of blocks by processes, and the grants that allow them ------------------------------------------

void Blocks::Grant(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                   const GrantRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  core_.memory_log.AddLogRecord(*admitted, LogAction::kGrant).block = request.handle.block;
  const absl::Status granted = AddGrant(admitted->session.id, request);
  if (granted.ok()) {
    core_.requests.Answer(step, admitted->request, Response(GrantResult()));
  } else {
    core_.requests.Answer(step, admitted->request, granted);
  }
}

absl::Status Blocks::AddGrant(SessionId owner, const GrantRequest& request) {
  BERTH_ASSIGN_OR_RETURN(Block* const block, FindOwned(owner, request.handle));
  if (const char* const why = WhyStale(*block); why != nullptr) return Stale(request.handle, why);
  auto& sessions = block->granted_sessions;
  auto& tenants = block->granted_tenants;
  const auto* const session = std::get_if<SessionId>(&request.grantee);
  const auto* const tenant = std::get_if<Tenant>(&request.grantee);
  // The owner must not learn whether the session exists.
  if (session != nullptr ? sessions.contains(*session) : tenants.contains(*tenant)) return absl::OkStatus();
  const uint64_t limit = core_.config.limits.grants_per_block;
  const uint64_t grants = block->grants();
  if (grants >= limit) {
    return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                  {{"what", "grants_per_block"}, {"current", grants}, {"limit", limit}});
  }
  BERTH_RETURN_IF_ERROR(blocks_.grants().Check({.user = UserOf(block->tenant)}));
  if (session != nullptr) {
    blocks_.AddGrant(*block, *session);
  } else {
    blocks_.AddGrant(*block, *tenant);
  }
  return absl::OkStatus();
}

void Blocks::Import(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                    const ImportRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  LogRecord& log_record = core_.memory_log.AddLogRecord(*admitted, LogAction::kImport);
  log_record.block = request.handle.block;
  log_record.label = request.name;
  const absl::StatusOr<Block*> block = request.name.empty()
                                           ? FindImportable(admitted->session, admitted->channel, request.handle)
                                           : FindNamed(admitted->session, admitted->channel, request);
  if (!block.ok()) return core_.requests.Answer(step, admitted->request, block.status());
  const bool read_only = request.read_only || !request.name.empty();
  const absl::Status takes = CheckTakes(**block, request.kinds, read_only);
  if (!takes.ok()) return core_.requests.Answer(step, admitted->request, takes);
  if ((*block)->published && !read_only) return core_.requests.Answer(step, admitted->request, WritesPublished());
  if (core_.fences.AwaitHandOver(step, **block, admitted->channel.id)) {
    core_.fences.AwaitImport(step, admitted->request, (*block)->id, read_only);
    return;
  }
  FinishImport(step, admitted->request, **block, read_only);
}

void Blocks::FinishImport(StepContext& step, const RequestId& request, Block& block, bool read_only) {
  // The block may have been published during its hand-over.
  if (block.published && !read_only) return core_.requests.Answer(step, request, WritesPublished());
  const bool host = core_.devices.DeviceOf(block).config.kind == MemoryKind::kHost;
  const ReadOnly protection = !read_only ? ReadOnly::kNo : (host ? ReadOnly::kEnforced : ReadOnly::kCooperative);
  const core::Import& import = StartImport(step, block, request, protection);
  ImportResult result = {.block = ViewImported(block, import), .import = import.id, .read_only = protection};
  if (block.export_kind == ExportKind::kCudaIpc) result.ipc_handle = block.ipc_handle;
  core_.requests.Answer(step, request, Response(std::move(result)));
}

bool Blocks::HasRightTo(const Session& session, const Block& block) {
  return block.owner == session.id || block.granted_sessions.contains(session.id) ||
         (block.published && block.tenant == session.tenant) || block.granted_tenants.contains(session.tenant);
}

absl::StatusOr<Block*> Blocks::FindImportable(const Session& session, const Channel& channel,
                                              const BlockHandle& handle) {
  BERTH_RETURN_IF_ERROR(CheckHandle(handle));
  Block* const block = blocks_.Find(handle.block);
  const bool allowed = block != nullptr && block->phase == BlockPhase::kLive && HandleOf(*block) == handle &&
                       HasRightTo(session, *block);
  if (!allowed) {
    return Refuse(Reason::kDenied, "{kind} {id} does not exist, or this caller may not use it",
                  {{"kind", "block"}, {"id", handle.block.value()}});
  }
  if (const char* const why = WhyStale(*block); why != nullptr) return Stale(handle, why);
  const uint64_t limit = core_.config.limits.imports_per_block;
  if (block->imports.size() >= limit) {
    return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                  {{"what", "imports_per_block"}, {"current", block->imports.size()}, {"limit", limit}});
  }
  BERTH_RETURN_IF_ERROR(MayImport(channel));
  return block;
}

absl::StatusOr<Block*> Blocks::FindNamed(const Session& session, const Channel& channel, const ImportRequest& request) {
  Block* const block = blocks_.FindByName(request.publisher.value_or(session.tenant), request.name);
  // The answer about a name that is not granted is the answer about a name that does not exist.
  if (block == nullptr || !HasRightTo(session, *block)) {
    return Refuse(Reason::kDenied, "{kind} {id} does not exist, or this caller may not use it",
                  {{"kind", "published block"}, {"id", request.name}});
  }
  return FindImportable(session, channel, HandleOf(*block));
}

absl::Status Blocks::MayImport(const Channel& channel) const {
  BERTH_RETURN_IF_ERROR(blocks_.imports().Check(core_.sessions.table().Find(channel.session)->claimant()));
  const uint64_t most = core_.config.limits.imports_per_channel;
  uint64_t imports = blocks_.CountImportsOf(channel.id);
  // Counted only near the limit: each block under way becomes an import, too.
  if (imports + channel.requests.size() >= most) {
    for (const RequestId& request : core_.requests.PendingOf(channel)) {
      const WaitPlace* const place = core_.requests.pending().at(request).place;
      imports += place != nullptr && place->EndsInImport(request) ? 1 : 0;
    }
  }
  if (imports >= most) {
    return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}; release some imports",
                  {{"what", "imports_per_channel"}, {"current", imports}, {"limit", most}});
  }
  return core_.sessions.MayDeliver(channel);
}

absl::Status Blocks::CheckTakes(const Block& block, const ExportKinds& kinds, bool read_only) {
  if (!kinds.Has(block.export_kind)) {
    return Workers::NoSuchKind(block.export_kind, "the block has this kind, and the caller does not accept it");
  }
  if (read_only && block.export_kind == ExportKind::kCudaIpc) {
    return Workers::NoSuchKind(block.export_kind, "every importer can write such a block, so it cannot be read only");
  }
  return absl::OkStatus();
}

void Blocks::EndImports(StepContext& step, ChannelId channel, const std::vector<ImportId>& imports) {
  for (const ImportId import : imports) {
    Block* const mapped = blocks_.FindByImport(import);
    if (mapped == nullptr || mapped->imports.at(import).channel != channel) continue;
    EndImport(step, *mapped, import, LogCause::kLetGo);
  }
}

core::Import& Blocks::StartImport(StepContext& step, Block& block, const RequestId& request, ReadOnly read_only) {
  const Channel& channel = *core_.sessions.table().FindChannel(request.channel);
  core::Import& import =
      blocks_.AddImport(block, core::Import{.channel = channel.id,
                                            .session = channel.session,
                                            .tenant = core_.sessions.table().Find(channel.session)->tenant,
                                            .process = channel.process,
                                            .read_only = read_only,
                                            .since = step.now,
                                            .of_operator = core_.sessions.table().Find(channel.session)->of_operator});
  std::vector<Deliver> sends;
  core_.sessions.mailboxes().Post(
      Deliver{.channel = channel.id,
              .delivery = {.what = block.export_kind == ExportKind::kFd ? attach::DeliveryKind::kBlock
                                                                        : attach::DeliveryKind::kHandleBlock,
                           .sequence = request.sequence,
                           .block = block.id.value(),
                           .import = import.id.value(),
                           .shared = block.shared ? 1u : 0u},
              .read_only = read_only == ReadOnly::kEnforced},
      &sends);
  step.EmitAll(std::move(sends));
  return import;
}

void Blocks::EndImport(StepContext& step, Block& block, ImportId import, LogCause how) {
  const core::Import& ended = block.imports.at(import);
  LogRecord record = core_.memory_log.RecordOf(block, LogAction::kImportEnd, how);
  record.session = ended.session;
  record.tenant = ended.tenant;
  record.process = ended.process;
  record.import = import;
  core_.memory_log.Log(step, std::move(record));
  // A session that is leaving may have held only this import.
  if (const Channel* const importer = core_.sessions.table().FindChannel(ended.channel);
      importer != nullptr && importer->hung_up) {
    core_.fences.LookAtLater(step, ended.session);
  }
  std::vector<Deliver> sends;
  core_.sessions.mailboxes().Withdraw(ended.channel, import, &sends);
  blocks_.EraseImport(block, import);
  step.EmitAll(std::move(sends));
  if (block.phase != BlockPhase::kQuarantined) return;
  if (block.imports.empty()) return Apply(step, block, BlockEvent::kLastImportEnded);
  core_.budgets.ChargeImporters(step, block);
}

bool Blocks::WithdrawImport(StepContext& step, ChannelId channel, ImportId import) {
  const Block* const block = std::as_const(blocks_).FindByImport(import);
  // The process may have the CUDA_IPC handle already; it reports the import's end when it learns of the import.
  if (block == nullptr || block->export_kind == ExportKind::kCudaIpc) return false;
  std::vector<Deliver> sends;
  const bool withdrawn = core_.sessions.mailboxes().Withdraw(channel, import, &sends);
  step.EmitAll(std::move(sends));
  if (withdrawn) EndImport(step, *blocks_.FindByImport(import), import, LogCause::kNeverSent);
  return withdrawn;
}

void Blocks::ImportLetGo(StepContext& step, ChannelId channel, ImportId import) {
  Block* const block = blocks_.FindByImport(import);
  if (block == nullptr || block->imports.at(import).channel != channel) return;
  EndImport(step, *block, import, LogCause::kLetGo);
}

bool Undo(const UndoStep& undo, const ImportResult& result) {
  const bool imported = undo.core.blocks.FindByImport(result.import) != nullptr;
  undo.core.blocks.WithdrawImport(undo.step, undo.channel.id, result.import);
  return imported;
}

// ---- Published blocks: blocks with a name, owned by a tenant instead of the session that made them -----------

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
    return Refuse(Reason::kBlockMapped,
                  "cannot publish block {block}: process {pid} ({process}) can write it through import {import}; "
                  "publish it after that import has ended",
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
