// The facade: each event is one step of the core, and each query one call.

#include "daemon/core/core.h"

#include <type_traits>
#include <utility>
#include <variant>

#include "daemon/core/managers.h"
#include "daemon/core/plans/plan_transaction.h"
#include "daemon/core/types/step_context.h"

namespace berth::core {

Core::Core(Config config, DrawId draw_id, ReadFenceValues read, FindPermitSlot find, FindTakeUpWords find_take_up)
    : managers_(std::make_unique<Managers>(std::move(config), std::move(draw_id), std::move(read), std::move(find),
                                           std::move(find_take_up))) {}
Core::~Core() = default;

// Takes a step: expires what is due, so that a late event grants nothing to late waiters, and then runs `event`.
template <typename Event>
auto Core::Run(absl::Time now, Effects* effects, const Event& event) {
  StepContext step(now, effects, &managers_->last_effect, &managers_->journal);
  managers_->Begin(step);
  Settle(step);
  if constexpr (std::is_void_v<std::invoke_result_t<Event, StepContext&>>) {
    event(step);
    Settle(step);
  } else {
    auto result = event(step);
    Settle(step);
    return result;
  }
}

void Core::Settle(StepContext& step) {
  // A gang granted in the last round may have reserved what another waiter was to get.
  do {
    managers_->byte_queue.ServeByteQueue(step);
    managers_->permits.ServeGangBytes(step);
    managers_->permits.ServePlaced(step);
  } while (step.dirty.bytes);
  PlanTransaction(*managers_, &step).Look();
  managers_->shutdown.AnswerDrains(step);
  managers_->leases.Settle(step);
}

// ---- Events ---------------------------------------------------------------------------------------------------

void Core::Detach(absl::Time now, const Detached& detached, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->sessions.Detach(step, detached); });
}

void Core::EndIfUnused(absl::Time now, SessionId session, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->sessions.EndIfUnused(step, session); });
}

void Core::LifelineRejoined(absl::Time now, SessionId session, Effects* effects) {
  Run(now, effects, [&](StepContext&) { managers_->sessions.StopAwaiting(session); });
}

void Core::Rejoined(absl::Time now, ChannelId channel, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->sessions.Rejoined(step, channel); });
}

void Core::ReplaceChannels(absl::Time now, std::span<const ChannelId> earlier, ChannelId channel, Effects* effects) {
  Run(now, effects, [&](StepContext& step) {
    for (const ChannelId before : earlier) managers_->sessions.ReplaceChannel(step, before, channel);
  });
}

void Core::LifelineHungUp(absl::Time now, SessionId session, Effects* effects, EndReason why) {
  Run(now, effects, [&](StepContext& step) { managers_->sessions.LifelineHungUp(step, session, why); });
}

void Core::ChannelHungUp(absl::Time now, ChannelId channel, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->sessions.ChannelHungUp(step, channel); });
}

void Core::ProcessesStopped(absl::Time now, const std::vector<ChannelId>& channels, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->permits.SkipStopped(step, channels); });
}

void Core::DeliveryAcknowledged(absl::Time now, ChannelId channel, uint64_t number, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->sessions.DeliveryAcknowledged(step, channel, number); });
}

void Core::ImportLetGo(absl::Time now, ChannelId channel, ImportId import, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->blocks.ImportLetGo(step, channel, import); });
}

absl::StatusOr<ReleaseResult> Core::GiveBack(absl::Time now, ChannelId channel, AcquisitionId acquisition, bool if_idle,
                                             Effects* effects) {
  return Run(now, effects,
             [&](StepContext& step) { return managers_->permits.GiveBack(step, channel, acquisition, if_idle); });
}

void Core::BlockHandedOver(absl::Time now, ChannelId channel, BlockId block, const std::vector<HandedMark>& marks,
                           Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->fences.BlockHandedOver(step, channel, block, marks); });
}

void Core::Acquire(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                   const AcquireRequest& request, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->permits.Acquire(step, call, caller, tag, request); });
}

void Core::AcquireGang(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                       const GangRequest& request, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->permits.AcquireGang(step, call, caller, tag, request); });
}

