// The rows of sessions, of their processes, and of what these have asked and are told.

#include <memory>
#include <utility>

#include "common/error.h"
#include "daemon/core/core_impl.h"

namespace berth::core {
namespace {

// How long a request that waited waits for somebody to ask for it again: what callers of a broker that died need to
// find the next one, many times over.
constexpr absl::Duration kAbsence = absl::Seconds(5);

}  // namespace

void Core::Impl::ListSessionRows(std::vector<RowKey>* keys) const {
  keys->push_back(KeyOf(RowKind::kCounters));
  sessions_.ForEachAfter(0, [&](const Session& session) {
    keys->push_back(KeyOf(RowKind::kSession, session.id.value()));
    return true;
  });
  sessions_.ForEachChannel([&](const Channel& channel) {
    keys->push_back(KeyOf(RowKind::kChannel, channel.id.value()));
    channel.requests.ListRows(keys);
  });
  mailboxes_.ListRows(keys);
}

bool Core::Impl::WriteSessionRow(const RowKey& key, ArchiveWriter& archive) const {
  switch (static_cast<RowKind>(key.kind)) {
    case RowKind::kCounters:
      archive(permit_ids_.last_permit, permit_ids_.last_acquisition, permit_ids_.last_waiter,
              sessions_.last_number(), plans_.last_number(), last_record_);
      return true;
    case RowKind::kSession: {
      const Session* const session = sessions_.Find(SessionId(key.id));
      if (session == nullptr) return false;
      archive(*session);
      return true;
    }
    case RowKind::kChannel: {
      const Channel* const channel = sessions_.FindChannel(ChannelId(key.id));
      if (channel == nullptr) return false;
      archive(*channel);
      return true;
    }
    case RowKind::kRequest:
      return WriteRequest({ChannelId(key.id), key.part}, archive);
    default:
      return mailboxes_.WriteRow(key, archive);
  }
}

bool Core::Impl::WriteRequest(const RequestId& request, ArchiveWriter& archive) const {
  const Channel* const channel = sessions_.FindChannel(request.channel);
  if (channel == nullptr) return false;
  if (request.sequence == RequestMemory::kSettled) return channel->requests.WriteSettled(archive);
  const RequestMemory::Entry* const entry = channel->requests.Find(request.sequence);
  if (entry == nullptr) return false;
  archive(*entry);
  if (entry->state != RequestMemory::State::kPending) return true;
  // Where it waits another row says.
  const Pending& pending = pending_.at(request);
  archive(pending.notes, pending.plan != nullptr);
  if (pending.plan != nullptr) archive(*pending.plan);
  archive(pending.since);
  return true;
}

void Core::Impl::ReadSessionRow(const RowKey& key, ArchiveReader& archive) {
  switch (static_cast<RowKind>(key.kind)) {
    case RowKind::kCounters: {
      uint64_t last_session = 0, last_plan = 0;
      archive(permit_ids_.last_permit, permit_ids_.last_acquisition, permit_ids_.last_waiter, last_session, last_plan,
              last_record_);
      sessions_.RestoreLastNumber(last_session);
      return plans_.RestoreLastNumber(last_plan);
    }
    case RowKind::kSession: {
      Session session{.id = SessionId(key.id)};
      archive(session);
      const Tenant tenant = session.tenant;
      if (archive.failed() || !sessions_.Restore(std::move(session))) return archive.Fail();
      ++tenants_[tenant].sessions;
      return;
    }
    case RowKind::kChannel: {
      const ChannelId id(key.id);
      Channel channel{.id = id, .requests = RequestMemory(id, config_.limits.answers_per_channel, &journal_)};
      archive(channel);
      const SessionId session = channel.session;
      const bool hung_up = channel.hung_up;
      if (archive.failed() || !sessions_.Restore(std::move(channel))) return archive.Fail();
      if (!hung_up) mailboxes_.Open(id, sessions_.Find(session)->tenant);
      return;
    }
    case RowKind::kRequest:
      return ReadRequest({ChannelId(key.id), key.part}, archive);
    case RowKind::kDelivery:
      return mailboxes_.ReadRow(key, archive);
    default:
      return archive.Fail();
  }
}

void Core::Impl::ReadRequest(const RequestId& request, ArchiveReader& archive) {
  const Channel* const channel = sessions_.FindChannel(request.channel);
  if (channel == nullptr) return archive.Fail();
  RequestMemory& memory = sessions_.RequestsOf(request.channel);
  if (request.sequence == RequestMemory::kSettled) return memory.ReadSettled(archive);
  RequestMemory::Entry entry;
  archive(entry);
  const bool waits = entry.state == RequestMemory::State::kPending;
  memory.Restore(request.sequence, std::move(entry));
  if (!waits) return;
  Pending pending{.memory = &memory, .session = sessions_.Find(channel->session)};
  bool has_plan = false;
  archive(pending.notes, has_plan);
  if (has_plan) archive(*(pending.plan = std::make_unique<PlanDraft>()));
  if (archive.schema() >= 2) archive(pending.since);
  pending_.emplace(request, std::move(pending));
}

void Core::Impl::FinishRestoringSessions() {
  mailboxes_.FinishRestoring();
  // A page that is on its way already is not sent once more.
  mailboxes_.ForEach([this](const Deliver& deliver) {
    const ChannelId owner(deliver.delivery.owner);
    const bool page = deliver.delivery.what == attach::DeliveryKind::kForeignPage;
    if (page && fences_.streams().Knows(owner)) sent_pages_[deliver.channel].insert(owner);
  });
  std::vector<RequestId> nowhere;
  for (const auto& [request, pending] : pending_) {
    if (std::holds_alternative<std::monostate>(pending.place)) {
      nowhere.push_back(request);
    } else if (!std::holds_alternative<BlockId>(pending.place)) {
      absent_.insert(request);
    }
  }
  // Nothing was decided of what waited in no place that outlives the broker: asked again, it begins anew.
  for (const RequestId& request : nowhere) {
    const auto pending = pending_.find(request);
    pending->second.memory->Erase(request.sequence);
    pending_.erase(pending);
  }
  // Their streams' words change without a call, so they are looked at again.
  sessions_.ForEachAfter(0, [&](const Session& session) {
    if (session.state == SessionState::kEnding) leaving_.insert(session.id);
    return true;
  });
}

void Core::Impl::ResumeSessions(const Step& step) {
  if (!absent_.empty()) absent_until_ = step.now + kAbsence;
  sessions_.ForEachChannel([&](const Channel& channel) {
    if (channel.has_page) Emit(step, MakeFencePage{.channel = channel.id});
  });
  std::vector<Deliver> sends;
  // A block that has no such import any more its process has had, and let go of.
  mailboxes_.Resume(
      [this](const Deliver& deliver) {
        const attach::DeliveryKind what = deliver.delivery.what;
        if (what != attach::DeliveryKind::kBlock && what != attach::DeliveryKind::kHandleBlock) return true;
        return blocks_.FindByImport(ImportId(deliver.delivery.import)) != nullptr;
      },
      &sends);
  SendAll(step, std::move(sends));
  FinishLeaving(step);
  if (!leaving_.empty()) PollSoon(step);
}

void Core::Impl::DropAbsent(const Step& step) {
  if (step.now < absent_until_) return;
  absent_until_ = absl::InfiniteFuture();
  const std::vector<RequestId> requests(absent_.begin(), absent_.end());
  absent_.clear();
  Dismiss(step, requests, Refuse(Reason::kCancelled, "nobody has asked for it again since the daemon was started"));
}

void Core::Impl::ComeBack(const Step& step, const RequestId& request) {
  const auto pending = pending_.find(request);
  if (pending == pending_.end()) return;
  const Place place = pending->second.place;
  if (std::holds_alternative<RoomQueue*>(place)) return NoteRoom();
  PermitRun run(this, &step);
  if (const auto* const in = std::get_if<InPool>(&place)) {
    in->pool->Attach(run.step(), in->number);
    in->pool->Serve(run.step());
  } else if (std::holds_alternative<GangTable*>(place)) {
    const Gang& gang = *gangs_.Find(request);
    for (const Gang::Part& part : gang.parts) part.pool->Attach(run.step(), gang.number);
    serve_pools_ = true;
  }
  run.Answer();
}

}  // namespace berth::core
