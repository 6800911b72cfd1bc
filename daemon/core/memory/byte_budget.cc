#include "daemon/core/memory/byte_budget.h"

#include <algorithm>

#include <berth/error.h>

#include "daemon/core/types/invariant.h"

namespace berth::core {

void ByteBudget::Add(BlockPhase phase, Bytes bytes) {
  Line(phase) += bytes.count();
  RecordPeak();
  MarkChanged();
}

void ByteBudget::Move(BlockPhase from, BlockPhase to, Bytes bytes) {
  BERTH_INVARIANT(Line(from) >= bytes.count());
  Line(from) -= bytes.count();
  if (to != BlockPhase::kGone) Line(to) += bytes.count();
  RecordPeak();
  MarkChanged();
}

void ByteBudget::MarkStuck(Bytes bytes) {
  stuck_ += bytes.count();
  ++Changed().failed_releases;
  MarkChanged();
}

void ByteBudget::UnmarkStuck(Bytes bytes) {
  stuck_ -= bytes.count();
  MarkChanged();
}

void ByteBudget::MarkBusy(Bytes bytes) {
  busy_ += bytes.count();
  MarkChanged();
}

void ByteBudget::UnmarkBusy(Bytes bytes) {
  busy_ -= bytes.count();
  MarkChanged();
}

void ByteBudget::set_daemon(Bytes bytes) {
  daemon_ = bytes.count();
  MarkChanged();
}

void ByteBudget::Claim(Bytes bytes) {
  claimed_ += bytes.count();
  RecordPeak();
  MarkChanged();
}

void ByteBudget::Unclaim(Bytes bytes) {
  BERTH_INVARIANT(claimed_ >= bytes.count());
  claimed_ -= bytes.count();
  MarkChanged();
}

void ByteBudget::RecordPeak() {
  const uint64_t there = counts().outstanding().count() + claimed_;
  if (there > persisted_.peak) Changed().peak = there;
}

void ByteBudget::Enlist(uint64_t number, Journal* journal, BudgetChanges* changes) {
  number_ = number;
  journal_ = journal;
  changes_ = changes;
  Changed();
}

ByteBudget::Persisted& ByteBudget::Changed() {
  if (journal_ != nullptr) journal_->Touch(RecordKind::kBudget, number_);
  return persisted_;
}

void ByteBudget::set_limit(std::optional<Bytes> limit, bool by_hand) {
  limit_ = limit;
  Persisted& persisted = Changed();
  persisted.by_hand = by_hand;
  persisted.limit = by_hand ? limit : std::nullopt;
  MarkChanged();
}

void ByteBudget::Restore(const Persisted& persisted) {
  if (persisted.by_hand) limit_ = persisted.limit;
  persisted_ = persisted;
}

void ByteBudget::RestoreBlock(BlockPhase phase, Bytes bytes, bool stuck, bool busy) {
  Line(phase) += bytes.count();
  if (stuck) stuck_ += bytes.count();
  if (busy) busy_ += bytes.count();
}

Bytes ByteBudget::charged() const { return counts().charged(); }

Bytes ByteBudget::remaining() const {
  return limit_.has_value() ? SaturatingSub(*limit_, charged()) : Bytes(UINT64_MAX);
}

Bytes ByteBudget::capacity() const {
  return limit_.has_value() ? SaturatingSub(*limit_, held()) : Bytes(UINT64_MAX);
}

Bytes ByteBudget::coming() const {
  return Bytes(Line(BlockPhase::kRetired) - stuck_ - busy_ + Line(BlockPhase::kAbandoned));
}

Bytes ByteBudget::warm() const { return Bytes(Line(BlockPhase::kWarm) + Line(BlockPhase::kWarming)); }

Bytes ByteBudget::held() const { return Bytes(charged().count() - coming().count() - warm().count()); }

ByteCounts ByteBudget::counts() const {
  return ByteCounts{.live = Bytes(Line(BlockPhase::kLive)),
                    .retired = Bytes(Line(BlockPhase::kRetired)),
                    .quarantined = Bytes(Line(BlockPhase::kQuarantined)),
                    .warm = warm(),
                    .reserved = Bytes(Line(BlockPhase::kReserved) + Line(BlockPhase::kAbandoned) + claimed_),
                    .daemon = Bytes(daemon_)};
}

ByteBudget::Verdict ByteBudget::Judge(Bytes bytes) const {
  if (bytes <= remaining()) return Verdict::kNow;
  if (bytes <= capacity()) return Verdict::kAfterReclaim;
  return bytes <= *limit_ ? Verdict::kNever : Verdict::kTooLarge;
}

absl::Status ByteBudget::OverBudget(absl::string_view layer, uint32_t device, Bytes requested) const {
  const Bytes limit = limit_.value_or(Bytes(UINT64_MAX));
  return Refuse(Reason::kOverBudget,
                "{layer} budget on device {device}: requested {requested} bytes, current {current}, "
                "remaining {remaining}, limit {limit}",
                {{"layer", layer},
                 {"device", device},
                 {"requested", requested.count()},
                 {"current", held().count()},
                 {"remaining", SaturatingSub(limit, held()).count()},
                 {"limit", limit.count()}});
}

}  // namespace berth::core
