#include "daemon/core/fences/fences.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include <berth/error.h>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/status_macros.h"
#include "daemon/core/managers.h"
#include "daemon/core/requests/fingerprint.h"
#include "daemon/core/requests/undo_step.h"

namespace berth::core {
namespace {

// Pause between two reads of the fence values that a freed block waits for.
constexpr absl::Duration kFirstPollPause = absl::Milliseconds(1);
constexpr absl::Duration kLongestPollPause = absl::Milliseconds(50);

}  // namespace

Fences::Fences(Managers& core, ReadFenceValues read)
    : core_(core), read_fence_values_(std::move(read)), fences_(&core.journal, core.config.limits.fences) {}

void Fences::OpenStream(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                        const OpenStreamRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  const auto refuse = [&](const absl::Status& status) { core_.requests.Answer(step, admitted->request, status); };
  const auto device = core_.devices.all().find(request.device);
  if (device == core_.devices.all().end()) {
    return refuse(Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "device"}, {"id", request.device}}));
  }
  if (!device->second.config.tracks_fences) {
    return refuse(Refuse(Reason::kUnsupported, "device {device} has no {capability}",
                         {{"device", request.device}, {"capability", "fences"}}));
  }
  const ChannelId channel = admitted->channel.id;
  if (const absl::Status capacity = core_.sessions.MayDeliver(admitted->channel); !capacity.ok())
    return refuse(capacity);
  const absl::StatusOr<StreamKey> stream = fences_.streams().Open(
      step.now, channel, admitted->channel.process, request.device, request.default_stream, read_fence_values_);
  if (!stream.ok()) return refuse(stream.status());
  SendOwnPage(step, admitted->request);
  const StreamEntry& entry = *fences_.streams().Find(*stream);
  OpenStreamResult result = {.stream = *stream, .id = entry.id, .last_value = entry.last_value};
  for (const ImportId import : core_.blocks.table().ImportsOf(channel)) {
    const Block& block = *core_.blocks.table().FindByImport(import);
    if (block.shared) result.shared.push_back(block.id);
  }
  core_.requests.Answer(step, admitted->request, Response(std::move(result)));
}

void Fences::SendOwnPage(StepContext& step, const RequestId& request) {
  const Channel& channel = *core_.sessions.table().FindChannel(request.channel);
  if (!channel.has_page) {
    core_.sessions.ChangeChannel(channel.id).has_page = true;
    step.Emit(MakeFencePage{.channel = channel.id});
  }
  std::vector<Deliver> sends;
  core_.sessions.mailboxes().Post(
      Deliver{.channel = channel.id,
              .delivery = {.what = attach::DeliveryKind::kOwnPage, .sequence = request.sequence}},
      &sends);
  step.EmitAll(std::move(sends));
}

void Fences::CloseStream(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                         const CloseStreamRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  const absl::Status closed = fences_.streams().Close({admitted->channel.id, request.slot});
  if (!closed.ok()) return core_.requests.Answer(step, admitted->request, closed);
  core_.requests.Answer(step, admitted->request, Response(CloseStreamResult()));
}

absl::Status Fences::CheckUse(ChannelId channel, const BlockUse& use) const {
  const Block* const block = core_.blocks.table().Find(use.block);
  bool may = false;
  if (block != nullptr) {
    for (const auto& [id, import] : block->imports) {
      if (import.channel != channel) continue;
      may = may || !Writes(use.access) || import.read_only == ReadOnly::kNo;
    }
  }
  const uint64_t id = use.block.value();
  if (!may) {
    return Refuse(Reason::kDenied, "{kind} {id} is not mapped by this process with the access that the use needs",
                  {{"kind", "block"}, {"id", id}});
  }
  if (block->phase == BlockPhase::kLive) return absl::OkStatus();
  return Refuse(Reason::kStale, "block {block} is stale: {why}", {{"block", id}, {"why", Blocks::WhyFreed(*block)}});
}

