// Fences: streams, the uses of blocks on them, and what waits for either.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"
#include "daemon/core/fingerprint.h"

namespace berth::core {
namespace {

// Between two looks at the words that a freed block waits for.
constexpr absl::Duration kFirstPollPause = absl::Milliseconds(1);
constexpr absl::Duration kLongestPollPause = absl::Milliseconds(50);

}  // namespace

void Core::OpenStream(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                      const OpenStreamRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  const auto refuse = [&](const absl::Status& status) { impl_->Answer(step, admitted->request, status); };
  const auto device = impl_->devices_.find(request.device);
  if (device == impl_->devices_.end()) {
    return refuse(Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "device"}, {"id", request.device}}));
  }
  if (!device->second.config.tracks_fences) {
    return refuse(Refuse(Reason::kUnsupported, "device {device} has no {capability}",
                         {{"device", request.device}, {"capability", "fences"}}));
  }
  const ChannelId channel = admitted->channel.id;
  if (const absl::Status room = impl_->MayDeliver(admitted->channel); !room.ok()) return refuse(room);
  const absl::StatusOr<StreamKey> stream =
      impl_->fences_.streams().Open(step.now, channel, admitted->channel.process, request.device,
                                    request.default_stream, impl_->read_words_);
  if (!stream.ok()) return refuse(stream.status());
  impl_->SendOwnPage(step, admitted->request);
  const StreamRow& row = *impl_->fences_.streams().Find(*stream);
  OpenStreamResult result = {.stream = *stream, .id = row.id, .last_value = row.last_value};
  for (const ImportId import : impl_->blocks_.ImportsOf(channel)) {
    const Block& block = *std::as_const(impl_->blocks_).FindByImport(import);
    if (block.shared) result.shared.push_back(block.id);
  }
  impl_->Answer(step, admitted->request, Response(std::move(result)));
}

void Core::Impl::SendOwnPage(const Step& step, const RequestId& request) {
  const Channel& channel = *sessions_.FindChannel(request.channel);
  if (!channel.has_page) {
    sessions_.ChangeChannel(channel.id).has_page = true;
    Emit(step, MakeFencePage{.channel = channel.id});
  }
  std::vector<Deliver> sends;
  mailboxes_.Post(Deliver{.channel = channel.id,
                          .delivery = {.what = attach::DeliveryKind::kOwnPage, .sequence = request.sequence}},
                  &sends);
  SendAll(step, std::move(sends));
}

void Core::CloseStream(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                       const CloseStreamRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  const absl::Status closed = impl_->fences_.streams().Close({admitted->channel.id, request.slot});
  if (!closed.ok()) return impl_->Answer(step, admitted->request, closed);
  impl_->Answer(step, admitted->request, Response(CloseStreamResult()));
}

absl::Status Core::Impl::CheckUse(ChannelId channel, const BlockUse& use) const {
  const Block* const block = blocks_.Find(use.block);
  bool mapped = false;
  bool may = false;
  if (block != nullptr) {
    for (const auto& [id, import] : block->imports) {
      if (import.channel != channel) continue;
      mapped = true;
      may = may || !Writes(use.access) || import.read_only == ReadOnly::kNo;
    }
  }
  const std::string id = absl::StrCat(absl::Hex(use.block.value()));
  if (!may) {
    return Refuse(Reason::kDenied,
                  "{kind} {id} is not mapped by this process so that it may be used like that",
                  {{"kind", "block"}, {"id", id}});
  }
  if (mapped && block->phase == BlockPhase::kLive) return absl::OkStatus();
  return Refuse(Reason::kStale, "block {block} is stale: {why}", {{"block", id}, {"why", "freed already"}});
}

void Core::PrepareUse(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                      const PrepareUseRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  if (impl_->config_.log_fences) {
    impl_->NoteUses(*admitted, LogAction::kUsePrepare, request.uses, {.slot = request.slot});
  }
  for (const BlockUse& use : request.uses) {
    const absl::Status valid = impl_->CheckUse(admitted->channel.id, use);
    if (!valid.ok()) return impl_->Answer(step, admitted->request, valid);
  }
  const absl::Time deadline = step.now + std::min(request.patience, impl_->config_.limits.prepare_patience);
  PrepareOutcomes outcomes;
  absl::StatusOr<std::optional<Prepared>> prepared = impl_->fences_.Prepare(
      impl_->StepOf(step, &outcomes), admitted->request, request.slot, request.uses, deadline);
  if (!prepared.ok()) return impl_->Answer(step, admitted->request, prepared.status());
  if (prepared->has_value()) return impl_->AnswerPrepare(step, admitted->request, **prepared);
  impl_->pending_.at(admitted->request).place = &impl_->fences_;
  impl_->AnswerPrepares(step, std::move(outcomes));
}