void Core::Release(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag, AcquisitionId acquisition,
                   Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->permits.Release(step, call, caller, tag, acquisition); });
}

void Core::KeepPermits(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                       const KeepPermitsRequest& request, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->permits.KeepPermits(step, call, caller, tag, request); });
}

void Core::ReleaseIfIdle(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                         const ReleaseIfIdleRequest& request, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->permits.ReleaseIfIdle(step, call, caller, tag, request); });
}

void Core::Allocate(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                    const AllocateRequest& request, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->allocations.Allocate(step, call, caller, tag, request); });
}

void Core::Free(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag, const FreeRequest& request,
                Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->blocks.Free(step, call, caller, tag, request); });
}

void Core::Publish(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                   const PublishRequest& request, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->blocks.Publish(step, call, caller, tag, request); });
}

void Core::Unpublish(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                     const UnpublishRequest& request, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->blocks.Unpublish(step, call, caller, tag, request); });
}

void Core::Reserve(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                   const ReserveRequest& request, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->reservations.Reserve(step, call, caller, tag, request); });
}

void Core::ReleaseReservation(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                              ReservationId reservation, Effects* effects) {
  Run(now, effects,
      [&](StepContext& step) { managers_->reservations.ReleaseReservation(step, call, caller, tag, reservation); });
}

void Core::MakePlan(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                    const PlanRequest& request, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->plans.MakePlan(step, call, caller, tag, request); });
}

void Core::Replan(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                  const ReplanRequest& request, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->plans.Replan(step, call, caller, tag, request); });
}

void Core::ReleasePlan(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag, PlanId plan,
                       Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->plans.ReleasePlan(step, call, caller, tag, plan); });
}

void Core::Grant(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag, const GrantRequest& request,
                 Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->blocks.Grant(step, call, caller, tag, request); });
}

void Core::Import(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                  const ImportRequest& request, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->blocks.Import(step, call, caller, tag, request); });
}

void Core::OpenStream(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                      const OpenStreamRequest& request, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->fences.OpenStream(step, call, caller, tag, request); });
}

void Core::CloseStream(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                       const CloseStreamRequest& request, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->fences.CloseStream(step, call, caller, tag, request); });
}

void Core::PrepareUse(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                      const PrepareUseRequest& request, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->fences.PrepareUse(step, call, caller, tag, request); });
}

void Core::FinishUse(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                     const FinishUseRequest& request, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->fences.FinishUse(step, call, caller, tag, request); });
}

void Core::AbandonUse(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                      const AbandonUseRequest& request, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->fences.AbandonUse(step, call, caller, tag, request); });
}

void Core::ObtainModule(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                        const ObtainModuleRequest& request, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->modules.ObtainModule(step, call, caller, tag, request); });
}

void Core::StoreModule(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                       const StoreModuleRequest& request, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->modules.StoreModule(step, call, caller, tag, request); });
}

void Core::AbandonModule(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                         const AbandonModuleRequest& request, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->modules.AbandonModule(step, call, caller, tag, request); });
}

absl::StatusOr<BlockView> Core::ClearTorn(absl::Time now, const Caller& caller, BlockId block, Effects* effects) {
  return Run(now, effects, [&](StepContext& step) { return managers_->fences.ClearTorn(step, caller, block); });
}

void Core::Forget(absl::Time now, CallId call, const Caller& caller, uint64_t sequence, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->requests.Forget(step, call, caller, sequence); });
}

void Core::BlockCreated(absl::Time now, BlockId block, const absl::Status& status, Effects* effects,
                        const IpcHandle& handle) {
  Run(now, effects, [&](StepContext& step) { managers_->workers.BlockCreated(step, block, status, handle); });
}

void Core::BlockReleased(absl::Time now, BlockId block, const absl::Status& status, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->workers.BlockReleased(step, block, status); });
}

void Core::WorkerAtWork(absl::Time now, uint32_t device, WorkerKind worker_kind, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->workers.WorkerAtWork(step, device, worker_kind); });
}

void Core::BlockLost(absl::Time now, BlockId block, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->blocks.BlockLost(step, block); });
}

void Core::WorkerUp(absl::Time now, uint32_t device, WorkerKind worker_kind, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->workers.WorkerUp(step, device, worker_kind); });
}