void Fences::PrepareUse(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                        const PrepareUseRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  if (core_.config.log_fences) {
    core_.memory_log.RecordUses(*admitted, LogAction::kUsePrepare, request.uses, {.slot = request.slot});
  }
  for (const BlockUse& use : request.uses) {
    const absl::Status valid = CheckUse(admitted->channel.id, use);
    if (!valid.ok()) return core_.requests.Answer(step, admitted->request, valid);
  }
  const absl::Time deadline = step.now + std::min(request.patience, core_.config.limits.prepare_patience);
  PrepareOutcomes outcomes;
  absl::StatusOr<std::optional<Prepared>> prepared =
      fences_.Prepare(StepOf(step, &outcomes), admitted->request, request.slot, request.uses, deadline);
  if (!prepared.ok()) return core_.requests.Answer(step, admitted->request, prepared.status());
  if (prepared->has_value()) return AnswerPrepare(step, admitted->request, **prepared);
  core_.requests.SetPlace(admitted->request, this);
  AnswerPrepares(step, std::move(outcomes));
}

void Fences::FinishUse(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                       const FinishUseRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  if (core_.config.log_fences) {
    core_.memory_log.RecordUses(*admitted, LogAction::kUseFinish, fences_.UsesOf(admitted->channel.id, request.use),
                                {.use = request.use, .value = request.value});
  }
  PrepareOutcomes outcomes;
  absl::StatusOr<std::vector<BlockId>> torn =
      fences_.Finish(StepOf(step, &outcomes), admitted->channel.id, request.use, request.value);
  if (!torn.ok()) return core_.requests.Answer(step, admitted->request, torn.status());
  core_.requests.Answer(step, admitted->request, Response(FinishUseResult{.torn = *std::move(torn)}));
  AnswerPrepares(step, std::move(outcomes));
}

void Fences::AbandonUse(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                        const AbandonUseRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  if (core_.config.log_fences) {
    core_.memory_log.RecordUses(*admitted, LogAction::kUseAbandon, fences_.UsesOf(admitted->channel.id, request.use),
                                {.use = request.use});
  }
  PrepareOutcomes outcomes;
  const absl::Status abandoned = fences_.Abandon(StepOf(step, &outcomes), admitted->channel.id, request.use);
  if (!abandoned.ok()) return core_.requests.Answer(step, admitted->request, abandoned);
  core_.requests.Answer(step, admitted->request, Response(AbandonUseResult()));
  AnswerPrepares(step, std::move(outcomes));
}

void Fences::AnswerPrepares(StepContext& step, PrepareOutcomes outcomes) {
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const PrepareOutcome outcome = std::move(outcomes[i]);
    if (core_.requests.pending().contains(outcome.request)) {
      AnswerPrepare(step, outcome.request, outcome.result);
    } else if (outcome.result.ok()) {
      // The request left in the step that admitted the use.
      fences_.Abandon(StepOf(step, &outcomes), outcome.request.channel, outcome.result->use).IgnoreError();
    }
  }
}

void Fences::AnswerPrepare(StepContext& step, const RequestId& request, const absl::StatusOr<Prepared>& prepared) {
  if (!prepared.ok()) return core_.requests.Answer(step, request, prepared.status());
  std::vector<Deliver> sends;
  for (const FenceWait& wait : prepared->waits) {
    const ChannelId owner = wait.stream.channel;
    if (owner == request.channel || !sent_pages_[request.channel].insert(owner).second) continue;
    core_.sessions.mailboxes().Post(
        Deliver{.channel = request.channel,
                .delivery = {.what = attach::DeliveryKind::kForeignPage, .owner = owner.value()},
                .read_only = true},
        &sends);
  }
  step.EmitAll(std::move(sends));
  core_.requests.Answer(step, request, Response(*prepared));
}

absl::StatusOr<BlockView> Fences::ClearTorn(StepContext& step, const Caller& caller, BlockId id) {
  BERTH_ASSIGN_OR_RETURN(const Session* const own, core_.sessions.Authenticate(caller));
  const Block* const block = core_.blocks.Find(id);
  const bool live = block != nullptr && block->phase == BlockPhase::kLive;
  if (!live && caller.admin) {
    return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "block"}, {"id", id.value()}});
  }
  if (!live || (block->owner != own->id && !caller.admin)) {
    return Refuse(Reason::kDenied, "{kind} {id} does not exist, or this caller may not use it",
                  {{"kind", "block"}, {"id", id.value()}});
  }
  if (fences_.Torn(id)) {
    LogRecord record = core_.memory_log.RecordOf(*block, LogAction::kClearTorn);
    record.session = own->id;
    core_.memory_log.Log(step, std::move(record));
  }
  fences_.ClearTorn(id);
  return core_.blocks.ViewBlock(*block, caller.admin ? nullptr : &caller.tenant);
}

