// Views, ledger records and the check of devices.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/device_name.h"
#include "daemon/core/devices/devices.h"
#include "daemon/core/managers.h"
#include "daemon/core/types/record_kind.h"

namespace berth::core {
namespace {

// Persisted state of a device that the supervisor does not report.
struct DeviceLedgerRecord {
  // A context worker exists or was requested.
  bool context = false;
  uint64_t lost_before = 0;
  Bytes daemon;
  std::optional<Bytes> context_bytes;
  bool drain_known = false;
  std::string drain_reason;
  bool lost = false;
  bool tested = false;
  // Empty in records of schema 2.
  std::string uuid;
};
template <typename Archive>
void Fields(Archive& archive, DeviceLedgerRecord& record) {
  archive(record.context, record.lost_before, record.daemon, record.context_bytes, record.drain_known,
          record.drain_reason, record.lost, record.tested);
  archive.Since(3, record.uuid);
}

// Whether the driver had not identified the device. No lease is on such a device.
bool IsUnidentified(const DeviceLedgerRecord& record) { return absl::StartsWith(record.uuid, kUnidentifiedDevice); }

absl::Status Broken(const absl::AlphaNum& what) { return absl::InternalError(what.Piece()); }

}  // namespace

std::vector<DeviceView> Devices::ListDevices() const {
  std::vector<DeviceView> views;
  std::map<uint32_t, uint64_t> lost;
  core_.blocks.table().ForEach([&](const Block& block) {
    if (block.phase == BlockPhase::kLive && core_.blocks.WhyStale(block) != nullptr) ++lost[block.device];
  });
  for (const auto& [ordinal, device] : devices_) {
    views.push_back(ViewDevice(device));
    views.back().lost_blocks = lost[ordinal];
  }
  return views;
}

DeviceView Devices::ViewDevice(const Device& device) const {
  DeviceView view{.ordinal = device.config.ordinal,
                  .uuid = device.config.uuid,
                  .name = device.config.name,
                  .kind = device.config.kind,
                  .state = device.main.state,
                  .generation = device.main.generation,
                  .total = device.config.total,
                  .budget = device.account.limit().value(),
                  .granularity = device.config.granularity,
                  .bytes = device.account.counts(),
                  .failed_releases = device.account.failed_releases(),
                  .restarts_left = device.main.restarts_left,
                  .last_failure = device.main.last_failure,
                  .scrub = device.config.scrub,
                  .drain_reason = device.drain_reason,
                  .context_cost = device.context_cost(),
                  .score = placement_.ScoreOn(device.config.ordinal)};
  const bool serves = view.state == DeviceState::kReady || view.state == DeviceState::kRebuilding;
  if (serves && !device.drain_reason.empty()) view.state = DeviceState::kDraining;
  if (device.config.cuda_ipc) {
    view.context = DeviceView::ContextWorker{.state = device.context.state,
                                             .generation = device.context.generation,
                                             .restarts_left = device.context.restarts_left,
                                             .last_failure = device.context.last_failure};
  }
  if (device.reading.has_value()) {
    view.reading = DeviceView::Reading{.taken = device.reading->taken,
                                       .free = device.reading->free,
                                       .others = placement_.OthersOn(device.config.ordinal),
                                       .utilisation = device.reading->utilisation};
  }
  return view;
}

absl::Status Devices::CheckDeviceRecords(const RecordViews& records, const ArchiveOrigin& origin) const {
  const auto is_earlier = [](const auto& record, const RecordKey& key) { return record.first < key; };
  auto it = std::lower_bound(records.begin(), records.end(), KeyOf(RecordKind::kDevice, 0), is_earlier);
  for (; it != records.end() && it->first.kind == static_cast<uint32_t>(RecordKind::kDevice); ++it) {
    DeviceLedgerRecord record;
    ArchiveReader archive(it->second, origin);
    archive(record);
    // Managers::Restore() reports the unreadable record.
    if (!archive.Finish().ok()) return absl::OkStatus();
    const auto found = devices_.find(static_cast<uint32_t>(it->first.id));
    if (IsUnidentified(record) && found != devices_.end()) continue;
    const std::string now = found == devices_.end() ? "missing" : found->second.config.uuid;
    if (now == record.uuid || (record.uuid.empty() && found != devices_.end())) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the ledger's leases are of other devices: device ", it->first.id, " was ",
                     record.uuid.empty() ? "present" : record.uuid, " and is ", now,
                     "; start the daemon with the previous devices, or end the leases"));
  }
  return absl::OkStatus();
}

