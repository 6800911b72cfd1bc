#include "daemon/core/devices/workers.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "daemon/core/managers.h"
#include "daemon/core/types/record_kind.h"

namespace berth::core {
namespace {

// No worker gets a command after so many workers ended while they executed it. The first may have ended for another
// reason. The supervisor does not stop the device yet (WorkerRestarts::kMax).
constexpr int kMaxEndedWorkers = 2;

bool IsOutOfMemory(const absl::Status& status) { return IsRefusal(status, Reason::kOutOfMemory); }

}  // namespace

void Workers::BlockCreated(StepContext& step, BlockId block, const absl::Status& status, const IpcHandle& handle) {
  Block* const made = core_.blocks.Find(block);
  if (made == nullptr || !InTheMaking(made->phase) || !made->asked) return;
  made->asked = made->asked_earlier = false;
  made->ended_workers = 0;
  core_.devices.DeviceOf(*made).worker(made->worker_kind()).calls.OnAnswered(step.now, made->bytes);
  if (!status.ok()) {
    NotMade(step, *made, status);
  } else {
    made->ipc_handle = handle;
    core_.blocks.Apply(step, *made, BlockEvent::kMade);
    if (made->phase == BlockPhase::kLive) core_.allocations.FinishMaking(step, *made);
  }
  step.MarkCapacityChanged();
}

void Workers::NotMade(StepContext& step, Block& block, const absl::Status& status) {
  Device& device = core_.devices.DeviceOf(block);
  const bool wanted = block.phase == BlockPhase::kReserved;
  if (wanted && !block.retried && IsOutOfMemory(status)) {
    // The budget has capacity that the device lacks; freeing the warm blocks may provide it.
    for (const BlockId warm : device.warm.All()) core_.blocks.Abandon(step, *core_.blocks.Find(warm));
    if (device.releases_asked > device.releases_ended) {
      block.retried = true;
      device.retries.push_back({.after_release = device.releases_asked, .block = block.id});
      return;
    }
  }
  const RequestId request = block.request;
  core_.blocks.Unmake(step, block);
  if (wanted) core_.requests.Answer(step, request, status);
}

void Workers::BlockReleased(StepContext& step, BlockId block, const absl::Status& status) {
  Block* const released = core_.blocks.Find(block);
  if (released == nullptr || released->phase != BlockPhase::kRetired) return;
  Device& device = core_.devices.DeviceOf(*released);
  // `asked` is false if the death of its worker released the block.
  const bool asked = std::exchange(released->asked, false);
  if (asked) {
    ++device.releases_ended;
    device.worker(released->worker_kind()).calls.OnAnswered(step.now, released->bytes);
  }
  if (released->owned() && (status.ok() || asked))
    core_.memory_log.Log(step, core_.memory_log.RecordOf(*released, LogAction::kRelease), status);
  RecordReaped(step, *released, status.ok());
  if (status.ok()) {
    Unstick(*released);
    core_.blocks.Apply(step, *released, BlockEvent::kReleased);
  } else if (asked) {
    Stick(step, *released, status.message());
  }
  RunRetries(step, device);
  step.MarkCapacityChanged();
}

void Workers::WorkerAtWork(StepContext& step, uint32_t device, WorkerKind worker_kind) {
  const auto found = core_.devices.all().find(device);
  if (found == core_.devices.all().end()) return;
  // The worker may be executing the largest of them.
  Bytes most;
  for (const Block* const block : core_.blocks.table().OfDevice(device)) {
    const bool under_way = InTheMaking(block->phase) || block->phase == BlockPhase::kRetired;
    if (block->worker_kind() == worker_kind && under_way) most = std::max(most, block->bytes);
  }
  CallWatch& calls = found->second.worker(worker_kind).calls;
  calls.Clear();
  calls.OnAsked(step.now, most);
}

void Workers::WorkerUp(StepContext& step, uint32_t device, WorkerKind worker_kind) {
  const auto found = core_.devices.all().find(device);
  if (found == core_.devices.all().end()) return;
  Device& served = found->second;
  Worker& up = served.worker(worker_kind);
  if (up.state == DeviceState::kDropped) return;
  up.state = DeviceState::kReady;
  up.calls.Clear();
  if (worker_kind == WorkerKind::kMain) served.lost = served.tested = false;
  core_.devices.MarkDevicesChanged(step);
  for (const Block* const there : core_.blocks.table().OfDevice(device)) {
    if (there->asked || there->worker_kind() != worker_kind) continue;
    if (!InTheMaking(there->phase) && there->phase != BlockPhase::kRetired) continue;
    Block* const block = core_.blocks.Find(there->id);
    if (InTheMaking(block->phase)) {
      AskCreate(step, *block);
      continue;
    }
    if (block->stuck && IsHeldBack(step, *block)) continue;
    // A new worker may succeed where the last one failed.
    Unstick(*block);
    AskRelease(step, *block);
  }
  if (worker_kind == WorkerKind::kContext) MarkContextNeed(step, served);
  step.MarkCapacityChanged();
}

void Workers::WorkerDown(StepContext& step, uint32_t device, WorkerKind worker_kind, DeviceState state) {
  const auto found = core_.devices.all().find(device);
  if (found == core_.devices.all().end()) return;
  Device& served = found->second;
  Worker& down = served.worker(worker_kind);
  if (worker_kind == WorkerKind::kMain) {
    // The test found that the device does not work. A new test needs another loss and return of the device, or an
    // operator's request.
    if (state == DeviceState::kStopped && served.tested) served.lost = false;
    served.tested = state == DeviceState::kProbation;
  }
  if (down.state != DeviceState::kDropped) down.state = state;
  core_.devices.MarkDevicesChanged(step);
  down.calls.Clear();
  if (worker_kind == WorkerKind::kContext) {
    MarkContextNeed(step, served);
    if (!down.abandoned) {
      down.lost_before = down.generation;
      served.account.set_daemon(Bytes(0));
    }
  }
  const BlockId executed_last = ExecutedLast(device, worker_kind);
  if (executed_last && !down.replaced) ChargeEnd(step, *core_.blocks.Find(executed_last));
  for (const Block* const there : core_.blocks.table().OfDevice(device)) {
    const bool goes = there->phase == BlockPhase::kAbandoned || there->phase == BlockPhase::kRetired;
    if (there->worker_kind() != worker_kind || !(there->asked || goes)) continue;
    Block& block = *core_.blocks.Find(there->id);
    const bool asked = std::exchange(block.asked, false);
    RecordReaped(step, block, /*back=*/false);
    if (block.phase == BlockPhase::kAbandoned) {
      core_.blocks.Unmake(step, block);
    } else if (block.phase == BlockPhase::kRetired) {
      served.releases_ended += asked ? 1 : 0;
      if (core_.blocks.IsLost(block)) {
        AskRelease(step, block);
      } else if (block.id == executed_last && block.ended_workers >= kMaxEndedWorkers) {
        const absl::Status why = Refuse(Reason::kDriver, "{ended} workers ended while they released this block: {why}",
                                        {{"ended", block.ended_workers}, {"why", down.last_failure}});
        if (block.owned()) core_.memory_log.Log(step, core_.memory_log.RecordOf(block, LogAction::kRelease), why);
        Stick(step, block, why.message());
      }
    } else if (block.id == executed_last && block.ended_workers >= kMaxEndedWorkers) {
      NotMade(step, block,
              Refuse(Reason::kDriver,
                     "device {device}: {ended} workers ended while they made this block of {requested} bytes, which is "
                     "not tried again: {why}",
                     {{"device", block.device},
                      {"ended", block.ended_workers},
                      {"requested", block.bytes.count()},
                      {"why", down.last_failure}}));
    }
  }
  RunRetries(step, served);
  if (!down.in_service()) RefuseWaiting(step, served, worker_kind);
  StartContextIfWanted(step, served);
  step.MarkCapacityChanged();
}

BlockId Workers::ExecutedLast(uint32_t device, WorkerKind worker_kind) const {
  const Block* first = nullptr;
  for (const Block* const there : core_.blocks.table().OfDevice(device)) {
    if (!there->asked || there->asked_as == 0 || there->worker_kind() != worker_kind) continue;
    if (first == nullptr || there->asked_as < first->asked_as) first = there;
  }
  return first == nullptr ? BlockId() : first->id;
}

void Workers::ChargeEnd(StepContext& step, Block& block) {
  ++block.ended_workers;
  // The daemon's own blocks are no user's command.
  if (!block.owned()) return;
  ended_.OnEnded(step.now, {.device = block.device,
                            .worker_kind = block.worker_kind(),
                            .user = block.claimant().user});
}

absl::Status Workers::CheckHold(StepContext& step, const Device& device, WorkerKind worker_kind,
                                const Tenant& tenant) const {
  const EndedWorkers::Key key = {
      .device = device.config.ordinal, .worker_kind = worker_kind, .user = UserOf(tenant)};
  const std::optional<absl::Time> until = ended_.HeldUntil(step.now, key);
  if (!until.has_value()) return absl::OkStatus();
  const absl::Duration left = *until - step.now;
  return RefuseWithRetry(Reason::kDriver, left,
                         "device {device}: {ended} workers ended while they executed commands of user {user}, whose "
                         "commands are held back for {seconds} s; use another device, or find the cause: {why}",
                         {{"device", key.device},
                          {"ended", EndedWorkers::kMax},
                          {"user", key.user},
                          {"seconds", absl::ToInt64Seconds(absl::Ceil(left, absl::Seconds(1)))},
                          {"why", device.worker(worker_kind).last_failure}});
}

absl::Status Workers::CheckHoldOf(StepContext& step, const Block& block) const {
  if (!block.owned()) return absl::OkStatus();
  return CheckHold(step, core_.devices.At(block.device), block.worker_kind(), block.tenant);
}

void Workers::EndHolds(StepContext& step) {
  for (const EndedWorkers::Key& key : ended_.Forget(step.now)) {
    const Device& device = core_.devices.At(key.device);
    if (device.worker(key.worker_kind).state != DeviceState::kReady) continue;
    for (const Block* const there : core_.blocks.table().OfDevice(key.device)) {
      const bool held = there->stuck && there->worker_kind() == key.worker_kind && there->claimant().user == key.user;
      if (!held || IsHeldBack(step, *there)) continue;
      Block& block = *core_.blocks.Find(there->id);
      Unstick(block);
      AskRelease(step, block);
    }
  }
}

void Workers::Stick(StepContext& step, Block& block, absl::string_view why) {
  block.stuck = true;
  block.release_error = ToMessage(why, LogRecord::kMaxMessageBytes);
  core_.budgets.ForEachBudget(block, [&](ByteBudget& budget) { budget.MarkStuck(block.bytes); });
  step.MarkCapacityChanged();
}

void Workers::Unstick(Block& block) {
  if (!std::exchange(block.stuck, false)) return;
  core_.budgets.ForEachBudget(block, [&](ByteBudget& budget) { budget.UnmarkStuck(block.bytes); });
}

void Workers::RefuseWaiting(StepContext& step, Device& device, WorkerKind worker_kind) {
  const absl::Status why = Devices::OutOfService(device, worker_kind);
  for (const Block* const there : core_.blocks.table().OfDevice(device.config.ordinal)) {
    if (there->worker_kind() != worker_kind || !InTheMaking(there->phase) || there->asked) continue;
    NotMade(step, *core_.blocks.Find(there->id), why);
  }
  std::vector<RequestId> requests;
  for (const uint64_t number : core_.byte_queue.table().Of(device.config.ordinal, worker_kind)) {
    requests.push_back(core_.byte_queue.table().FindNumber(number)->request);
  }
  for (const RequestId& request : requests) core_.byte_queue.TurnAway(step, request, why);
  step.MarkCapacityChanged();
}

void Workers::AskCreate(StepContext& step, Block& block) {
  Worker& worker = core_.devices.DeviceOf(block).worker(block.worker_kind());
  if (block.worker_kind() == WorkerKind::kMain && block.asked_earlier && block.memory_generation < worker.generation) {
    // An earlier broker may have had the block created. The worker would return that memory as its answer, but it is
    // lost.
    const absl::Status lost =
        Refuse(Reason::kDeviceRebuilding, "device {device} has lost its memory: send the request again",
               {{"device", block.device}});
    return NotMade(step, block, lost);
  }
  block.memory_generation = worker.generation;
  if (worker.state != DeviceState::kReady) return;
  // A block that another broker may have had made is settled by a worker only.
  if (const absl::Status held = CheckHoldOf(step, block); !held.ok() && !block.asked_earlier)
    return NotMade(step, block, held);
  block.asked = true;
  block.asked_as = ++asks_;
  worker.calls.OnAsked(step.now, block.bytes);
  step.Emit(
      CreateBlock{.device = block.device, .worker_kind = block.worker_kind(), .block = block.id, .bytes = block.bytes});
}

bool Workers::IsHeldBack(StepContext& step, const Block& block) const {
  return !core_.blocks.IsLost(block) &&
         (block.ended_workers >= kMaxEndedWorkers || !CheckHoldOf(step, block).ok());
}

void Workers::AskRelease(StepContext& step, Block& block) {
  const Worker& worker = core_.devices.DeviceOf(block).worker(block.worker_kind());
  const absl::Status held = CheckHoldOf(step, block);
  if (held.ok() || core_.blocks.IsLost(block)) return SendRelease(step, block);
  if (worker.state == DeviceState::kReady && core_.fences.MayGoBack(step, block)) Stick(step, block, held.message());
}

void Workers::SendRelease(StepContext& step, Block& block) {
  Device& device = core_.devices.DeviceOf(block);
  Worker& worker = device.worker(block.worker_kind());
  const bool lost = core_.blocks.IsLost(block);
  if (!lost && worker.state != DeviceState::kReady) return;
  if (!core_.fences.MayGoBack(step, block)) return;
  block.asked = true;
  // The broker itself gives up a block whose memory is lost.
  block.asked_as = lost ? 0 : ++asks_;
  ++device.releases_asked;
  if (!lost) worker.calls.OnAsked(step.now, block.bytes);
  step.Emit(ReleaseBlock{.device = block.device, .worker_kind = block.worker_kind(), .block = block.id, .lost = lost});
}

void Workers::RunRetries(StepContext& step, Device& device) {
  while (!device.retries.empty() && device.retries.front().after_release <= device.releases_ended) {
    Block* const block = core_.blocks.Find(device.retries.front().block);
    device.retries.pop_front();
    if (block != nullptr && block->phase == BlockPhase::kReserved && !block->asked) AskCreate(step, *block);
  }
}

void Workers::Reap(StepContext& step, CallId call, const Caller& caller) {
  absl::Status may = core_.sessions.Authenticate(caller).status();
  if (may.ok() && !caller.admin) {
    may = Refuse(Reason::kAdminOnly, "{verb} needs admin.sock, which accepts operators only", {{"verb", "ReapBlocks"}});
  }
  if (may.ok() && core_.shutdown.begun()) may = Refuse(Reason::kShuttingDown, "the daemon is stopping");
  if (!may.ok()) return core_.requests.Reply(step, call, may);
  Reaping reaping;
  for (const auto& [ordinal, device] : core_.devices.all()) {
    for (const Block* const there : core_.blocks.table().OfDevice(ordinal)) {
      if (!there->stuck || device.worker(there->worker_kind()).state != DeviceState::kReady) continue;
      Block& block = *core_.blocks.Find(there->id);
      Unstick(block);
      // An operator may have found the cause: also a release at which workers ended is tried again.
      SendRelease(step, block);
      reaping.open.insert(block.id);
      ++reaping.result.tried;
      reaping.result.tried_bytes = Bytes(reaping.result.tried_bytes.count() + block.bytes.count());
    }
  }
  core_.memory_log.Log(step, {.action = LogAction::kReap,
                              .session = caller.credentials.session,
                              .tenant = caller.tenant,
                              .bytes = reaping.result.tried_bytes});
  if (reaping.open.empty()) return core_.requests.Reply(step, call, Response(reaping.result));
  reapings_.emplace(call, std::move(reaping));
}

void Workers::RecordReaped(StepContext& step, const Block& block, bool back) {
  for (auto it = reapings_.begin(); it != reapings_.end();) {
    Reaping& reaping = it->second;
    if (reaping.open.erase(block.id) > 0 && back) {
      ++reaping.result.back;
      reaping.result.back_bytes = Bytes(reaping.result.back_bytes.count() + block.bytes.count());
    }
    if (!reaping.open.empty()) {
      ++it;
      continue;
    }
    core_.requests.Reply(step, it->first, Response(reaping.result));
    it = reapings_.erase(it);
  }
}

bool Workers::CancelReap(StepContext& step, CallId call, const absl::Status& status) {
  if (reapings_.erase(call) == 0) return false;
  core_.requests.Reply(step, call, status);
  return true;
}

void Workers::CancelReaps(StepContext& step, const absl::Status& status) {
  for (const auto& [call, reaping] : std::exchange(reapings_, {})) core_.requests.Reply(step, call, status);
}

// ---- Context workers: started for a block that only they can make, ended when no such block is left ----------

absl::Status Workers::NoSuchKind(ExportKind kind, absl::string_view why) {
  return Refuse(Reason::kExportKind, "export kind {kind}: {why}", {{"kind", ExportKindName(kind)}, {"why", why}});
}

absl::Status Workers::CheckHasContext(const Device& device) {
  if (device.config.cuda_ipc) return absl::OkStatus();
  return NoSuchKind(ExportKind::kCudaIpc,
                    absl::StrCat("device ", device.config.ordinal, ": ", device.config.why_no_cuda_ipc));
}

absl::StatusOr<ExportKind> Workers::ChooseKind(const Device& device, const ExportKinds& kinds) const {
  if (kinds.fd) return ExportKind::kFd;
  BERTH_RETURN_IF_ERROR(CheckHasContext(device));
  return ExportKind::kCudaIpc;
}

void Workers::StartContextIfWanted(StepContext& step, Device& device) {
  if (device.context.state != DeviceState::kIdle || core_.shutdown.begun()) return;
  const bool awaited = !core_.byte_queue.table().Of(device.config.ordinal, WorkerKind::kContext).empty();
  bool making = false;
  for (const Block* const block : core_.blocks.table().OfDevice(device.config.ordinal)) {
    making = making || (block->worker_kind() == WorkerKind::kContext && InTheMaking(block->phase));
  }
  if (awaited || making) core_.devices.SendCommand(step, device, WorkerKind::kContext, WorkerCommand::kStart, "");
}

void Workers::MarkContextNeed(StepContext& step, Device& device) {
  Worker& context = device.context;
  if (context.blocks > 0 || context.state != DeviceState::kReady) {
    context.idle_at = absl::InfiniteFuture();
  } else if (context.idle_at == absl::InfiniteFuture()) {
    context.idle_at = step.now + core_.config.context_idle;
  }
}

void Workers::EndIdleContexts(StepContext& step) {
  for (auto& [ordinal, device] : core_.devices.all()) {
    if (device.context.idle_at > step.now) continue;
    core_.devices.SendCommand(step, device, WorkerKind::kContext, WorkerCommand::kEnd, "idle for workers.context_idle");
  }
}

void Workers::ContextMeasured(StepContext& step, uint32_t ordinal, Bytes bytes) {
  const auto found = core_.devices.all().find(ordinal);
  if (found == core_.devices.all().end() || found->second.context.state != DeviceState::kReady) return;
  Device& device = found->second;
  const bool measured = bytes > Bytes();
  // Without a measurement the daemon's context counts as much as the configured one.
  device.account.set_daemon(measured ? bytes : device.context_cost());
  // Measured once for each device model and persisted: the context of any process costs as much.
  for (auto& [other_ordinal, other] : core_.devices.all()) {
    if (other.config.name != device.config.name) continue;
    step.journal->Touch(RecordKind::kDevice, other_ordinal);
    if (!measured || !other.config.measure_context) continue;
    other.context_bytes = bytes;
    core_.devices.placement().SetContext(other_ordinal, bytes);
  }
  step.MarkCapacityChanged();
}

}  // namespace berth::core
