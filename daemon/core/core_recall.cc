// What a tenant and operators do to blocks by their ids: ask for them back, free them; and failed releases once more.

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"

namespace berth::core {

absl::StatusOr<Block*> Core::Impl::FindById(const Caller& caller, BlockId block) {
  BERTH_RETURN_IF_ERROR(Authenticate(caller).status());
  Block* const found = blocks_.Find(block);
  const bool there = found != nullptr && (found->phase == BlockPhase::kLive || found->freed());
  if (there && found->owned() && (caller.admin || found->tenant == caller.tenant)) return found;
  return Refuse(Reason::kNotFound, "no {kind} {id}",
                {{"kind", "block"}, {"id", absl::StrCat(absl::Hex(block.value()))}});
}

absl::StatusOr<BlockView> Core::Recall(absl::Time now, const Caller& caller, BlockId block,
                                       Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  BERTH_ASSIGN_OR_RETURN(Block* const found, impl_->FindById(caller, block));
  std::set<ChannelId> asked;
  std::vector<Deliver> sends;
  for (const auto& [id, import] : found->imports) {
    if (!impl_->blocks_.MarkRecalled(*found, id) || !asked.insert(import.channel).second) continue;
    impl_->mailboxes_.Post(
        Deliver{.channel = import.channel,
                .delivery = {.what = attach::DeliveryKind::kAskBack, .block = found->id.value()}},
        &sends);
  }
  LogRecord record = impl_->RecordOf(*found, LogAction::kRecall, LogCause::kById);
  record.session = caller.credentials.session;
  impl_->Log(step, std::move(record));
  impl_->SendAll(step, std::move(sends));
  return impl_->ViewBlock(*found, caller.admin ? nullptr : &caller.tenant);
}

absl::StatusOr<BlockView> Core::FreeById(absl::Time now, const Caller& caller, BlockId block,
                                         Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  BERTH_ASSIGN_OR_RETURN(Block* const found, impl_->FindById(caller, block));
  if (found->freed()) return Impl::Stale(impl_->HandleOf(*found), "freed already");
  found->drawn_from = ReservationId();
  impl_->FreeBlock(step, *found, LogCause::kById);
  return impl_->ViewBlock(*found, caller.admin ? nullptr : &caller.tenant);
}

void Core::Reap(absl::Time now, CallId call, const Caller& caller, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  absl::Status may = impl_->Authenticate(caller).status();
  if (may.ok() && !caller.admin) {
    may = Refuse(Reason::kAdminOnly, "{verb} is served on admin.sock only", {{"verb", "ReapBlocks"}});
  }
  if (may.ok() && impl_->shutting_down_) may = Refuse(Reason::kShuttingDown, "the daemon is stopping");
  if (!may.ok()) return impl_->Reply(step, call, may);
  Impl::Reaping reaping;
  for (const auto& [ordinal, device] : impl_->devices_) {
    for (const Block* const there : impl_->blocks_.OfDevice(ordinal)) {
      if (!there->stuck || device.worker(there->lane()).state != DeviceState::kReady) continue;
      Block& block = *impl_->blocks_.Find(there->id);
      block.stuck = false;
      impl_->ForEachBudget(block, [&](ByteBudget& budget) { budget.UnmarkStuck(block.bytes); });
      impl_->AskRelease(step, block);
      reaping.open.insert(block.id);
      ++reaping.result.tried;
      reaping.result.tried_bytes = Bytes(reaping.result.tried_bytes.count() + block.bytes.count());
    }
  }
  impl_->Log(step, {.action = LogAction::kReap,
                    .session = caller.credentials.session,
                    .tenant = caller.tenant,
                    .bytes = reaping.result.tried_bytes});
  if (reaping.open.empty()) return impl_->Reply(step, call, Response(reaping.result));
  impl_->reapings_.emplace(call, std::move(reaping));
}

void Core::Impl::NoteReaped(const Step& step, const Block& block, bool back) {
  for (auto it = reapings_.begin(); it != reapings_.end();) {
    Reaping& reaping = it->second;
    if (reaping.open.erase(block.id) > 0 && back) {
      ++reaping.result.back;
      reaping.result.back_bytes = Bytes(reaping.result.back_bytes.count() + block.bytes.count());
    }
    if (!reaping.open.empty()) {
      ++it;
      continue;
    }
    Reply(step, it->first, Response(reaping.result));
    it = reapings_.erase(it);
  }
}

}  // namespace berth::core