bool Devices::WriteDevice(uint64_t ordinal, ArchiveWriter& archive) const {
  const auto found = devices_.find(static_cast<uint32_t>(ordinal));
  if (found == devices_.end()) return false;
  const Device& device = found->second;
  archive(DeviceLedgerRecord{.context = device.context.state != DeviceState::kIdle,
                             .lost_before = device.context.lost_before,
                             .daemon = device.account.counts().daemon,
                             .context_bytes = device.context_bytes,
                             .drain_known = device.drain_known,
                             .drain_reason = device.drain_reason,
                             .lost = device.lost,
                             .tested = device.tested,
                             .uuid = device.config.uuid});
  return true;
}

void Devices::ReadDevice(uint64_t ordinal, ArchiveReader& archive) {
  DeviceLedgerRecord record;
  archive(record);
  const auto found = devices_.find(static_cast<uint32_t>(ordinal));
  if (archive.failed() || found == devices_.end() || found->first != ordinal) return archive.Fail();
  Device& device = found->second;
  // The supervisor reports its actual state.
  if (record.context) device.context.state = DeviceState::kRebuilding;
  device.context.lost_before = record.lost_before;
  device.account.set_daemon(record.daemon);
  // The configuration takes precedence; earlier brokers wrote 0 where the driver had not reported the size.
  if (device.config.measure_context && record.context_bytes.value_or(Bytes()) > Bytes()) {
    device.context_bytes = record.context_bytes;
    placement_.SetContext(found->first, *record.context_bytes);
  }
  device.drain_known = record.drain_known;
  device.drain_reason = record.drain_reason;
  device.lost = record.lost;
  device.tested = record.tested;
}

absl::Status Devices::CheckDevices() const {
  for (const auto& [ordinal, device] : devices_) {
    if (!IsPlaced(device)) return Broken("a device has changed, and its capacity is not marked for a new search");
    uint64_t warm_blocks = 0;
    uint64_t releasing = 0;
    uint64_t of_context = 0;
    bool unasked = false;
    std::set<BlockId> retried_later;
    for (const Retry& retry : device.retries) {
      if (retry.after_release > device.releases_ended) retried_later.insert(retry.block);
    }
    core_.blocks.table().ForEach([&, ordinal = ordinal, &device = device](const Block& block) {
      if (block.device != ordinal) return;
      warm_blocks += block.phase == BlockPhase::kWarm || block.phase == BlockPhase::kWarming ? 1 : 0;
      releasing += block.phase == BlockPhase::kRetired && block.asked ? 1 : 0;
      of_context += block.worker_kind() == WorkerKind::kContext ? 1 : 0;
      const Worker& worker = device.worker(block.worker_kind());
      const bool retired = block.phase == BlockPhase::kRetired && !block.asked && !block.stuck;
      unasked = unasked || (retired && core_.blocks.IsLost(block) && !core_.fences.IsBusy(block.id));
      if (worker.state != DeviceState::kReady) return;
      unasked = unasked || (retired && !core_.fences.IsBusy(block.id)) ||
                (block.phase == BlockPhase::kReserved && !block.asked && !retried_later.contains(block.id)) ||
                (block.phase == BlockPhase::kWarming && !block.asked);
    });
    const auto broken = [ordinal = ordinal](absl::string_view what) {
      return Broken(absl::StrCat("device ", ordinal, ": ", what));
    };
    if (warm_blocks != device.warm.All().size()) return broken("a warm block is not in the cache");
    if (releasing != device.releases_asked - device.releases_ended) return broken("a release is miscounted");
    if (unasked) return broken("a worker did not receive a command");
    const Worker& context = device.context;
    if (of_context != context.blocks) return broken("the context worker's blocks are miscounted");
    const bool idle = context.state == DeviceState::kReady && of_context == 0;
    if (idle != (context.idle_at != absl::InfiniteFuture())) return broken("an unneeded context worker stays");
    if (device.account.warm() > core_.config.warm_limit) return broken("the warm blocks exceed their limit");
  }
  return absl::OkStatus();
}

}  // namespace berth::core
