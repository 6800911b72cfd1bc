// Ledger records of pools, permits and their waiters.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "daemon/core/managers.h"
#include "daemon/core/permits/permit_transaction.h"
#include "daemon/core/permits/permits.h"
#include "daemon/core/types/record_kind.h"

namespace berth::core {
namespace {

// Returns the number of the pool that a record belongs to.
uint64_t PoolOf(const RecordKey& key) {
  switch (static_cast<RecordKind>(key.kind)) {
    case RecordKind::kPermit:
    case RecordKind::kWaiter:
    case RecordKind::kAcquisition:
      return key.part;
    default:
      return key.id;
  }
}

}  // namespace

void Permits::ListPermitRecords(std::vector<RecordKey>* keys) const {
  for (const auto& [name, pool] : pools_) pool.ListRecords(keys);
  for (const auto& [request, gang] : gangs_.gangs()) keys->push_back(KeyOf(RecordKind::kGang, gang.number));
}

bool Permits::WritePermitRecord(const RecordKey& key, ArchiveWriter& archive) const {
  if (key.kind == static_cast<uint32_t>(RecordKind::kGang)) {
    const Gang* const gang = gangs_.FindByNumber(key.id);
    if (gang == nullptr) return false;
    archive(*gang);
    return true;
  }
  const auto pool = pools_by_number_.find(PoolOf(key));
  return pool != pools_by_number_.end() && pool->second->WriteRecord(key, archive);
}

void Permits::ReadPermitRecord(const RecordKey& key, ArchiveReader& archive) {
  if (key.kind == static_cast<uint32_t>(RecordKind::kGang)) return ReadGang(key.id, archive);
  if (key.kind == static_cast<uint32_t>(RecordKind::kPool) && !pools_by_number_.contains(key.id)) {
    // A pool that is no longer configured stays while it has permits or waiters.
    const PoolConfig config = PermitPool::ReadConfig(archive);
    if (config.cap == 0 || PermitPool::NumberOf(config.name) != key.id) return archive.Fail();
    AddPool(config);
  }
  const auto pool = pools_by_number_.find(PoolOf(key));
  if (pool == pools_by_number_.end()) return archive.Fail();
  pool->second->ReadRecord(key, archive);
  if (archive.failed() || key.kind != static_cast<uint32_t>(RecordKind::kWaiter)) return;
  const Waiter& waiter = *pool->second->FindWaiter(key.id);
  const auto pending = core_.requests.pending().find(waiter.request);
  if (pending == core_.requests.pending().end()) return archive.Fail();
  if (pending->second.place != nullptr) return archive.Fail();
  // The gang's own record follows.
  if (!waiter.gang.empty()) return;
  core_.requests.SetPlace(waiter.request, this, {.pool = pool->second, .waiter = &waiter, .number = waiter.number});
  core_.requests.MarkWaiting(waiter.request);
}

void Permits::ReadGang(uint64_t number, ArchiveReader& archive) {
  Gang gang;
  archive(gang);
  const auto pending = core_.requests.pending().find(gang.request);
  const bool whole = gang.number == number && !gang.parts.empty() && gang.permits.size() == gang.what.members.size();
  if (archive.failed() || !whole || pending == core_.requests.pending().end()) return archive.Fail();
  for (Gang::Part& part : gang.parts) {
    const auto known = [&](size_t member) { return member < gang.permits.size(); };
    if (part.members.empty() || !std::all_of(part.members.begin(), part.members.end(), known)) return archive.Fail();
    part.pool = FindPool(gang.permits[part.members.front()].pool);
    const Waiter* const waiter = part.pool == nullptr ? nullptr : part.pool->FindWaiter(number);
    if (waiter == nullptr || waiter->request != gang.request) return archive.Fail();
  }
  for (const ByteRequest& ask : gang.byte_requests) {
    if (!core_.devices.Has(ask.device)) return archive.Fail();
  }
  core_.requests.SetPlace(gang.request, this);
  core_.requests.MarkWaiting(gang.request);
  gangs_.Add(std::move(gang));
}

void Permits::FinishRestoringPermits() {
  for (auto it = pools_.begin(); it != pools_.end();) {
    PermitPool& pool = it->second;
    pool.FinishRestoring();
    const bool configured = std::any_of(core_.config.pools.begin(), core_.config.pools.end(),
                                        [&](const PoolConfig& config) { return config.name == pool.config().name; });
    if (configured || !pool.IsIdle()) {
      ++it;
      continue;
    }
    std::vector<RecordKey> gone;
    pool.ListRecords(&gone);
    for (const RecordKey& key : gone) core_.journal.Touch(key);
    pools_by_number_.erase(pool.number());
    it = pools_.erase(it);
  }
}

void Permits::ResumePermits(StepContext& step) {
  // The configuration may have changed, and with it which requests can be granted at all.
  PermitTransaction transaction(core_, &step);
  transaction.Reconsider();
  for (auto& [name, pool] : pools_) pool.Reconsider(transaction.step());
  transaction.Answer();
  RestoreOffers(step);
}

}  // namespace berth::core
