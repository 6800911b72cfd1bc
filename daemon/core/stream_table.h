// StreamTable: the streams that processes have opened, and the slots of their pages. Rows alone; what runs on
// the streams is fence_table.h's business. Thread-compatible.

#ifndef DAEMON_CORE_STREAM_TABLE_H_
#define DAEMON_CORE_STREAM_TABLE_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "daemon/core/caller.h"
#include "daemon/core/fence_types.h"
#include "daemon/core/journal.h"

namespace berth::core {

// A stream, or the slot that one has left.
struct StreamRow {
  bool open = false;
  // Rises with every stream opened: the order of the list.
  uint64_t number = 0;
  uint32_t device = 0;
  uint32_t id = 0;
  absl::Time since;
  // To be closed when nothing of it is open or queued.
  bool closing = false;
  // The highest that was told of the slot, by whichever stream had it.
  uint64_t last_value = 0;
  uint64_t open_uses = 0;
  uint64_t queued_prepares = 0;
};
// All but what is counted of its uses.
template <typename Archive>
void Fields(Archive& archive, StreamRow& value) {
  archive(value.open, value.number, value.device, value.id, value.since, value.closing, value.last_value);
}

class StreamTable {
 public:
  // `per_device` counts beside the default stream; at least 1. Notes streams, and those that were, and counters.
  StreamTable(Journal* journal, uint32_t per_device)
      : journal_(*journal), per_device_(per_device < 1 ? 1 : per_device) {}

  // Opens a stream of `device`: its default stream (id 0), or another with the lowest id free. There is no
  // falling back from the one to the other.
  // Errors: LIMIT; STREAM_MISUSE where the default stream is open already. Nothing changed then.
  absl::StatusOr<StreamKey> Open(absl::Time now, ChannelId channel, const ProcessInfo& process,
                                 uint32_t device, bool default_stream, const ReadWords& read);
  // Its slot is used again once everything that was begun in it has ended. It stays open to what is open or queued,
  // and closes with the last of that. Errors: NOT_FOUND.
  absl::Status Close(StreamKey stream);
  // A use or a queued prepare of the stream has begun, or has ended. Requires: Find().
  void AddUse(StreamKey stream) { ++At(stream).open_uses; }
  void EndUse(StreamKey stream);
  void AddPrepare(StreamKey stream) { ++At(stream).queued_prepares; }
  void EndPrepare(StreamKey stream);
  // A value of the slot's was told. Requires: slot < SlotsOf(channel).
  void Told(StreamKey stream, uint64_t value);
  // Null for one that is not open.
  const StreamRow* Find(StreamKey stream) const;
  // OK if it is open and not to be closed, else NOT_FOUND.
  absl::Status Check(StreamKey stream) const;
  // Whether the process opened one, ever: then it has a page.
  bool Knows(ChannelId channel) const { return owners_.contains(channel); }
  // Slots that are or were in use, and whose words may say something.
  uint32_t SlotsOf(ChannelId channel) const;
  // Requires: slot < SlotsOf(channel).
  const StreamRow& RowOf(StreamKey stream) const { return owners_.at(stream.channel).rows[stream.slot]; }
  // Requires: Knows(channel).
  const ProcessInfo& ProcessOf(ChannelId channel) const { return owners_.at(channel).process; }
  void Erase(ChannelId channel);

  void ForEach(absl::FunctionRef<void(StreamKey, const StreamRow&)> visit) const;

  // Every slot that is or was in use, by channel and slot.
  void ForEachSlot(absl::FunctionRef<void(StreamKey, const StreamRow&)> visit) const;
  // Returns null for a slot that never was in use.
  const StreamRow* FindSlot(StreamKey stream) const;
  // Takes in what an earlier table had: its last number, and slots in their order. Returns whether the slot fits.
  uint64_t last_number() const { return last_number_; }
  void RestoreLastNumber(uint64_t number) { last_number_ = number; }
  bool Restore(StreamKey stream, const ProcessInfo& process, StreamRow row);
  // Closes what is to be closed and was waited for by those who are not there any more.
  void CloseQuiet();

 private:
  struct Owner {
    ProcessInfo process;
    // By slot.
    std::vector<StreamRow> rows;
  };

  // Requires: slot < SlotsOf(channel).
  StreamRow& At(StreamKey stream) { return owners_.at(stream.channel).rows[stream.slot]; }
  void CloseIfQuiet(StreamKey stream);
  void Note(StreamKey stream) { journal_.Touch(RowKind::kStream, stream.channel.value(), stream.slot); }

  Journal& journal_;
  const uint32_t per_device_;
  uint64_t last_number_ = 0;
  std::map<ChannelId, Owner> owners_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_STREAM_TABLE_H_
