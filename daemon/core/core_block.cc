// Blocks once they are there: freed, granted, imported.

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"
#include "daemon/core/fingerprint.h"

namespace berth::core {
namespace {

absl::Status WritesPublished() {
  return Refuse(Reason::kInvalidField, "{field} is {value}; a published block is {limit}",
                {{"field", "read_only"}, {"value", "false"}, {"limit", "read only"}});
}

}  // namespace

void Core::Free(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                const FreeRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  LogRecord& note = impl_->Note(*admitted, LogAction::kFree);
  note.block = request.handle.block;
  const absl::StatusOr<Block*> block = impl_->FindOwned(admitted->session.id, request.handle);
  if (!block.ok()) return impl_->Answer(step, admitted->request, block.status());
  note.device = (*block)->device;
  note.bytes = (*block)->bytes;
  note.label = (*block)->label;
  note.block_generation = (*block)->generation;
  impl_->EndImports(step, admitted->channel.id, request.let_go);
  const BlockState state = (*block)->imports.empty() ? BlockState::kRetired : BlockState::kQuarantined;
  // Giving the memory back takes system calls that the caller need not wait for.
  impl_->Answer(step, admitted->request, Response(FreeResult{.state = state}));
  (*block)->drawn_from = ReservationId();
  impl_->FreeBlock(step, **block, LogCause::kNone);
}

void Core::Impl::EndImports(const Step& step, ChannelId channel, const std::vector<ImportId>& imports) {
  for (const ImportId import : imports) {
    Block* const mapped = blocks_.FindByImport(import);
    if (mapped == nullptr || mapped->imports.at(import).channel != channel) continue;
    EndImport(step, *mapped, import, LogCause::kLetGo);
  }
}

void Core::Grant(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                 const GrantRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  impl_->Note(*admitted, LogAction::kGrant).block = request.handle.block;
  const absl::Status granted = impl_->AddGrant(admitted->session.id, request);
  if (granted.ok()) {
    impl_->Answer(step, admitted->request, Response(GrantResult()));
  } else {
    impl_->Answer(step, admitted->request, granted);
  }
}

absl::Status Core::Impl::AddGrant(SessionId owner, const GrantRequest& request) {
  BERTH_ASSIGN_OR_RETURN(Block* const block, FindOwned(owner, request.handle));
  if (const char* const why = WhyStale(*block); why != nullptr) return Stale(request.handle, why);
  auto& sessions = block->granted_sessions;
  auto& tenants = block->granted_tenants;
  const auto* const session = std::get_if<SessionId>(&request.grantee);
  const auto* const tenant = std::get_if<Tenant>(&request.grantee);
  // Whether there is such a session is not the owner's to learn.
  if (session != nullptr ? sessions.contains(*session) : tenants.contains(*tenant)) return absl::OkStatus();
  const uint64_t limit = config_.limits.grants_per_block;
  const uint64_t grants = sessions.size() + tenants.size();
  if (grants >= limit) {
    return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                  {{"what", "grants_per_block"}, {"current", grants}, {"limit", limit}});
  }
  if (session != nullptr) {
    blocks_.AddGrant(*block, *session);
  } else {
    tenants.insert(*tenant);
  }
  return absl::OkStatus();
}

void Core::Import(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                  const ImportRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  LogRecord& note = impl_->Note(*admitted, LogAction::kImport);
  note.block = request.handle.block;
  note.label = request.name;
  const absl::StatusOr<Block*> block =
      request.name.empty() ? impl_->FindImportable(admitted->session, admitted->channel, request.handle)
                           : impl_->FindNamed(admitted->session, admitted->channel, request.name);
  if (!block.ok()) return impl_->Answer(step, admitted->request, block.status());
  const bool read_only = request.read_only || !request.name.empty();
  const absl::Status takes = Impl::CheckTakes(**block, request.kinds, read_only);
  if (!takes.ok()) return impl_->Answer(step, admitted->request, takes);
  if ((*block)->published && !read_only) return impl_->Answer(step, admitted->request, WritesPublished());
  if (impl_->AwaitHandOver(step, **block, admitted->channel.id)) {
    const absl::Time deadline = step.now + impl_->config_.limits.prepare_patience;
    impl_->pending_.at(admitted->request).place =
        WaitingImport{.block = (*block)->id, .read_only = read_only, .deadline = deadline};
    impl_->waiting_imports_.emplace(deadline, admitted->request);
    return;
  }
  impl_->FinishImport(step, admitted->request, **block, read_only);
}

