// Ledger records of requests that wait for bytes, and the check of them.

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/managers.h"
#include "daemon/core/memory/byte_queue.h"

namespace berth::core {
namespace {

absl::Status Broken(const absl::AlphaNum& what) { return absl::InternalError(what.Piece()); }

}  // namespace

void ByteQueue::ReadByteWaiter(uint64_t number, ArchiveReader& archive) {
  Waiting waiting;
  archive(waiting);
  waiting.number = number;
  const bool known = std::all_of(waiting.asks.begin(), waiting.asks.end(),
                                 [this](const ByteRequest& ask) { return core_.devices.Has(ask.device); });
  const auto pending = core_.requests.pending().find(waiting.request);
  if (archive.failed() || !known || pending == core_.requests.pending().end() ||
      core_.sessions.table().Find(waiting.session) == nullptr || !byte_queue_.Restore(waiting)) {
    return archive.Fail();
  }
  core_.requests.SetPlace(waiting.request, this);
  core_.requests.MarkWaiting(pending->first);
  for (const ByteRequest& ask : waiting.asks) {
    // Calls LayersOf() for every waiter: it creates the accounts that a later judgement reads.
    for (const LayerBudget& layer : core_.budgets.LayersOf(ask.device, waiting.session, waiting.tenant)) {
      if (waiting.drawn_from) layer.budget->Claim(ask.bytes);
    }
  }
}

absl::Status ByteQueue::CheckByteQueue() const {
  for (const auto& [tenant, account] : core_.budgets.tenants()) {
    uint64_t sessions = 0;
    for (const Session* const session : core_.sessions.table().List())
      sessions += session->tenant.account() == tenant ? 1 : 0;
    if (sessions != account.sessions) return Broken("a tenant's sessions are miscounted");
  }
  absl::Status status = byte_queue_.CheckInvariants();
  bool first = true;
  byte_queue_.ForEach([&](const Waiting& waiting) {
    if (status.ok()) status = CheckWaiting(waiting, std::exchange(first, false));
  });
  return status;
}

absl::Status ByteQueue::CheckWaiting(const Waiting& waiting, bool first) const {
  const auto pending = core_.requests.pending().find(waiting.request);
  if (pending == core_.requests.pending().end() || pending->second.place != this) {
    return Broken("a request that waits for bytes is not pending for bytes");
  }
  bool coming = false;
  bool fits = true;
  for (const ByteRequest& ask : waiting.asks) {
    const Device& device = core_.devices.At(ask.device);
    const ByteBudget& account = device.account;
    fits = fits && account.Judge(ask.bytes) == ByteBudget::Verdict::kNow;
    const auto shares = core_.budgets.tenants().at(waiting.tenant).budgets.find(ask.device);
    const auto own = core_.sessions.table().Find(waiting.session)->budgets.find(ask.device);
    fits = fits && shares->second.Judge(ask.bytes) == ByteBudget::Verdict::kNow;
    fits = fits && own->second.Judge(ask.bytes) == ByteBudget::Verdict::kNow;
    // A device on probation serves nothing, whatever the state of its workers.
    coming = coming || account.coming().count() > 0 || device.main.state == DeviceState::kProbation ||
             device.worker(WorkerKindOf(waiting.kind)).state != DeviceState::kReady;
    if (WorkerKindOf(waiting.kind) == WorkerKind::kContext && device.context.state == DeviceState::kIdle) {
      return Broken("a request waits for a context worker that was not started");
    }
  }
  // The first waiter has no waiter ahead of it.
  if (first && fits && MayServe(waiting)) return Broken("a request waits for bytes that are free");
  if (first && !waiting.patient && !coming && IsAttended(waiting)) {
    return Broken("a request waits for bytes without need");
  }
  return absl::OkStatus();
}

}  // namespace berth::core
