// PlanTransaction: one step of the core over its plans. It splits work over the available devices, acquires what a plan
// takes, and notifies plan owners when a device goes. A plan acquires permits and bytes in one step, as a gang does.
//
//   PlanTransaction transaction(core, &step);
//   transaction.Make(admitted, request);

#ifndef DAEMON_CORE_PLANS_PLAN_TRANSACTION_H_
#define DAEMON_CORE_PLANS_PLAN_TRANSACTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/plans/plan_table.h"
#include "daemon/core/requests/request_memory.h"
#include "daemon/core/types/gang_types.h"
#include "daemon/core/types/lease_record.h"
#include "daemon/core/types/permit_types.h"
#include "daemon/core/types/plan_types.h"
#include "daemon/core/types/response.h"

namespace berth::core {

struct Managers;
class StepContext;
struct Admitted;
struct Device;
struct Session;

// A future plan or its next revision, until its permits and bytes are granted.
struct PlanDraft {
  std::shared_ptr<PlanLayout> layout;
  // Requested permits and bytes, and the index in `layout->devices` of each permit's device.
  GangRequest leases;
  std::vector<size_t> permits;
  // For a re-plan: the revision that it follows; else 0.
  uint64_t from_revision = 0;
  std::vector<PlanMove> moves;
};

// Ledger form of a draft that waits for its leases.
template <typename Archive>
void Fields(Archive& archive, PlanDraft& value) {
  if constexpr (Archive::kReads) value.layout = std::make_shared<PlanLayout>();
  archive(*value.layout, value.leases, value.permits, value.from_revision, value.moves);
}

class PlanTransaction final {
 public:
  // `step` is null if the transaction only reads.
  PlanTransaction(Managers& core, StepContext* step) : core_(core), step_(step) {}

  // Each method answers the request, now or when the leases of the plan are granted.
  void Make(const Admitted& admitted, const PlanRequest& request);
  void Replan(const Admitted& admitted, const ReplanRequest& request);
  void Release(const Admitted& admitted, PlanId plan);

  // Completes the draft once its leases are granted, and returns the answer. Errors: NOT_FOUND, or STALE if the plan
  // has changed since its re-plan began. Requires: the request is pending.
  absl::StatusOr<Response> Finish(const RequestId& request, PlanDraft& draft, const Response& granted);
  // Ends the plan and releases its permits and bytes; `plan` is invalid afterwards.
  void End(const Plan& plan, LeaseEnd how = LeaseEnd::kReleased);

  // Marks plans stale whose devices have changed, and notifies their owners.
  void Look();
  // Handles the revocation of a permit.
  void MarkRevoked(const PermitView& permit);

  static PlanView View(const Plan& plan);
  // Returns OK, or the violated invariant.
  absl::Status CheckInvariants() const;

 private:
  // Errors: NOT_FOUND.
  absl::StatusOr<const Plan*> Find(SessionId session, PlanId plan) const;
  // Returns whether the permit behind the acquisition is still out.
  bool Holds(SessionId session, AcquisitionId acquisition) const;

  // ---- plan_draft.cc: the split ---------------------------------------------------------------------------

  // Both fill a new draft. Errors: INVALID_FIELD; NOT_FOUND (device); CONSTRAINT.
  absl::Status Draft(const Session& session, const PlanRequest& asked, PlanDraft* draft);
  absl::Status Redraft(const Session& session, const Plan& plan, const ReplanRequest& request, PlanDraft* draft);
  // Returns the devices that the request names. Errors: INVALID_FIELD (named twice); NOT_FOUND.
  absl::StatusOr<std::vector<const Device*>> Named(const PlanRequest& request) const;
  // Returns the devices that the request considers, in the order of their tiles. Devices that stay keep their weights
  // from `before`, unless it is null.
  absl::StatusOr<std::vector<PlanDevice>> Consider(const Session& session, const PlanRequest& request,
                                                   const PlanLayout* before) const;
  // Returns the units that fit into the device's bytes, including those that `before` has there, unless it is null.
  uint64_t CapacityOn(const Session& session, const Device& device, Bytes bytes_per_unit,
                      const PlanLayout* before) const;
  // Returns the bytes that the units of `before` already have there. These are the reserved bytes, or else the
  // session's blocks as far as they may belong to these units.
  Bytes HasOn(const Session& session, const Device& device, Bytes bytes_per_unit, const PlanLayout& before) const;
  // Returns the device bytes still available to the session under every budget layer, in whole blocks.
  Bytes LeftOn(const Session& session, const Device& device) const;
  // Assigns units to each device. As many as possible stay where `before`, if not null, had them. Errors: CONSTRAINT.
  absl::Status Share(const PlanRequest& request, const PlanLayout* before, std::vector<PlanDevice>* devices) const;
  // Adds the leases that the draft takes beyond those of `before`.
  void AskLeases(const Plan* before, PlanDraft* draft) const;

  // ---- plans.cc -------------------------------------------------------------------------------------------

  // Checks that the session may have one more plan. Errors: LIMIT.
  absl::Status MayPlan(const Session& owner) const;
  // Requests the draft's leases, and completes the draft once they are granted.
  void Take(const Admitted& admitted, PlanDraft&& draft);
  absl::StatusOr<Response> FinishReplan(PlanDraft& draft, ReservationId fresh);
  // Merges `fresh` into the plan's reservation, which releases the bytes that the layout does not need.
  void MergeReservation(const Plan& plan, ReservationId fresh, PlanLayout* layout);
  void MarkStale(const Plan& plan, PlanStale why, uint32_t device);
  // Returns why a plan that uses the device in this way is stale; kCurrent if it is not.
  PlanStale WhyStale(const PlanDevice& used) const;

  Managers& core_;
  StepContext* const step_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PLANS_PLAN_TRANSACTION_H_
