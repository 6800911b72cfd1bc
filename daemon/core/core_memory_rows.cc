// The rows of memory: devices, accounts, reservations, streams, and who waits for bytes. Those of blocks are in
// core_block_rows.cc, those of uses in fence_rows.cc.

#include <algorithm>
#include <limits>
#include <utility>

#include "daemon/core/core_impl.h"

namespace berth::core {
namespace {

// What the core keeps of a device beside what the vault says of it.
struct DeviceRow {
  // There is a context worker, or was one ordered.
  bool context = false;
  uint64_t lost_before = 0;
  Bytes daemon;
  std::optional<Bytes> context_bytes;
  bool drain_known = false;
  std::string drain_reason;
  bool lost = false;
  bool tested = false;
};
template <typename Archive>
void Fields(Archive& archive, DeviceRow& row) {
  archive(row.context, row.lost_before, row.daemon, row.context_bytes, row.drain_known, row.drain_reason, row.lost,
          row.tested);
}

}  // namespace

template <typename Archive>
void Fields(Archive& archive, BlockTable::Counters& counters) {
  archive(counters.generation, counters.import);
}

void Core::Impl::ListMemoryRows(std::vector<RowKey>* keys) const {
  keys->push_back(KeyOf(RowKind::kMemoryCounters));
  for (const auto& [ordinal, device] : devices_) keys->push_back(KeyOf(RowKind::kDevice, ordinal));
  for (const auto& [number, place] : budgets_) keys->push_back(KeyOf(RowKind::kBudget, number));
  blocks_.ForEach([&](const Block& block) {
    keys->push_back(KeyOf(RowKind::kBlock, block.id.value()));
    for (const auto& [id, import] : block.imports) {
      keys->push_back(KeyOf(RowKind::kImport, block.id.value(), id.value()));
    }
  });
  reservations_.ForEach([&](const Reservation& reservation) {
    keys->push_back(KeyOf(RowKind::kReservation, reservation.id.value()));
  });
  fences_.streams().ForEachSlot([&](StreamKey stream, const StreamRow&) {
    keys->push_back(KeyOf(RowKind::kStream, stream.channel.value(), stream.slot));
  });
  fences_.ListRows(keys);
  for (const Waiting& waiting : room_.entries()) {
    keys->push_back(KeyOf(RowKind::kRoomWaiter, waiting.number));
  }
}

bool Core::Impl::WriteMemoryRow(const RowKey& key, ArchiveWriter& archive) const {
  // What a table finds.
  const auto write = [&](const auto* row) {
    if (row != nullptr) archive(*row);
    return row != nullptr;
  };
  switch (static_cast<RowKind>(key.kind)) {
    case RowKind::kMemoryCounters:
      archive(last_budget_, blocks_.counters(), reservations_.last_number(), fences_.streams().last_number(),
              fences_.last_use(), room_.last_number());
      return true;
    case RowKind::kDevice:
      return WriteDevice(key.id, archive);
    case RowKind::kBudget:
      return WriteBudget(key.id, archive);
    case RowKind::kBlock:
      return write(blocks_.Find(BlockId(key.id)));
    case RowKind::kImport:
      return WriteImport(BlockId(key.id), ImportId(key.part), archive);
    case RowKind::kReservation:
      return write(reservations_.Find(ReservationId(key.id)));
    case RowKind::kStream:
      return write(fences_.streams().FindSlot({ChannelId(key.id), static_cast<uint32_t>(key.part)}));
    case RowKind::kRoomWaiter:
      return write(room_.FindNumber(key.id));
    default:
      return fences_.WriteRow(key, archive);
  }
}

void Core::Impl::ReadMemoryRow(const RowKey& key, ArchiveReader& archive) {
  switch (static_cast<RowKind>(key.kind)) {
    case RowKind::kMemoryCounters:
      return ReadMemoryCounters(archive);
    case RowKind::kDevice:
      return ReadDevice(key.id, archive);
    case RowKind::kBudget:
      return ReadBudget(key.id, archive);
    case RowKind::kBlock:
      return ReadBlock(BlockId(key.id), archive);
    case RowKind::kImport:
      return ReadImport(BlockId(key.id), ImportId(key.part), archive);
    case RowKind::kReservation:
      return ReadReservation(ReservationId(key.id), archive);
    case RowKind::kStream:
      if (key.part > std::numeric_limits<uint32_t>::max()) return archive.Fail();
      return ReadStream({ChannelId(key.id), static_cast<uint32_t>(key.part)}, archive);
    case RowKind::kUse:
    case RowKind::kFence:
      return fences_.ReadRow(key, archive);
    case RowKind::kRoomWaiter:
      return ReadRoomWaiter(key.id, archive);
    default:
      return archive.Fail();
  }
}

void Core::Impl::ReadMemoryCounters(ArchiveReader& archive) {
  BlockTable::Counters blocks;
  uint64_t reservations = 0, streams = 0, uses = 0, waiters = 0;
  archive(last_budget_, blocks, reservations, streams, uses, waiters);
  // The numbers up to there are the devices' own.
  if (last_budget_ < kMaxDeviceOrdinals) return archive.Fail();
  blocks_.Restore(blocks);
  reservations_.RestoreLastNumber(reservations);
  fences_.streams().RestoreLastNumber(streams);
  fences_.RestoreLastUse(uses);
  room_.RestoreLastNumber(waiters);
}

bool Core::Impl::WriteDevice(uint64_t ordinal, ArchiveWriter& archive) const {
  const auto found = devices_.find(static_cast<uint32_t>(ordinal));
  if (found == devices_.end()) return false;
  const Device& device = found->second;
  archive(DeviceRow{.context = device.context.state != DeviceState::kIdle,
                    .lost_before = device.context.lost_before,
                    .daemon = device.account.counts().daemon,
                    .context_bytes = device.context_bytes,
                    .drain_known = device.drain_known,
                    .drain_reason = device.drain_reason,
                    .lost = device.lost,
                    .tested = device.tested});
  return true;
}

void Core::Impl::ReadDevice(uint64_t ordinal, ArchiveReader& archive) {
  DeviceRow row;
  archive(row);
  const auto found = devices_.find(static_cast<uint32_t>(ordinal));
  if (archive.failed() || found == devices_.end() || found->first != ordinal) return archive.Fail();
  Device& device = found->second;
  // The vault says how it is.
  if (row.context) device.context.state = DeviceState::kRebuilding;
  device.context.lost_before = row.lost_before;
  device.account.set_daemon(row.daemon);
  // The configuration's word comes first; brokers before this one wrote 0 for what the driver had not said.
  if (device.config.measure_context && row.context_bytes.value_or(Bytes()) > Bytes()) {
    device.context_bytes = row.context_bytes;
    placement_.SetContext(found->first, *row.context_bytes);
  }
  device.drain_known = row.drain_known;
  device.drain_reason = row.drain_reason;
  device.lost = row.lost;
  device.tested = row.tested;
}

bool Core::Impl::WriteBudget(uint64_t number, ArchiveWriter& archive) const {
  const auto found = budgets_.find(number);
  if (found == budgets_.end()) return false;
  const auto& [of, device] = found->second;
  const ByteBudget* budget = nullptr;
  if (const auto* const tenant = std::get_if<Tenant>(&of)) {
    budget = &tenants_.at(*tenant).budgets.at(device);
  } else if (const auto* const session = std::get_if<SessionId>(&of)) {
    budget = &sessions_.Find(*session)->budgets.at(device);
  } else {
    budget = &devices_.at(device).account;
  }
  archive(of, device, budget->kept());
  return true;
}

void Core::Impl::ReadBudget(uint64_t number, ArchiveReader& archive) {
  BudgetPlace place;
  ByteBudget::Kept kept;
  archive(place.of, place.device, kept);
  const auto* const tenant = std::get_if<Tenant>(&place.of);
  const auto* const session = std::get_if<SessionId>(&place.of);
  const bool of_device = tenant == nullptr && session == nullptr;
  if (archive.failed() || !devices_.contains(place.device) || number > last_budget_ ||
      of_device != budgets_.contains(number) || (session != nullptr && sessions_.Find(*session) == nullptr)) {
    return archive.Fail();
  }
  if (of_device) return devices_.at(place.device).account.Restore(kept);
  ByteBudget& budget =
      tenant != nullptr ? tenants_[*tenant].budgets.try_emplace(place.device, config_.tenant_budget).first->second
                        : sessions_.BudgetsOf(*session).try_emplace(place.device, config_.session_budget).first->second;
  budget.Enlist(number, &journal_);
  budget.Restore(kept);
  if (tenant != nullptr && kept.by_hand) tenants_.at(*tenant).limited = true;
  budgets_.emplace(number, std::move(place));
}

void Core::Impl::ReadReservation(ReservationId id, ArchiveReader& archive) {
  Reservation read;
  archive(read);
  read.id = id;
  const bool known = std::all_of(read.claims.begin(), read.claims.end(),
                                 [this](const auto& claim) { return devices_.contains(claim.first); });
  if (archive.failed() || !known || sessions_.Find(read.session) == nullptr) return archive.Fail();
  const Reservation* const reservation = reservations_.Restore(std::move(read));
  if (reservation == nullptr) return archive.Fail();
  for (const auto& [device, claim] : reservation->claims) Claim(*reservation, device, claim.left);
}

void Core::Impl::ReadStream(StreamKey stream, ArchiveReader& archive) {
  StreamRow row;
  archive(row);
  const Channel* const channel = sessions_.FindChannel(stream.channel);
  if (archive.failed() || channel == nullptr || !fences_.streams().Restore(stream, channel->process, row)) {
    archive.Fail();
  }
}

void Core::Impl::ReadRoomWaiter(uint64_t number, ArchiveReader& archive) {
  Waiting waiting;
  archive(waiting);
  waiting.number = number;
  const bool known = std::all_of(waiting.asks.begin(), waiting.asks.end(),
                                 [this](const RoomAsk& ask) { return devices_.contains(ask.device); });
  const auto pending = pending_.find(waiting.request);
  if (archive.failed() || !known || pending == pending_.end() || sessions_.Find(waiting.session) == nullptr ||
      !room_.Restore(waiting)) {
    return archive.Fail();
  }
  pending->second.place = &room_;
  NoteWaits(pending->first);
  for (const RoomAsk& ask : waiting.asks) {
    // A judgement looks at the account of every layer.
    for (const LayerBudget& layer : LayersOf(ask.device, waiting.session, waiting.tenant)) {
      if (waiting.drawn_from) layer.budget->Claim(ask.bytes);
    }
  }
}

}  // namespace berth::core
