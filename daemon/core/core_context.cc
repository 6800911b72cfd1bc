// Context workers: started when somebody wants a block that only they make, ended when nobody has one.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"

namespace berth::core {
namespace {

absl::Status NoSuchKind(ExportKind kind, const absl::AlphaNum& why) {
  return Refuse(Reason::kExportKind, "export kind {kind}: {why}",
                {{"kind", ExportKindName(kind)}, {"why", why}});
}

}  // namespace

absl::Status Core::Impl::CheckHasContext(const Device& device) {
  if (device.config.cuda_ipc) return absl::OkStatus();
  return NoSuchKind(ExportKind::kCudaIpc,
                    absl::StrCat("device ", device.config.ordinal, ": ", device.config.why_no_cuda_ipc));
}

absl::StatusOr<ExportKind> Core::Impl::ChooseKind(const Device& device, const ExportKinds& kinds) const {
  if (kinds.fd) return ExportKind::kFd;
  BERTH_RETURN_IF_ERROR(CheckHasContext(device));
  return ExportKind::kCudaIpc;
}

absl::Status Core::Impl::CheckTakes(const Block& block, const ExportKinds& kinds, bool read_only) {
  if (!kinds.Has(block.export_kind)) {
    return NoSuchKind(block.export_kind, "the block is of this kind, and the caller does not take it");
  }
  if (read_only && block.export_kind == ExportKind::kCudaIpc) {
    return NoSuchKind(block.export_kind,
                      "whoever opens such a block can write it, so it cannot be read only");
  }
  return absl::OkStatus();
}

void Core::Impl::StartContextIfWanted(const Step& step, Device& device) {
  if (device.context.state != DeviceState::kIdle || shutting_down_) return;
  const auto& entries = room_.entries();
  const bool awaited = std::any_of(entries.begin(), entries.end(), [&](const Waiting& waiting) {
    return LaneOf(waiting.kind) == Lane::kContext && waiting.asks.front().device == device.config.ordinal;
  });
  bool making = false;
  for (const Block* const block : blocks_.OfDevice(device.config.ordinal)) {
    making = making || (block->lane() == Lane::kContext && InTheMaking(block->phase));
  }
  if (awaited || making) Order(step, device, Lane::kContext, DeviceOrder::kStart, "");
}

void Core::Impl::NoteContextNeed(const Step& step, Device& device) {
  Worker& context = device.context;
  if (context.blocks > 0 || context.state != DeviceState::kReady) {
    context.idle_at = absl::InfiniteFuture();
  } else if (context.idle_at == absl::InfiniteFuture()) {
    context.idle_at = step.now + config_.context_idle;
  }
}

void Core::Impl::EndIdleContexts(const Step& step) {
  for (auto& [ordinal, device] : devices_) {
    if (device.context.idle_at > step.now) continue;
    Order(step, device, Lane::kContext, DeviceOrder::kEnd, "nobody has needed it for long");
  }
}

bool Core::Impl::IsLost(const Block& block) const {
  return block.lane() == Lane::kContext &&
         block.memory_generation < devices_.at(block.device).context.lost_before;
}

void Core::ContextMeasured(absl::Time now, uint32_t ordinal, Bytes bytes, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto found = impl_->devices_.find(ordinal);
  if (found == impl_->devices_.end() || found->second.context.state != DeviceState::kReady) return;
  Device& device = found->second;
  const bool said = bytes > Bytes();
  // Else it takes what others are taken to take.
  device.account.set_daemon(said ? bytes : device.context_cost());
  // Once for each model, and kept: a process of anybody's pays as much.
  for (auto& [other_ordinal, other] : impl_->devices_) {
    if (other.config.name != device.config.name) continue;
    impl_->journal_.Touch(RowKind::kDevice, other_ordinal);
    if (!said || !other.config.measure_context) continue;
    other.context_bytes = bytes;
    impl_->placement_.SetContext(other_ordinal, bytes);
  }
  impl_->NoteRoom();
}

}  // namespace berth::core
