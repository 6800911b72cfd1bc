// RequestMemory: the requests of one channel and their answers. A repeated request gets its first answer, and a
// forgotten request is refused if it arrives late.
//
// A sequence identifies a request and is bound to a fingerprint of its payload. The request is pending until answered.
// An answer is stored until the channel reports that it no longer needs it (`answered_below`, `open`). A forgotten
// sequence leaves a tombstone for the same time. Each entry is a ledger record that outlives the broker; the settled
// sequences are one record.
//
// Entries are counted and weighed: a channel, its session and its user each have a bound in bytes. Past one of them a
// new request is refused until answered_below releases entries. An accepted request is always answered, and its answer
// is stored whatever its size. Thread-compatible.

#ifndef DAEMON_CORE_REQUESTS_REQUEST_MEMORY_H_
#define DAEMON_CORE_REQUESTS_REQUEST_MEMORY_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/archive.h"
#include "daemon/base/ledger_record.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/journal.h"
#include "daemon/core/types/limits.h"
#include "daemon/core/types/request_id.h"
#include "daemon/core/types/response.h"
#include "daemon/core/types/session_types.h"
#include "daemon/core/types/shared_count.h"

namespace berth::core {

class RequestMemory {
 public:
  // Weight of an entry in addition to its answer's bytes. It covers the index entry, the ledger record, and the time
  // that a broker needs to restore it.
  static constexpr uint64_t kEntryWeight = 256;

  // The sums that include the memory's weight; both outlive the memory.
  struct Account {
    uint64_t* session = nullptr;
    // Sum over all users and operators, in bytes.
    SharedCount* all = nullptr;
    Claimant claimant;
  };

  // `journal` outlives the memory.
  RequestMemory(ChannelId channel, const AnswerLimits& limits, Journal* journal)
      : channel_(channel), limits_(limits), journal_(journal) {}
  // Sets the account; called once, before the first request. Without an account only the channel's own bounds apply.
  void SetAccount(const Account& account) { account_ = account; }

  enum class State { kPending, kAnswered, kForgotten };
  friend constexpr auto ArchivedValues(State) { return std::pair(State::kPending, State::kForgotten); }
  struct Entry {
    State state = State::kPending;
    // For kForgotten: the outcome reported when the request was forgotten.
    ForgetOutcome outcome = ForgetOutcome::kNothingToDo;
    uint64_t fingerprint = 0;
    // For kAnswered: the answer in archived form, which takes a fraction of the memory.
    std::string archived;

    // Requires: kAnswered.
    absl::StatusOr<Response> answer() const;
    void SetAnswer(const absl::StatusOr<Response>& answer);
    uint64_t weight() const { return kEntryWeight + archived.size(); }
  };
  // Points into the memory; valid until the memory changes.
  struct Admission {
    const Entry* entry = nullptr;
    // The request was unknown and is now pending.
    bool fresh = false;
  };

  // Drops entries that the tag reports as settled, then finds or begins the request. Errors, with nothing begun:
  // INVALID_FIELD (sequence 0, too many open), REQUEST_REUSED, REQUEST_FORGOTTEN, LIMIT (of the channel, the session or
  // the user).
  absl::StatusOr<Admission> Admit(const RequestTag& tag, uint64_t fingerprint);

  // Stores the answer of a pending request; drops it at once if the sequence is already settled.
  void Answer(uint64_t sequence, const absl::StatusOr<Response>& answer);

  // Drops the answer: the request is pending again. Requires: it is answered.
  void Reopen(uint64_t sequence);

  // Removes the request without a trace.
  void Erase(uint64_t sequence);

  // Returns null for an unknown sequence.
  const Entry* Find(uint64_t sequence) const;
  // Returns whether the channel has reported that it no longer needs this sequence.
  bool Settled(uint64_t sequence) const {
    return sequence < answered_below_ && !std::binary_search(open_.begin(), open_.end(), sequence);
  }

  // Replaces the request, which may be unknown, by a tombstone. Errors, with nothing changed: LIMIT if the sequence is
  // unknown and no further tombstone fits.
  absl::Status Bury(uint64_t sequence, ForgetOutcome outcome);

  // Returns the pending sequences, ascending.
  std::vector<uint64_t> Pending() const;
  uint64_t size() const { return entries_.size(); }
  // Returns the weight of the entries and of the record of settled sequences, in bytes.
  uint64_t weight() const { return weight_; }

  // ---- Persistence across broker restarts ------------------------------------------------------------------

  // Part of the record of settled sequences; no request has this sequence.
  static constexpr uint64_t kSettled = 0;
  void ListRecords(std::vector<RecordKey>* keys) const;
  // Writes the record of settled sequences. Returns whether it exists.
  bool WriteSettled(ArchiveWriter& archive) const;
  void ReadSettled(ArchiveReader& archive);
  // Requires: an unknown sequence.
  void Restore(uint64_t sequence, Entry entry);
  // Removes all entries.
  void Clear();

 private:
  void Mark(uint64_t sequence) { journal_->Touch(RecordKind::kRequest, channel_.value(), sequence); }
  void MarkGone(uint64_t sequence) { journal_->Erase(RecordKind::kRequest, channel_.value(), sequence); }
  // Applies the settled sequences of a newer tag; ignores an older tag.
  void Settle(const RequestTag& tag);
  void SetOpen(std::vector<uint64_t> open);
  // Checks that one more entry fits. Errors: LIMIT.
  absl::Status CheckCapacity() const;
  void Add(uint64_t weight);
  void Subtract(uint64_t weight);

  // First member, because the end of a request accesses it first.
  absl::btree_map<uint64_t, Entry> entries_;
  const ChannelId channel_;
  const AnswerLimits limits_;
  Journal* const journal_;
  Account account_;
  uint64_t weight_ = 0;
  uint64_t tombstones_ = 0;
  uint64_t answered_below_ = 0;
  // Sequences below answered_below_ that are not settled, ascending.
  std::vector<uint64_t> open_;
};

template <typename Archive>
void Fields(Archive& archive, RequestMemory::Entry& value) {
  archive(value.state, value.fingerprint, value.outcome);
  if (value.state != RequestMemory::State::kAnswered) return;
  if constexpr (Archive::kReads) {
    absl::StatusOr<Response> answer = absl::UnknownError("");
    archive(answer);
    value.SetAnswer(answer);
  } else {
    archive.Append(value.archived);
  }
}

}  // namespace berth::core

#endif  // DAEMON_CORE_REQUESTS_REQUEST_MEMORY_H_