void Core::DeviceRead(absl::Time now, uint32_t device, const DeviceReading& reading, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->devices.DeviceRead(step, device, reading); });
}

void Core::DeviceSurveyed(absl::Time now, uint32_t device, const DeviceSurvey& survey, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->devices.DeviceSurveyed(step, device, survey); });
}

void Core::MonitorUp(absl::Time now, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->devices.MonitorUp(step); });
}

void Core::MonitorDown(absl::Time now, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->devices.MonitorDown(step); });
}

void Core::ContextMeasured(absl::Time now, uint32_t ordinal, Bytes bytes, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->workers.ContextMeasured(step, ordinal, bytes); });
}

void Core::WorkerDown(absl::Time now, uint32_t device, WorkerKind worker_kind, DeviceState state, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->workers.WorkerDown(step, device, worker_kind, state); });
}

void Core::ReportDevice(absl::Time now, uint32_t device, WorkerKind worker_kind, const DeviceReport& report,
                        Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->devices.ReportDevice(step, device, worker_kind, report); });
}

void Core::RestoreModule(absl::Time now, const ModuleRecord& record, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->modules.RestoreModule(step, record); });
}

void Core::ModuleStored(absl::Time now, ModuleId module, CompileId compile, const absl::Status& status,
                        Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->modules.ModuleStored(step, module, compile, status); });
}

void Core::ModuleLoaded(absl::Time now, ModuleId module, const absl::Status& status, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->modules.ModuleLoaded(step, module, status); });
}

void Core::DrainToStop(absl::Time now, CallId call, const Caller& caller, absl::Time deadline, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->shutdown.DrainToStop(step, call, caller, deadline); });
}

absl::StatusOr<PoolView> Core::SetPool(absl::Time now, absl::string_view pool, const PoolChange& change,
                                       Effects* effects) {
  return Run(now, effects, [&](StepContext& step) { return managers_->permits.SetPool(step, pool, change); });
}

absl::StatusOr<PermitView> Core::RevokePermit(absl::Time now, PermitId permit, Effects* effects, uint32_t by_uid) {
  return Run(now, effects, [&](StepContext& step) { return managers_->permits.RevokePermit(step, permit, by_uid); });
}

void Core::SetQuotas(absl::Time now, const QuotaTable& quotas, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->permits.SetQuotas(step, quotas); });
}

void Core::ConfigureBudget(absl::Time now, uint32_t device, Bytes limit, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->budgets.ConfigureBudget(step, device, limit); });
}

absl::StatusOr<BlockView> Core::Recall(absl::Time now, const Caller& caller, BlockId block, Effects* effects) {
  return Run(now, effects, [&](StepContext& step) { return managers_->blocks.Recall(step, caller, block); });
}

absl::StatusOr<BlockView> Core::FreeById(absl::Time now, const Caller& caller, BlockId block, Effects* effects) {
  return Run(now, effects, [&](StepContext& step) { return managers_->blocks.FreeById(step, caller, block); });
}

void Core::Reap(absl::Time now, CallId call, const Caller& caller, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->workers.Reap(step, call, caller); });
}

absl::StatusOr<DeviceView> Core::EnableDevice(absl::Time now, uint32_t device, Effects* effects) {
  return Run(now, effects, [&](StepContext& step) { return managers_->devices.EnableDevice(step, device); });
}

absl::StatusOr<DeviceView> Core::DrainDevice(absl::Time now, uint32_t device, const std::string& reason,
                                             Effects* effects) {
  return Run(now, effects, [&](StepContext& step) { return managers_->devices.DrainDevice(step, device, reason); });
}

absl::StatusOr<DeviceView> Core::UndrainDevice(absl::Time now, uint32_t device, Effects* effects) {
  return Run(now, effects, [&](StepContext& step) { return managers_->devices.UndrainDevice(step, device); });
}

absl::StatusOr<DeviceView> Core::ResetDevice(absl::Time now, uint32_t device, Effects* effects) {
  return Run(now, effects, [&](StepContext& step) { return managers_->devices.ResetDevice(step, device); });
}

