// Inspector: what the daemon says about the node: who holds what, since when, who waits. And, on the
// operator's socket, the verbs that change it.
//
//   berth::Inspector inspector(session);
//   absl::StatusOr<berth::v1::ListPermitsResponse> permits = inspector.ListPermits();
//   for (const berth::v1::Permit& permit : permits->permits()) Show(permit);
//
// Answers are the wire's own messages (proto/berth/v1), whole: lists are fetched page by page and joined. On
// berthd.sock they show the caller's tenant, on admin.sock everybody.

#ifndef CLIENT_INSPECTOR_H_
#define CLIENT_INSPECTOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/fence.pb.h"
#include "berth/v1/inventory.pb.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/module.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/plan.pb.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.pb.h"
#include "client/cancellation.h"
#include "client/session.h"
#include "common/ids.h"

namespace berth {

// Thread-safe. Errors of every method: kUnavailable when the session is over or the daemon does not answer;
// refusals as the method's RPC has them.
class Inspector {
 public:
  // `cancellation`, if not null, ends the calls under way and every later one (kCancelled); it must outlive
  // this.
  explicit Inspector(std::shared_ptr<Session> session, Cancellation* cancellation = nullptr)
      : session_(std::move(session)), cancellation_(cancellation) {}

  absl::StatusOr<v1::Node> GetNode() const;
  absl::StatusOr<v1::ListDevicesResponse> ListDevices() const;
  // Calls `on_devices` with the devices as they are, and again after each change, until it returns false or
  // the inspector's cancellation is cancelled. What changes while it runs is told once, as it is at the end:
  // the latest state is never missed. Goes on over a restart of the daemon that the session survives.
  // Returns: OK when `on_devices` returned false. Errors: kCancelled; LIMIT; kUnavailable when the session is over.
  absl::Status WatchDevices(absl::FunctionRef<bool(const v1::WatchDevicesResponse&)> on_devices) const;
  // What the devices are and how they are, as the driver said it last; and which reach each other.
  absl::StatusOr<v1::ListInventoryResponse> ListInventory() const;
  absl::StatusOr<v1::Topology> GetTopology() const;
  absl::StatusOr<v1::ListPoolsResponse> ListPools() const;
  // Of one pool, or of all where `pool` is empty. Errors: NOT_FOUND.
  absl::StatusOr<v1::ListPermitsResponse> ListPermits(absl::string_view pool = "") const;
  // Of the waiter of that number (v1::Waiter).
  absl::StatusOr<v1::WaitExplanation> ExplainWait(uint64_t waiter) const;
  absl::StatusOr<v1::ListBlocksResponse> ListBlocks() const;
  absl::StatusOr<v1::ListStreamsResponse> ListStreams() const;
  absl::StatusOr<v1::ListSessionsResponse> ListSessions() const;
  absl::StatusOr<v1::ListReservationsResponse> ListReservations() const;
  absl::StatusOr<v1::ListPlansResponse> ListPlans() const;
  absl::StatusOr<v1::Plan> GetPlan(PlanId plan) const;
  // Who is at a device without a permit: this user's processes, or on admin.sock everybody's.
  absl::StatusOr<v1::ListStraysResponse> ListStrays() const;
  absl::StatusOr<v1::ListBudgetsResponse> ListBudgets() const;
  absl::StatusOr<v1::Usage> GetUsage() const;
  // Compiled modules, and their cache in figures.
  absl::StatusOr<v1::ListModulesResponse> ListModules() const;

  // What happened to memory, oldest first: what the daemon still has of it after `after`, a follow_token of an earlier
  // answer or empty.
  absl::StatusOr<v1::ListLogRecordsResponse> ListLogRecords(absl::string_view after = "") const;

  // Asks the importers of a block of this user's, or on admin.sock of anybody's, to let go; or frees it.
  absl::StatusOr<v1::Block> RecallBlock(BlockId block) const;
  absl::StatusOr<v1::Block> FreeBlock(BlockId block) const;

  // Lowers the session's own share, or on admin.sock sets any limit.
  absl::StatusOr<v1::SetBudgetResponse> SetBudget(const v1::SetBudgetRequest& request) const;

  // Ends a session: the caller's own, or on admin.sock any.
  absl::StatusOr<v1::Session> EndSession(SessionId session) const;

  // Says that a torn block is whole: one of the session's own, or on admin.sock any.
  absl::StatusOr<v1::Block> ClearTorn(BlockId block) const;

  // On admin.sock alone (ADMIN_ONLY).
  // What is not set in `change` stays as it is.
  absl::StatusOr<v1::Pool> SetPool(const v1::SetPoolRequest& change) const;
  // How the daemon is configured; and has its file read anew (INVALID_FIELD: nothing has changed).
  absl::StatusOr<v1::Config> GetConfig() const;
  absl::StatusOr<v1::ReloadConfigResponse> ReloadConfig() const;
  // Returns: the permit as it was.
  absl::StatusOr<v1::Permit> RevokePermit(PermitId permit) const;
  // Waits until every failed release was tried again.
  absl::StatusOr<v1::ReapBlocksResponse> ReapBlocks() const;
  // Ends everything that is out, and begins a new incarnation; this session ends with it.
  absl::StatusOr<v1::ResetNodeResponse> ResetNode() const;
  // Begins to replace the daemon's processes by those of the program that is installed by now.
  absl::StatusOr<v1::UpgradeNodeResponse> UpgradeNode() const;
  absl::StatusOr<v1::Device> EnableDevice(uint32_t device) const;
  absl::StatusOr<v1::Device> RestartDevice(uint32_t device) const;
  absl::StatusOr<v1::Device> RestartContext(uint32_t device) const;
  absl::StatusOr<v1::Device> ResetDevice(uint32_t device) const;
  absl::StatusOr<v1::Device> DropDevice(uint32_t device) const;
  // An empty reason is "drained by an operator".
  absl::StatusOr<v1::Device> DrainDevice(uint32_t device, absl::string_view reason) const;
  absl::StatusOr<v1::Device> UndrainDevice(uint32_t device) const;

 private:
  const std::shared_ptr<Session> session_;
  Cancellation* const cancellation_;
};

}  // namespace berth

#endif  // CLIENT_INSPECTOR_H_
