#include "daemon/core/stream_table.h"

#include <algorithm>
#include <set>

#include "common/error.h"
#include "common/fence_page.h"

namespace berth::core {
namespace {

absl::Status AtLimit(absl::string_view what, uint64_t current, uint64_t limit) {
  return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                {{"what", what}, {"current", current}, {"limit", limit}});
}

}  // namespace

absl::StatusOr<StreamKey> StreamTable::Open(absl::Time now, ChannelId channel, const ProcessInfo& process,
                                            uint32_t device, bool default_stream, const ReadWords& read) {
  const auto found = owners_.find(channel);
  static const std::vector<StreamRow> kNone;
  const std::vector<StreamRow>& rows = found == owners_.end() ? kNone : found->second.rows;
  std::set<uint32_t> ids;
  for (const StreamRow& row : rows) {
    if (row.open && row.device == device) ids.insert(row.id);
  }
  uint32_t id = 0;
  if (default_stream && ids.contains(0)) {
    return Refuse(Reason::kStreamMisuse, "stream {stream} of device {device}: {why}",
                  {{"stream", 0}, {"device", device}, {"why", "the default stream is open already"}});
  }
  if (!default_stream) {
    const uint64_t others = ids.size() - ids.count(0);
    if (others >= per_device_) return AtLimit("streams_per_device", others, per_device_);
    for (id = 1; ids.contains(id);) ++id;
  }
  uint32_t slot = 0;
  // Of the slot; none yet in a new one.
  StreamWords words;
  for (; slot < rows.size(); ++slot) {
    if (rows[slot].open) continue;
    words = read({channel, slot});
    if (words.done >= rows[slot].last_value && !words.in_doubt()) break;
  }
  if (slot == rows.size()) words = {};
  if (slot == kFenceSlots) return AtLimit("streams_per_process", slot, kFenceSlots);
  Owner& owner = found == owners_.end() ? owners_[channel] : found->second;
  owner.process = process;
  if (slot == owner.rows.size()) owner.rows.emplace_back();
  StreamRow& row = owner.rows[slot];
  row = StreamRow{.open = true,
                  .number = ++last_number_,
                  .device = device,
                  .id = id,
                  .since = now,
                  // A value may have been written that was never told.
                  .last_value = std::clamp(words.done, row.last_value, kFenceTop - 1)};
  journal_.Touch(RowKind::kMemoryCounters);
  Note({channel, slot});
  return StreamKey{channel, slot};
}

absl::Status StreamTable::Close(StreamKey stream) {
  const absl::Status open = Check(stream);
  if (!open.ok()) return open;
  At(stream).closing = true;
  Note(stream);
  CloseIfQuiet(stream);
  return absl::OkStatus();
}

void StreamTable::CloseIfQuiet(StreamKey stream) {
  StreamRow& row = At(stream);
  if (!row.open || !row.closing || row.open_uses + row.queued_prepares > 0) return;
  row.open = false;
  Note(stream);
}

void StreamTable::EndUse(StreamKey stream) {
  --At(stream).open_uses;
  CloseIfQuiet(stream);
}

void StreamTable::EndPrepare(StreamKey stream) {
  --At(stream).queued_prepares;
  CloseIfQuiet(stream);
}

void StreamTable::Told(StreamKey stream, uint64_t value) {
  uint64_t& last = At(stream).last_value;
  if (value <= last) return;
  last = value;
  Note(stream);
}

const StreamRow* StreamTable::FindSlot(StreamKey stream) const {
  const auto owner = owners_.find(stream.channel);
  if (owner == owners_.end() || stream.slot >= owner->second.rows.size()) return nullptr;
  return &owner->second.rows[stream.slot];
}

const StreamRow* StreamTable::Find(StreamKey stream) const {
  const StreamRow* const row = FindSlot(stream);
  return row != nullptr && row->open ? row : nullptr;
}

absl::Status StreamTable::Check(StreamKey stream) const {
  if (const StreamRow* const row = Find(stream); row != nullptr && !row->closing) return absl::OkStatus();
  return Refuse(Reason::kNotFound, "no {kind} {id} in this process",
                {{"kind", "stream"}, {"id", stream.slot}});
}

uint32_t StreamTable::SlotsOf(ChannelId channel) const {
  const auto owner = owners_.find(channel);
  return owner == owners_.end() ? 0 : static_cast<uint32_t>(owner->second.rows.size());
}

void StreamTable::Erase(ChannelId channel) {
  for (uint32_t slot = 0; slot < SlotsOf(channel); ++slot) Note({channel, slot});
  owners_.erase(channel);
}

void StreamTable::ForEachSlot(absl::FunctionRef<void(StreamKey, const StreamRow&)> visit) const {
  for (const auto& [channel, owner] : owners_) {
    for (uint32_t slot = 0; slot < owner.rows.size(); ++slot) visit({channel, slot}, owner.rows[slot]);
  }
}

void StreamTable::ForEach(absl::FunctionRef<void(StreamKey, const StreamRow&)> visit) const {
  ForEachSlot([&](StreamKey stream, const StreamRow& row) {
    if (row.open) visit(stream, row);
  });
}

bool StreamTable::Restore(StreamKey stream, const ProcessInfo& process, StreamRow row) {
  Owner& owner = owners_[stream.channel];
  if (stream.slot != owner.rows.size() || stream.slot >= kFenceSlots || row.number > last_number_) return false;
  owner.process = process;
  owner.rows.push_back(row);
  return true;
}

void StreamTable::CloseQuiet() {
  for (const auto& [channel, owner] : owners_) {
    for (uint32_t slot = 0; slot < owner.rows.size(); ++slot) CloseIfQuiet({channel, slot});
  }
}

}  // namespace berth::core