absl::StatusOr<DeviceView> Core::DropDevice(absl::Time now, uint32_t device, Effects* effects) {
  return Run(now, effects, [&](StepContext& step) { return managers_->devices.DropDevice(step, device); });
}

absl::StatusOr<SessionView> Core::EndSession(absl::Time now, const Caller& caller, SessionId session,
                                             Effects* effects) {
  return Run(now, effects, [&](StepContext& step) { return managers_->sessions.EndSession(step, caller, session); });
}

void Core::Resume(absl::Time now, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->Resume(step); });
}

void Core::ProcessGone(absl::Time now, ChannelId channel, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->sessions.EndProcess(step, channel); });
}

void Core::CancelCall(absl::Time now, CallId call, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->requests.CancelCall(step, call); });
}

void Core::Tick(absl::Time now, Effects* effects) {
  Run(now, effects, [&](StepContext& step) {
    managers_->devices.EndHungWorkers(step);
    managers_->devices.EndHungMonitor(step);
    managers_->workers.EndIdleContexts(step);
    managers_->workers.EndHolds(step);
  });
}

void Core::ShutDown(absl::Time now, Effects* effects) {
  Run(now, effects, [&](StepContext& step) { managers_->shutdown.ShutDown(step); });
}

absl::StatusOr<std::vector<BudgetView>> Core::SetBudget(absl::Time now, const Caller& caller, SetBudgetRequest request,
                                                        Effects* effects) {
  if (auto* const named = std::get_if<Account>(&request.of)) *named = managers_->budgets.AccountNamed(*named);
  return Run(now, effects, [&](StepContext& step) { return managers_->budgets.ChangeBudget(step, &caller, request); });
}

absl::Status Core::RestoreBudget(absl::Time now, const SetBudgetRequest& request, Effects* effects) {
  return Run(now, effects, [&](StepContext& step) {
    return managers_->budgets.ChangeBudget(step, /*caller=*/nullptr, request).status();
  });
}

absl::StatusOr<DeviceView> Core::RestartDevice(absl::Time now, uint32_t device, Effects* effects) {
  return Run(now, effects,
             [&](StepContext& step) { return managers_->devices.Restart(step, device, WorkerKind::kMain); });
}

absl::StatusOr<DeviceView> Core::RestartContext(absl::Time now, uint32_t device, Effects* effects) {
  return Run(now, effects,
             [&](StepContext& step) { return managers_->devices.Restart(step, device, WorkerKind::kContext); });
}

// ---- Calls without a step -------------------------------------------------------------------------------------

absl::Time Core::next_deadline() const { return managers_->next_deadline(); }

absl::Status Core::Authenticate(const Caller& caller) const {
  // The kernel and the socket's mode have authorised the observer to read, and it may do nothing else.
  return caller.observer ? absl::OkStatus() : managers_->sessions.Authenticate(caller).status();
}

OutCounts Core::CountOut() const { return managers_->shutdown.CountOut(); }
bool Core::stopping() const { return managers_->shutdown.draining(); }

absl::StatusOr<SessionId> Core::OpenSession(absl::Time now, const Secret& secret, const Tenant& tenant,
                                            absl::string_view label, const ProcessInfo& opener, bool of_operator) {
  return managers_->sessions.OpenSession(now, secret, tenant, label, opener, of_operator);
}

absl::StatusOr<ChannelId> Core::JoinSession(absl::Time now, SessionId session, const Secret& secret,
                                            const Tenant& tenant, const ProcessInfo& process) {
  return managers_->sessions.JoinSession(now, session, secret, tenant, process);
}

void Core::RecordSessionCredentials(absl::Time now, SessionId session, uint64_t inode) {
  managers_->sessions.RecordSessionCredentials(now, session, inode);
}

absl::Status Core::CheckRejoin(SessionId session, const Secret& secret, const Tenant& tenant, ChannelId channel) const {
  return managers_->sessions.CheckRejoin(session, secret, tenant, channel);
}

void Core::RecordCorruptModules(uint64_t count) { managers_->modules.RecordCorruptModules(count); }

OperatorSettings Core::ListOperatorSettings() const { return managers_->ListOperatorSettings(); }

