#include "daemon/core/requests/request_memory.h"

#include <algorithm>
#include <utility>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/status_macros.h"
#include "daemon/core/types/invariant.h"

namespace berth::core {

absl::StatusOr<Response> RequestMemory::Entry::answer() const {
  absl::StatusOr<Response> answer = absl::UnknownError("");
  ArchiveReader reader(archived);
  reader(answer);
  BERTH_INVARIANT(!reader.failed());
  return answer;
}

void RequestMemory::Entry::SetAnswer(const absl::StatusOr<Response>& answer) {
  archived.clear();
  ArchiveWriter writer(&archived);
  writer(answer);
}

void RequestMemory::Add(uint64_t weight) {
  weight_ += weight;
  if (account_.all == nullptr) return;
  *account_.session += weight;
  account_.all->Take(account_.claimant, weight);
}

void RequestMemory::Subtract(uint64_t weight) {
  weight_ -= weight;
  if (account_.all == nullptr) return;
  *account_.session -= weight;
  account_.all->Give(account_.claimant, weight);
}

absl::Status RequestMemory::CheckCapacity() const {
  const auto check = [](absl::string_view what, uint64_t has, Bytes limit) {
    if (has + kEntryWeight <= limit.count()) return absl::OkStatus();
    return RefuseWithRetry(Reason::kLimit, absl::Seconds(1),
                           "{what}: {current} bytes cached, limit {limit}; answered_below releases them",
                           {{"what", what}, {"current", has}, {"limit", limit.count()}});
  };
  BERTH_RETURN_IF_ERROR(check("answer_bytes_per_channel", weight_, limits_.bytes_per_channel));
  if (account_.all == nullptr) return absl::OkStatus();
  BERTH_RETURN_IF_ERROR(check("answer_bytes_per_session", *account_.session, limits_.bytes_per_session));
  return account_.all->Check(account_.claimant, kEntryWeight);
}

absl::StatusOr<RequestMemory::Admission> RequestMemory::Admit(const RequestTag& tag, uint64_t fingerprint) {
  if (tag.sequence == 0) {
    return Refuse(Reason::kInvalidField, "{field} is {value}, the least is {limit}",
                  {{"field", "request.sequence"}, {"value", 0}, {"limit", 1}});
  }
  if (tag.open.size() > limits_.per_channel) {
    return Refuse(Reason::kInvalidField, "{field} has {value} sequences, limit {limit}",
                  {{"field", "request.open"}, {"value", tag.open.size()}, {"limit", limits_.per_channel}});
  }
  Settle(tag);
  const auto refuse = [&](Reason reason, absl::string_view what) {
    return Refuse(reason, absl::StrCat("request {sequence} of channel {channel} ", what),
                  {{"channel", channel_.value()}, {"sequence", tag.sequence}});
  };
  if (const auto found = entries_.find(tag.sequence); found != entries_.end()) {
    const Entry& entry = found->second;
    if (entry.state == State::kForgotten) return refuse(Reason::kRequestForgotten, "was forgotten");
    if (entry.fingerprint != fingerprint) return refuse(Reason::kRequestReused, "was used for another request");
    return Admission{.entry = &entry};
  }
  if (Settled(tag.sequence)) return refuse(Reason::kRequestForgotten, "is already settled");
  if (entries_.size() >= limits_.per_channel) {
    return Refuse(Reason::kLimit, "{what}: {current} cached, limit {limit}; answered_below releases them",
                  {{"what", "answers_per_channel"}, {"current", entries_.size()}, {"limit", limits_.per_channel}});
  }
  BERTH_RETURN_IF_ERROR(CheckCapacity());
  Entry& entry = entries_[tag.sequence];
  entry.fingerprint = fingerprint;
  Add(entry.weight());
  Mark(tag.sequence);
  return Admission{.entry = &entry, .fresh = true};
}

void RequestMemory::Answer(uint64_t sequence, const absl::StatusOr<Response>& answer) {
  const auto found = entries_.find(sequence);
  BERTH_INVARIANT(found != entries_.end() && found->second.state == State::kPending);
  if (Settled(sequence)) {
    Subtract(found->second.weight());
    entries_.erase(found);
    MarkGone(sequence);
    return;
  }
  Mark(sequence);
  found->second.state = State::kAnswered;
  found->second.SetAnswer(answer);
  Add(found->second.archived.size());
}

void RequestMemory::Reopen(uint64_t sequence) {
  Entry& entry = entries_.at(sequence);
  BERTH_INVARIANT(entry.state == State::kAnswered);
  Subtract(entry.archived.size());
  entry.archived.clear();
  entry.state = State::kPending;
  Mark(sequence);
}

void RequestMemory::Erase(uint64_t sequence) {
  const auto found = entries_.find(sequence);
  BERTH_INVARIANT(found != entries_.end());
  Subtract(found->second.weight());
  entries_.erase(found);
  MarkGone(sequence);
}

const RequestMemory::Entry* RequestMemory::Find(uint64_t sequence) const {
  const auto found = entries_.find(sequence);
  return found == entries_.end() ? nullptr : &found->second;
}

absl::Status RequestMemory::Bury(uint64_t sequence, ForgetOutcome outcome) {
  const bool known = entries_.contains(sequence);
  if (!known) {
    if (tombstones_ >= limits_.per_channel) {
      return Refuse(Reason::kLimit, "{what}: {current} cached, limit {limit}; answered_below releases them",
                    {{"what", "forgotten_per_channel"}, {"current", tombstones_}, {"limit", limits_.per_channel}});
    }
    BERTH_RETURN_IF_ERROR(CheckCapacity());
  }
  Entry& entry = entries_[sequence];
  BERTH_INVARIANT(entry.state != State::kForgotten);
  if (known) Subtract(entry.weight());
  entry = Entry{.state = State::kForgotten, .outcome = outcome};
  Add(entry.weight());
  ++tombstones_;
  Mark(sequence);
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
  std::vector<uint64_t> open;
  for (const uint64_t sequence : tag.open) {
    if (sequence < tag.answered_below && !Settled(sequence)) open.push_back(sequence);
  }
  answered_below_ = tag.answered_below;
  Mark(kSettled);
  SetOpen(std::move(open));
  for (auto it = entries_.begin(); it != entries_.end() && it->first < answered_below_;) {
    // A pending entry must still be answered; it is dropped then.
    if (it->second.state == State::kPending || !Settled(it->first)) {
      ++it;
      continue;
    }
    if (it->second.state == State::kForgotten) --tombstones_;
    Subtract(it->second.weight());
    MarkGone(it->first);
    it = entries_.erase(it);
  }
}

void RequestMemory::SetOpen(std::vector<uint64_t> open) {
  std::sort(open.begin(), open.end());
  open.erase(std::unique(open.begin(), open.end()), open.end());
  Subtract(open_.size() * sizeof(uint64_t));
  open_ = std::move(open);
  Add(open_.size() * sizeof(uint64_t));
}

void RequestMemory::ListRecords(std::vector<RecordKey>* keys) const {
  if (answered_below_ > 0) keys->push_back(KeyOf(RecordKind::kRequest, channel_.value(), kSettled));
  for (const auto& [sequence, entry] : entries_) {
    keys->push_back(KeyOf(RecordKind::kRequest, channel_.value(), sequence));
  }
}

bool RequestMemory::WriteSettled(ArchiveWriter& archive) const {
  if (answered_below_ == 0) return false;
  archive(answered_below_, open_);
  return true;
}

void RequestMemory::ReadSettled(ArchiveReader& archive) {
  std::vector<uint64_t> open;
  archive(answered_below_, open);
  SetOpen(std::move(open));
}

void RequestMemory::Restore(uint64_t sequence, Entry entry) {
  if (entry.state == State::kForgotten) ++tombstones_;
  Add(entry.weight());
  const bool fresh = entries_.emplace(sequence, std::move(entry)).second;
  BERTH_INVARIANT(fresh);
}

void RequestMemory::Clear() {
  Mark(kSettled);
  for (const auto& [sequence, entry] : entries_) MarkGone(sequence);
  entries_.clear();
  Subtract(weight_);
}

}  // namespace berth::core
