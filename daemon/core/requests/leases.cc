#include "daemon/core/requests/leases.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <berth/error.h>

#include "absl/types/span.h"
#include "common/label.h"
#include "daemon/core/managers.h"
#include "daemon/core/requests/memory_log.h"
#include "daemon/core/types/record_kind.h"

namespace berth::core {
namespace {

void AddDevice(const std::string& uuid, LeaseRecord* lease) {
  if (!lease->devices.empty()) lease->devices += ',';
  lease->devices += uuid;
}

void SetBlock(const BlockView& block, LogRecord* record) {
  record->device = block.device;
  record->block = block.handle.block;
  record->block_generation = block.handle.block_generation;
  record->bytes = block.bytes;
}

// Adds the facts that only the answer has.
void SetResult(const Response& response, LogRecord* record) {
  if (const auto* const allocated = std::get_if<AllocateResult>(&response)) {
    SetBlock(allocated->block, record);
    record->import = allocated->import;
  } else if (const auto* const imported = std::get_if<ImportResult>(&response)) {
    SetBlock(imported->block, record);
    record->import = imported->import;
  } else if (const auto* const published = std::get_if<PublishResult>(&response)) {
    SetBlock(published->block, record);
  } else if (const auto* const reserved = std::get_if<ReserveResult>(&response)) {
    record->reservation = reserved->reservation.id;
  } else if (const auto* const prepared = std::get_if<Prepared>(&response)) {
    record->use = prepared->use;
  }
}

}  // namespace

LeaseRecord Leases::LeaseOf(const Block& block) const {
  return {.kind = LeaseKind::kBlock,
          .id = block.id.value(),
          .session = block.owner,
          .tenant = block.tenant,
          .label = block.label,
          .bytes = block.bytes,
          .devices = core_.devices.At(block.device).config.uuid,
          .granted_at = block.live_since};
}

LeaseRecord Leases::LeaseOf(const Reservation& reservation) const {
  LeaseRecord lease{.kind = LeaseKind::kReservation,
                    .id = reservation.id.value(),
                    .session = reservation.session,
                    .tenant = reservation.tenant,
                    .label = reservation.label,
                    .granted_at = reservation.since};
  for (const auto& [device, claim] : reservation.claims) {
    lease.bytes = CheckedAdd(lease.bytes, claim.bytes).value_or(lease.bytes);
    AddDevice(core_.devices.At(device).config.uuid, &lease);
  }
  return lease;
}

LeaseRecord Leases::LeaseOf(const Plan& plan) const {
  const PlanLayout& layout = *plan.layout;
  LeaseRecord lease{.kind = LeaseKind::kPlan,
                    .id = layout.id.value(),
                    .session = layout.session,
                    .tenant = layout.tenant,
                    .label = layout.asked.label,
                    .pool = layout.asked.pool,
                    .units = layout.asked.units,
                    .granted_at = layout.since};
  size_t size = 0;
  for (const PlanDevice& device : layout.devices) size += device.units > 0 ? device.uuid->size() + 1 : 0;
  // Allocates once: the requester waits for the record of a plan with many devices.
  lease.devices.resize(size);
  char* at = lease.devices.data();
  for (const PlanDevice& device : layout.devices) {
    if (device.units == 0) continue;
    at = std::copy(device.uuid->begin(), device.uuid->end(), at);
    *at++ = ',';
  }
  if (size > 0) lease.devices.pop_back();
  return lease;
}

void Leases::RecordGrant(StepContext& step, LeaseRecord&& lease, const RequestId& request) {
  lease.process = core_.sessions.table().FindChannel(request.channel)->process;
  lease.waited = std::max(step.now - core_.requests.At(request).since, absl::ZeroDuration());
  leases_.RecordGrant(std::move(lease));
}

LeaseEnd Leases::EndFor(LogCause cause) {
  switch (cause) {
    case LogCause::kSessionEnd:
      return LeaseEnd::kSessionEnd;
    case LogCause::kForgotten:
      return LeaseEnd::kForgotten;
    case LogCause::kById:
      return LeaseEnd::kById;
    case LogCause::kExpired:
      return LeaseEnd::kExpired;
    case LogCause::kLost:
      return LeaseEnd::kLost;
    case LogCause::kNone:
    case LogCause::kLetGo:
    case LogCause::kProcessGone:
    case LogCause::kNeverSent:
      break;
  }
  return LeaseEnd::kReleased;
}

std::vector<LeaseRecord> Leases::ListLeases() const {
  std::vector<LeaseRecord> leases;
  for (const auto& [name, pool] : core_.permits.pools()) pool.AddLeases(&leases);
  core_.blocks.table().ForEach([&](const Block& block) {
    if (block.phase == BlockPhase::kLive) leases.push_back(LeaseOf(block));
  });
  core_.reservations.table().ForEach([&](const Reservation& reservation) { leases.push_back(LeaseOf(reservation)); });
  core_.plans.table().ForEachAfter(0, [&](const Plan& plan) {
    leases.push_back(LeaseOf(plan));
    return true;
  });
  return leases;
}

// ---- memory_log.h --------------------------------------------------------------------------------------------

LogRecord& MemoryLog::AddLogRecord(const Admitted& admitted, LogAction action) {
  LogRecord& log_record = core_.requests.At(admitted.request).log_records.emplace_back();
  log_record.action = action;
  log_record.session = admitted.session.id;
  log_record.tenant = admitted.session.tenant;
  log_record.request = admitted.request;
  return log_record;
}

void MemoryLog::RecordUses(const Admitted& admitted, LogAction action, const std::vector<BlockUse>& uses,
                           const LogRecord& known) {
  // A use that names more blocks is refused.
  const size_t most = core_.config.limits.fences.blocks_per_use;
  for (const BlockUse& use : absl::MakeConstSpan(uses).first(std::min(uses.size(), most))) {
    LogRecord& log_record = AddLogRecord(admitted, action);
    log_record.use = known.use;
    log_record.slot = known.slot;
    log_record.value = known.value;
    log_record.access = use.access;
    log_record.block = use.block;
    const Block* const block = core_.blocks.Find(use.block);
    if (block == nullptr) continue;
    log_record.device = block->device;
    log_record.block_generation = block->generation;
    log_record.bytes = block->bytes;
    log_record.label = block->label;
  }
}

void MemoryLog::LogAnswer(StepContext& step, Pending& pending, const absl::StatusOr<Response>& response) {
  for (LogRecord& log_record : pending.log_records) {
    if (response.ok()) SetResult(*response, &log_record);
    Log(step, std::move(log_record), response.status());
  }
}

void MemoryLog::Log(StepContext& step, LogRecord record, const absl::Status& status) {
  record.number = ++last_record_;
  step.journal->Touch(RecordKind::kCounters);
  record.incarnation = core_.config.incarnation;
  record.time = step.now;
  if (!status.ok()) {
    const std::optional<ErrorDetails> details = GetErrorDetails(status);
    record.error =
        details.has_value() ? std::string(ReasonName(details->reason)) : absl::StatusCodeToString(status.code());
    record.message = ToMessage(status.message(), LogRecord::kMaxMessageBytes);
  }
  step.Emit(std::move(record));
}

void MemoryLog::LogForgotten(StepContext& step, ChannelId channel, UseId id) {
  if (!core_.config.log_fences) return;
  for (const BlockUse& use : core_.fences.table().UsesOf(channel, id)) {
    const Block* const block = core_.blocks.Find(use.block);
    if (block == nullptr) continue;
    LogRecord record = RecordOf(*block, LogAction::kUseAbandon, LogCause::kForgotten);
    record.request.channel = channel;
    record.use = id;
    record.access = use.access;
    Log(step, std::move(record));
  }
}

void MemoryLog::LogHandOver(StepContext& step, const Block& block, ChannelId from) {
  if (!core_.config.log_fences) return;
  LogRecord record = RecordOf(block, LogAction::kHandOver);
  record.request.channel = from;
  const Channel* const channel = core_.sessions.table().FindChannel(from);
  if (channel != nullptr) record.process = channel->process;
  Log(step, std::move(record));
}

void MemoryLog::LogTorn(StepContext& step, BlockId id, ChannelId by) {
  const Block* const block = core_.blocks.Find(id);
  // A freed block's end is logged by its release alone.
  if (block == nullptr || block->phase != BlockPhase::kLive) return;
  LogRecord record = RecordOf(*block, LogAction::kTorn, LogCause::kProcessGone);
  record.request.channel = by;
  const Channel* const channel = core_.sessions.table().FindChannel(by);
  if (channel != nullptr) record.process = channel->process;
  Log(step, std::move(record));
}

LogRecord MemoryLog::RecordOf(const Block& block, LogAction action, LogCause cause) const {
  return {.action = action,
          .cause = cause,
          .session = block.owner,
          .tenant = block.tenant,
          .device = block.device,
          .block = block.id,
          .block_generation = block.generation,
          .bytes = block.bytes,
          .label = block.label};
}

}  // namespace berth::core
