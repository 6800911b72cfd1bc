// StallBoard: the lines of waiters of one pool. It finds the first line of a class that nothing blocks, without
// visiting blocked lines or their tenants. A line is on the board under the ticket of its first waiter: open, or with
// stalls.
//
// Lines that need the same gauges at once form a bundle. A bundle is filed under one gauge that is below the least
// threshold of its lines. When that gauge rises, the bundle moves to another such gauge in one operation. Only if each
// gauge has reached a threshold of some line are the lines compared with the gauges.
//
// Thread-compatible.

#ifndef DAEMON_CORE_PERMITS_STALL_BOARD_H_
#define DAEMON_CORE_PERMITS_STALL_BOARD_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "daemon/core/types/stall.h"

namespace berth::core {

// A list of tickets with thresholds, stored in chunks of at most kMost items. Each chunk caches its least threshold, so
// a search visits every chunk but the items of only a few.
class ThresholdList {
 public:
  // Requires: the list does not contain `ticket` (Insert) or contains it (Erase).
  void Insert(uint64_t ticket, uint64_t threshold);
  void Erase(uint64_t ticket);
  bool empty() const { return chunks_.empty(); }
  // Returns the least threshold. Requires: not empty.
  uint64_t Least() const;
  // Returns the least ticket after `after` whose threshold is at most `value`; 0 if there is none.
  uint64_t First(uint64_t after, uint64_t value) const;

 private:
  static constexpr size_t kMost = 128;
  struct Item {
    uint64_t ticket = 0;
    uint64_t threshold = 0;
  };
  // Items sorted by ticket; never empty.
  struct Chunk {
    uint64_t least = std::numeric_limits<uint64_t>::max();
    std::vector<Item> items;
  };

  // Returns the index of the chunk that contains `ticket`, or would contain it.
  size_t ChunkOf(uint64_t ticket) const;
  static void Recount(Chunk& chunk);

  std::vector<Chunk> chunks_;
};

class StallBoard {
 public:
  struct Class {
    // The tenant's number in the queue, not 0.
    uint64_t tenant = 0;
    int32_t priority = 0;
    bool aged = false;
    friend auto operator<=>(const Class&, const Class&) = default;
  };
  // Reads a gauge: the value for tenant number `tenant` if the gauge is per_tenant().
  using Read = absl::FunctionRef<uint64_t(uint64_t tenant, const Gauge&)>;
  // Returns the version of a gauge kind. Equal versions mean unchanged gauges; kUnknown means that any may have
  // changed.
  using Version = absl::FunctionRef<uint64_t(Gauge::Kind)>;
  static constexpr uint64_t kUnknown = 0;

  // Requires: the board does not contain `ticket` (Enter), or contains it in that class with those stalls (Leave).
  void Enter(Class of, uint64_t ticket, const Stalls& stalls);
  void Leave(Class of, uint64_t ticket, const Stalls& stalls);

  // Reads every gauge that blocks a line and may have reached a threshold since the last call. First() and Live() use
  // these readings until the next call, regardless of lines that enter or leave.
  void Refresh(Read read, Version version);
  // Returns the classes for which First() may find a line, ascending.
  std::vector<Class> Live() const;
  // Returns the least ticket after `after` in that class that is open, or has a stall whose gauge has reached its
  // threshold; 0 if there is none.
  uint64_t First(Class of, uint64_t after) const;
  // Returns whether Refresh() would read each gauge that has reached a threshold.
  bool IsCurrent(Read read, Version version) const;
  // Returns the number of gauges read by Refresh().
  uint64_t gauges_read() const { return gauges_read_; }

 private:
  using Lists = std::map<Class, ThresholdList>;
  // A gauge, and its tenant's number if it is per_tenant(), else 0.
  using Place = std::pair<Gauge, uint64_t>;
  struct Dial {
    // Lower bound of the thresholds in all lists.
    uint64_t least = std::numeric_limits<uint64_t>::max();
    Lists lists;
  };
  // The dials of one gauge kind. No list is empty, and every dial has a list.
  struct Rack {
    std::map<Place, Dial> dials;
    // Dials that every refresh reads: they had reached a threshold at the last refresh, or have received a lesser
    // threshold since.
    std::set<Place> hot;
    // Version at the last refresh.
    uint64_t version = kUnknown;
  };
  // A list with at least one line that is no longer blocked.
  struct Reached {
    Class of;
    Gauge gauge;
    uint64_t value = 0;
    bool operator<(const Reached& other) const { return of < other.of; }
  };

  // Lines that need the same gauges at once. `lists` has each line's thresholds, in the order of the gauges.
  using Thresholds = absl::InlinedVector<uint64_t, 4>;
  using Bundled = absl::btree_map<uint64_t, Thresholds>;
  struct Bundle {
    std::vector<Gauge> gauges;
    // Least thresholds of the lines; if `lines_left`, of lines that have left, too.
    Thresholds least;
    // No list is empty.
    std::map<Class, Bundled> lists;
    // The index of the gauge under which the bundle is filed; kMixed or kUnfiled.
    size_t filed = kUnfiled;
    bool lines_left = false;
  };
  // Each refresh looks at the bundle: it has a line that is no longer blocked, or a new line.
  static constexpr size_t kUnfiled = std::numeric_limits<size_t>::max();
  // Each gauge has reached a threshold, but all lines are blocked. A refresh looks at the bundle after a change.
  static constexpr size_t kMixed = kUnfiled - 1;
  struct ReachedBundle {
    Class of;
    const Bundle* bundle = nullptr;
    Thresholds values;
  };

  static Place PlaceOf(const Gauge& gauge, Class of) { return {gauge, gauge.per_tenant() ? of.tenant : 0}; }
  Rack& RackOf(const Gauge& gauge) { return racks_[static_cast<size_t>(gauge.kind)]; }
  const Rack& RackOf(const Gauge& gauge) const { return racks_[static_cast<size_t>(gauge.kind)]; }
  // Returns whether the dial has reached a threshold.
  bool Look(const Place& place, Dial& dial, Read read);

  // ---- stall_bundles.cc ------------------------------------------------------------------------------------

  static std::vector<Gauge> GaugesOf(const Stall& stall);
  static bool HasReached(const Thresholds& thresholds, const Thresholds& values);
  void EnterBundle(Class of, uint64_t ticket, const Stall& stall);
  void LeaveBundle(Class of, uint64_t ticket, const Stall& stall);
  void File(Bundle& bundle, size_t under);
  void Unfile(Bundle& bundle);
  // Files the bundle, or adds its lines that are no longer blocked to reached_bundles_.
  void LookAt(Bundle& bundle, Read read);
  void RefreshBundles(Read read, Version version);
  uint64_t FirstBundled(Class of, uint64_t after) const;
  bool BundlesAreCurrent(Read read, Version version) const;
  static uint64_t VersionOfBundles(Version version) { return version(Gauge::Kind::kBytes); }

  std::map<Class, absl::btree_set<uint64_t>> open_;
  std::array<Rack, Gauge::kKinds> racks_;
  // Sorted by class.
  std::vector<Reached> reached_;
  std::map<std::vector<Gauge>, Bundle> bundles_;
  // The bundles that are filed under a gauge, by their least threshold; no set is empty.
  std::map<Gauge, std::set<std::pair<uint64_t, Bundle*>>> filed_;
  std::set<Bundle*> mixed_;
  std::set<Bundle*> unfiled_;
  uint64_t bundles_version_ = kUnknown;
  std::vector<ReachedBundle> reached_bundles_;
  uint64_t gauges_read_ = 0;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PERMITS_STALL_BOARD_H_
