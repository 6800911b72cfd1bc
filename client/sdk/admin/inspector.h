// Inspector: reads the state of the node from the daemon: leases, holders, times and waiters. On the operator's socket,
// also the verbs that change that state.
//
//   berth::Inspector inspector(session);
//   absl::StatusOr<berth::v1::ListPermitsResponse> permits = inspector.ListPermits();
//   for (const berth::v1::Permit& permit : permits->permits()) Show(permit);
//
// Answers are the wire messages of proto/berth/v1, complete: lists are fetched page by page and joined. On berthd.sock
// they show the caller's tenant, on admin.sock every tenant.

#ifndef CLIENT_SDK_ADMIN_INSPECTOR_H_
#define CLIENT_SDK_ADMIN_INSPECTOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <berth/cancellation.h>
#include <berth/ids.h>
#include <berth/session.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace berth {

// Callers include the berth/v1/….pb.h of the messages that they use: together these take seconds to compile.
namespace v1 {
class Block;
class Config;
class Device;
class ListBlocksResponse;
class ListBudgetsResponse;
class ListDevicesResponse;
class ListInventoryResponse;
class ListLogRecordsResponse;
class ListModulesResponse;
class ListPermitsResponse;
class ListPlansResponse;
class ListPoolsResponse;
class ListReservationsResponse;
class ListSessionsResponse;
class ListStraysResponse;
class ListStreamsResponse;
class Node;
class Permit;
class Plan;
class Pool;
class ReapBlocksResponse;
class ReloadConfigResponse;
class ResetNodeResponse;
class Session;
class SetBudgetRequest;
class SetBudgetResponse;
class SetPoolRequest;
class StopNodeResponse;
class Topology;
class UpgradeNodeResponse;
class Usage;
class WaitExplanation;
class WatchDevicesResponse;
}  // namespace v1

// Thread-safe. Errors of every method: kUnavailable when the session is over or the daemon does not answer; refusals as
// documented for the method's RPC.
class Inspector {
 public:
  // `cancellation`, if not null, ends the current calls and every later call (kCancelled). It must outlive the
  // Inspector.
  explicit Inspector(std::shared_ptr<Session> session, Cancellation* cancellation = nullptr)
      : session_(std::move(session)), cancellation_(cancellation) {}
  // Returns an inspector of the same session with this cancellation.
  Inspector With(Cancellation* cancellation) const { return Inspector(session_, cancellation); }

  absl::StatusOr<v1::Node> GetNode() const;
  absl::StatusOr<v1::ListDevicesResponse> ListDevices() const;
  // Calls `on_devices` with the current devices, and again after each change, until it returns false or the inspector's
  // cancellation is cancelled. Several changes during one call of `on_devices` are reported once, with the latest
  // state: the latest state is never missed. Continues over a restart of the daemon that the session survives.
  // Returns: OK when `on_devices` returned false. Errors: kCancelled; LIMIT; kUnavailable when the session is over;
  // kDeadlineExceeded when no daemon accepts a connection within SessionOptions::timeout.
  absl::Status WatchDevices(absl::FunctionRef<bool(const v1::WatchDevicesResponse&)> on_devices) const;
  // ListInventory(): hardware and health of the devices, from the last driver sample. GetTopology(): the links between
  // devices.
  absl::StatusOr<v1::ListInventoryResponse> ListInventory() const;
  absl::StatusOr<v1::Topology> GetTopology() const;
  absl::StatusOr<v1::ListPoolsResponse> ListPools() const;
  // Lists the permits of one pool, or of all pools if `pool` is empty. Errors: NOT_FOUND.
  absl::StatusOr<v1::ListPermitsResponse> ListPermits(absl::string_view pool = "") const;
  // Explains the wait of the waiter with this number (v1::Waiter).
  absl::StatusOr<v1::WaitExplanation> ExplainWait(uint64_t waiter) const;
  absl::StatusOr<v1::ListBlocksResponse> ListBlocks() const;
  absl::StatusOr<v1::ListStreamsResponse> ListStreams() const;
  absl::StatusOr<v1::ListSessionsResponse> ListSessions() const;
  absl::StatusOr<v1::ListReservationsResponse> ListReservations() const;
  absl::StatusOr<v1::ListPlansResponse> ListPlans() const;
  absl::StatusOr<v1::Plan> GetPlan(PlanId plan) const;
  // Lists processes that use a device without a permit: this user's processes, or on admin.sock every user's.
  absl::StatusOr<v1::ListStraysResponse> ListStrays() const;
  absl::StatusOr<v1::ListBudgetsResponse> ListBudgets() const;
  absl::StatusOr<v1::Usage> GetUsage() const;
  // Lists the compiled modules, and metrics of their cache.
  absl::StatusOr<v1::ListModulesResponse> ListModules() const;