void Core::FinishUse(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                     const FinishUseRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  if (impl_->config_.log_fences) {
    impl_->NoteUses(*admitted, LogAction::kUseFinish,
                    impl_->fences_.UsesOf(admitted->channel.id, request.use),
                    {.use = request.use, .value = request.value});
  }
  PrepareOutcomes outcomes;
  absl::StatusOr<std::vector<BlockId>> torn =
      impl_->fences_.Finish(impl_->StepOf(step, &outcomes), admitted->channel.id, request.use, request.value);
  if (!torn.ok()) return impl_->Answer(step, admitted->request, torn.status());
  impl_->Answer(step, admitted->request, Response(FinishUseResult{.torn = *std::move(torn)}));
  impl_->AnswerPrepares(step, std::move(outcomes));
}

void Core::AbandonUse(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                      const AbandonUseRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  if (impl_->config_.log_fences) {
    impl_->NoteUses(*admitted, LogAction::kUseAbandon,
                    impl_->fences_.UsesOf(admitted->channel.id, request.use), {.use = request.use});
  }
  PrepareOutcomes outcomes;
  const absl::Status abandoned =
      impl_->fences_.Abandon(impl_->StepOf(step, &outcomes), admitted->channel.id, request.use);
  if (!abandoned.ok()) return impl_->Answer(step, admitted->request, abandoned);
  impl_->Answer(step, admitted->request, Response(AbandonUseResult()));
  impl_->AnswerPrepares(step, std::move(outcomes));
}

void Core::Impl::AnswerPrepares(const Step& step, PrepareOutcomes outcomes) {
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const PrepareOutcome outcome = std::move(outcomes[i]);
    if (pending_.contains(outcome.request)) {
      AnswerPrepare(step, outcome.request, outcome.result);
    } else if (outcome.result.ok()) {
      // Its request left in the same breath that let it on.
      fences_.Abandon(StepOf(step, &outcomes), outcome.request.channel, outcome.result->use).IgnoreError();
    }
  }
}

void Core::Impl::AnswerPrepare(const Step& step, const RequestId& request,
                               const absl::StatusOr<Prepared>& prepared) {
  if (!prepared.ok()) return Answer(step, request, prepared.status());
  std::vector<Deliver> sends;
  for (const FenceWait& wait : prepared->waits) {
    const ChannelId owner = wait.stream.channel;
    if (owner == request.channel || !sent_pages_[request.channel].insert(owner).second) continue;
    mailboxes_.Post(Deliver{.channel = request.channel,
                            .delivery = {.what = attach::DeliveryKind::kForeignPage, .owner = owner.value()},
                            .read_only = true},
                    &sends);
  }
  SendAll(step, std::move(sends));
  Answer(step, request, Response(*prepared));
}

absl::StatusOr<BlockView> Core::ClearTorn(absl::Time now, const Caller& caller, BlockId id,
                                          Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  BERTH_ASSIGN_OR_RETURN(const Session* const own, impl_->Authenticate(caller));
  const Block* const block = impl_->blocks_.Find(id);
  const bool live = block != nullptr && block->phase == BlockPhase::kLive;
  if (!live || (block->owner != own->id && !caller.admin)) {
    return Refuse(Reason::kDenied, "{kind} {id} does not exist, or is not for this caller",
                  {{"kind", "block"}, {"id", absl::StrCat(absl::Hex(id.value()))}});
  }
  if (impl_->fences_.Torn(id)) {
    LogRecord record = impl_->RecordOf(*block, LogAction::kClearTorn);
    record.session = own->id;
    impl_->Log(step, std::move(record));
  }
  impl_->fences_.ClearTorn(id);
  return impl_->ViewBlock(*block, caller.admin ? nullptr : &caller.tenant);
}

