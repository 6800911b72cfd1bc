// What of a queue outlives the broker: who waits, and where each tenant stands.

#include "daemon/core/fingerprint.h"
#include "daemon/core/wait_queue.h"

namespace berth::core {
namespace {

// The same in every broker. Should two ever share one, a broker that follows knows one of them no longer, and that
// one starts where the others are.
uint64_t RowPartOf(const Tenant& tenant) {
  return Fingerprint().Add(uint64_t{tenant.uid}).Add(tenant.container).value();
}

}  // namespace

void WaitQueue::NoteTenant(const Tenant& tenant) {
  const uint64_t part = RowPartOf(tenant);
  tenant_rows_.insert_or_assign(part, tenant);
  journal_->Touch(RowKind::kPoolTenant, pool_, part);
}

void WaitQueue::ForgetTenant(const Tenant& tenant) {
  const uint64_t part = RowPartOf(tenant);
  tenant_rows_.erase(part);
  journal_->Touch(RowKind::kPoolTenant, pool_, part);
}

void WaitQueue::ListRows(std::vector<RowKey>* keys) const {
  for (const auto& [part, tenant] : tenant_rows_) {
    keys->push_back(KeyOf(RowKind::kPoolTenant, pool_, part));
  }
  for (const auto& [ticket, entry] : entries_) {
    keys->push_back(KeyOf(RowKind::kWaiter, ticket, pool_));
  }
}

bool WaitQueue::WriteRow(const RowKey& key, ArchiveWriter& archive) const {
  if (key.kind == static_cast<uint32_t>(RowKind::kWaiter)) {
    const auto at = entries_.find(key.id);
    if (at == entries_.end()) return false;
    archive(at->second.waiter, held_.contains(key.id));
    return true;
  }
  const auto row = tenant_rows_.find(key.part);
  if (row == tenant_rows_.end()) return false;
  const Tenant& tenant = row->second;
  const auto waiting = tenants_.find(tenant);
  const bool waits = waiting != tenants_.end();
  archive(tenant, waits, waits ? waiting->second.clock : clock_.ahead().at(tenant));
  return true;
}

void WaitQueue::ReadRow(const RowKey& key, ArchiveReader& archive) {
  if (key.kind == static_cast<uint32_t>(RowKind::kWaiter)) {
    Waiter waiter{.number = key.id, .absent = true};
    bool held = false;
    archive(waiter, held);
    // Its tenant's row came before.
    if (archive.failed() || !tenants_.contains(waiter.asker.tenant)) return archive.Fail();
    if (held) held_.insert(key.id);
    Push(std::move(waiter));
    return;
  }
  Tenant tenant;
  bool waits = false;
  double clock = 0;
  archive(tenant, waits, clock);
  if (archive.failed() || key.part != RowPartOf(tenant)) return archive.Fail();
  if (waits) {
    tenants_[tenant].clock = clock;
    NoteTenant(tenant);
  } else if (clock_.Leave(tenant, clock)) {
    NoteTenant(tenant);
  }
}

absl::Status WaitQueue::CheckBooks() const {
  for (const auto& [tenant, lanes] : tenants_) {
    if (lanes.lanes.empty()) return absl::InternalError("a tenant is said to wait that does not");
  }
  return tenant_rows_.size() == tenants_.size() + clock_.remembered()
             ? absl::OkStatus()
             : absl::InternalError("where a tenant stands is not written down");
}

}  // namespace berth::core
