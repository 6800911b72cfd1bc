// Placement: which device a permit is given, and what of each device's memory the permits that are out have declared
// for their processes, so that two are never let in to the same bytes.
//
//   free = total − reserve − the ledger's bytes (live, warm, retired, quarantined, being made)
//        − Σ over sessions max(declared + contexts, what their processes have beside blocks) − what others have
//
// What processes have the driver's readings say; where nobody takes these, sessions have what they declared, and
// others what they had when the daemon started. Readings that are old let nobody in to bytes.
//
// Arithmetic only: it is told of devices. Thread-compatible.

#ifndef DAEMON_CORE_PLACEMENT_H_
#define DAEMON_CORE_PLACEMENT_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/ids.h"
#include "daemon/core/device_facts.h"
#include "daemon/core/device_types.h"
#include "daemon/core/permit_types.h"

namespace berth::core {

// What of one pool's units is out on each device, and how much may be there at once.
struct DeviceShares {
  // Of every device that is not named in `caps`; 0 is no limit.
  uint64_t cap = 0;
  // By UUID; 0 keeps the pool off the device.
  std::map<std::string, uint64_t> caps;
  // By ordinal.
  std::map<uint32_t, uint64_t> out;

  // The pool is one of devices: each of its permits names one.
  bool per_device() const { return cap > 0 || !caps.empty(); }
  // UINT64_MAX for no limit.
  uint64_t CapOf(const std::string& uuid) const;
  uint64_t OutOn(uint32_t ordinal) const;
};

class Placement {
 public:
  Placement() = default;
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;

  // What a device is.
  struct Facts {
    std::string uuid;
    MemoryKind kind = MemoryKind::kHost;
    Bytes total;
    // Never given to anybody, what a process takes for its context, and what others have.
    Bytes reserve;
    Bytes context;
    Bytes others;
    DeviceFacts facts = {};
  };
  // How it is now.
  struct State {
    uint64_t generation = 1;
    // It serves.
    bool in_service = false;
    // It will not serve again.
    bool dropped = false;
    // Why an operator drains it; empty where nobody does.
    std::string draining = {};
    // What the ledger charges there.
    Bytes ledger;
  };
  // What a reading of the driver's came to.
  struct Usage {
    absl::Time taken;
    // What processes have that are of no session and not the daemon's, and what no process accounts for.
    Bytes others;
    // What sessions' processes have beside the blocks that they map.
    std::map<SessionId, Bytes> sessions;
  };
  // Older ones are not gone by: five were missed.
  static constexpr absl::Duration kFresh = absl::Seconds(5);

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
  // A device that is wished for.
  struct Ask {
    DeviceWish wish;
    // Units of the pool that go there, and how the pool's are shared out; null for no limit.
    uint64_t units = 0;
    const DeviceShares* shares = nullptr;
  };
  struct Choices {
    Verdict verdict = Verdict::kAside;
    // kFits: the device of each ask, in their order.
    std::vector<uint32_t> ordinals;
  };
  // Bytes by ordinal.
  using BytesByDevice = std::map<uint32_t, Bytes>;

  // Requires: ordinal < kMaxDeviceOrdinals.
  void Add(uint32_t ordinal, Facts facts) {
    Device& device = devices_[ordinal];
    device.facts = std::move(facts);
    by_ordinal_[ordinal] = &device;
  }
  bool Knows(uint32_t ordinal) const { return devices_.contains(ordinal); }
  // Both require that it was added.
  void Update(uint32_t ordinal, const State& state);
  const State& StateOf(uint32_t ordinal) const { return At(ordinal).state; }

  // OK if some device may do as it is wished some time, however many bytes that takes. Errors: NOT_FOUND (a device that
  // it names); DEVICE_STOPPED (gone for good); DEVICE_DRAINING (the one that it names); NO_DEVICE.
  absl::Status CheckWish(const DeviceWish& wish) const;
  // OK if the ask may be met some time. Errors: CheckWish()'s; OVER_CAP (more than the device has, or than the pool
  // lets there).
  absl::Status Check(absl::string_view pool, const Ask& ask) const;
  // Requires: a wish. Of several devices: for `any` that with the fewest permits, then the most free bytes; for
  // `best` the most free bytes; for the highest score that; then the least ordinal. In turn: the next ordinal after the
  // one last taken.
  Choice Choose(const Ask& ask) const;
  // All that would do now, the preferred first.
  std::vector<uint32_t> Fitting(const Ask& ask) const;
  // What each device lacks that the ask would have it do now, for people: of the first 16.
  std::string Lacking(const Ask& ask) const;
  // Whether the device is what is wished, however many bytes are free there. Requires: it is known.
  bool Suits(uint32_t ordinal, const DeviceWish& wish) const { return Suits(At(ordinal), wish); }

  // The same for several at once, and bytes set aside besides. Those that wish for any or the best get different
  // devices, which are no other's by name either.
  Choices ChooseAll(const std::vector<Ask>& asks, const BytesByDevice& besides) const;
  // Errors: those of Check(), which each of them passes alone; OVER_CAP (all of them together).
  absl::Status CheckAll(absl::string_view pool, const std::vector<Ask>& asks,
                        const BytesByDevice& besides) const;

