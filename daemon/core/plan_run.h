// PlanRun: one step of the core's through its plans: how work is split over the devices that there are, what is taken
// for that, and whom it concerns when a device goes. What a plan takes it takes as a gang does, in one step.
//
//   PlanRun run(impl, &step);
//   run.Make(admitted, request);

#ifndef DAEMON_CORE_PLAN_RUN_H_
#define DAEMON_CORE_PLAN_RUN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bytes.h"
#include "common/ids.h"
#include "daemon/core/core.h"
#include "daemon/core/gang_types.h"
#include "daemon/core/lease_record.h"
#include "daemon/core/permit_types.h"
#include "daemon/core/plan_table.h"
#include "daemon/core/plan_types.h"
#include "daemon/core/request_memory.h"
#include "daemon/core/response.h"

namespace berth::core {

class Step;
struct Admitted;
struct Device;
struct Session;

// A plan to be, or its next revision, until its permits and bytes are there.
struct PlanDraft {
  std::shared_ptr<PlanLayout> layout;
  // What is asked for besides, and the places of the devices whose permits those are.
  GangRequest leases;
  std::vector<size_t> permits;
  // Of a re-plan: the revision that it follows; else 0.
  uint64_t from_revision = 0;
  std::vector<PlanMove> moves;
};

// Of one that is waited with.
template <typename Archive>
void Fields(Archive& archive, PlanDraft& value) {
  if constexpr (Archive::kReads) value.layout = std::make_shared<PlanLayout>();
  archive(*value.layout, value.leases, value.permits, value.from_revision, value.moves);
}

class PlanRun final {
 public:
  // Where nothing is to be done but to look, `step` is null.
  PlanRun(Core::Impl* core, const Step* step) : core_(core), step_(step) {}

  // Each answers the request, now or when what the plan takes is there.
  void Make(const Admitted& admitted, const PlanRequest& request);
  void Replan(const Admitted& admitted, const ReplanRequest& request);
  void Release(const Admitted& admitted, PlanId plan);

  // What the draft takes is there: the request's answer. Errors: NOT_FOUND, or STALE where a plan has changed since it
  // was to be re-planned. Requires: the request is pending.
  absl::StatusOr<Response> Finish(const RequestId& request, PlanDraft& draft, const Response& granted);
  // Gives back its permits and bytes; `plan` is no more then.
  void End(const Plan& plan, LeaseEnd how = LeaseEnd::kReleased);

  // Tells those whose plans do not hold any more, where devices have changed.
  void Look();
  // A permit was taken away.
  void NoteRevoked(const PermitView& permit);

  static PlanView View(const Plan& plan);
  // OK, or what is broken.
  absl::Status CheckBooks() const;

 private:
  // Errors: NOT_FOUND.
  absl::StatusOr<const Plan*> Find(SessionId session, PlanId plan) const;
  // Whether a permit that was had by it is still out.
  bool Holds(SessionId session, AcquisitionId acquisition) const;

  // ---- plan_draft.cc: the split ---------------------------------------------------------------------------

  // Into a draft that is new. Errors: INVALID_FIELD; NOT_FOUND (device); CONSTRAINT.
  absl::Status Draft(const Session& session, const PlanRequest& request, PlanDraft* draft);
  absl::Status Redraft(const Session& session, const Plan& plan, const ReplanRequest& request, PlanDraft* draft);
  // Those that the request names. Errors: INVALID_FIELD (twice); NOT_FOUND.
  absl::StatusOr<std::vector<const Device*>> Named(const PlanRequest& request) const;
  // The devices that the request is about, in the order of their tiles. What those that stay weigh is in `before`, if
  // there is such.
  absl::StatusOr<std::vector<PlanDevice>> Consider(const Session& session, const PlanRequest& request,
                                                   const PlanLayout* before) const;
  // Units that the device's bytes have room for, with what `before` has there, if there is such.
  uint64_t RoomOn(const Session& session, const Device& device, Bytes bytes_per_unit, const PlanLayout* before) const;
  // Bytes that the units of `before` have there already: what is set aside for them; or else the session's blocks, as
  // far as they may be theirs.
  Bytes HasOn(const Session& session, const Device& device, Bytes bytes_per_unit, const PlanLayout& before) const;
  // What the session may still have of the device's bytes, by every layer, in whole blocks.
  Bytes LeftOn(const Session& session, const Device& device) const;
  // Gives each its units; as many as can be stay where they were `before`, which may be null. Errors: CONSTRAINT.
  absl::Status Share(const PlanRequest& request, const PlanLayout* before, std::vector<PlanDevice>* devices) const;
  // What the draft takes, beyond what `before` has.
  void AskLeases(const Plan* before, PlanDraft* draft) const;

  // ---- plan_run.cc ----------------------------------------------------------------------------------------

  // Errors: LIMIT.
  absl::Status MayPlan(SessionId session) const;
  // Asks for what the draft takes, and finishes it when that is there.
  void Take(const Admitted& admitted, PlanDraft&& draft);
  absl::StatusOr<Response> FinishReplan(PlanDraft& draft, ReservationId fresh);
  // Makes `fresh` part of the plan's reservation, which gives up what the layout has no use for.
  void MergeReservation(const Plan& plan, ReservationId fresh, PlanLayout* layout);
  void MarkStale(const Plan& plan, PlanStale why, uint32_t device);
  // Why a plan that uses the device so does not hold any more.
  PlanStale WhyStale(const PlanDevice& used) const;

  Core::Impl* const core_;
  const Step* const step_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PLAN_RUN_H_