bool Fences::AwaitHandOver(StepContext& step, Block& block, ChannelId importer) {
  if (block.shared) return false;
  if (fences_.HandingOver(block.id)) return true;
  const auto other = std::find_if(block.imports.begin(), block.imports.end(),
                                  [importer](const auto& entry) { return entry.second.channel != importer; });
  if (other == block.imports.end()) return false;
  const core::Import& owner = other->second;
  if (!fences_.streams().Knows(owner.channel)) {
    // A process without a stream has used nothing; if it opens one, its imports are marked shared then.
    block.shared = true;
    return false;
  }
  fences_.BeginHandOver(step.now, block.id, owner.channel, owner.process);
  std::vector<Deliver> sends;
  core_.sessions.mailboxes().Post(
      Deliver{.channel = owner.channel,
              .delivery = {.what = attach::DeliveryKind::kHandOver, .block = block.id.value()}},
      &sends);
  step.EmitAll(std::move(sends));
  return true;
}

void Fences::BlockHandedOver(StepContext& step, ChannelId channel, BlockId block,
                             const std::vector<HandedMark>& marks) {
  PrepareOutcomes outcomes;
  if (!fences_.EndHandOver(StepOf(step, &outcomes), block, channel, marks)) return;
  if (Block* const handed = core_.blocks.Find(block)) {
    handed->shared = true;
    core_.memory_log.LogHandOver(step, *handed, channel);
  }
  AnswerPrepares(step, std::move(outcomes));
  ServeImports(step);
}

void Fences::ServeImports(StepContext& step) {
  std::vector<RequestId> ready;
  for (const auto& [deadline, request] : import_deadlines_) {
    if (!fences_.HandingOver(imports_.at(request).block)) ready.push_back(request);
  }
  for (const RequestId& request : ready) {
    const WaitingImport waiting = imports_.at(request);
    const Channel& channel = *core_.sessions.table().FindChannel(request.channel);
    Block* const block = core_.blocks.Find(waiting.block);
    const absl::StatusOr<Block*> importable =
        block == nullptr ? Refuse(Reason::kDenied, "{kind} {id} does not exist, or this caller may not use it",
                                  {{"kind", "block"}, {"id", waiting.block.value()}})
                         : core_.blocks.FindImportable(*core_.sessions.table().Find(channel.session), channel,
                                                       core_.blocks.HandleOf(*block));
    TakeImport(request);
    if (!importable.ok()) {
      core_.requests.Answer(step, request, importable.status());
    } else {
      // The process that tracked the block alone has handed it over or is gone; several imports may proceed now.
      block->shared = true;
      core_.blocks.FinishImport(step, request, *block, waiting.read_only);
    }
  }
}

void Fences::Expire(StepContext& step) {
  PrepareOutcomes outcomes;
  fences_.Expire(StepOf(step, &outcomes));
  AnswerPrepares(step, std::move(outcomes));
  while (!import_deadlines_.empty() && import_deadlines_.begin()->first <= step.now) {
    const RequestId request = import_deadlines_.begin()->second;
    const BlockId block = TakeImport(request).block;
    core_.requests.Answer(step, request, fences_.HandOverRefusal(step.now, block));
  }
  if (next_poll_ <= step.now) {
    FinishLeaving(step);
    Poll(step);
  }
}

absl::Time Fences::next_deadline() const {
  absl::Time next = std::min(fences_.next_deadline(), next_poll_);
  if (!import_deadlines_.empty()) next = std::min(next, import_deadlines_.begin()->first);
  return next;
}

