// Requests: the accepted requests without an answer, and their calls. It admits a request, answers it now or later, and
// has it leave the place where it waits (wait_place.h). The requests of all channels and their cached answers are in
// RequestMemory.

#ifndef DAEMON_CORE_REQUESTS_REQUESTS_H_
#define DAEMON_CORE_REQUESTS_REQUESTS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include <berth/ids.h>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/archive.h"
#include "daemon/core/requests/admitted.h"
#include "daemon/core/requests/pending.h"
#include "daemon/core/requests/wait_place.h"
#include "daemon/core/sessions/session_table.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/lease_record.h"
#include "daemon/core/types/request_id.h"
#include "daemon/core/types/response.h"
#include "daemon/core/types/session_types.h"
#include "daemon/core/types/step_context.h"

namespace berth::core {

struct Managers;

// Thread-compatible; part of the core.
class Requests {
 public:
  // `core` outlives the manager.
  explicit Requests(Managers& core) : core_(core) {}

  // ---- Events and queries (core.h) ---------------------------------------------------------------------------

  void CancelCall(StepContext& step, CallId call);
  void Forget(StepContext& step, CallId call, const Caller& caller, uint64_t sequence);

  // ---- For the other managers -------------------------------------------------------------------------------

  void Reply(StepContext& step, CallId call, absl::StatusOr<Response> response);
  // Admits a request. Returns nothing if no decision is needed: the request was refused, was answered before, or
  // continues to wait with `call` attached and `deadline` as its new deadline.
  std::optional<Admitted> Admit(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                                uint64_t fingerprint, absl::Time deadline = absl::InfiniteFuture());
  // Ends a pending request.
  void Answer(StepContext& step, const RequestId& request, absl::StatusOr<Response> response);
  // Leave() that also erases the requests from memory: a retry is a new request.
  void Dismiss(StepContext& step, const std::vector<RequestId>& requests, const absl::Status& status);
  std::vector<RequestId> PendingOf(const Channel& channel) const;
  // Skips the pending request until a call waits for it again, because its process is stopped or must prove that it is
  // not: answers its call with PROCESS_STOPPED. The request stays at its place.
  void Skip(StepContext& step, const RequestId& request);
  bool IsSkipped(const RequestId& request) const { return skipped_.contains(request); }
  static absl::Status ProcessStopped(const RequestId& request);
  // Makes an answered request of that weight pending again, as skipped. The caller then calls SetPlace(). Returns false
  // if that is impossible: the process has settled the request, or its tenant may have no further waiter. Then the
  // answer is forgotten, and a retry is a new request.
  bool Reopen(StepContext& step, const RequestId& request, uint64_t weight);
  // Erases the stored answer of a request, if there is one.
  void DropAnswer(const RequestId& request);
  // Erases a reopened request that has no place.
  void Drop(const RequestId& request);
  // Reverts the grant of the answer.
  ForgetOutcome Undo(StepContext& step, const Channel& channel, const Response& answer,
                     LeaseEnd end = LeaseEnd::kForgotten);
  // Counts a request without an immediate answer as one of its tenant's waiting requests; uncounts it at its end.
  void MarkWaiting(const RequestId& request);
  // Checks that the pending request, which weighs `weight` without its plan, may wait. Errors: LIMIT.
  absl::Status CheckMayWait(const RequestId& request, uint64_t weight) const;
  bool WriteRequest(const RequestId& request, ArchiveWriter& archive) const;
  // Restores no queue place of a pending request: the record of what it waits for does, or it is forgotten.
  void ReadRequest(const RequestId& request, ArchiveReader& archive);
  // Dismisses restored requests that no client has retried in time.
  void DropDetached(StepContext& step);
  absl::Status CheckPending() const;
  // Called after the last record: detaches restored requests, and forgets those without a decision.
  void FinishRestoringRequests();

  // The pending requests. At() returns one for modification. Requires: the request is pending.
  const PendingRequests& pending() const { return pending_; }
  Pending& At(const RequestId& request) { return pending_.at(request); }
  // Records where the pending request waits from now on.
  void SetPlace(const RequestId& request, WaitPlace* place, const WaitTicket& ticket = {});
  // Requests that were pending before the broker started and have no call.
  const std::set<RequestId>& detached() const { return detached_requests_; }
  // Returns the end of the detached requests' grace period; InfiniteFuture if there is none.
  absl::Time next_deadline() const { return detached_until_; }
  // Starts the grace period of detached requests.
  void Resume(absl::Time now);

 private:
  // Returns the caller's channel, if the caller may make requests. Errors: SHUTTING_DOWN, BAD_CREDENTIALS,
  // SESSION_ENDED, NOT_JOINED.
  absl::StatusOr<const Channel*> AdmitCaller(const Caller& caller);
  // Takes pending requests out of their queues, answers their calls with `status`, and then serves the waiters behind
  // them. The caller settles their RequestMemory.
  void Leave(StepContext& step, const std::vector<RequestId>& requests, const absl::Status& status);
  void MarkNotWaiting(const Pending& pending);
  // Returns the weight of the plan that the answer completes; 0 without one.
  static uint64_t WeighPlan(const Pending& pending);
  absl::StatusOr<ForgetOutcome> ForgetRequest(StepContext& step, const Channel& channel, uint64_t sequence);
  // A call waits again for a detached request.
  void Reattach(StepContext& step, const RequestId& request);

  Managers& core_;
  PendingRequests pending_;
  // Calls not answered yet.
  absl::flat_hash_map<CallId, PendingRequest*> calls_;
  std::set<RequestId> detached_requests_;
  // Requests whose process was stopped, and that have no call since.
  std::set<RequestId> skipped_;
  absl::Time detached_until_ = absl::InfiniteFuture();
};

}  // namespace berth::core

#endif  // DAEMON_CORE_REQUESTS_REQUESTS_H_
