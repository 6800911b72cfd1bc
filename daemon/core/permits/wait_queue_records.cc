// Persistence of a queue across broker restarts: its waiters, and the position of each tenant.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/permits/wait_queue.h"
#include "daemon/core/requests/fingerprint.h"

namespace berth::core {
namespace {

// Part of a tenant's record, equal in every broker. If two tenants ever shared a value, a later broker would forget one
// of them, and that tenant would start at the common clock.
uint64_t RecordPartOf(const Account& tenant) {
  return Fingerprint().Add(uint64_t{tenant.uid}).Add(tenant.container).value();
}

}  // namespace

void WaitQueue::RecordTenant(const Account& tenant) {
  const uint64_t part = RecordPartOf(tenant);
  tenant_rows_.insert_or_assign(part, tenant);
  journal_->Touch(RecordKind::kPoolTenant, pool_, part);
}

void WaitQueue::ForgetTenant(const Account& tenant) {
  const uint64_t part = RecordPartOf(tenant);
  tenant_rows_.erase(part);
  journal_->Touch(RecordKind::kPoolTenant, pool_, part);
}

void WaitQueue::ListRecords(std::vector<RecordKey>* keys) const {
  for (const auto& [part, tenant] : tenant_rows_) {
    keys->push_back(KeyOf(RecordKind::kPoolTenant, pool_, part));
  }
  for (const auto& [ticket, entry] : entries_) {
    keys->push_back(KeyOf(RecordKind::kWaiter, ticket, pool_));
  }
}

bool WaitQueue::WriteRecord(const RecordKey& key, ArchiveWriter& archive) const {
  if (key.kind == static_cast<uint32_t>(RecordKind::kWaiter)) {
    const auto at = entries_.find(key.id);
    if (at == entries_.end()) return false;
    archive(at->second.waiter, held_.contains(key.id));
    return true;
  }
  const auto row = tenant_rows_.find(key.part);
  if (row == tenant_rows_.end()) return false;
  const Account& tenant = row->second;
  const auto waiting = tenants_.find(tenant);
  const bool waits = waiting != tenants_.end();
  archive(tenant, waits, (waits ? waiting->second.clock : clock_.ahead().at(tenant)).value());
  archive.Since(3, waits && waiting->second.idle);
  return true;
}

void WaitQueue::ReadRecord(const RecordKey& key, ArchiveReader& archive) {
  if (key.kind == static_cast<uint32_t>(RecordKind::kWaiter)) {
    Waiter waiter{.number = key.id, .detached = true};
    bool held = false;
    archive(waiter, held);
    // The tenant's record precedes its waiters.
    if (archive.failed() || !tenants_.contains(waiter.requester.tenant)) return archive.Fail();
    Push(std::move(waiter));
    if (held) EnterHeld(key.id, {});
    return;
  }
  Account tenant;
  bool waits = false;
  double clock = 0;
  bool idle = false;
  archive(tenant, waits, clock);
  archive.Since(3, idle);
  if (archive.failed() || key.part != RecordPartOf(tenant) || tenants_.contains(tenant)) return archive.Fail();
  if (waits) {
    EnterTenant(tenant, OwnClock(clock), idle);
  } else if (clock_.Leave(tenant, OwnClock(clock))) {
    RecordTenant(tenant);
  }
}

absl::Status WaitQueue::CheckInvariants() const {
  SharedCount counted("waiters", SharedCount::kUnlimited, SharedCount::kUnlimited);
  for (const auto& [ticket, entry] : entries_) counted.Take(entry.waiter.requester.claimant());
  if (!(counted == places_)) return absl::InternalError("the waiters of a user are miscounted");
  if (by_number_.size() != tenants_.size()) return absl::InternalError("a tenant that has left is still in the index");
  uint64_t detached = 0;
  for (const auto& [ticket, entry] : entries_) detached += entry.waiter.detached ? 1 : 0;
  if (detached != detached_) return absl::InternalError("the detached waiters are miscounted");
  uint64_t in_lines = 0;
  uint64_t in_rows = 0;
  for (const auto& [tenant, lines] : tenants_) {
    if (lines.lines.empty()) return absl::InternalError("a tenant without waiters is marked as waiting");
    for (const auto& [key, line] : lines.lines) {
      in_lines += line.row.size();
      if (line.row.empty() || line.row.begin()->first != line.first || line.of.priority != key.priority ||
          line.of.tenant != lines.number) {
        return absl::InternalError("a line's head is not its first waiter");
      }
      if (line.of.aged == young_.contains({At(line.first).since, line.first})) {
        return absl::InternalError("a line is both young and aged, or neither");
      }
    }
    const auto at = by_number_.find(lines.number);
    if (at == by_number_.end() || at->second->first != tenant || racing_.contains(lines.number) == lines.idle) {
      return absl::InternalError("a tenant is not found by its number, or is idle and scheduled");
    }
    for (const auto& [priority, row] : lines.rows) in_rows += row.size();
  }
  if (in_lines != entries_.size() || in_rows != entries_.size()) {
    return absl::InternalError("a waiter is in no line, or in two");
  }
  uint64_t of_sessions = 0;
  for (const auto& [session, count] : by_session_) of_sessions += count;
  if (of_sessions != entries_.size()) return absl::InternalError("a session's waiters are miscounted");
  return tenant_rows_.size() == tenants_.size() + clock_.remembered()
             ? absl::OkStatus()
             : absl::InternalError("a tenant's position is not recorded");
}

absl::Status WaitQueue::CheckStalls(Arbiter& arbiter) const {
  const auto read = [&](uint64_t tenant, const Gauge& gauge) { return Read(arbiter, tenant, gauge); };
  const auto version = [&](Gauge::Kind kind) { return arbiter.VersionOf(kind); };
  for (const StallBoard* const board : {&boards_[kGoing], &boards_[kRacing], &std::as_const(held_board_)}) {
    if (!board->IsCurrent(read, version)) return absl::InternalError("a gauge changed and its version did not");
  }
  const auto blocks = [&](const Stalls& stalls, const Account& tenant) {
    return !stalls.empty() && std::all_of(stalls.begin(), stalls.end(), [&](const Stall& stall) {
      return stall.Blocks([&](const Gauge& gauge) { return arbiter.Read(tenant, gauge); });
    });
  };
  const auto parked = [](Ticket ticket, const Stalls& stalls) {
    return absl::InternalError(absl::StrCat("waiter ", ticket, " is no longer blocked, but still parked on gauge ",
                                            static_cast<int>(stalls.front().gauge.kind)));
  };
  for (const auto& [ticket, stalls] : held_) {
    const Waiter& waiter = At(ticket);
    if (blocks(stalls, waiter.requester.tenant) && arbiter.Judge(waiter) <= kWanted[kRacing]) {
      return parked(ticket, stalls);
    }
  }
  for (const auto& [tenant, lines] : tenants_) {
    for (const auto& [key, line] : lines.lines) {
      const Verdict verdict = arbiter.Judge(At(line.first));
      for (const Goal goal : {kGoing, kRacing}) {
        if (blocks(line.stalls[goal], tenant) && verdict <= kWanted[goal]) return parked(line.first, line.stalls[goal]);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace berth::core
