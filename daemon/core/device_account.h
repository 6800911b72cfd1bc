// DeviceAccount: the bytes of one device, by the phase of their blocks, against its budget. Arithmetic only.
// Thread-compatible.

#ifndef DAEMON_CORE_DEVICE_ACCOUNT_H_
#define DAEMON_CORE_DEVICE_ACCOUNT_H_

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "common/bytes.h"
#include "daemon/core/block_phase.h"
#include "daemon/core/types.h"

namespace berth::core {

class DeviceAccount {
 public:
  explicit DeviceAccount(Bytes budget) : budget_(budget) {}

  Bytes budget() const { return budget_; }
  void set_budget(Bytes budget) { budget_ = budget; }

  // A block of `bytes` comes into being in `phase`, or passes from one to another; to kGone it leaves the
  // account.
  void Add(BlockPhase phase, Bytes bytes);
  void Move(BlockPhase from, BlockPhase to, Bytes bytes);
  // A retired block could not be released: it stays charged and is not expected back. Undone when it is
  // released after all.
  void MarkStuck(Bytes bytes) { stuck_ += bytes.count(); }
  void UnmarkStuck(Bytes bytes) { stuck_ -= bytes.count(); }

  // Everything that counts against the budget.
  Bytes charged() const;
  // Charged bytes on their way back to the driver.
  Bytes coming() const;
  // Charged bytes that could be sent on their way back: what is kept or made warm.
  Bytes warm() const;
  ByteCounts counts() const;

  enum class Verdict { kNow, kAfterReclaim, kNever };
  // Whether `bytes` more fit the budget now, or will once everything is back that can come back by itself, or
  // won't.
  Verdict Judge(Bytes bytes) const;
  // The refusal for kNever. Its figures leave out what comes back by itself, so `remaining` is what a request
  // would get.
  absl::Status OverBudget(uint32_t device, Bytes requested) const;

 private:
  uint64_t& Line(BlockPhase phase) { return lines_[static_cast<int>(phase)]; }
  uint64_t Line(BlockPhase phase) const { return lines_[static_cast<int>(phase)]; }
  // Charged bytes that somebody holds on to.
  Bytes held() const;

  Bytes budget_;
  std::array<uint64_t, kBlockPhases> lines_ = {};
  uint64_t stuck_ = 0;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_DEVICE_ACCOUNT_H_
