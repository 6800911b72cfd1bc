#include "daemon/core/device_account.h"

#include "common/error.h"
#include "daemon/core/invariant.h"

namespace berth::core {

void DeviceAccount::Add(BlockPhase phase, Bytes bytes) { Line(phase) += bytes.count(); }

void DeviceAccount::Move(BlockPhase from, BlockPhase to, Bytes bytes) {
  BERTH_INVARIANT(Line(from) >= bytes.count());
  Line(from) -= bytes.count();
  if (to != BlockPhase::kGone) Line(to) += bytes.count();
}

Bytes DeviceAccount::charged() const { return counts().charged(); }

Bytes DeviceAccount::coming() const {
  return Bytes(Line(BlockPhase::kRetired) - stuck_ + Line(BlockPhase::kAbandoned));
}

Bytes DeviceAccount::warm() const { return Bytes(Line(BlockPhase::kWarm) + Line(BlockPhase::kWarming)); }

Bytes DeviceAccount::held() const { return Bytes(charged().count() - coming().count() - warm().count()); }

ByteCounts DeviceAccount::counts() const {
  return ByteCounts{.live = Bytes(Line(BlockPhase::kLive)),
                    .retired = Bytes(Line(BlockPhase::kRetired)),
                    .quarantined = Bytes(Line(BlockPhase::kQuarantined)),
                    .warm = warm(),
                    .reserved = Bytes(Line(BlockPhase::kReserved) + Line(BlockPhase::kAbandoned))};
}

DeviceAccount::Verdict DeviceAccount::Judge(Bytes bytes) const {
  if (bytes <= SaturatingSub(budget_, charged())) return Verdict::kNow;
  return bytes <= SaturatingSub(budget_, held()) ? Verdict::kAfterReclaim : Verdict::kNever;
}

absl::Status DeviceAccount::OverBudget(uint32_t device, Bytes requested) const {
  return Refuse(Reason::kOverBudget,
                "{layer} budget of device {device}: requested {requested} bytes, current {current}, "
                "remaining {remaining}, limit {limit}",
                {{"layer", "device"},
                 {"device", device},
                 {"requested", requested.count()},
                 {"current", held().count()},
                 {"remaining", SaturatingSub(budget_, held()).count()},
                 {"limit", budget_.count()}});
}

}  // namespace berth::core
