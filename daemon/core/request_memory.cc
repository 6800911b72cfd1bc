#include "daemon/core/request_memory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "daemon/core/invariant.h"

namespace berth::core {

absl::StatusOr<RequestMemory::Admission> RequestMemory::Admit(const RequestTag& tag, uint64_t fingerprint) {
  if (tag.sequence == 0) {
    return Refuse(Reason::kInvalidField, "{field} is {value}, the least is {limit}",
                  {{"field", "request.sequence"}, {"value", 0}, {"limit", 1}});
  }
  if (tag.open.size() > limit_) {
    return Refuse(Reason::kInvalidField, "{field} has {value} sequences, limit {limit}",
                  {{"field", "request.open"}, {"value", tag.open.size()}, {"limit", limit_}});
  }
  Settle(tag);
  const auto refuse = [&](Reason reason, absl::string_view what) {
    return Refuse(reason, absl::StrCat("request {sequence} of channel {channel} ", what),
                  {{"channel", channel_.value()}, {"sequence", tag.sequence}});
  };
  if (const auto found = entries_.find(tag.sequence); found != entries_.end()) {
    const Entry& entry = found->second;
    if (entry.state == State::kForgotten) return refuse(Reason::kRequestForgotten, "was forgotten");
    if (entry.fingerprint != fingerprint) return refuse(Reason::kRequestReused, "asked something else before");
    return Admission{.entry = &entry};
  }
  if (Settled(tag.sequence)) return refuse(Reason::kRequestForgotten, "was settled already");
  if (entries_.size() >= limit_) {
    return Refuse(Reason::kLimit, "{what}: {current} kept, limit {limit}; answered_below releases them",
                  {{"what", "answers_per_channel"}, {"current", entries_.size()}, {"limit", limit_}});
  }
  Entry& entry = entries_[tag.sequence];
  entry.fingerprint = fingerprint;
  Note(tag.sequence);
  return Admission{.entry = &entry, .fresh = true};
}

void RequestMemory::Answer(uint64_t sequence, const absl::StatusOr<Response>& answer) {
  const auto found = entries_.find(sequence);
  BERTH_INVARIANT(found != entries_.end() && found->second.state == State::kPending);
  if (Settled(sequence)) {
    entries_.erase(found);
    NoteGone(sequence);
    return;
  }
  Note(sequence);
  found->second.state = State::kAnswered;
  found->second.answer = answer;
}

void RequestMemory::Erase(uint64_t sequence) {
  entries_.erase(sequence);
  NoteGone(sequence);
}

const RequestMemory::Entry* RequestMemory::Find(uint64_t sequence) const {
  const auto found = entries_.find(sequence);
  return found == entries_.end() ? nullptr : &found->second;
}

absl::Status RequestMemory::Bury(uint64_t sequence, ForgetOutcome outcome) {
  const bool known = entries_.contains(sequence);
  if (!known && tombstones_ >= limit_) {
    return Refuse(Reason::kLimit, "{what}: {current} kept, limit {limit}; answered_below releases them",
                  {{"what", "forgotten_per_channel"}, {"current", tombstones_}, {"limit", limit_}});
  }
  Entry& entry = entries_[sequence];
  BERTH_INVARIANT(entry.state != State::kForgotten);
  entry = Entry{.state = State::kForgotten, .outcome = outcome};
  ++tombstones_;
  Note(sequence);
  return absl::OkStatus();
}

std::vector<uint64_t> RequestMemory::Pending() const {
  std::vector<uint64_t> pending;
  for (const auto& [sequence, entry] : entries_) {
    if (entry.state == State::kPending) pending.push_back(sequence);
  }
  return pending;
}

void RequestMemory::Settle(const RequestTag& tag) {
  if (tag.answered_below <= answered_below_) return;
  std::set<uint64_t> open;
  for (const uint64_t sequence : tag.open) {
    if (sequence < tag.answered_below && !Settled(sequence)) open.insert(sequence);
  }
  answered_below_ = tag.answered_below;
  Note(kSettled);
  open_ = std::move(open);
  for (auto it = entries_.begin(); it != entries_.end() && it->first < answered_below_;) {
    // A pending one must still be answered; it goes then.
    if (it->second.state == State::kPending || !Settled(it->first)) {
      ++it;
      continue;
    }
    if (it->second.state == State::kForgotten) --tombstones_;
    NoteGone(it->first);
    it = entries_.erase(it);
  }
}

void RequestMemory::ListRows(std::vector<RowKey>* keys) const {
  if (answered_below_ > 0) keys->push_back(KeyOf(RowKind::kRequest, channel_.value(), kSettled));
  for (const auto& [sequence, entry] : entries_) {
    keys->push_back(KeyOf(RowKind::kRequest, channel_.value(), sequence));
  }
}

bool RequestMemory::WriteSettled(ArchiveWriter& archive) const {
  if (answered_below_ == 0) return false;
  archive(answered_below_, open_);
  return true;
}

void RequestMemory::Restore(uint64_t sequence, Entry entry) {
  if (entry.state == State::kForgotten) ++tombstones_;
  const bool fresh = entries_.emplace(sequence, std::move(entry)).second;
  BERTH_INVARIANT(fresh);
}

void RequestMemory::Clear() {
  Note(kSettled);
  for (const auto& [sequence, entry] : entries_) NoteGone(sequence);
  entries_.clear();
}

}  // namespace berth::core