  // A permit of the session with `declared` bytes goes to the device, and comes back. Requires: it is known.
  void Take(uint32_t ordinal, SessionId session, Bytes declared);
  void Give(uint32_t ordinal, SessionId session, Bytes declared);
  // Somebody else was given something there: the next turn is the next device's.
  void NoteTurn(uint32_t ordinal) { turn_ = ordinal; }
  // Requires: it is known.
  void SetIsland(uint32_t ordinal, uint32_t island);

  // The driver was read. Requires: it is known.
  void Measure(uint32_t ordinal, Usage usage);
  // What a process's context takes of the device was measured.
  void SetContext(uint32_t ordinal, Bytes context);
  // Time has passed: readings grow old.
  void SetNow(absl::Time now);
  // Whether the wish is for bytes, and every device that it would take has an old reading.
  bool OnlyOld(const DeviceWish& wish) const;
  // What others have, by the last reading or at the start.
  Bytes OthersOn(uint32_t ordinal) const { return OthersOf(At(ordinal)); }

  PlacedDevice Describe(uint32_t ordinal) const;
  // By the formula; 0 where it would be negative.
  Bytes FreeOn(uint32_t ordinal) const;
  // What it is worth with so much free, whether it serves or not.
  double ScoreOn(uint32_t ordinal) const;
  // Of those that serve and that the wish would take; 0 for none.
  Bytes MostFree(const DeviceWish& wish) const;
  // Of the permits that are out.
  Bytes DeclaredOn(uint32_t ordinal) const;
  uint64_t PermitsOn(uint32_t ordinal) const;

  // What has changed since this was last asked: whether somebody may be judged otherwise than before, or can
  // never fit any more.
  struct Changes {
    bool verdicts = false;
    bool never = false;
  };
  Changes TakeChanges() { return std::exchange(changes_, Changes()); }

 private:
  // What one session has there.
  struct Share {
    Bytes declared;
    // Permits that declare bytes: each is charged a context.
    uint64_t declaring = 0;
    Bytes used;
  };
  struct Device {
    Facts facts;
    State state;
    Bytes declared;
    uint64_t permits = 0;
    std::map<SessionId, Share> shares;
    // Nothing while there was no reading.
    std::optional<absl::Time> read_at;
    bool fresh = true;
    Bytes others;
    // Of all shares: what is charged; and what sessions have that declared nothing, which no permit's return brings
    // back.
    Bytes charged;
    Bytes loose;
    // The least ordinal of those that it reaches over NVLink.
    uint32_t island = 0;
  };
  // What else goes to a device together with an ask.
  struct Load {
    Bytes bytes;
    std::map<const DeviceShares*, uint64_t> units;
  };
  using Loads = std::map<uint32_t, Load>;
  // How an ask would do on one device.
  using JudgeOne = absl::FunctionRef<Verdict(uint32_t, const Device&, const Ask&, const Load&)>;

  static Bytes NeedOf(const Device& device, const DeviceWish& wish);
  // Now, and once all permits are back.
  static Bytes FreeOf(const Device& device);
  static Bytes FreeWithoutPermits(const Device& device);
  static Bytes OthersOf(const Device& device) {
    return device.read_at.has_value() ? device.others : device.facts.others;
  }
  static Bytes ChargeOf(const Device& device, const Share& share);
  static void Recount(Device* device);
  // What the wish needs there it may not have, as nobody knows what is free.
  static bool TooOld(const Device& device, const DeviceWish& wish);
  // What an empty device has for permits.
  static Bytes RoomOf(const Device& device);
  bool Suits(const Device& device, const DeviceWish& wish) const;
  const Device* FindByUuid(absl::string_view uuid) const;
  std::string LackOf(uint32_t ordinal, const Device& device, const Ask& ask) const;
  static double ScoreOf(const Device& device);
  // The lesser is preferred.
  std::tuple<uint64_t, uint64_t> RankOf(uint32_t ordinal, const Device& device, DevicePick pick) const;
  // As things are now, and if nothing were out and nothing allocated.
  Verdict Judge(uint32_t ordinal, const Device& device, const Ask& ask, const Load& load) const;
  Verdict JudgeEmpty(uint32_t ordinal, const Device& device, const Ask& ask, const Load& load) const;
  Choices Assign(const std::vector<Ask>& asks, const BytesByDevice& besides, JudgeOne judge) const;
  // The devices not in `taken` where the ask would do no worse than `worst`, the preferred first.
  std::vector<uint32_t> Candidates(const Ask& ask, const Loads& loads, const std::set<uint32_t>& taken,
                                   Verdict worst, JudgeOne judge) const;

  // Requires: it is known.
  Device& At(uint32_t ordinal) { return *by_ordinal_[ordinal]; }
  const Device& At(uint32_t ordinal) const { return *by_ordinal_[ordinal]; }

  std::map<uint32_t, Device> devices_;
  // The same, for those that are asked for by most steps.
  std::array<Device*, kMaxDeviceOrdinals> by_ordinal_ = {};
  // Until then no reading turns old, and none was taken.
  absl::Time fresh_until_ = absl::InfinitePast();
  // Who was given something last.
  uint32_t turn_ = kMaxDeviceOrdinals - 1;
  Changes changes_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PLACEMENT_H_
