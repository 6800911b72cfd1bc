// Placement: which device a permit is given, and what of each device's memory the permits that are out have declared
// for their processes, so that two are never let in to the same bytes.
//
//   free = total − reserve − the ledger's bytes (live, warm, retired, quarantined, being made)
//        − Σ over permits (declared + context) − what others had when the daemon started
//
// Arithmetic only: it is told of devices. Thread-compatible.

#ifndef DAEMON_CORE_PLACEMENT_H_
#define DAEMON_CORE_PLACEMENT_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/bytes.h"
#include "daemon/core/device_types.h"
#include "daemon/core/permit_types.h"

namespace berth::core {

class Placement {
 public:
  // What a device is.
  struct Facts {
    std::string uuid;
    MemoryKind kind = MemoryKind::kHost;
    Bytes total;
    // Never given to anybody, what a process takes for its context, and what others have.
    Bytes reserve;
    Bytes context;
    Bytes others;
  };
  // How it is now.
  struct State {
    uint64_t generation = 1;
    // It serves.
    bool in_service = false;
    // It will not serve again.
    bool dropped = false;
    // What the ledger charges there.
    Bytes ledger;
  };
  enum class Verdict {
    // A device has room now.
    kFits,
    // None has, but one will once permits return.
    kWaits,
    // None has, whatever permits return: it waits for something else.
    kAside,
  };
  struct Choice {
    Verdict verdict = Verdict::kAside;
    // kFits: the device.
    uint32_t ordinal = 0;
  };

  void Add(uint32_t ordinal, Facts facts) { devices_[ordinal].facts = std::move(facts); }
  // Requires: it was added.
  void Update(uint32_t ordinal, const State& state);

  // OK if the wish may be met some time. Errors: NOT_FOUND (device); DEVICE_STOPPED (gone for good); OVER_CAP (more
  // than the device has).
  absl::Status Check(absl::string_view pool, const DeviceWish& wish) const;
  // Requires: a wish. Of several devices: for `any` that with the fewest permits, then the most free bytes; for `best`
  // the most free bytes; then the least ordinal.
  Choice Choose(const DeviceWish& wish) const;

  // A permit with `declared` bytes goes to the device, and comes back. Requires: it is known.
  void Take(uint32_t ordinal, Bytes declared);
  void Give(uint32_t ordinal, Bytes declared);

  PlacedDevice Describe(uint32_t ordinal) const;
  // By the formula; 0 where it would be negative.
  Bytes FreeOn(uint32_t ordinal) const;
  // Of the permits that are out.
  Bytes DeclaredOn(uint32_t ordinal) const;
  uint64_t PermitsOn(uint32_t ordinal) const;

  // What has changed since this was last asked: whether somebody may be judged otherwise than before, or can
  // never fit any more.
  struct Changes {
    bool verdicts = false;
    bool dropped = false;
  };
  Changes TakeChanges() { return std::exchange(changes_, Changes()); }

 private:
  struct Device {
    Facts facts;
    State state;
    Bytes declared;
    // With their contexts.
    Bytes taken;
    uint64_t permits = 0;
  };
  static Bytes NeedOf(const Device& device, const DeviceWish& wish);
  static Bytes FreeOf(const Device& device, Bytes taken);
  Choice Judge(uint32_t ordinal, const Device& device, const DeviceWish& wish) const;

  std::map<uint32_t, Device> devices_;
  Changes changes_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PLACEMENT_H_