void Fences::EndFencesOf(StepContext& step, ChannelId channel) {
  core_.permits.EndCachingBy(step, channel);
  if (!core_.sessions.table().FindChannel(channel)->has_page) return;
  if (!fences_.streams().Knows(channel)) return step.Emit(DropFencePage{.channel = channel});
  std::vector<BlockId> local;
  for (const ImportId id : core_.blocks.table().ImportsOf(channel)) {
    const Block& block = *core_.blocks.table().FindByImport(id);
    if (!block.shared && block.imports.at(id).read_only == ReadOnly::kNo) local.push_back(block.id);
  }
  PrepareOutcomes outcomes;
  for (const BlockId id : fences_.ProcessGone(StepOf(step, &outcomes), channel, local)) {
    core_.memory_log.LogTorn(step, id, channel);
  }
  // A process that maps a torn block alone would not learn that it is torn: the core tracks the block from now on.
  for (const BlockId id : local) {
    if (fences_.Torn(id)) core_.blocks.Find(id)->shared = true;
  }
  sent_pages_.erase(channel);
  for (auto& [reader, owners] : sent_pages_) owners.erase(channel);
  // Sets the page's fence values to their maximum before any other process is notified.
  step.Emit(DropFencePage{.channel = channel});
  AnswerPrepares(step, std::move(outcomes));
  ServeImports(step);
  Poll(step);
}

void Fences::EndFencesOf(StepContext& step, Block& block) {
  PrepareOutcomes outcomes;
  fences_.Refuse(StepOf(step, &outcomes), block.id,
                 Refuse(Reason::kStale, "block {block} is stale: {why}",
                        {{"block", block.id.value()}, {"why", Blocks::WhyFreed(block)}}));
  AnswerPrepares(step, std::move(outcomes));
}

Page<StreamView> Fences::ListStreams(const Caller& caller, const PageRequest& request) const {
  Page<StreamView> page;
  for (StreamView& view : fences_.View(read_fence_values_)) {
    const Channel& channel = *core_.sessions.table().FindChannel(view.stream.channel);
    const bool visible = caller.sees_all() || core_.sessions.table().Find(channel.session)->tenant == caller.tenant;
    if (!visible || view.number <= request.after) continue;
    page.more = page.size() >= request.rows;
    if (page.more) break;
    page.last = view.number;
    page.push_back(std::move(view));
  }
  return page;
}

void Fences::ReadStream(StreamKey stream, ArchiveReader& archive) {
  StreamEntry record;
  archive(record);
  const Channel* const channel = core_.sessions.table().FindChannel(stream.channel);
  if (archive.failed() || channel == nullptr || !fences_.streams().Restore(stream, channel->process, record)) {
    archive.Fail();
  }
}

absl::Status Fences::CheckFences() const {
  BERTH_RETURN_IF_ERROR(fences_.CheckInvariants());
  const auto broken = [](absl::string_view what) { return absl::InternalError(what); };
  for (const BlockId id : busy_) {
    const Block* const block = core_.blocks.table().Find(id);
    if (block == nullptr || block->phase != BlockPhase::kRetired)
      return broken("a block that is not freed waits for its release");
    if (next_poll_ == absl::InfiniteFuture()) return broken("a freed block is not scanned again");
  }
  for (const auto& [deadline, request] : import_deadlines_) {
    const auto pending = core_.requests.pending().find(request);
    if (pending == core_.requests.pending().end()) return broken("a waiting import is not pending");
    const auto waiting = imports_.find(request);
    if (pending->second.place != this || waiting == imports_.end() || waiting->second.deadline != deadline) {
      return broken("an import waits in another place");
    }
    if (!fences_.HandingOver(waiting->second.block)) return broken("an import waits for nothing");
  }
  absl::Status status = absl::OkStatus();
  core_.blocks.table().ForEach([&](const Block& block) {
    std::set<ChannelId> importers;
    for (const auto& [id, import] : block.imports) importers.insert(import.channel);
    if (importers.size() > 1 && !block.shared) status = broken("two processes track a block as their own");
  });
  return status;
}

void Fences::AwaitImport(StepContext& step, const RequestId& request, BlockId block, bool read_only) {
  const absl::Time deadline = step.now + core_.config.limits.prepare_patience;
  imports_.emplace(request, WaitingImport{.block = block, .read_only = read_only, .deadline = deadline});
  import_deadlines_.emplace(deadline, request);
  core_.requests.SetPlace(request, this);
}

Fences::WaitingImport Fences::TakeImport(const RequestId& request) {
  const auto found = imports_.find(request);
  const WaitingImport waiting = found->second;
  import_deadlines_.erase({waiting.deadline, request});
  imports_.erase(found);
  return waiting;
}

void Fences::Leave(StepContext& step, const RequestId& request, const WaitTicket&) {
  if (imports_.contains(request)) {
    TakeImport(request);
  } else {
    fences_.Leave(StepOf(step, &left_), request);
  }
}

