#include "daemon/core/fences/stream_table.h"

#include <algorithm>
#include <set>

#include <berth/error.h>

#include "common/wire/fence_page.h"

namespace berth::core {
namespace {

absl::Status AtLimit(absl::string_view what, uint64_t current, uint64_t limit) {
  return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                {{"what", what}, {"current", current}, {"limit", limit}});
}

}  // namespace

absl::StatusOr<StreamKey> StreamTable::Open(absl::Time now, ChannelId channel, const ProcessInfo& process,
                                            uint32_t device, bool default_stream, const ReadFenceValues& read) {
  const auto found = owners_.find(channel);
  static const std::vector<StreamEntry> kNone;
  const std::vector<StreamEntry>& rows = found == owners_.end() ? kNone : found->second.rows;
  std::set<uint32_t> ids;
  for (const StreamEntry& entry : rows) {
    if (entry.open && entry.device == device) ids.insert(entry.id);
  }
  uint32_t id = 0;
  if (default_stream && ids.contains(0)) {
    return Refuse(Reason::kStreamMisuse, "stream {stream} of device {device}: {why}",
                  {{"stream", 0}, {"device", device}, {"why", "the default stream is already open"}});
  }
  if (!default_stream) {
    const uint64_t others = ids.size() - ids.count(0);
    if (others >= per_device_) return AtLimit("streams_per_device", others, per_device_);
    for (id = 1; ids.contains(id);) ++id;
  }
  uint32_t slot = 0;
  // The fence values of the slot; all 0 for a new slot.
  FenceValues fence_values;
  for (; slot < rows.size(); ++slot) {
    if (rows[slot].open) continue;
    fence_values = read({channel, slot});
    if (fence_values.done >= rows[slot].last_value && !fence_values.in_doubt()) break;
  }
  if (slot == rows.size()) fence_values = {};
  if (slot == kFenceSlots) return AtLimit("streams_per_process", slot, kFenceSlots);
  Owner& owner = found == owners_.end() ? owners_[channel] : found->second;
  owner.process = process;
  if (slot == owner.rows.size()) owner.rows.emplace_back();
  StreamEntry& entry = owner.rows[slot];
  entry = StreamEntry{.open = true,
                      .number = ++last_number_,
                      .device = device,
                      .id = id,
                      .since = now,
                      // The process may have written a value that it never reported.
                      .last_value = std::clamp(fence_values.done, entry.last_value, kFenceTop - 1)};
  journal_.Touch(RecordKind::kMemoryCounters);
  Mark({channel, slot});
  return StreamKey{channel, slot};
}

absl::Status StreamTable::Close(StreamKey stream) {
  const absl::Status open = Check(stream);
  if (!open.ok()) return open;
  At(stream).closing = true;
  Mark(stream);
  CloseIfQuiet(stream);
  return absl::OkStatus();
}

void StreamTable::CloseIfQuiet(StreamKey stream) {
  StreamEntry& entry = At(stream);
  if (!entry.open || !entry.closing || entry.open_uses + entry.queued_prepares > 0) return;
  entry.open = false;
  Mark(stream);
}

void StreamTable::EndUse(StreamKey stream) {
  --At(stream).open_uses;
  CloseIfQuiet(stream);
}

void StreamTable::EndPrepare(StreamKey stream) {
  --At(stream).queued_prepares;
  CloseIfQuiet(stream);
}

void StreamTable::RecordValue(StreamKey stream, uint64_t value) {
  uint64_t& last = At(stream).last_value;
  if (value <= last) return;
  last = value;
  Mark(stream);
}

const StreamEntry* StreamTable::FindSlot(StreamKey stream) const {
  const auto owner = owners_.find(stream.channel);
  if (owner == owners_.end() || stream.slot >= owner->second.rows.size()) return nullptr;
  return &owner->second.rows[stream.slot];
}

const StreamEntry* StreamTable::Find(StreamKey stream) const {
  const StreamEntry* const entry = FindSlot(stream);
  return entry != nullptr && entry->open ? entry : nullptr;
}

absl::Status StreamTable::Check(StreamKey stream) const {
  if (const StreamEntry* const entry = Find(stream); entry != nullptr && !entry->closing) return absl::OkStatus();
  return Refuse(Reason::kNotFound, "no {kind} {id} in this process",
                {{"kind", "stream"}, {"id", stream.slot}});
}

uint32_t StreamTable::SlotsOf(ChannelId channel) const {
  const auto owner = owners_.find(channel);
  return owner == owners_.end() ? 0 : static_cast<uint32_t>(owner->second.rows.size());
}

void StreamTable::Erase(ChannelId channel) {
  for (uint32_t slot = 0; slot < SlotsOf(channel); ++slot) Mark({channel, slot});
  owners_.erase(channel);
}

void StreamTable::ForEachSlot(absl::FunctionRef<void(StreamKey, const StreamEntry&)> visit) const {
  for (const auto& [channel, owner] : owners_) {
    for (uint32_t slot = 0; slot < owner.rows.size(); ++slot) visit({channel, slot}, owner.rows[slot]);
  }
}

void StreamTable::ForEach(absl::FunctionRef<void(StreamKey, const StreamEntry&)> visit) const {
  ForEachSlot([&](StreamKey stream, const StreamEntry& entry) {
    if (entry.open) visit(stream, entry);
  });
}

bool StreamTable::Restore(StreamKey stream, const ProcessInfo& process, StreamEntry entry) {
  Owner& owner = owners_[stream.channel];
  if (stream.slot != owner.rows.size() || stream.slot >= kFenceSlots || entry.number > last_number_) return false;
  owner.process = process;
  owner.rows.push_back(entry);
  return true;
}

void StreamTable::CloseQuiet() {
  for (const auto& [channel, owner] : owners_) {
    for (uint32_t slot = 0; slot < owner.rows.size(); ++slot) CloseIfQuiet({channel, slot});
  }
}

}  // namespace berth::core
