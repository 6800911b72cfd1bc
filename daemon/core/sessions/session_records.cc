// Ledger records of sessions, their processes, and the requests and deliveries of these.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/managers.h"
#include "daemon/core/sessions/sessions.h"
#include "daemon/core/types/record_kind.h"

namespace berth::core {
namespace {

absl::Status Broken(const absl::AlphaNum& what) { return absl::InternalError(what.Piece()); }

}  // namespace

void Sessions::ListSessionRecords(std::vector<RecordKey>* keys) const {
  keys->push_back(KeyOf(RecordKind::kCounters));
  sessions_.ForEachAfter(0, [&](const Session& session) {
    keys->push_back(KeyOf(RecordKind::kSession, session.id.value()));
    return true;
  });
  sessions_.ForEachChannel([&](const Channel& channel) {
    keys->push_back(KeyOf(RecordKind::kChannel, channel.id.value()));
    channel.requests.ListRecords(keys);
  });
  mailboxes_.ListRecords(keys);
}

bool Sessions::WriteSessionRecord(const RecordKey& key, ArchiveWriter& archive) const {
  switch (static_cast<RecordKind>(key.kind)) {
    case RecordKind::kCounters: {
      const PermitIds& permits = core_.permits.ids();
      archive(permits.last_permit, permits.last_acquisition, permits.last_waiter, sessions_.last_number(),
              core_.plans.table().last_number(), core_.memory_log.last_record());
      return true;
    }
    case RecordKind::kSession: {
      const Session* const session = sessions_.Find(SessionId(key.id));
      if (session == nullptr) return false;
      archive(*session);
      return true;
    }
    case RecordKind::kChannel: {
      const Channel* const channel = sessions_.FindChannel(ChannelId(key.id));
      if (channel == nullptr) return false;
      archive(*channel);
      return true;
    }
    case RecordKind::kRequest:
      return core_.requests.WriteRequest({ChannelId(key.id), key.part}, archive);
    default:
      return mailboxes_.WriteRecord(key, archive);
  }
}

void Sessions::ReadSessionRecord(const RecordKey& key, ArchiveReader& archive) {
  switch (static_cast<RecordKind>(key.kind)) {
    case RecordKind::kCounters: {
      PermitIds permits;
      uint64_t last_session = 0, last_plan = 0, last_record = 0;
      archive(permits.last_permit, permits.last_acquisition, permits.last_waiter, last_session, last_plan, last_record);
      core_.permits.RestoreIds(permits);
      core_.memory_log.RestoreLastRecord(last_record);
      sessions_.RestoreLastNumber(last_session);
      return core_.plans.RestoreLastNumber(last_plan);
    }
    case RecordKind::kSession: {
      Session session{.id = SessionId(key.id)};
      archive(session);
      const Tenant tenant = session.tenant;
      const Claimant claimant = session.claimant();
      if (archive.failed() || !sessions_.Restore(std::move(session))) return archive.Fail();
      core_.budgets.AddSession(tenant);
      session_places_.Take(claimant);
      return;
    }
    case RecordKind::kChannel: {
      const ChannelId id(key.id);
      Channel channel = sessions_.NewChannel(id);
      archive(channel);
      const SessionId session = channel.session;
      const bool hung_up = channel.hung_up;
      if (archive.failed() || !sessions_.Restore(std::move(channel))) return archive.Fail();
      if (!hung_up) mailboxes_.Open(id, sessions_.Find(session)->tenant);
      return;
    }
    case RecordKind::kRequest:
      return core_.requests.ReadRequest({ChannelId(key.id), key.part}, archive);
    case RecordKind::kDelivery:
      return mailboxes_.ReadRecord(key, archive);
    default:
      return archive.Fail();
  }
}

void Sessions::ResumeSessions(StepContext& step) {
  core_.requests.Resume(step.now);
  sessions_.ForEachChannel([&](const Channel& channel) {
    if (channel.has_page) step.Emit(MakeFencePage{.channel = channel.id});
  });
  std::vector<Deliver> sends;
  // If a block no longer has such an import, its process has received and released it.
  mailboxes_.Resume(
      [this](const Deliver& deliver) {
        const attach::DeliveryKind what = deliver.delivery.what;
        if (what != attach::DeliveryKind::kBlock && what != attach::DeliveryKind::kHandleBlock) return true;
        return core_.blocks.FindByImport(ImportId(deliver.delivery.import)) != nullptr;
      },
      &sends);
  step.EmitAll(std::move(sends));
  core_.fences.ResumeSessions(step);
}

absl::Status Sessions::CheckTenants() const {
  SharedCount places("sessions", SharedCount::kUnlimited, SharedCount::kUnlimited);
  for (const Session* const session : sessions_.List()) places.Take(session->claimant());
  if (!(places == session_places_)) return Broken("the sessions of a user are miscounted");
  TenantUse::Uses counted;
  for (const auto& [name, pool] : core_.permits.pools()) {
    for (const auto& [tenant, units] : pool.out_by_tenant()) counted[tenant].units += units;
  }
  for (const auto& [request, pending] : core_.requests.pending()) {
    const bool for_units = pending.place == &core_.permits;
    const bool for_bytes = pending.place == &core_.byte_queue || pending.place == &core_.blocks;
    if (!for_units && !for_bytes) continue;
    TenantUse::Use& use = counted[pending.session->tenant];
    ++use.waiters;
    use.unit_waiters += pending.for_units ? 1 : 0;
    if (pending.for_units != for_units) return Broken("a waiting request is counted under another cause");
  }
  return tenant_use_.CheckInvariants(counted);
}

}  // namespace berth::core
