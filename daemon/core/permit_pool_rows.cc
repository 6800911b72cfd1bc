// What of a pool outlives the broker.

#include <utility>

#include "daemon/core/permit_pool.h"
#include "daemon/core/pool_change.h"

namespace berth::core {

void PermitPool::ListRows(std::vector<RowKey>* keys) const {
  keys->push_back(KeyOf(RowKind::kPool, number_));
  keys->push_back(KeyOf(RowKind::kPoolFigures, number_));
  for (const auto& [id, permit] : permits_) {
    keys->push_back(KeyOf(RowKind::kPermit, id.value(), number_));
    for (const AcquisitionId acquisition : permit.acquisitions) {
      if (acquisition != permit.first) keys->push_back(KeyOf(RowKind::kAcquisition, acquisition.value(), number_));
    }
  }
  queue_.ListRows(keys);
}

bool PermitPool::WriteRow(const RowKey& key, ArchiveWriter& archive) const {
  switch (static_cast<RowKind>(key.kind)) {
    case RowKind::kPool:
      archive(config_, configured_);
      return true;
    case RowKind::kPoolFigures:
      archive(queue_.clock(), peak_, granted_total_, refused_total_, revoked_total_, mean_hold_);
      return true;
    case RowKind::kPermit: {
      const auto found = permits_.find(PermitId(key.id));
      if (found == permits_.end()) return false;
      archive(found->second, found->second.word != nullptr);
      return true;
    }
    case RowKind::kAcquisition: {
      const auto found = acquisitions_.find(AcquisitionId(key.id));
      if (found == acquisitions_.end() || permits_.at(found->second).first == found->first) return false;
      archive(found->second);
      return true;
    }
    default:
      return queue_.WriteRow(key, archive);
  }
}

PoolConfig PermitPool::ReadConfig(ArchiveReader archive) {
  PoolConfig config;
  archive(config);
  return config;
}

void PermitPool::ReadRow(const RowKey& key, ArchiveReader& archive) {
  switch (static_cast<RowKind>(key.kind)) {
    case RowKind::kPool: {
      PoolConfig config, configured;
      archive(config, configured);
      if (archive.failed() || config.cap == 0 || config.name != config_.name) return archive.Fail();
      // What has been changed by hand stays, but where the configuration says something else than it did.
      ApplyChange(Difference(configured, configured_), &config);
      config_ = std::move(config);
      return ApplyConfig();
    }
    case RowKind::kPoolFigures: {
      double clock = 0;
      archive(clock, peak_, granted_total_, refused_total_, revoked_total_, mean_hold_);
      return queue_.RestoreClock(clock);
    }
    case RowKind::kPermit:
      return ReadPermit(PermitId(key.id), archive);
    case RowKind::kAcquisition: {
      PermitId id;
      archive(id);
      const auto permit = permits_.find(id);
      const AcquisitionId acquisition(key.id);
      if (permit == permits_.end() || !acquisitions_.emplace(acquisition, id).second) return archive.Fail();
      permit->second.acquisitions.insert(acquisition);
      return;
    }
    default:
      queue_.ReadRow(key, archive);
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
  if (!lent || words_ == nullptr) return;
  restored.word = words_->LendAgain(restored.keeper);
  if (restored.word != nullptr) {
    kept_.emplace(restored.keeper, id);
  } else {
    // Its page is gone: it is as any other permit.
    Note(restored);
  }
}

void PermitPool::FinishRestoring() {
  const std::map<ChannelId, PermitId> kept = kept_;
  for (const auto& [channel, id] : kept) {
    const auto at = permits_.find(id);
    Permit& permit = at->second;
    switch (permit.word->StateOf(id.value())) {
      case PermitWord::Lent::kYes:
        break;
      case PermitWord::Lent::kEnded:
        EndKeeping(permit);
        break;
      case PermitWord::Lent::kTakenBack:
        EndKeeping(permit, /*taken_back=*/true);
        EndAcquisition(permit, permit.kept);
        // Whoever keeps a history does not find it among what is out, and takes that for its end.
        if (permit.acquisitions.empty()) Return(permit.held_since, at, LeaseEnd::kUnseen);
        break;
    }
  }
  // Those who keep one may be told otherwise.
  wanted_ = !kept_.empty() && NeedsUnits();
  looked_at_ = absl::InfinitePast();
  for (const auto& [channel, id] : kept_) permits_.at(id).word->SetWaiting(wanted_);
}

}  // namespace berth::core
