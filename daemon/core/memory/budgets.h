// Budgets: a block's bytes are charged to its device. Within the device they are charged to the owning session and its
// tenant. After the block's freeing or its owner's end they are charged to the tenants that still map the block.

#ifndef DAEMON_CORE_MEMORY_BUDGETS_H_
#define DAEMON_CORE_MEMORY_BUDGETS_H_

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/archive.h"
#include "daemon/core/devices/device_state.h"
#include "daemon/core/memory/block_table.h"
#include "daemon/core/memory/byte_budget.h"
#include "daemon/core/memory/shortage.h"
#include "daemon/core/sessions/tenant_account.h"
#include "daemon/core/types/budget_types.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/page.h"
#include "daemon/core/types/step_context.h"

namespace berth::core {

struct Managers;

// Thread-compatible; part of the core.
class Budgets {
 public:
  // `core` outlives the manager.
  explicit Budgets(Managers& core) : core_(core) {}

  // ---- Events and queries (core.h) ---------------------------------------------------------------------------

  Page<BudgetView> ListBudgets(const Caller& caller, const PageRequest& page) const;
  absl::StatusOr<std::vector<BudgetView>> ChangeBudget(StepContext& step, const Caller* caller,
                                                       const SetBudgetRequest& request);
  void ConfigureBudget(StepContext& step, uint32_t device, Bytes limit);

  // ---- For the other managers -------------------------------------------------------------------------------

  ByteBudget& SessionBudget(SessionId session, uint32_t device);
  // Returns budgets innermost first. Requires: the session exists.
  std::array<LayerBudget, 3> LayersOf(uint32_t device, SessionId session, const Account& account);
  // Charges the block's bytes to these accounts from now on, in addition to the device.
  void ChargeTo(StepContext& step, Block& block, SessionId session, std::vector<Tenant> tenants);
  // Charges a quarantined block to its importers' tenants, or to the last such tenant.
  void ChargeImporters(StepContext& step, Block& block);
  // Visits every account that the block is charged to.
  void ForEachBudget(const Block& block, absl::FunctionRef<void(ByteBudget&)> visit);
  // Erases a tenant that no longer holds anything.
  void EraseIfIdle(const Account& account);
  // Returns the account of that name that has a session; `named` itself where none has.
  Account AccountNamed(const Account& named) const;
  void Delist(const std::map<uint32_t, ByteBudget>& budgets);
  bool WriteBudget(uint64_t number, ArchiveWriter& archive) const;
  void ReadBudget(uint64_t number, ArchiveReader& archive);
  absl::Status CheckBudgets() const;

  // Owner of the account by number. A device's number is its ordinal + 1, the same in every run of the broker.
  struct Place {
    BudgetOwner of;
    uint32_t device = 0;
  };
  const std::map<uint64_t, Place>& places() const { return budgets_; }
  // Tenants with a session, bytes, or their own limit.
  const std::map<Account, TenantAccount>& tenants() const { return tenants_; }
  uint64_t CountSessionsOf(const Account& account) const;
  void AddSession(const Account& account) { ++tenants_[account].sessions; }
  void RemoveSession(const Account& account);
  // Adds a device's own budget.
  void AddDevice(Device& device);
  // Number of the last account.
  uint64_t last_number() const { return last_budget_; }
  // Returns whether the number is above the devices' own.
  bool RestoreLastNumber(uint64_t number);

 private:
  ByteBudget& TenantBudget(const Account& tenant, uint32_t device);
  BudgetView ViewBudget(const BudgetOwner& of, uint32_t device);
  // Enlist() adds a new account to the list; Delist() removes the accounts of an ended owner.
  ByteBudget& Enlist(ByteBudget& budget, const BudgetOwner& of, uint32_t device);
  static BudgetView ViewBudget(Layer layer, uint32_t device, const ByteBudget& budget);
  void SetDeviceLimit(StepContext& step, Device& device, Bytes limit, bool by_hand);
  absl::Status CheckMaySet(const Caller* caller, const SetBudgetRequest& request);
  absl::Status CheckLimit(const Device& device, const SetBudgetRequest& request) const;

  Managers& core_;
  uint64_t last_budget_ = kMaxDeviceOrdinals;
  std::map<uint64_t, Place> budgets_;
  std::map<Account, TenantAccount> tenants_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_MEMORY_BUDGETS_H_