bool Core::Impl::AwaitHandOver(const Step& step, Block& block, ChannelId importer) {
  if (block.shared) return false;
  if (fences_.HandingOver(block.id)) return true;
  const auto other = std::find_if(block.imports.begin(), block.imports.end(),
                                  [importer](const auto& entry) { return entry.second.channel != importer; });
  if (other == block.imports.end()) return false;
  const core::Import& owner = other->second;
  if (!fences_.streams().Knows(owner.channel)) {
    // Who has no stream has used nothing; should it open one, it is told then.
    block.shared = true;
    return false;
  }
  fences_.BeginHandOver(step.now, block.id, owner.channel, owner.process);
  std::vector<Deliver> sends;
  mailboxes_.Post(Deliver{.channel = owner.channel,
                          .delivery = {.what = attach::DeliveryKind::kHandOver, .block = block.id.value()}},
                  &sends);
  SendAll(step, std::move(sends));
  return true;
}

void Core::BlockHandedOver(absl::Time now, ChannelId channel, BlockId block,
                           const std::vector<HandedMark>& marks, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  PrepareOutcomes outcomes;
  if (!impl_->fences_.EndHandOver(impl_->StepOf(step, &outcomes), block, channel, marks)) return;
  if (Block* const handed = impl_->blocks_.Find(block)) {
    handed->shared = true;
    impl_->LogHandOver(step, *handed, channel);
  }
  impl_->AnswerPrepares(step, std::move(outcomes));
  impl_->ServeImports(step);
}

void Core::Impl::ServeImports(const Step& step) {
  std::vector<RequestId> ready;
  for (const auto& [deadline, request] : waiting_imports_) {
    const auto& waiting = std::get<WaitingImport>(pending_.at(request).place);
    if (!fences_.HandingOver(waiting.block)) ready.push_back(request);
  }
  for (const RequestId& request : ready) {
    const WaitingImport waiting = std::get<WaitingImport>(pending_.at(request).place);
    waiting_imports_.erase({waiting.deadline, request});
    const Channel& channel = *sessions_.FindChannel(request.channel);
    Block* const block = blocks_.Find(waiting.block);
    const absl::StatusOr<Block*> importable =
        block == nullptr ? Refuse(Reason::kDenied, "{kind} {id} does not exist, or is not for this caller",
                                  {{"kind", "block"}, {"id", absl::StrCat(absl::Hex(waiting.block.value()))}})
                         : FindImportable(*sessions_.Find(channel.session), channel, HandleOf(*block));
    if (!importable.ok()) {
      Answer(step, request, importable.status());
    } else {
      // Whoever tracked it alone has handed it over or is gone; several may come at once now.
      block->shared = true;
      FinishImport(step, request, *block, waiting.read_only);
    }
  }
}

void Core::Impl::ExpireFences(const Step& step) {
  PrepareOutcomes outcomes;
  fences_.Expire(StepOf(step, &outcomes));
  AnswerPrepares(step, std::move(outcomes));
  while (!waiting_imports_.empty() && waiting_imports_.begin()->first <= step.now) {
    const RequestId request = waiting_imports_.begin()->second;
    waiting_imports_.erase(waiting_imports_.begin());
    const BlockId block = std::get<WaitingImport>(pending_.at(request).place).block;
    Answer(step, request, fences_.HandOverRefusal(step.now, block));
  }
  if (next_poll_ <= step.now) {
    FinishLeaving(step);
    Poll(step);
  }
}

void Core::Impl::FinishLeaving(const Step& step) {
  const std::set<SessionId> looked_at = leaving_;
  for (const SessionId id : looked_at) {
    const Session* const session = sessions_.Find(id);
    if (session == nullptr || !HoldsNothing(*session)) {
      leaving_.erase(id);
    } else {
      FinishIfOver(step, *session);
    }
  }
}

absl::Time Core::Impl::next_fence_deadline() const {
  absl::Time next = std::min(fences_.next_deadline(), next_poll_);
  if (!waiting_imports_.empty()) next = std::min(next, waiting_imports_.begin()->first);
  return next;
}

bool Core::Impl::MayGoBack(const Step& step, Block& block) {
  if (fences_.Idle(block.id, read_words_)) {
    busy_.erase(block.id);
    if (std::exchange(block.busy, false)) {
      ForEachBudget(block, [&](ByteBudget& budget) { budget.UnmarkBusy(block.bytes); });
    }
    return true;
  }
  if (busy_.insert(block.id).second) {
    block.busy = true;
    ForEachBudget(block, [&](ByteBudget& budget) { budget.MarkBusy(block.bytes); });
    // Who waits only for what comes back by itself waits for this no longer.
    NoteRoom();
    PollSoon(step);
  }
  return false;
}

