// WaitPlace: a part of the core in which pending requests wait.

#ifndef DAEMON_CORE_REQUESTS_WAIT_PLACE_H_
#define DAEMON_CORE_REQUESTS_WAIT_PLACE_H_

#include <cstdint>

#include "absl/time/time.h"
#include "daemon/core/requests/wait_weight.h"
#include "daemon/core/types/request_id.h"
#include "daemon/core/types/step_context.h"

namespace berth::core {

class PermitPool;
struct Waiter;

// The entry of a request in its place, found without a search.
struct WaitTicket {
  // A single permit: its pool, and the request's entry in the pool's queue; null if the pool answered at once.
  PermitPool* pool = nullptr;
  const Waiter* waiter = nullptr;
  // Number of the waiter, readable without access to the waiter; or of the block that is being made.
  uint64_t number = 0;
};

class WaitPlace {
 public:
  virtual ~WaitPlace() = default;

  // Takes the deadline of a repeated call. Returns whether a call's deadline ends the wait in this place.
  virtual bool SetDeadline(const RequestId& request, const WaitTicket& ticket, absl::Time deadline) = 0;
  // Removes the request, which the caller answers.
  virtual void Leave(StepContext& step, const RequestId& request, const WaitTicket& ticket) = 0;
  // Answers the requests whose deadline has passed.
  virtual void Expire(StepContext& step) = 0;
  // Returns the earliest deadline; InfiniteFuture if nothing has one.
  virtual absl::Time next_deadline() const = 0;
  // A call waits again for a request of an earlier broker, which was passed over meanwhile.
  virtual void Reattach(StepContext&, const RequestId&, const WaitTicket&) {}

  // Returns the weight of the waiting request (wait_weight.h), without its plan.
  virtual uint64_t Weigh(const RequestId&, const WaitTicket&) { return kWaitEntryWeight; }
  // Whether the requests wait for permits.
  virtual bool ForUnits() const { return false; }
  // Whether the request, once granted, is an import of its process.
  virtual bool EndsInImport(const RequestId&) const { return false; }
  // Whether the request continues after its call was cancelled.
  virtual bool OutlivesCall(const RequestId&) { return false; }
};

}  // namespace berth::core

#endif  // DAEMON_CORE_REQUESTS_WAIT_PLACE_H_
