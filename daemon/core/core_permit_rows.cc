// The rows of pools, permits, plans, and who waits for them.

#include <algorithm>
#include <utility>

#include "daemon/core/core_impl.h"

namespace berth::core {
namespace {

// Of a row of a pool: the pool's number.
uint64_t PoolOf(const RowKey& key) {
  switch (static_cast<RowKind>(key.kind)) {
    case RowKind::kPermit:
    case RowKind::kWaiter:
    case RowKind::kAcquisition:
      return key.part;
    default:
      return key.id;
  }
}

}  // namespace

void Core::Impl::ListPermitRows(std::vector<RowKey>* keys) const {
  for (const auto& [name, pool] : pools_) pool.ListRows(keys);
  for (const auto& [request, gang] : gangs_.gangs()) keys->push_back(KeyOf(RowKind::kGang, gang.number));
  plans_.ForEachAfter(0, [&](const Plan& plan) {
    keys->push_back(KeyOf(RowKind::kPlan, plan.id().value()));
    return true;
  });
}

bool Core::Impl::WritePermitRow(const RowKey& key, ArchiveWriter& archive) const {
  if (key.kind == static_cast<uint32_t>(RowKind::kGang)) {
    const Gang* const gang = gangs_.FindByNumber(key.id);
    if (gang == nullptr) return false;
    archive(*gang);
    return true;
  }
  if (key.kind == static_cast<uint32_t>(RowKind::kPlan)) {
    const Plan* const plan = plans_.Find(PlanId(key.id));
    if (plan == nullptr) return false;
    archive(*plan);
    return true;
  }
  const auto pool = pools_by_number_.find(PoolOf(key));
  return pool != pools_by_number_.end() && pool->second->WriteRow(key, archive);
}

void Core::Impl::ReadPermitRow(const RowKey& key, ArchiveReader& archive) {
  if (key.kind == static_cast<uint32_t>(RowKind::kGang)) return ReadGang(key.id, archive);
  if (key.kind == static_cast<uint32_t>(RowKind::kPlan)) {
    Plan plan;
    archive(plan);
    if (archive.failed() || plan.id() != PlanId(key.id) || !plans_.Restore(std::move(plan))) archive.Fail();
    return;
  }
  if (key.kind == static_cast<uint32_t>(RowKind::kPool) && !pools_by_number_.contains(key.id)) {
    // One that is not configured any more stays while somebody has something there.
    const PoolConfig config = PermitPool::ReadConfig(archive);
    if (config.cap == 0 || PermitPool::NumberOf(config.name) != key.id) return archive.Fail();
    AddPool(config);
  }
  const auto pool = pools_by_number_.find(PoolOf(key));
  if (pool == pools_by_number_.end()) return archive.Fail();
  pool->second->ReadRow(key, archive);
  if (archive.failed() || key.kind != static_cast<uint32_t>(RowKind::kWaiter)) return;
  const Waiter& waiter = *pool->second->FindWaiter(key.id);
  const auto pending = pending_.find(waiter.request);
  if (pending == pending_.end()) return archive.Fail();
  Place& place = pending->second.place;
  if (!std::holds_alternative<std::monostate>(place)) return archive.Fail();
  // A gang's own row follows.
  if (!waiter.gang.empty()) return;
  place = InPool(pool->second, &waiter);
  NoteWaits(waiter.request);
}

void Core::Impl::ReadGang(uint64_t number, ArchiveReader& archive) {
  Gang gang;
  archive(gang);
  const auto pending = pending_.find(gang.request);
  const bool whole = gang.number == number && !gang.parts.empty() && gang.permits.size() == gang.what.members.size();
  if (archive.failed() || !whole || pending == pending_.end()) return archive.Fail();
  for (Gang::Part& part : gang.parts) {
    const auto known = [&](size_t member) { return member < gang.permits.size(); };
    if (part.members.empty() || !std::all_of(part.members.begin(), part.members.end(), known)) return archive.Fail();
    part.pool = FindPool(gang.permits[part.members.front()].pool);
    const Waiter* const waiter = part.pool == nullptr ? nullptr : part.pool->FindWaiter(number);
    if (waiter == nullptr || waiter->request != gang.request) return archive.Fail();
  }
  for (const RoomAsk& ask : gang.room) {
    if (!devices_.contains(ask.device)) return archive.Fail();
  }
  pending->second.place = &gangs_;
  NoteWaits(gang.request);
  gangs_.Add(std::move(gang));
}

void Core::Impl::AddPool(const PoolConfig& config) {
  PermitPool& pool = pools_
                         .try_emplace(config.name,
                                      PermitPool::Options{.config = config,
                                                          .max_waiters = config_.limits.waiters_per_pool,
                                                          .passes_before_hold = config_.limits.passes_before_hold,
                                                          .epoch = config_.epoch,
                                                          .tenants = &tenant_use_,
                                                          .leases = &leases_},
                                      &permit_ids_, &placement_, &journal_, &permit_words_)
                         .first->second;
  pools_by_number_.emplace(pool.number(), &pool);
}

void Core::Impl::FinishRestoringPermits() {
  for (auto it = pools_.begin(); it != pools_.end();) {
    PermitPool& pool = it->second;
    pool.FinishRestoring();
    const bool configured = std::any_of(config_.pools.begin(), config_.pools.end(),
                                        [&](const PoolConfig& config) { return config.name == pool.config().name; });
    if (configured || !pool.IsIdle()) {
      ++it;
      continue;
    }
    std::vector<RowKey> gone;
    pool.ListRows(&gone);
    for (const RowKey& key : gone) journal_.Touch(key);
    pools_by_number_.erase(pool.number());
    it = pools_.erase(it);
  }
  // Plans have not been held against what the devices are now.
  devices_changed_ = true;
}

void Core::Impl::ResumePermits(const Step& step) {
  // The configuration may have changed, and with it what can be granted at all.
  PermitRun run(this, &step);
  run.Reconsider();
  for (auto& [name, pool] : pools_) pool.Reconsider(run.step());
  run.Answer();
}

}  // namespace berth::core
