// Placement: chooses the device of each permit. It accounts for the device bytes that outstanding permits have declared
// for their processes, so that no two permits are granted the same bytes.
//
//   free = total − reserve − the ledger's bytes (live, warm, retired, quarantined, being created)
//        − Σ over sessions max(declared + contexts, bytes of their processes beyond blocks) − bytes of others
//
// The driver's readings supply the bytes of processes. Without readings, a session counts with its declared bytes, and
// other processes with the bytes that they had at the daemon's start. Stale readings admit no request for bytes.
//
// Arithmetic only: callers report all device changes. Thread-compatible.

#ifndef DAEMON_CORE_DEVICES_PLACEMENT_H_
#define DAEMON_CORE_DEVICES_PLACEMENT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/device_name.h"
#include "daemon/core/types/device_facts.h"
#include "daemon/core/types/device_types.h"
#include "daemon/core/types/permit_types.h"
#include "daemon/core/types/stall.h"

namespace berth::core {

// Units of one pool that are out on each device, and their limits.
struct DeviceShares {
  // Limit for every device that is not in `caps`; 0 means no limit.
  uint64_t cap = 0;
  // Limits by UUID; 0 excludes the device from the pool.
  std::map<std::string, uint64_t> caps;
  // Units that are out, by ordinal.
  std::map<uint32_t, uint64_t> out;

  // Returns whether each permit of the pool names a device.
  bool per_device() const { return cap > 0 || !caps.empty(); }
  // Returns UINT64_MAX if there is no limit.
  uint64_t CapOf(const std::string& uuid) const;
  uint64_t OutOn(uint32_t ordinal) const;
};

class Placement {
 public:
  Placement() = default;
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;

  // Fixed properties of a device.
  struct Facts {
    std::string uuid;
    MemoryKind kind = MemoryKind::kHost;
    Bytes total;
    // Bytes that are never granted (`reserve`), bytes of one process's context, and bytes of other processes at the
    // start.
    Bytes reserve;
    Bytes context;
    Bytes others;
    DeviceFacts facts = {};
  };
  // Current state of a device.
  struct State {
    uint64_t generation = 1;
    // The device serves.
    bool in_service = false;
    // The device will not serve again.
    bool dropped = false;
    // Why the device is out of service until it works again or an operator enables it. Empty if it serves or is being
    // rebuilt.
    std::string stopped = {};
    // Reason for which an operator drains the device; empty if it is not drained.
    std::string draining = {};
    // Bytes that the ledger charges on the device.
    Bytes ledger;
  };
  // Usage computed from one driver reading.
  struct Usage {
    absl::Time taken;
    // Bytes of processes that belong to neither a session nor the daemon, and bytes that no process accounts for.
    Bytes others;
    // Bytes that each session's processes have beyond the blocks that they map.
    std::map<SessionId, Bytes> sessions;
  };
  // Maximum age of a reading; an older one means that five were missed.
  static constexpr absl::Duration kFresh = absl::Seconds(5);

  enum class Verdict {
    // A device has the capacity now.
    kFits,
    // No device has the capacity now, but one will have it once permits are released.
    kWaits,
    // No device has the capacity even after all releases of permits: the request is skipped until something else
    // changes.
    kSkipped,
  };
  struct Choice {
    Verdict verdict = Verdict::kSkipped;
    // For kFits: the device.
    uint32_t ordinal = 0;
  };
  // A request for one device.
  struct Ask {
    DeviceConstraint constraint;
    // Units of the pool to place on the device, and the pool's shares; null for no limit.
    uint64_t units = 0;
    const DeviceShares* shares = nullptr;
  };
  struct Choices {
    Verdict verdict = Verdict::kSkipped;
    // For kFits: the device of each ask, in their order.
    std::vector<uint32_t> ordinals;
  };
  // Bytes by ordinal.
  using BytesByDevice = std::map<uint32_t, Bytes>;

  // Requires: ordinal < kMaxDeviceOrdinals.
  void Add(uint32_t ordinal, Facts facts) {
    Device& device = devices_[ordinal];
    device.facts = std::move(facts);
    ++shape_;
    ++version_;
    by_ordinal_[ordinal] = &device;
  }
  bool Knows(uint32_t ordinal) const { return devices_.contains(ordinal); }
  // Both require a known device.
  void Update(uint32_t ordinal, const State& state);
  const State& StateOf(uint32_t ordinal) const { return At(ordinal).state; }

  // Returns the ordinal of the named device (common/device_name.h). Errors: as FindDeviceByName().
  absl::StatusOr<uint32_t> Find(absl::string_view name) const;
  // Returns the UUIDs, in order, of the devices that are named and that CUDA_VISIBLE_DEVICES allows, if set; empty if
  // neither bounds the choice. Errors: as DevicesAmong().
  absl::StatusOr<std::vector<std::string>> Among(const std::vector<std::string>& names,
                                                 const std::optional<std::string>& visible) const;
  // Resolves a constraint: replaces its device names by UUIDs, and its `visible` by `among`. A resolved constraint
  // stays valid as it is. Errors: as Find() and Among(); NO_DEVICE (a named device that is none of `among`).
  absl::Status Resolve(DeviceConstraint* constraint) const;

