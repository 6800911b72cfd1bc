// Persistence of a pool across broker restarts.

#include <utility>

#include "daemon/core/permits/permit_pool.h"
#include "daemon/core/permits/pool_change.h"

namespace berth::core {

void PermitPool::ListRecords(std::vector<RecordKey>* keys) const {
  keys->push_back(KeyOf(RecordKind::kPool, number_));
  keys->push_back(KeyOf(RecordKind::kPoolCounters, number_));
  for (const auto& [id, permit] : permits_) {
    keys->push_back(KeyOf(RecordKind::kPermit, id.value(), number_));
    for (const AcquisitionId acquisition : permit.acquisitions) {
      if (acquisition != permit.first) keys->push_back(KeyOf(RecordKind::kAcquisition, acquisition.value(), number_));
    }
  }
  queue_.ListRecords(keys);
}

bool PermitPool::WriteRecord(const RecordKey& key, ArchiveWriter& archive) const {
  switch (static_cast<RecordKind>(key.kind)) {
    case RecordKind::kPool:
      archive(config_, configured_);
      return true;
    case RecordKind::kPoolCounters:
      archive(queue_.clocks().now, peak_, granted_total_, refused_total_, revoked_total_, mean_hold_);
      archive.Since(3, queue_.clocks().searched);
      return true;
    case RecordKind::kPermit: {
      const auto found = permits_.find(PermitId(key.id));
      if (found == permits_.end()) return false;
      archive(found->second, found->second.permit_slot != nullptr);
      return true;
    }
    case RecordKind::kAcquisition: {
      const auto found = acquisitions_.find(AcquisitionId(key.id));
      if (found == acquisitions_.end() || permits_.at(found->second).first == found->first) return false;
      archive(found->second);
      return true;
    }
    default:
      return queue_.WriteRecord(key, archive);
  }
}

PoolConfig PermitPool::ReadConfig(ArchiveReader archive) {
  PoolConfig config;
  archive(config);
  return config;
}

void PermitPool::ReadRecord(const RecordKey& key, ArchiveReader& archive) {
  switch (static_cast<RecordKind>(key.kind)) {
    case RecordKind::kPool: {
      PoolConfig config, configured;
      archive(config, configured);
      if (archive.failed() || config.cap == 0 || config.name != config_.name) return archive.Fail();
      // Operators' changes stay, except where the configuration itself has changed.
      ApplyChange(Difference(configured, configured_), &config);
      config_ = std::move(config);
      return ApplyConfig();
    }
    case RecordKind::kPoolCounters: {
      WaitQueue::Clocks clocks;
      archive(clocks.now, peak_, granted_total_, refused_total_, revoked_total_, mean_hold_);
      archive.Since(3, clocks.searched);
      return queue_.RestoreClocks(clocks);
    }
    case RecordKind::kPermit:
      return ReadPermit(PermitId(key.id), archive);
    case RecordKind::kAcquisition: {
      PermitId id;
      archive(id);
      const auto permit = permits_.find(id);
      const AcquisitionId acquisition(key.id);
      if (permit == permits_.end() || !acquisitions_.emplace(acquisition, id).second) return archive.Fail();
      permit->second.acquisitions.insert(acquisition);
      return;
    }
    default:
      queue_.ReadRecord(key, archive);
  }
}

void PermitPool::ReadPermit(PermitId id, ArchiveReader& archive) {
  Permit permit;
  bool lent = false;
  archive(permit, lent);
  permit.view.id = id;
  permit.view.pool = config_.name;
  const auto& device = permit.view.device;
  if (archive.failed() || (device.has_value() && !placement_->Knows(device->ordinal)) ||
      by_holder_.contains({permit.view.session, permit.view.holder_key})) {
    return archive.Fail();
  }
  if (permit.first) {
    permit.acquisitions.insert(permit.first);
    if (!acquisitions_.emplace(permit.first, id).second) return archive.Fail();
  }
  Permit& restored = Insert(std::move(permit));
  if (!lent || permit_slots_ == nullptr) return;
  restored.permit_slot = permit_slots_->LendAgain(restored.cached_by);
  if (restored.permit_slot != nullptr) {
    cached_.emplace(restored.cached_by, id);
  } else {
    // The fence page is gone: the permit becomes an ordinary permit.
    Mark(restored);
  }
}

void PermitPool::FinishRestoring() {
  const std::map<ChannelId, PermitId> cached = cached_;
  for (const auto& [channel, id] : cached) {
    const auto at = permits_.find(id);
    Permit& permit = at->second;
    switch (permit.permit_slot->StateOf(id.value())) {
      case PermitSlot::Lent::kYes:
        break;
      case PermitSlot::Lent::kEnded:
        EndCaching(permit);
        break;
      case PermitSlot::Lent::kTakenBack:
        EndCaching(permit, /*taken_back=*/true);
        EndAcquisition(permit, permit.cached);
        // History writers do not find the permit among the outstanding ones and take that as its end.
        if (permit.acquisitions.empty()) Return(permit.held_since, at, LeaseEnd::kUnseen);
        break;
    }
  }
  // The waiting flag of processes that cache permits may have to change.
  wanted_ = !cached_.empty() && NeedsUnits();
  looked_at_ = absl::InfinitePast();
  for (const auto& [channel, id] : cached_) permits_.at(id).permit_slot->SetWaiting(wanted_);
}

}  // namespace berth::core
