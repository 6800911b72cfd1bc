// Ledger records of pending requests, and the check of them.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/managers.h"
#include "daemon/core/plans/plan_transaction.h"
#include "daemon/core/requests/requests.h"

namespace berth::core {
namespace {

absl::Status Broken(const absl::AlphaNum& what) { return absl::InternalError(what.Piece()); }

}  // namespace

bool Requests::WriteRequest(const RequestId& request, ArchiveWriter& archive) const {
  const Channel* const channel = core_.sessions.table().FindChannel(request.channel);
  if (channel == nullptr) return false;
  if (request.sequence == RequestMemory::kSettled) return channel->requests.WriteSettled(archive);
  const RequestMemory::Entry* const entry = channel->requests.Find(request.sequence);
  if (entry == nullptr) return false;
  archive(*entry);
  if (entry->state != RequestMemory::State::kPending) return true;
  // Another record stores where the request waits.
  const Pending& pending = pending_.at(request);
  archive(pending.log_records, pending.plan != nullptr);
  if (pending.plan != nullptr) archive(*pending.plan);
  archive(pending.since);
  return true;
}

void Requests::ReadRequest(const RequestId& request, ArchiveReader& archive) {
  const Channel* const channel = core_.sessions.table().FindChannel(request.channel);
  if (channel == nullptr) return archive.Fail();
  RequestMemory& memory = core_.sessions.RequestsOf(request.channel);
  if (request.sequence == RequestMemory::kSettled) return memory.ReadSettled(archive);
  RequestMemory::Entry entry;
  archive(entry);
  const bool waits = entry.state == RequestMemory::State::kPending;
  memory.Restore(request.sequence, std::move(entry));
  if (!waits) return;
  Pending pending{.memory = &memory, .session = core_.sessions.table().Find(channel->session)};
  bool has_plan = false;
  archive(pending.log_records, has_plan);
  if (has_plan) archive(*(pending.plan = std::make_unique<PlanDraft>()));
  if (archive.schema() >= 2) archive(pending.since);
  pending_.emplace(request, std::move(pending));
}

void Requests::FinishRestoringRequests() {
  std::vector<RequestId> nowhere;
  for (const auto& [request, pending] : pending_) {
    if (pending.place == nullptr) {
      nowhere.push_back(request);
    } else if (pending.place != &core_.blocks) {
      detached_requests_.insert(request);
    }
  }
  // Requests in no persisted wait place had no decision yet: a repeated request starts again.
  for (const RequestId& request : nowhere) {
    const auto pending = pending_.find(request);
    pending->second.memory->Erase(request.sequence);
    pending_.erase(pending);
  }
}

absl::Status Requests::CheckPending() const {
  uint64_t remembered = 0;
  uint64_t reachable = 0;
  bool mailboxes = true;
  core_.sessions.table().ForEachChannel([&](const Channel& channel) {
    remembered += channel.requests.Pending().size();
    reachable += channel.hung_up ? 0 : 1;
    mailboxes = mailboxes && core_.sessions.mailboxes().Has(channel.id) != channel.hung_up;
  });
  if (!mailboxes || reachable != core_.sessions.mailboxes().size())
    return Broken("a mailbox belongs to an absent channel");
  if (remembered != pending_.size()) {
    return Broken(absl::StrCat(pending_.size(), " requests are pending, ", remembered, " are recorded as pending"));
  }
  uint64_t calls = 0;
  for (const auto& [request, pending] : pending_) {
    calls += pending.call ? 1 : 0;
    const Channel* const channel = core_.sessions.table().FindChannel(request.channel);
    if (channel == nullptr || channel->hung_up) return Broken("a pending request belongs to an absent channel");
    if (pending.place == nullptr) return Broken("a pending request has no wait place");
    const bool attended = pending.call || detached_requests_.contains(request) || skipped_.contains(request);
    if (pending.place == &core_.permits && pending.ticket.pool != nullptr) {
      const Waiter* const waiter = pending.ticket.pool->FindWaiter(pending.ticket.number);
      if (waiter == nullptr || waiter != pending.ticket.waiter || waiter->request != request || !attended)
        return Broken("a request waits in no pool, or for no call");
    } else if (pending.place == &core_.permits) {
      if (!attended || !core_.permits.gangs().gangs().contains(request))
        return Broken("a gang has no wait place, or no call");
    } else if (pending.place == &core_.fences && !core_.fences.Waits(request)) {
      return Broken("a prepare waits for nothing");
    } else if (pending.place == &core_.blocks) {
      const Block* const block = core_.blocks.table().Find(BlockId(pending.ticket.number));
      if (block == nullptr || block->phase != BlockPhase::kReserved || block->request != request) {
        return Broken("a request waits for a block that is not allocated for it");
      }
    }
    if (!pending.call) continue;
    const auto call = calls_.find(pending.call);
    if (call == calls_.end() || call->second->first != request) return Broken("a waiting call is not recorded");
  }
  return calls == calls_.size() ? absl::OkStatus() : Broken("a call waits for nothing");
}

}  // namespace berth::core
