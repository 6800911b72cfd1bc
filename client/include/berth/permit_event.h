// PermitEvent: an event of a held permit that the holder did not ask for.

#ifndef BERTH_PERMIT_EVENT_H_
#define BERTH_PERMIT_EVENT_H_

#include <berth/end_notice.h>

namespace berth {

// An event of a held permit.
struct PermitEvent {
  enum What {
    // Held for longer than the pool's warning time. The permit still counts.
    kOverdue = 1,
    // Ended before its holder released it: the permit no longer counts. `end` gives the reason and the actor.
    kEnded = 2,
  };
  What what = kOverdue;
  EndNotice end = {};
};

}  // namespace berth

#endif  // BERTH_PERMIT_EVENT_H_