void Core::Impl::FinishImport(const Step& step, const RequestId& request, Block& block, bool read_only) {
  // It may have been published while it was handed over.
  if (block.published && !read_only) return Answer(step, request, WritesPublished());
  const bool host = DeviceOf(block).config.kind == MemoryKind::kHost;
  const ReadOnly protection =
      !read_only ? ReadOnly::kNo : (host ? ReadOnly::kEnforced : ReadOnly::kCooperative);
  const core::Import& import = StartImport(step, block, request, protection);
  ImportResult result = {.block = ViewImported(block, import), .import = import.id, .read_only = protection};
  if (block.export_kind == ExportKind::kCudaIpc) result.ipc_handle = block.ipc_handle;
  Answer(step, request, Response(std::move(result)));
}

absl::StatusOr<Block*> Core::Impl::FindImportable(const Session& session, const Channel& channel,
                                                  const BlockHandle& handle) {
  BERTH_RETURN_IF_ERROR(CheckHandle(handle));
  Block* const block = blocks_.Find(handle.block);
  const bool allowed = block != nullptr && block->phase == BlockPhase::kLive && HandleOf(*block) == handle &&
                       (block->owner == session.id || block->granted_sessions.contains(session.id) ||
                        (block->published && block->tenant == session.tenant) ||
                        block->granted_tenants.contains(session.tenant));
  if (!allowed) {
    return Refuse(Reason::kDenied, "{kind} {id} does not exist, or is not for this caller",
                  {{"kind", "block"}, {"id", absl::StrCat(absl::Hex(handle.block.value()))}});
  }
  if (const char* const why = WhyStale(*block); why != nullptr) return Stale(handle, why);
  const uint64_t limit = config_.limits.imports_per_block;
  if (block->imports.size() >= limit) {
    return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                  {{"what", "imports_per_block"}, {"current", block->imports.size()}, {"limit", limit}});
  }
  BERTH_RETURN_IF_ERROR(MayImport(channel));
  return block;
}

absl::Status Core::Impl::Stale(const BlockHandle& handle, absl::string_view why) {
  return Refuse(Reason::kStale, "block {block} is stale: {why}",
                {{"block", absl::StrCat(absl::Hex(handle.block.value()))}, {"why", why}});
}

absl::Status Core::Impl::CheckHandle(const BlockHandle& handle) const {
  if (handle.node != config_.node) return Stale(handle, "of another node");
  if (handle.incarnation != config_.incarnation) return Stale(handle, "of another incarnation of this node");
  return absl::OkStatus();
}

absl::StatusOr<Block*> Core::Impl::FindOwned(SessionId session, const BlockHandle& handle) {
  BERTH_RETURN_IF_ERROR(CheckHandle(handle));
  Block* const block = blocks_.Find(handle.block);
  const bool owned =
      block != nullptr &&
      (block->owner == session || (block->published && block->tenant == sessions_.Find(session)->tenant));
  if (!owned) {
    return Refuse(Reason::kNotFound, "no {kind} {id} in this session",
                  {{"kind", "block"}, {"id", absl::StrCat(absl::Hex(handle.block.value()))}});
  }
  if (HandleOf(*block) != handle) return Stale(handle, "of another generation");
  if (block->freed()) return Stale(handle, "freed already");
  if (block->phase != BlockPhase::kLive) return Stale(handle, "not made yet");
  return block;
}

BlockHandle Core::Impl::HandleOf(const Block& block) const {
  const DeviceConfig& device = devices_.at(block.device).config;
  return BlockHandle{.node = config_.node,
                     .incarnation = config_.incarnation,
                     .device_uuid = device.uuid,
                     .block = block.id,
                     .generation = block.memory_generation,
                     .block_generation = block.generation};
}

void Core::Impl::Apply(const Step& step, Block& block, BlockEvent event) {
  const std::optional<BlockPhase> next = NextPhase(block.phase, event);
  BERTH_INVARIANT(next.has_value());
  Device& device = DeviceOf(block);
  ForEachBudget(block, [&](ByteBudget& budget) { budget.Move(block.phase, *next, block.bytes); });
  if (*next == BlockPhase::kWarm) {
    device.warm.MarkMade(block.bytes, block.generation, block.id);
  } else {
    device.warm.Remove(block.bytes, block.generation, block.id);
  }
  block.phase = *next;
  if (*next == BlockPhase::kRetired) AskRelease(step, block);
  if (*next != BlockPhase::kGone) return;
  NoteRoom();
  if (block.drawn_from) Restore(block);
  const std::vector<Tenant> charged = std::move(block.charged_tenants);
  if (block.lane() == Lane::kContext) {
    --device.context.blocks;
    NoteContextNeed(step, device);
  }
  fences_.Erase(block.id);
  blocks_.Erase(block);
  for (const Tenant& tenant : charged) EraseIfIdle(tenant);
}