void Fences::AnswerLeft(StepContext& step) { AnswerPrepares(step, std::exchange(left_, {})); }

bool Fences::Abandon(StepContext& step, ChannelId channel, UseId use) {
  PrepareOutcomes outcomes;
  const bool abandoned = fences_.Abandon(StepOf(step, &outcomes), channel, use).ok();
  AnswerPrepares(step, std::move(outcomes));
  return abandoned;
}

void Fences::RestoreCounters(uint64_t last_stream, uint64_t last_use) {
  fences_.streams().RestoreLastNumber(last_stream);
  fences_.RestoreLastUse(last_use);
}

void Fences::FinishRestoring() {
  // A page whose delivery is already queued or sent is not sent again.
  core_.sessions.mailboxes().ForEach([this](const Deliver& deliver) {
    const ChannelId owner(deliver.delivery.owner);
    const bool page = deliver.delivery.what == attach::DeliveryKind::kForeignPage;
    if (page && fences_.streams().Knows(owner)) sent_pages_[deliver.channel].insert(owner);
  });
  // The fence values of their streams change without a call, so the core checks these sessions again.
  core_.sessions.table().ForEachAfter(0, [&](const Session& session) {
    if (session.state == SessionState::kEnding) leaving_.insert(session.id);
    return true;
  });
}

bool Undo(const UndoStep& undo, const OpenStreamResult& result) { return undo.core.fences.Close(result.stream).ok(); }

bool Undo(const UndoStep& undo, const Prepared& result) {
  undo.core.memory_log.LogForgotten(undo.step, undo.channel.id, result.use);
  return undo.core.fences.Abandon(undo.step, undo.channel.id, result.use);
}

// Polls of freed blocks in use, and of sessions that may be over: nothing reports a change of fence values.

bool Fences::MayGoBack(StepContext& step, Block& block) {
  if (fences_.Idle(block.id, read_fence_values_)) {
    busy_.erase(block.id);
    if (std::exchange(block.busy, false)) {
      core_.budgets.ForEachBudget(block, [&](ByteBudget& budget) { budget.UnmarkBusy(block.bytes); });
    }
    return true;
  }
  if (busy_.insert(block.id).second) {
    block.busy = true;
    core_.budgets.ForEachBudget(block, [&](ByteBudget& budget) { budget.MarkBusy(block.bytes); });
    // Busy bytes no longer count as coming: re-evaluates the waiters that relied on them.
    step.MarkCapacityChanged();
    PollSoon(step);
  }
  return false;
}

void Fences::PollSoon(StepContext& step) {
  poll_pause_ = kFirstPollPause;
  next_poll_ = std::min(next_poll_, step.now + poll_pause_);
}

void Fences::Poll(StepContext& step) {
  next_poll_ = absl::InfiniteFuture();
  const std::set<BlockId> looked_at = busy_;
  for (const BlockId id : looked_at) {
    Block* const block = core_.blocks.Find(id);
    if (block->phase == BlockPhase::kRetired && !block->asked) core_.workers.AskRelease(step, *block);
  }
  if (busy_.empty() && leaving_.empty()) return;
  poll_pause_ = std::min(poll_pause_ * 2, kLongestPollPause);
  next_poll_ = step.now + poll_pause_;
}

void Fences::LookAtLater(StepContext& step, SessionId session) {
  if (leaving_.insert(session).second) PollSoon(step);
}

void Fences::FinishLeaving(StepContext& step) {
  const std::set<SessionId> looked_at = leaving_;
  for (const SessionId id : looked_at) {
    const Session* const session = core_.sessions.table().Find(id);
    if (session == nullptr || !core_.sessions.HoldsNothing(*session)) {
      leaving_.erase(id);
    } else {
      core_.sessions.FinishIfOver(step, *session);
    }
  }
}

void Fences::RestoreBusy(BlockId block) {
  busy_.insert(block);
  next_poll_ = absl::InfinitePast();
}

void Fences::ResumeBlocks(StepContext& step) {
  if (!busy_.empty()) PollSoon(step);
}

void Fences::ResumeSessions(StepContext& step) {
  FinishLeaving(step);
  if (!leaving_.empty()) PollSoon(step);
}

}  // namespace berth::core