  // Returns the requested device in words: "device GPU-1", "any device of compute capability 9.0 or more".
  static std::string Describe(const DeviceConstraint& constraint);
  // Returns OK if some device may satisfy the constraint at some time, regardless of bytes. Errors: NOT_FOUND (the
  // named device is unknown); DEVICE_STOPPED (it is permanently gone, or all suitable devices have stopped and the
  // constraint does not wait for them); DEVICE_DRAINING (the named device); NO_DEVICE.
  absl::Status CheckConstraint(const DeviceConstraint& constraint) const;
  // Returns OK if the ask may be satisfied at some time. Errors: as CheckConstraint(); OVER_CAP (more than the device
  // has or the pool allows there); DEVICE_STOPPED and DEVICE_DRAINING, too, if only such devices have enough.
  absl::Status Check(absl::string_view pool, const Ask& ask) const;
  // Chooses a device. Ranking: `any` takes the fewest permits, then the most free bytes; `best` the most free bytes;
  // highest score the score; ties go to the least ordinal. Round robin takes the next ordinal after the last one taken.
  // Requires: a constraint.
  Choice Choose(const Ask& ask) const;
  // Returns why the verdict is worse than `goal`; empty if it is not. Requires: a constraint, and a goal other than
  // kSkipped.
  Stalls WhyNot(const Ask& ask, Verdict goal) const;
  // Like WhyNot() for several independent asks: the stalls end with any improvement.
  Stalls WhyNotAll(const std::vector<Ask>& asks, Verdict goal) const;
  // Reads a gauge of kind kDeviceNow, kDeviceEver or kDeviceShare.
  uint64_t Read(const Gauge& gauge) const;
  // Returns a counter above 0 that rises whenever kDeviceNow or kDeviceEver may have changed.
  uint64_t version() const { return version_; }
  // Returns a counter that rises whenever earlier stalls become invalid.
  uint64_t shape() const { return shape_; }
  // Records that a pool's caps have changed: they may block gangs that wait in other pools, too.
  void RecordCaps() { ++shape_; }
  // Returns all devices that fit now, in order of preference.
  std::vector<uint32_t> Fitting(const Ask& ask) const;
  // Describes, for people, what each device lacks to satisfy the ask now; lists the first 16 devices.
  std::string Lacking(const Ask& ask) const;
  // Returns whether the device satisfies the constraint, regardless of its free bytes. Requires: it is known.
  bool Suits(uint32_t ordinal, const DeviceConstraint& constraint) const { return Suits(At(ordinal), constraint); }

  // Chooses devices for several asks at once, with bytes reserved in addition. Asks for any or the best device get
  // different devices, which no other ask names.
  Choices ChooseAll(const std::vector<Ask>& asks, const BytesByDevice& besides) const;
  // Errors, for all asks together: as Check().
  absl::Status CheckAll(absl::string_view pool, const std::vector<Ask>& asks,
                        const BytesByDevice& besides) const;

  // Records the grant (Take) or the end (Give) of a session's permit with `declared` bytes there. Requires: a known
  // device.
  void Take(uint32_t ordinal, SessionId session, Bytes declared);
  void Give(uint32_t ordinal, SessionId session, Bytes declared);
  // Records a grant there to another kind of request: the next round-robin turn belongs to the next device.
  void MarkTurn(uint32_t ordinal) { turn_ = ordinal; }
  // Requires: a known device.
  void SetIsland(uint32_t ordinal, uint32_t island);

  // Records a driver reading. Requires: a known device.
  void Measure(uint32_t ordinal, Usage usage);
  // Records the measured bytes of one process's context on the device.
  void SetContext(uint32_t ordinal, Bytes context);
  // Advances the time, which makes readings stale.
  void SetNow(absl::Time now);
  // Returns whether the constraint requires bytes and every suitable device has a stale reading.
  bool OnlyOld(const DeviceConstraint& constraint) const;
  // Returns the bytes of other processes, from the last reading or as of the start.
  Bytes OthersOn(uint32_t ordinal) const { return OthersOf(At(ordinal)); }

  PlacedDevice Describe(uint32_t ordinal) const;
  // Returns the free bytes by the formula above; 0 if it is negative.
  Bytes FreeOn(uint32_t ordinal) const;
  // Returns the device's score with its free bytes, whether it serves or not.
  double ScoreOn(uint32_t ordinal) const;
  // Returns whether the devices that serve could satisfy all asks together if nothing were out: otherwise no release
  // of permits helps.
  bool AllServe(const std::vector<Ask>& asks, const BytesByDevice& besides) const;
  // Returns whether any suitable device serves.
  bool AnyServes(const DeviceConstraint& constraint) const;
  // Returns the most free bytes among the suitable devices that serve; 0 if there is none.
  Bytes MostFree(const DeviceConstraint& constraint) const;
  // Bytes declared by the permits that are out.
  Bytes DeclaredOn(uint32_t ordinal) const;
  uint64_t PermitsOn(uint32_t ordinal) const;

