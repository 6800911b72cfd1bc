#include "daemon/core/byte_budget.h"

#include <algorithm>

#include "common/error.h"
#include "daemon/core/invariant.h"

namespace berth::core {

void ByteBudget::Add(BlockPhase phase, Bytes bytes) {
  Line(phase) += bytes.count();
  NotePeak();
}

void ByteBudget::Move(BlockPhase from, BlockPhase to, Bytes bytes) {
  BERTH_INVARIANT(Line(from) >= bytes.count());
  Line(from) -= bytes.count();
  if (to != BlockPhase::kGone) Line(to) += bytes.count();
  NotePeak();
}

void ByteBudget::MarkStuck(Bytes bytes) {
  stuck_ += bytes.count();
  ++Changed().failed_releases;
}

void ByteBudget::Claim(Bytes bytes) {
  claimed_ += bytes.count();
  NotePeak();
}

void ByteBudget::Unclaim(Bytes bytes) {
  BERTH_INVARIANT(claimed_ >= bytes.count());
  claimed_ -= bytes.count();
}

void ByteBudget::NotePeak() {
  const uint64_t there = counts().outstanding().count() + claimed_;
  if (there > kept_.peak) Changed().peak = there;
}

void ByteBudget::Enlist(uint64_t number, Journal* journal) {
  number_ = number;
  journal_ = journal;
  Changed();
}

ByteBudget::Kept& ByteBudget::Changed() {
  if (journal_ != nullptr) journal_->Touch(RowKind::kBudget, number_);
  return kept_;
}

void ByteBudget::set_limit(std::optional<Bytes> limit, bool by_hand) {
  limit_ = limit;
  Kept& kept = Changed();
  kept.by_hand = by_hand;
  kept.limit = by_hand ? limit : std::nullopt;
}

void ByteBudget::Restore(const Kept& kept) {
  if (kept.by_hand) limit_ = kept.limit;
  kept_ = kept;
}

void ByteBudget::RestoreBlock(BlockPhase phase, Bytes bytes, bool stuck, bool busy) {
  Line(phase) += bytes.count();
  if (stuck) stuck_ += bytes.count();
  if (busy) busy_ += bytes.count();
}

Bytes ByteBudget::charged() const { return counts().charged(); }

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
  if (!limit_.has_value() || bytes <= SaturatingSub(*limit_, charged())) return Verdict::kNow;
  if (bytes <= SaturatingSub(*limit_, held())) return Verdict::kAfterReclaim;
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
