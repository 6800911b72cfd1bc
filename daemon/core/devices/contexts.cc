// Context workers: started for a block that only they can make, ended when no such block is left.

#include <cstdint>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/status_macros.h"
#include "daemon/core/devices/workers.h"
#include "daemon/core/managers.h"
#include "daemon/core/types/record_kind.h"

namespace berth::core {

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
  const bool said = bytes > Bytes();
  // Without a measurement the daemon's context counts as much as the configured one.
  device.account.set_daemon(said ? bytes : device.context_cost());
  // Measured once for each device model and persisted: the context of any process costs as much.
  for (auto& [other_ordinal, other] : core_.devices.all()) {
    if (other.config.name != device.config.name) continue;
    step.journal->Touch(RecordKind::kDevice, other_ordinal);
    if (!said || !other.config.measure_context) continue;
    other.context_bytes = bytes;
    core_.devices.placement().SetContext(other_ordinal, bytes);
  }
  step.MarkCapacityChanged();
}

}  // namespace berth::core
