// PermitSlots: which processes cache a permit between uses, and the permit slot of each (common/wire/permit_slot.h). A
// process has one slot, so it caches at most one permit, from any pool.

#ifndef DAEMON_CORE_PERMITS_PERMIT_SLOTS_H_
#define DAEMON_CORE_PERMITS_PERMIT_SLOTS_H_

#include <functional>
#include <set>
#include <utility>

#include <berth/ids.h>

#include "common/wire/permit_slot.h"
#include "common/wire/take_up.h"

namespace berth::core {

// Finds the permit slot of a channel's process; null if the process has no fence page. The address is stable until the
// page is dropped (effects.h).
using FindPermitSlot = std::function<PermitSlot*(ChannelId)>;
// Finds the words by which a channel's process takes up its grants; null if the process has no page. The address is
// stable until the page is dropped.
using FindTakeUpWords = std::function<TakeUpWords*(ChannelId)>;

// Thread-compatible, except for the slots.
class PermitSlots {
 public:
  // Whether a channel's process has mapped its present page.
  using HasMapped = std::function<bool(ChannelId)>;

  // Without `find` no process caches a permit.
  PermitSlots(FindPermitSlot find, HasMapped has_mapped)
      : find_(std::move(find)), has_mapped_(std::move(has_mapped)) {}

  // Begins a step. Within one step a slot is lent at most once. So it shows the state of the permit that was lent until
  // that state is persisted.
  void BeginStep() { ended_.clear(); }

  // Lets the process cache `permit`. Returns its slot in state USED; null if it has none or caches another permit.
  // After the daemon's restart a process may call with the cache of its earlier page. The process gives up that cache
  // before it acknowledges another page, so the permit in it is not lost.
  PermitSlot* Lend(ChannelId channel, PermitId permit) {
    if (ended_.contains(channel) || find_ == nullptr || !has_mapped_(channel)) return nullptr;
    PermitSlot* const permit_slot = LendAgain(channel);
    if (permit_slot != nullptr) permit_slot->Lend(permit.value());
    return permit_slot;
  }
  // Like Lend(), for a permit that an earlier broker lent: leaves the slot unchanged.
  PermitSlot* LendAgain(ChannelId channel) {
    PermitSlot* const permit_slot = find_ == nullptr || lent_.contains(channel) ? nullptr : find_(channel);
    if (permit_slot != nullptr) lent_.insert(channel);
    return permit_slot;
  }
  // Ends caching by the process. If the permit was taken back, the slot shows that already. Requires: `permit_slot` is
  // the result of Lend().
  void End(ChannelId channel, PermitSlot* permit_slot) {
    permit_slot->SetWaiting(false);
    lent_.erase(channel);
    ended_.insert(channel);
  }

 private:
  const FindPermitSlot find_;
  const HasMapped has_mapped_;
  std::set<ChannelId> lent_;
  std::set<ChannelId> ended_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PERMITS_PERMIT_SLOTS_H_
