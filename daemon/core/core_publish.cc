// Published blocks: a name, and the tenant instead of the session that made them.

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"
#include "daemon/core/fingerprint.h"

namespace berth::core {

void Core::Publish(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                   const PublishRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  LogRecord& note = impl_->Note(*admitted, LogAction::kPublish);
  note.block = request.handle.block;
  note.label = request.name;
  // Unmapped is unmapped, whatever becomes of the name.
  impl_->EndImports(step, admitted->channel.id, request.let_go);
  const absl::StatusOr<Block*> block = impl_->Publish(admitted->session, request);
  if (!block.ok()) return impl_->Answer(step, admitted->request, block.status());
  BlockView view = impl_->DescribeBlock(**block);
  view.name = request.name;
  impl_->Answer(step, admitted->request, Response(PublishResult{.block = std::move(view)}));
}

absl::StatusOr<Block*> Core::Impl::Publish(const Session& session, const PublishRequest& request) {
  BERTH_ASSIGN_OR_RETURN(Block* const block, FindOwned(session.id, request.handle));
  if (const char* const why = WhyStale(*block); why != nullptr) return Stale(request.handle, why);
  // Nobody maps such a block without the right to write, and it is not there for long.
  BERTH_RETURN_IF_ERROR(CheckTakes(*block, {.cuda_ipc = true}, /*read_only=*/true));
  if (const Block* const named =
          block->published ? block : blocks_.FindByName(session.tenant, request.name)) {
    return Refuse(Reason::kNameTaken, "block {block} has the name \"{name}\"",
                  {{"block", absl::StrCat(absl::Hex(named->id.value()))}, {"name", named->name}});
  }
  for (const auto& [id, import] : block->imports) {
    if (import.read_only != ReadOnly::kNo) continue;
    return Refuse(Reason::kBlockMapped,
                  "block {block}: process {pid} ({process}) has import {import}, and can write",
                  {{"block", absl::StrCat(absl::Hex(block->id.value()))},
                   {"pid", import.process.pid},
                   {"process", import.process.name},
                   {"import", id.value()}});
  }
  const uint64_t names = blocks_.CountNamesOf(session.tenant);
  const uint64_t limit = tenant_use_.QuotaOf(session.tenant).names.value_or(config_.limits.names_per_tenant);
  if (names >= limit) {
    return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                  {{"what", "names_per_tenant"}, {"current", names}, {"limit", limit}});
  }
  block->drawn_from = ReservationId();
  blocks_.Publish(*block, request.name);
  ChargeTo(*block, SessionId(), block->charged_tenants);
  return block;
}

void Core::Unpublish(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                     const UnpublishRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  LogRecord& note = impl_->Note(*admitted, LogAction::kUnpublish);
  note.label = request.name;
  const Tenant& tenant = request.tenant.has_value() ? *request.tenant : admitted->session.tenant;
  if (!caller.admin && tenant != admitted->session.tenant) {
    return impl_->Answer(step, admitted->request,
                         Refuse(Reason::kAdminOnly, "{verb} of another tenant's is served on admin.sock only",
                                {{"verb", "UnpublishBlock"}}));
  }
  Block* const block = impl_->blocks_.FindByName(tenant, request.name);
  if (block == nullptr) {
    return impl_->Answer(
        step, admitted->request,
        Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "published block"}, {"id", request.name}}));
  }
  const BlockState state = block->imports.empty() ? BlockState::kRetired : BlockState::kQuarantined;
  note.block = block->id;
  note.block_generation = block->generation;
  note.device = block->device;
  note.bytes = block->bytes;
  impl_->FreeBlock(step, *block, LogCause::kNone);
  impl_->Answer(step, admitted->request, Response(UnpublishResult{.state = state}));
}

absl::StatusOr<Block*> Core::Impl::FindNamed(const Session& session, const Channel& channel,
                                             const std::string& name) {
  Block* const block = blocks_.FindByName(session.tenant, name);
  if (block == nullptr) {
    return Refuse(Reason::kDenied, "{kind} {id} does not exist, or is not for this caller",
                  {{"kind", "published block"}, {"id", name}});
  }
  return FindImportable(session, channel, HandleOf(*block));
}

}  // namespace berth::core
