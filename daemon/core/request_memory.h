// RequestMemory: what one channel has asked and what it was answered, so that a repeated request gets its
// first answer and a forgotten one is refused when it arrives after all.
//
// A request is named by its sequence and bound to a fingerprint of its payload. It is pending until answered;
// an answer is kept until the channel says that it needs it no more (`answered_below`, `open`). A forgotten
// sequence leaves a tombstone, kept as long. Each entry is a row that outlives the broker, and what is settled is one.
// Thread-compatible.

#ifndef DAEMON_CORE_REQUEST_MEMORY_H_
#define DAEMON_CORE_REQUEST_MEMORY_H_

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/archive.h"
#include "common/ids.h"
#include "common/row.h"
#include "daemon/core/caller.h"
#include "daemon/core/journal.h"
#include "daemon/core/response.h"
#include "daemon/core/session_types.h"

namespace berth::core {

// A request's 128-bit id.
struct RequestId {
  ChannelId channel;
  uint64_t sequence = 0;

  friend auto operator<=>(const RequestId&, const RequestId&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const RequestId& id) {
    return H::combine(std::move(state), id.channel, id.sequence);
  }
};
template <typename Archive>
void Fields(Archive& archive, RequestId& value) {
  archive(value.channel, value.sequence);
}

class RequestMemory {
 public:
  // Keeps at most `limit` requests, and as many tombstones of requests that never came. `journal` outlives it.
  RequestMemory(ChannelId channel, uint64_t limit, Journal* journal)
      : channel_(channel), limit_(limit), journal_(journal) {}

  enum class State { kPending, kAnswered, kForgotten };
  friend constexpr auto ArchivedValues(State) { return std::pair(State::kPending, State::kForgotten); }
  struct Entry {
    State state = State::kPending;
    uint64_t fingerprint = 0;
    // kAnswered: the answer.
    // Without a text: that of a pending one costs nothing.
    absl::StatusOr<Response> answer = absl::UnknownError("");
    // kForgotten: what was told when it was forgotten.
    ForgetOutcome outcome = ForgetOutcome::kNothingToDo;
  };
  // Points into the memory; good until it is changed.
  struct Admission {
    const Entry* entry = nullptr;
    // It was not known and is pending from now on.
    bool fresh = false;
  };

  // Drops what the tag says is settled, then finds the request or begins it. Errors, with nothing begun:
  // INVALID_FIELD (sequence 0, too many open), REQUEST_REUSED, REQUEST_FORGOTTEN, LIMIT.
  absl::StatusOr<Admission> Admit(const RequestTag& tag, uint64_t fingerprint);

  // Keeps the answer of a pending request; drops it at once if it is settled already.
  void Answer(uint64_t sequence, const absl::StatusOr<Response>& answer);

  // The pending request never was.
  void Erase(uint64_t sequence);

  // Returns null for an unknown sequence.
  const Entry* Find(uint64_t sequence) const;
  // Whether the channel has said that it needs nothing of this sequence any more.
  bool Settled(uint64_t sequence) const { return sequence < answered_below_ && !open_.contains(sequence); }

  // Puts a tombstone in the place of the request, which may be unknown.
  // Errors, with nothing changed: LIMIT for one unknown so far when too many tombstones stand.
  absl::Status Bury(uint64_t sequence, ForgetOutcome outcome);

  // The pending sequences, rising.
  std::vector<uint64_t> Pending() const;
  uint64_t size() const { return entries_.size(); }

  // ---- What outlives the broker ---------------------------------------------------------------------------

  // The part of the row that says what is settled: no request has that sequence.
  static constexpr uint64_t kSettled = 0;
  void ListRows(std::vector<RowKey>* keys) const;
  // Of what is settled. Returns whether there is such a row.
  bool WriteSettled(ArchiveWriter& archive) const;
  void ReadSettled(ArchiveReader& archive) { archive(answered_below_, open_); }
  // Requires: an unknown sequence.
  void Restore(uint64_t sequence, Entry entry);
  // All of it goes.
  void Clear();

 private:
  void Note(uint64_t sequence) { journal_->Touch(RowKind::kRequest, channel_.value(), sequence); }
  void NoteGone(uint64_t sequence) { journal_->Erase(RowKind::kRequest, channel_.value(), sequence); }
  // Takes over what a newer tag says is settled; an older one has nothing to tell.
  void Settle(const RequestTag& tag);

  // First, where a request's end begins to look.
  absl::btree_map<uint64_t, Entry> entries_;
  const ChannelId channel_;
  const uint64_t limit_;
  Journal* const journal_;
  uint64_t tombstones_ = 0;
  uint64_t answered_below_ = 0;
  // Below answered_below_ and not settled.
  std::set<uint64_t> open_;
};

template <typename Archive>
void Fields(Archive& archive, RequestMemory::Entry& value) {
  archive(value.state, value.fingerprint, value.outcome);
  if (value.state == RequestMemory::State::kAnswered) archive(value.answer);
}

}  // namespace berth::core

#endif  // DAEMON_CORE_REQUEST_MEMORY_H_