absl::StatusOr<SessionView> Core::GetSession(const Caller& caller, SessionId session) const {
  return managers_->sessions.GetSession(caller, session);
}

Page<SessionView> Core::ListSessions(const Caller& caller, const PageRequest& page) const {
  return managers_->sessions.ListSessions(caller, page);
}

absl::StatusOr<PoolView> Core::GetPool(absl::string_view pool) const { return managers_->permits.GetPool(pool); }

Page<PoolView> Core::ListPools(const PageRequest& page) const { return managers_->permits.ListPools(page); }

uint64_t Core::CountJudged() const { return managers_->permits.CountJudged(); }

uint64_t Core::CountGaugesRead() const { return managers_->permits.CountGaugesRead(); }

Page<PermitView> Core::ListPermits(const Caller& caller, absl::string_view pool, const PageRequest& page) const {
  return managers_->permits.ListPermits(caller, pool, page);
}

absl::StatusOr<WaitView> Core::ExplainWait(const Caller& caller, uint64_t waiter) const {
  return managers_->permits.ExplainWait(caller, waiter);
}

std::optional<uint64_t> Core::FindWaiter(const Caller& caller, uint64_t sequence) const {
  return managers_->permits.FindWaiter(caller, sequence);
}

std::vector<WaiterView> Core::ListWaiters(const Caller& caller, absl::string_view pool, uint64_t most) const {
  return managers_->permits.ListWaiters(caller, pool, most);
}

PermitCounts Core::CountPermits(const Caller& caller, absl::string_view pool) const {
  return managers_->permits.CountPermits(caller, pool);
}

Page<BlockView> Core::ListBlocks(const Caller& caller, const PageRequest& page) const {
  return managers_->blocks.ListBlocks(caller, page);
}

Page<StreamView> Core::ListStreams(const Caller& caller, const PageRequest& page) const {
  return managers_->fences.ListStreams(caller, page);
}

Page<ReservationView> Core::ListReservations(const Caller& caller, const PageRequest& page) const {
  return managers_->reservations.ListReservations(caller, page);
}

Page<PlanView> Core::ListPlans(const Caller& caller, const PageRequest& page) const {
  return managers_->plans.ListPlans(caller, page);
}

absl::StatusOr<PlanView> Core::GetPlan(const Caller& caller, PlanId plan) const {
  return managers_->plans.GetPlan(caller, plan);
}

Page<BudgetView> Core::ListBudgets(const Caller& caller, const PageRequest& page) const {
  return managers_->budgets.ListBudgets(caller, page);
}

UsageView Core::GetUsage(const Caller& caller) const { return managers_->blocks.GetUsage(caller); }

std::vector<LeaseRecord> Core::ListLeases() const { return managers_->leases.ListLeases(); }

Page<ModuleView> Core::ListModules(const Caller& caller, const PageRequest& page) const {
  return managers_->modules.ListModules(caller, page);
}

ModuleUsage Core::GetModuleUsage(const Caller& caller) const { return managers_->modules.GetModuleUsage(caller); }

std::vector<DeviceView> Core::ListDevices() const { return managers_->devices.ListDevices(); }

std::vector<IslandView> Core::ListIslands() const { return managers_->devices.ListIslands(); }

std::vector<StrayView> Core::ListStrays(const Caller& caller) const { return managers_->devices.ListStrays(caller); }

void Core::TakeChanges(RecordBatch* changes) { managers_->TakeChanges(changes); }

LedgerRecords Core::AllRecords() const { return managers_->AllRecords(); }

absl::Status Core::CheckDevices(const RecordViews& records, const ArchiveOrigin& origin) const {
  return managers_->devices.CheckDeviceRecords(records, origin);
}

absl::Status Core::Restore(const RecordViews& records, const ArchiveOrigin& origin) {
  return managers_->Restore(records, origin);
}

RestoredState Core::WhatStands() const { return managers_->WhatStands(); }

absl::Status Core::CheckInvariants() const { return managers_->CheckInvariants(); }

absl::Status Core::CheckReferences() const { return managers_->CheckReferences(); }

absl::Status Core::CheckSums() const { return managers_->CheckSums(); }

}  // namespace berth::core