  // Changes since the last TakeChanges(). `verdicts`: a verdict may differ. `never`: a request may have become
  // impossible.
  struct Changes {
    bool verdicts = false;
    bool never = false;
  };
  Changes TakeChanges() { return std::exchange(changes_, Changes()); }

 private:
  // One session's share of a device.
  struct Share {
    Bytes declared;
    // Number of permits that declare bytes; each is charged a context.
    uint64_t declaring = 0;
    Bytes used;
  };
  struct Device {
    Facts facts;
    State state;
    Bytes declared;
    uint64_t permits = 0;
    std::map<SessionId, Share> shares;
    // Time of the last reading; empty before the first.
    std::optional<absl::Time> read_at;
    bool fresh = true;
    Bytes others;
    // Sums over all shares: the charged bytes, and the bytes of sessions without declared bytes, which no permit's
    // release frees.
    Bytes charged;
    Bytes loose;
    // Least ordinal among the devices reachable over NVLink.
    uint32_t island = 0;
  };
  // Bytes and units that are placed on a device together with an ask.
  struct Load {
    Bytes bytes;
    std::map<const DeviceShares*, uint64_t> units;
  };
  using Loads = std::map<uint32_t, Load>;
  // Whether a request has to be refused rather than wait for the device.
  enum class Away { kNot, kDrained, kStopped };
  // Number of devices that a message describes.
  static constexpr size_t kNamedDevices = 16;
  // Judges an ask on one device.
  using JudgeOne = absl::FunctionRef<Verdict(uint32_t, const Device&, const Ask&, const Load&)>;

  static Bytes NeedOf(const Device& device, const DeviceConstraint& constraint);
  // Return the free bytes now, and after the release of all permits.
  static Bytes FreeOf(const Device& device);
  static Bytes FreeWithoutPermits(const Device& device);
  static Bytes OthersOf(const Device& device) {
    return device.read_at.has_value() ? device.others : device.facts.others;
  }
  static Bytes ChargeOf(const Device& device, const Share& share);
  static void Recount(Device* device);
  // Returns whether the constraint requires bytes there that the core cannot grant because the reading is stale.
  static bool TooOld(const Device& device, const DeviceConstraint& constraint);
  // Returns the bytes that an empty device has for permits.
  static Bytes CapacityOf(const Device& device);
  bool Suits(const Device& device, const DeviceConstraint& constraint) const;
  // Returns whether the constraint names the device, or names none.
  static bool Asks(const Device& device, const DeviceConstraint& constraint);
  static Away AwayFor(const Device& device, const DeviceConstraint& constraint);
  std::vector<DeviceLabel> Labels() const;
  const Device* FindByUuid(absl::string_view uuid) const;
  std::string LackOf(uint32_t ordinal, const Device& device, const Ask& ask) const;
  static double ScoreOf(const Device& device);
  // Returns the level that Gauge::Kind::kDeviceNow and kDeviceEver measure.
  static uint64_t LevelOf(const Device& device, Verdict goal);
  // Returns the rank; the lesser is preferred.
  std::tuple<uint64_t, uint64_t> RankOf(uint32_t ordinal, const Device& device, DevicePick pick) const;
  // Judge the ask in the current state (Judge), and as if nothing were out and nothing allocated (JudgeEmpty).
  Verdict Judge(uint32_t ordinal, const Device& device, const Ask& ask, const Load& load) const;
  Verdict JudgeEmpty(uint32_t ordinal, const Device& device, const Ask& ask, const Load& load) const;
  // JudgeEmpty() without the devices for which the ask does not wait.
  Verdict JudgeUnaided(uint32_t ordinal, const Device& device, const Ask& ask, const Load& load) const;
  // Returns the refusal of asks that only such devices could satisfy.
  absl::Status RefuseAway(absl::string_view pool, const std::vector<Ask>& asks) const;
  Choices Assign(const std::vector<Ask>& asks, const BytesByDevice& besides, JudgeOne judge) const;
  // Returns the devices not in `taken` where the ask's verdict is at least as good as `worst`, in order of preference.
  std::vector<uint32_t> Candidates(const Ask& ask, const Loads& loads, const std::set<uint32_t>& taken,
                                   Verdict worst, JudgeOne judge) const;

  // Requires: a known device.
  Device& At(uint32_t ordinal) { return *by_ordinal_[ordinal]; }
  const Device& At(uint32_t ordinal) const { return *by_ordinal_[ordinal]; }

  std::map<uint32_t, Device> devices_;
  // The same devices by ordinal, for fast access in most steps.
  std::array<Device*, kMaxDeviceOrdinals> by_ordinal_ = {};
  // Time until which no reading becomes stale; InfinitePast before the first reading.
  absl::Time fresh_until_ = absl::InfinitePast();
  // Ordinal of the device granted last.
  uint32_t turn_ = kMaxDeviceOrdinals - 1;
  Changes changes_;
  uint64_t version_ = 1;
  uint64_t shape_ = 0;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_DEVICES_PLACEMENT_H_
