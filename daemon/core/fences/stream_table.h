// StreamTable: the streams that processes have opened, and the slots of their fence pages. Records only; fence_table.h
// handles the uses on the streams. Thread-compatible.

#ifndef DAEMON_CORE_FENCES_STREAM_TABLE_H_
#define DAEMON_CORE_FENCES_STREAM_TABLE_H_

#include <cstdint>
#include <map>
#include <vector>

#include <berth/ids.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/fence_types.h"
#include "daemon/core/types/journal.h"

namespace berth::core {

// A stream, or the free slot of a closed stream.
struct StreamEntry {
  bool open = false;
  // Rises with every stream opened: the order of the list.
  uint64_t number = 0;
  uint32_t device = 0;
  uint32_t id = 0;
  absl::Time since;
  // The stream closes once nothing of it is open or queued.
  bool closing = false;
  // The highest value reported for the slot, by any of its streams.
  uint64_t last_value = 0;
  uint64_t open_uses = 0;
  uint64_t queued_prepares = 0;
};
// Excludes the counts of uses.
template <typename Archive>
void Fields(Archive& archive, StreamEntry& value) {
  archive(value.open, value.number, value.device, value.id, value.since, value.closing, value.last_value);
}

class StreamTable {
 public:
  // `per_device` limits the streams in addition to the default stream; at least 1. Records streams, free slots and
  // counters in the journal.
  StreamTable(Journal* journal, uint32_t per_device)
      : journal_(*journal), per_device_(per_device < 1 ? 1 : per_device) {}

  // Opens a stream of `device`: its default stream (id 0), or another stream with the lowest free id. Never falls back
  // from one kind to the other. Errors, with nothing changed: LIMIT; STREAM_MISUSE if the default stream is already
  // open.
  absl::StatusOr<StreamKey> Open(absl::Time now, ChannelId channel, const ProcessInfo& process,
                                 uint32_t device, bool default_stream, const ReadFenceValues& read);
  // Closes the stream. Its open uses and queued prepares may still end on it; it closes with the last of them. Its slot
  // is reused once all work begun in it has ended. Errors: NOT_FOUND.
  absl::Status Close(StreamKey stream);
  // Records that a use or a queued prepare of the stream has begun or ended. Requires: Find().
  void AddUse(StreamKey stream) { ++At(stream).open_uses; }
  void EndUse(StreamKey stream);
  void AddPrepare(StreamKey stream) { ++At(stream).queued_prepares; }
  void EndPrepare(StreamKey stream);
  // Records a value reported for the slot. Requires: slot < SlotsOf(channel).
  void RecordValue(StreamKey stream, uint64_t value);
  // Returns null if the stream is not open.
  const StreamEntry* Find(StreamKey stream) const;
  // Returns OK if the stream is open and not closing, else NOT_FOUND.
  absl::Status Check(StreamKey stream) const;
  // Returns whether the process has ever opened a stream, and so has a fence page.
  bool Knows(ChannelId channel) const { return owners_.contains(channel); }
  // Returns the number of slots that are or were in use, whose fence values may be meaningful.
  uint32_t SlotsOf(ChannelId channel) const;
  // Requires: slot < SlotsOf(channel).
  const StreamEntry& EntryOf(StreamKey stream) const { return owners_.at(stream.channel).rows[stream.slot]; }
  // Requires: Knows(channel).
  const ProcessInfo& ProcessOf(ChannelId channel) const { return owners_.at(channel).process; }
  void Erase(ChannelId channel);

  void ForEach(absl::FunctionRef<void(StreamKey, const StreamEntry&)> visit) const;

  // Visits every slot that is or was in use, by channel and slot.
  void ForEachSlot(absl::FunctionRef<void(StreamKey, const StreamEntry&)> visit) const;
  // Returns null for a slot that was never in use.
  const StreamEntry* FindSlot(StreamKey stream) const;
  // Restores an earlier table's state: its last number, and slots in their order. Restore() returns whether the slot is
  // consistent.
  uint64_t last_number() const { return last_number_; }
  void RestoreLastNumber(uint64_t number) { last_number_ = number; }
  bool Restore(StreamKey stream, const ProcessInfo& process, StreamEntry entry);
  // Closes the closing streams whose last prepares were not restored.
  void CloseQuiet();

 private:
  struct Owner {
    ProcessInfo process;
    // By slot.
    std::vector<StreamEntry> rows;
  };

  // Requires: slot < SlotsOf(channel).
  StreamEntry& At(StreamKey stream) { return owners_.at(stream.channel).rows[stream.slot]; }
  void CloseIfQuiet(StreamKey stream);
  void Mark(StreamKey stream) { journal_.Touch(RecordKind::kStream, stream.channel.value(), stream.slot); }

  Journal& journal_;
  const uint32_t per_device_;
  uint64_t last_number_ = 0;
  std::map<ChannelId, Owner> owners_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_FENCES_STREAM_TABLE_H_