void Core::Impl::PollSoon(const Step& step) {
  poll_pause_ = kFirstPollPause;
  next_poll_ = std::min(next_poll_, step.now + poll_pause_);
}

void Core::Impl::Poll(const Step& step) {
  next_poll_ = absl::InfiniteFuture();
  const std::set<BlockId> looked_at = busy_;
  for (const BlockId id : looked_at) {
    Block* const block = blocks_.Find(id);
    if (block->phase == BlockPhase::kRetired && !block->asked) AskRelease(step, *block);
  }
  if (busy_.empty() && leaving_.empty()) return;
  poll_pause_ = std::min(poll_pause_ * 2, kLongestPollPause);
  next_poll_ = step.now + poll_pause_;
}

void Core::Impl::EndFencesOf(const Step& step, ChannelId channel) {
  EndKeepingBy(step, channel);
  if (!sessions_.FindChannel(channel)->has_page) return;
  if (!fences_.streams().Knows(channel)) return Emit(step, DropFencePage{.channel = channel});
  std::vector<BlockId> local;
  for (const ImportId id : blocks_.ImportsOf(channel)) {
    const Block& block = *std::as_const(blocks_).FindByImport(id);
    if (!block.shared && block.imports.at(id).read_only == ReadOnly::kNo) local.push_back(block.id);
  }
  PrepareOutcomes outcomes;
  for (const BlockId id : fences_.ProcessGone(StepOf(step, &outcomes), channel, local)) {
    LogTorn(step, id, channel);
  }
  // The next process to map a torn block alone would not be told: the core tracks it from now on.
  for (const BlockId id : local) {
    if (fences_.Torn(id)) blocks_.Find(id)->shared = true;
  }
  sent_pages_.erase(channel);
  for (auto& [reader, owners] : sent_pages_) owners.erase(channel);
  // Its words go to the top before anybody is told that it is gone.
  Emit(step, DropFencePage{.channel = channel});
  AnswerPrepares(step, std::move(outcomes));
  ServeImports(step);
  Poll(step);
}

void Core::Impl::EndFencesOf(const Step& step, Block& block) {
  PrepareOutcomes outcomes;
  fences_.Refuse(StepOf(step, &outcomes), block.id,
                 Refuse(Reason::kStale, "block {block} is stale: {why}",
                        {{"block", absl::StrCat(absl::Hex(block.id.value()))}, {"why", "freed already"}}));
  AnswerPrepares(step, std::move(outcomes));
}

Page<StreamView> Core::ListStreams(const Caller& caller, const PageRequest& request) const {
  Page<StreamView> page;
  for (StreamView& view : impl_->fences_.View(impl_->read_words_)) {
    const Channel& channel = *impl_->sessions_.FindChannel(view.stream.channel);
    const bool visible = caller.sees_all() || impl_->sessions_.Find(channel.session)->tenant == caller.tenant;
    if (!visible || view.number <= request.after) continue;
    page.more = page.size() >= request.rows;
    if (page.more) break;
    page.last = view.number;
    page.push_back(std::move(view));
  }
  return page;
}

absl::Status Core::Impl::CheckFences() const {
  BERTH_RETURN_IF_ERROR(fences_.CheckBooks());
  const auto broken = [](absl::string_view what) { return absl::InternalError(what); };
  for (const BlockId id : busy_) {
    const Block* const block = blocks_.Find(id);
    if (block == nullptr || block->phase != BlockPhase::kRetired)
      return broken("a block waits to go back that is not freed");
    if (next_poll_ == absl::InfiniteFuture()) return broken("a freed block is never looked at again");
  }
  for (const auto& [deadline, request] : waiting_imports_) {
    const auto pending = pending_.find(request);
    if (pending == pending_.end()) return broken("an import waits that is not pending");
    const auto* const waiting = std::get_if<WaitingImport>(&pending->second.place);
    if (waiting == nullptr || waiting->deadline != deadline) return broken("an import waits elsewhere");
    if (!fences_.HandingOver(waiting->block)) return broken("an import waits for nothing");
  }
  absl::Status status = absl::OkStatus();
  blocks_.ForEach([&](const Block& block) {
    std::set<ChannelId> importers;
    for (const auto& [id, import] : block.imports) importers.insert(import.channel);
    if (importers.size() > 1 && !block.shared) status = broken("two processes track a block, each alone");
  });
  return status;
}

}  // namespace berth::core