void Core::Impl::Abandon(const Step& step, Block& block) {
  const bool unasked = InTheMaking(block.phase) && !block.asked;
  Apply(step, block, BlockEvent::kUnwanted);
  if (unasked) Unmake(step, block);
}

void Core::Impl::Unmake(const Step& step, Block& block) {
  if (!block.asked_earlier) return Apply(step, block, BlockEvent::kNotMade);
  if (block.phase != BlockPhase::kAbandoned) Apply(step, block, BlockEvent::kUnwanted);
  Apply(step, block, BlockEvent::kMade);
}

void Core::Impl::FreeBlock(const Step& step, Block& block, LogCause cause) {
  // A request that frees it is logged with its answer.
  if (cause != LogCause::kNone) Log(step, RecordOf(block, LogAction::kFree, cause));
  leases_.NoteEnd(step.now, LeaseOf(block), EndFor(cause));
  if (!block.name.empty()) blocks_.EraseName(block);
  EndFencesOf(step, block);
  if (block.imports.empty()) {
    Apply(step, block, BlockEvent::kFreedUnmapped);
    return ServeImports(step);
  }
  Apply(step, block, BlockEvent::kFreedMapped);
  ChargeImporters(block);
  std::set<ChannelId> recalled;
  std::vector<Deliver> sends;
  for (const auto& [id, import] : block.imports) {
    blocks_.MarkRecalled(block, id);
    if (!recalled.insert(import.channel).second) continue;
    mailboxes_.Post(Deliver{.channel = import.channel,
                            .delivery = {.what = attach::DeliveryKind::kRecall, .block = block.id.value()}},
                    &sends);
  }
  SendAll(step, std::move(sends));
  ServeImports(step);
}

core::Import& Core::Impl::StartImport(const Step& step, Block& block, const RequestId& request,
                                      ReadOnly read_only) {
  const Channel& channel = *sessions_.FindChannel(request.channel);
  core::Import& import =
      blocks_.AddImport(block, core::Import{.channel = channel.id,
                                            .session = channel.session,
                                            .tenant = sessions_.Find(channel.session)->tenant,
                                            .process = channel.process,
                                            .read_only = read_only,
                                            .since = step.now});
  std::vector<Deliver> sends;
  mailboxes_.Post(
      Deliver{.channel = channel.id,
              .delivery = {.what = block.export_kind == ExportKind::kFd ? attach::DeliveryKind::kBlock
                                                                        : attach::DeliveryKind::kHandleBlock,
                           .sequence = request.sequence,
                           .block = block.id.value(),
                           .import = import.id.value(),
                           .shared = block.shared ? 1u : 0u},
              .read_only = read_only == ReadOnly::kEnforced},
      &sends);
  SendAll(step, std::move(sends));
  return import;
}

void Core::Impl::EndImport(const Step& step, Block& block, ImportId import, LogCause how) {
  const core::Import& ended = block.imports.at(import);
  LogRecord record = RecordOf(block, LogAction::kImportEnd, how);
  record.session = ended.session;
  record.tenant = ended.tenant;
  record.process = ended.process;
  record.import = import;
  Log(step, std::move(record));
  // It may have been the last that one held who is leaving.
  if (const Channel* const importer = sessions_.FindChannel(ended.channel);
      importer != nullptr && importer->hung_up) {
    LookAtLater(step, ended.session);
  }
  std::vector<Deliver> sends;
  mailboxes_.Withdraw(ended.channel, import, &sends);
  blocks_.EraseImport(block, import);
  SendAll(step, std::move(sends));
  if (block.phase != BlockPhase::kQuarantined) return;
  if (block.imports.empty()) return Apply(step, block, BlockEvent::kLastImportEnded);
  ChargeImporters(block);
}

bool Core::Impl::WithdrawImport(const Step& step, ChannelId channel, ImportId import) {
  const Block* const block = std::as_const(blocks_).FindByImport(import);
  // Its handle may be with the process, which says so when it learns of the import.
  if (block == nullptr || block->export_kind == ExportKind::kCudaIpc) return false;
  std::vector<Deliver> sends;
  const bool withdrawn = mailboxes_.Withdraw(channel, import, &sends);
  SendAll(step, std::move(sends));
  if (withdrawn) EndImport(step, *blocks_.FindByImport(import), import, LogCause::kNeverSent);
  return withdrawn;
}

void Core::Impl::SendAll(const Step& step, std::vector<Deliver> sends) {
  for (Deliver& deliver : sends) Emit(step, std::move(deliver));
}

}  // namespace berth::core
