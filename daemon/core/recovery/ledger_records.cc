// Persistence of the core: collects the records that a step changed, and restores all records.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "daemon/core/managers.h"
#include "daemon/core/permits/pool_change.h"
#include "daemon/core/types/invariant.h"
#include "daemon/core/types/record_kind.h"

namespace berth::core {
namespace {

enum class Group { kSessions, kPermits, kMemory };

Group GroupOf(const RecordKey& key) {
  if (key.kind < static_cast<uint32_t>(RecordKind::kPool)) return Group::kSessions;
  return key.kind < static_cast<uint32_t>(RecordKind::kMemoryCounters) ? Group::kPermits : Group::kMemory;
}

bool IsPlan(const RecordKey& key) { return key.kind == static_cast<uint32_t>(RecordKind::kPlan); }

}  // namespace

template <typename Archive>
void Fields(Archive& archive, BlockTable::Counters& counters) {
  archive(counters.generation, counters.import);
}

bool Managers::WriteRecord(const RecordKey& key, ArchiveWriter& archive) const {
  switch (GroupOf(key)) {
    case Group::kSessions:
      return sessions.WriteSessionRecord(key, archive);
    case Group::kPermits:
      return IsPlan(key) ? plans.WriteRecord(key, archive) : permits.WritePermitRecord(key, archive);
    case Group::kMemory:
      break;
  }
  return WriteMemoryRecord(key, archive);
}

void Managers::TakeChanges(RecordBatch* changes) {
  std::string content;
  for (const auto& [key, number, gone] : journal.Take()) {
    content.clear();
    ArchiveWriter archive(&content);
    if (!gone && WriteRecord(key, archive)) {
      changes->Put(key, content);
    } else {
      changes->Erase(key);
    }
  }
}

LedgerRecords Managers::AllRecords() const {
  std::vector<RecordKey> keys;
  sessions.ListSessionRecords(&keys);
  permits.ListPermitRecords(&keys);
  plans.table().ForEachAfter(0, [&](const Plan& plan) {
    keys.push_back(KeyOf(RecordKind::kPlan, plan.id().value()));
    return true;
  });
  ListMemoryRecords(&keys);
  LedgerRecords records;
  for (const RecordKey& key : keys) {
    std::string content;
    ArchiveWriter archive(&content);
    BERTH_INVARIANT(WriteRecord(key, archive));
    records.emplace(key, std::move(content));
  }
  return records;
}

absl::Status Managers::Restore(const RecordViews& records, const ArchiveOrigin& origin) {
  for (const auto& [key, content] : records) {
    ArchiveReader archive(content, origin);
    if (key.part != 0 && !HasPart(static_cast<RecordKind>(key.kind))) archive.Fail();
    switch (GroupOf(key)) {
      case Group::kSessions:
        sessions.ReadSessionRecord(key, archive);
        break;
      case Group::kPermits:
        IsPlan(key) ? plans.ReadRecord(key, archive) : permits.ReadPermitRecord(key, archive);
        break;
      case Group::kMemory:
        ReadMemoryRecord(key, archive);
        break;
    }
    if (const absl::Status status = archive.Finish(); !status.ok()) {
      return absl::DataLossError(
          absl::StrFormat("ledger record %d of kind %d (part %d): %s", key.id, key.kind, key.part, status.message()));
    }
  }
  sessions.mailboxes().FinishRestoring();
  requests.FinishRestoringRequests();
  fences.FinishRestoring();
  permits.FinishRestoringPermits();
  plans.FinishRestoring();
  devices.FinishRestoring();
  return absl::OkStatus();
}

RestoredState Managers::WhatStands() const {
  RestoredState restored_state;
  for (const Session* const session : sessions.table().List()) {
    restored_state.lifelines.push_back({.session = session->id,
                                        .tenant = session->tenant,
                                        .label = session->label,
                                        .opener = session->opener,
                                        .secret = session->secret,
                                        .joined = !session->channels.empty(),
                                        .ending = session->state == SessionState::kEnding,
                                        .session_credentials = session->session_credentials,
                                        .detached = session->detached});
  }
  absl::flat_hash_map<ChannelId, absl::Time> waits_since;
  for (const RequestId& request : requests.detached()) {
    absl::Time& since = waits_since.try_emplace(request.channel, absl::InfiniteFuture()).first->second;
    since = std::min(since, requests.pending().at(request).since);
  }
  sessions.table().ForEachChannel([&](const Channel& channel) {
    const auto waits = waits_since.find(channel.id);
    restored_state.processes.push_back(
        {.channel = channel.id,
         .session = channel.session,
         .tenant = sessions.table().Find(channel.session)->tenant,
         .process = channel.process,
         .hung_up = channel.hung_up,
         .has_page = channel.has_page,
         .unproven = channel.unproven,
         .detached = sessions.table().Find(channel.session)->detached,
         .waits_since = waits == waits_since.end() ? std::nullopt : std::optional(waits->second)});
  });
  blocks.table().ForEach([&](const Block& block) {
    restored_state.blocks.push_back({.block = block.id, .device = block.device, .phase = block.phase});
  });
  return restored_state;
}

void Managers::Resume(StepContext& step) {
  ResumeMemory(step);
  sessions.ResumeSessions(step);
  permits.ResumePermits(step);
}

void Managers::ListMemoryRecords(std::vector<RecordKey>* keys) const {
  keys->push_back(KeyOf(RecordKind::kMemoryCounters));
  for (const auto& [ordinal, device] : devices.all()) keys->push_back(KeyOf(RecordKind::kDevice, ordinal));
  for (const auto& [number, place] : budgets.places()) keys->push_back(KeyOf(RecordKind::kBudget, number));
  blocks.table().ForEach([&](const Block& block) {
    keys->push_back(KeyOf(RecordKind::kBlock, block.id.value()));
    for (const auto& [id, import] : block.imports) {
      keys->push_back(KeyOf(RecordKind::kImport, block.id.value(), id.value()));
    }
  });
  reservations.table().ForEach([&](const Reservation& reservation) {
    keys->push_back(KeyOf(RecordKind::kReservation, reservation.id.value()));
  });
  fences.table().streams().ForEachSlot([&](StreamKey stream, const StreamEntry&) {
    keys->push_back(KeyOf(RecordKind::kStream, stream.channel.value(), stream.slot));
  });
  fences.table().ListRecords(keys);
  byte_queue.table().ForEach(
      [&](const Waiting& waiting) { keys->push_back(KeyOf(RecordKind::kByteWaiter, waiting.number)); });
}

bool Managers::WriteMemoryRecord(const RecordKey& key, ArchiveWriter& archive) const {
  // Writes a table's entry; null if there is none.
  const auto write = [&](const auto* record) {
    if (record != nullptr) archive(*record);
    return record != nullptr;
  };
  switch (static_cast<RecordKind>(key.kind)) {
    case RecordKind::kMemoryCounters:
      archive(budgets.last_number(), blocks.table().counters(), reservations.table().last_number(),
              fences.table().streams().last_number(), fences.table().last_use(), byte_queue.table().last_number());
      return true;
    case RecordKind::kDevice:
      return devices.WriteDevice(key.id, archive);
    case RecordKind::kBudget:
      return budgets.WriteBudget(key.id, archive);
    case RecordKind::kBlock:
      return write(blocks.table().Find(BlockId(key.id)));
    case RecordKind::kImport:
      return blocks.WriteImport(BlockId(key.id), ImportId(key.part), archive);
    case RecordKind::kReservation:
      return write(reservations.table().Find(ReservationId(key.id)));
    case RecordKind::kStream:
      return write(fences.table().streams().FindSlot({ChannelId(key.id), static_cast<uint32_t>(key.part)}));
    case RecordKind::kByteWaiter:
      return write(byte_queue.table().FindNumber(key.id));
    default:
      return fences.table().WriteRecord(key, archive);
  }
}

void Managers::ReadMemoryRecord(const RecordKey& key, ArchiveReader& archive) {
  switch (static_cast<RecordKind>(key.kind)) {
    case RecordKind::kMemoryCounters:
      return ReadMemoryCounters(archive);
    case RecordKind::kDevice:
      return devices.ReadDevice(key.id, archive);
    case RecordKind::kBudget:
      return budgets.ReadBudget(key.id, archive);
    case RecordKind::kBlock:
      return blocks.ReadBlock(BlockId(key.id), archive);
    case RecordKind::kImport:
      return blocks.ReadImport(BlockId(key.id), ImportId(key.part), archive);
    case RecordKind::kReservation:
      return reservations.ReadReservation(ReservationId(key.id), archive);
    case RecordKind::kStream:
      if (key.part > std::numeric_limits<uint32_t>::max()) return archive.Fail();
      return fences.ReadStream({ChannelId(key.id), static_cast<uint32_t>(key.part)}, archive);
    case RecordKind::kUse:
    case RecordKind::kFence:
      return fences.ReadRecord(key, archive);
    case RecordKind::kByteWaiter:
      return byte_queue.ReadByteWaiter(key.id, archive);
    default:
      return archive.Fail();
  }
}

void Managers::ReadMemoryCounters(ArchiveReader& archive) {
  BlockTable::Counters last;
  uint64_t budget = 0, reservation = 0, stream = 0, use = 0, waiter = 0;
  archive(budget, last, reservation, stream, use, waiter);
  if (!budgets.RestoreLastNumber(budget)) return archive.Fail();
  blocks.RestoreCounters(last);
  reservations.RestoreLastNumber(reservation);
  fences.RestoreCounters(stream, use);
  byte_queue.RestoreLastNumber(waiter);
}

void Managers::ResumeMemory(StepContext& step) {
  std::vector<BlockId> abandoned;
  blocks.table().ForEach([&](const Block& block) {
    if (block.phase == BlockPhase::kAbandoned) abandoned.push_back(block.id);
    if (block.phase != BlockPhase::kRetired || !block.asked || !blocks.IsLost(block)) return;
    step.Emit(
        ReleaseBlock{.device = block.device, .worker_kind = block.worker_kind(), .block = block.id, .lost = true});
  });
  for (auto& [ordinal, device] : devices.all()) {
    const std::vector<Bytes> sizes = device.warm.sizes();
    for (const BlockId id : device.warm.All()) {
      Block& block = *blocks.Find(id);
      const bool stays = std::find(sizes.begin(), sizes.end(), block.bytes) != sizes.end();
      if (!stays || block.memory_generation < device.main.generation) blocks.Abandon(step, block);
    }
  }
  for (const BlockId id : abandoned) {
    // A worker may have made the unwanted block; the release of a block that was never made succeeds at once.
    Block& block = *blocks.Find(id);
    block.asked = false;
    blocks.Apply(step, block, BlockEvent::kMade);
  }
  fences.CloseQuiet();
  for (const auto& [ordinal, device] : devices.all()) {
    // The supervisor may not have received the command from the earlier broker.
    if (!device.drain_known) continue;
    step.Emit(
        SendWorkerCommand{.device = ordinal,
                          .command = device.drain_reason.empty() ? WorkerCommand::kUndrain : WorkerCommand::kDrain,
                          .why = device.drain_reason});
  }
  fences.ResumeBlocks(step);
  step.MarkCapacityChanged();
}

// ---- Lists the operators' settings for the settings file, which outlives a boot ------------------------------

OperatorSettings Managers::ListOperatorSettings() const {
  OperatorSettings settings;
  for (const auto& [name, pool] : permits.pools()) {
    PoolChange change = pool.ChangeByHand();
    if (!IsEmpty(change)) settings.pools.emplace(name, std::move(change));
  }
  for (const auto& [ordinal, device] : devices.all()) {
    OperatorSettings::Device set = {.uuid = device.config.uuid, .drain_reason = device.drain_reason};
    if (device.account.limit_by_hand()) set.budget = device.account.limit();
    if (!set.drain_reason.empty() || set.budget.has_value()) settings.devices.push_back(std::move(set));
  }
  for (const auto& [account, holdings] : budgets.tenants()) {
    for (const auto& [ordinal, budget] : holdings.budgets) {
      if (!budget.limit_by_hand()) continue;
      settings.tenant_budgets.push_back(
          {.uuid = devices.At(ordinal).config.uuid, .account = account, .limit = *budget.limit()});
    }
  }
  return settings;
}

}  // namespace berth::core