  // Lists memory events, oldest first: those after `after` that the daemon still stores. `after` is a follow_token of
  // an earlier answer, or empty.
  absl::StatusOr<v1::ListLogRecordsResponse> ListLogRecords(absl::string_view after = "") const;

  // RecallBlock() asks the importers of a block to release it. FreeBlock() frees the block. The block belongs to this
  // user, or on admin.sock to any user.
  absl::StatusOr<v1::Block> RecallBlock(BlockId block) const;
  absl::StatusOr<v1::Block> FreeBlock(BlockId block) const;

  // Lowers the session's own limit, or on admin.sock sets any limit.
  absl::StatusOr<v1::SetBudgetResponse> SetBudget(const v1::SetBudgetRequest& request) const;

  // Ends the caller's own session, or on admin.sock any session.
  absl::StatusOr<v1::Session> EndSession(SessionId session) const;

  // Marks a block as consistent after its writer died mid-write: a block of this session, or on admin.sock any block.
  absl::StatusOr<v1::Block> ClearTorn(BlockId block) const;

  // The methods below work only on admin.sock (ADMIN_ONLY).
  // Fields that are unset in `change` stay unchanged.
  absl::StatusOr<v1::Pool> SetPool(const v1::SetPoolRequest& change) const;
  // GetConfig() returns the daemon's configuration. ReloadConfig() makes the daemon read its settings file again
  // (INVALID_FIELD: nothing has changed).
  absl::StatusOr<v1::Config> GetConfig() const;
  absl::StatusOr<v1::ReloadConfigResponse> ReloadConfig() const;
  // Returns: the permit as it was before.
  absl::StatusOr<v1::Permit> RevokePermit(PermitId permit) const;
  // Waits until the daemon has retried every failed release.
  absl::StatusOr<v1::ReapBlocksResponse> ReapBlocks() const;
  // Stops the daemon even if leases exist. If `drain` is not zero, stops it once no lease is left or `drain` has
  // passed; the daemon grants no permit meanwhile. `end_leases` ends every lease. Returns: the leases that existed. The
  // daemon ends a moment after the answer.
  absl::StatusOr<v1::StopNodeResponse> StopNode(absl::Duration drain, bool end_leases) const;
  // Ends every lease, and begins a new incarnation; this session ends with it. Meant for a ledger that cannot be read.
  // Errors: kFailedPrecondition if the ledger can be read.
  absl::StatusOr<v1::ResetNodeResponse> ResetNode() const;
  // Starts to replace the daemon's processes by those of the currently installed program.
  absl::StatusOr<v1::UpgradeNodeResponse> UpgradeNode() const;
  absl::StatusOr<v1::Device> EnableDevice(uint32_t device) const;
  absl::StatusOr<v1::Device> RestartDevice(uint32_t device) const;
  absl::StatusOr<v1::Device> RestartContext(uint32_t device) const;
  absl::StatusOr<v1::Device> ResetDevice(uint32_t device) const;
  absl::StatusOr<v1::Device> DropDevice(uint32_t device) const;
  // An empty reason means "drained by an operator".
  absl::StatusOr<v1::Device> DrainDevice(uint32_t device, absl::string_view reason) const;
  absl::StatusOr<v1::Device> UndrainDevice(uint32_t device) const;

 private:
  const std::shared_ptr<Session> session_;
  Cancellation* const cancellation_;
};

}  // namespace berth

#endif  // CLIENT_SDK_ADMIN_INSPECTOR_H_
