#include "daemon/service/conversion/memory_conversion.h"

#include <string.h>

#include <string>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/fence.pb.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/module.pb.h"
#include "berth/v1/resources.pb.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "daemon/service/conversion/conversion.h"
#include "daemon/service/conversion/device_conversion.h"
#include "daemon/service/conversion/fence_conversion.h"
#include "daemon/service/conversion/module_conversion.h"

namespace berth::service {
namespace {

void ToProto(const core::ImportView& view, v1::Import* out) {
  out->set_id(view.id.value());
  out->set_session(view.session.value());
  service::ToProto(view.process, out->mutable_process());
  out->set_read_only(static_cast<v1::ReadOnly>(view.read_only));
  service::ToProto(view.since, out->mutable_import_time());
  out->set_recalled(view.recalled);
}

// The core's enums have the wire's numbers.
static_assert(static_cast<int>(core::ExportKind::kCudaIpc) == v1::EXPORT_KIND_CUDA_IPC);
static_assert(static_cast<int>(core::ReadOnly::kCooperative) == v1::READ_ONLY_COOPERATIVE);
static_assert(static_cast<int>(core::BlockState::kQuarantined) == v1::Block::QUARANTINED);
static_assert(static_cast<int>(core::LogAction::kClearTorn) == v1::LogRecord::CLEAR_TORN);
static_assert(static_cast<int>(core::LogCause::kLost) == v1::LogRecord::LOST);
static_assert(static_cast<int>(core::Layer::kSession) == v1::Budget::SESSION);

// The core's enum has the wire's numbers.
static_assert(static_cast<int>(core::ModuleState::kCompiling) == v1::KeptModule::COMPILING);
static_assert(static_cast<int>(core::ModuleState::kStoring) == v1::KeptModule::STORING);
static_assert(static_cast<int>(core::ModuleState::kOnDisk) == v1::KeptModule::ON_DISK);
static_assert(static_cast<int>(core::ModuleState::kLoading) == v1::KeptModule::LOADING);
static_assert(static_cast<int>(core::ModuleState::kReady) == v1::KeptModule::READY);

std::string ToBytes(const Digest& digest) { return std::string(digest.bytes()); }

}  // namespace

absl::StatusOr<BlockHandle> FromProto(const v1::BlockHandle& handle) {
  BERTH_RETURN_IF_ERROR(ValidateLabel("handle.device_uuid", handle.device_uuid()));
  if (handle.block() == 0 || handle.device_uuid().empty()) {
    return Refuse(Reason::kInvalidField, "invalid {field} \"{value}\": expected {limit}",
                  {{"field", "handle"},
                   {"value", absl::StrCat(handle.device_uuid(), "/", handle.block())},
                   {"limit", "a device_uuid and a block"}});
  }
  return BlockHandle{.node = handle.node(),
                     .incarnation = handle.incarnation(),
                     .device_uuid = handle.device_uuid(),
                     .block = BlockId(handle.block()),
                     .generation = handle.generation(),
                     .block_generation = handle.block_generation()};
}

absl::StatusOr<core::ExportKinds> ReadExportKinds(const google::protobuf::RepeatedField<int>& kinds) {
  core::ExportKinds out = {.fd = kinds.empty()};
  for (const int kind : kinds) {
    if (kind != v1::EXPORT_KIND_FD && kind != v1::EXPORT_KIND_CUDA_IPC) {
      return Refuse(Reason::kInvalidField, "invalid {field} {value}: expected {limit}",
                    {{"field", "export_kinds"}, {"value", kind}, {"limit", "1 or 2"}});
    }
    (kind == v1::EXPORT_KIND_FD ? out.fd : out.cuda_ipc) = true;
  }
  return out;
}

void ToProto(const BlockHandle& handle, v1::BlockHandle* out) {
  out->set_node(handle.node);
  out->set_incarnation(handle.incarnation);
  out->set_device_uuid(handle.device_uuid);
  out->set_block(handle.block.value());
  out->set_generation(handle.generation);
  out->set_block_generation(handle.block_generation);
}

void ToProto(const core::BlockView& view, v1::Block* out) {
  ToProto(view.handle, out->mutable_handle());
  out->set_device(view.device);
  out->set_bytes(view.bytes.count());
  out->set_kind(static_cast<v1::MemoryKind>(view.kind));
  out->set_export_kind(static_cast<v1::ExportKind>(view.export_kind));
  const bool gone = view.lost && view.state == core::BlockState::kLive;
  out->set_state(gone ? v1::Block::LOST : static_cast<v1::Block::State>(view.state));
  out->set_owner(view.owner.value());
  const bool reserved = view.state == core::BlockState::kReserved;
  // A block that was made in advance and never allocated has no owner, and no time at which it became live.
  const bool allocated = view.live_since != absl::Time();
  if (reserved || allocated) ToProto(view.tenant, out->mutable_tenant());
  out->set_label(view.label);
  out->set_name(view.name);
  if (allocated && !reserved) ToProto(view.live_since, out->mutable_create_time());
  out->set_torn(view.torn);
  out->set_lost(view.lost);
  out->set_release_error(view.release_error);
  for (const core::ImportView& import : view.imports) ToProto(import, out->add_imports());
}

void ToProto(const core::BudgetView& view, v1::Budget* out) {
  out->set_layer(static_cast<v1::Budget::Layer>(view.layer));
  out->set_device(view.device);
  if (view.layer != core::Layer::kDevice) ToProto(view.tenant, out->mutable_tenant());
  out->set_session(view.session.value());
  if (view.limit.has_value()) out->set_limit_bytes(view.limit->count());
  ToProto(view.bytes, out->mutable_bytes());
  out->set_peak_bytes(view.peak.count());
  out->set_allocations_total(view.allocations);
  out->set_refused_total(view.refusals);
  out->set_failed_releases_total(view.failed_releases);
  out->set_stuck_bytes(view.stuck.count());
  out->set_busy_bytes(view.busy.count());
}

void ToProto(const core::LogRecord& record, v1::LogRecord* out) {
  out->set_number(record.number);
  WallToProto(record.time, out->mutable_time());
  out->set_action(static_cast<v1::LogRecord::Action>(record.action));
  out->set_cause(static_cast<v1::LogRecord::Cause>(record.cause));
  out->set_session(record.session.value());
  ToProto(record.tenant, out->mutable_tenant());
  out->set_channel(record.request.channel.value());
  out->set_sequence(record.request.sequence);
  if (record.process.pid != 0) ToProto(record.process, out->mutable_process());
  out->set_device(record.device);
  out->set_block(record.block.value());
  out->set_block_generation(record.block_generation);
  out->set_import(record.import.value());
  out->set_reservation(record.reservation.value());
  out->set_bytes(record.bytes.count());
  out->set_label(record.label);
  out->set_error(record.error);
  out->set_message(record.message);
  out->set_incarnation(record.incarnation);
  out->set_use(record.use.value());
  if (record.access.has_value()) out->set_access(static_cast<v1::LogRecord::Access>(*record.access));
  out->set_slot(record.slot);
  out->set_value(record.value);
}

void ToProto(const core::ReservationView& view, v1::Reservation* out) {
  out->set_id(view.id.value());
  out->set_session(view.session.value());
  ToProto(view.tenant, out->mutable_tenant());
  out->set_label(view.label);
  ToProto(view.since, out->mutable_create_time());
  if (view.expires != absl::InfiniteFuture()) ToProto(view.expires, out->mutable_expire_time());
  for (const core::ReservationView::Claim& claim : view.claims) {
    v1::Reservation::Claim* const to = out->add_claims();
    to->set_device(claim.device);
    to->set_bytes(claim.bytes.count());
    to->set_left_bytes(claim.left.count());
  }
}

void ToProto(const core::UsageView& view, v1::Usage* out) {
  for (const core::DeviceView& device : view.devices) ToProto(device, out->add_devices());
  for (const core::UsageRow& row : view.rows) {
    v1::Usage::Row* const to = out->add_rows();
    to->set_device(row.device);
    ToProto(row.tenant, to->mutable_tenant());
    to->set_session(row.session.value());
    to->set_label(row.label);
    ToProto(row.bytes, to->mutable_bytes());
  }
}

// ---- fence_conversion.h --------------------------------------------------------------------------------------

void ToProto(const core::StreamView& view, v1::FenceStream* out) {
  out->set_channel(view.stream.channel.value());
  out->set_slot(view.stream.slot);
  ToProto(view.process, out->mutable_process());
  out->set_device(view.device);
  out->set_id(view.id);
  ToProto(view.since, out->mutable_open_time());
  out->set_done(view.fence_values.done);
  out->set_local_begun(view.fence_values.begun);
  out->set_local_ended(view.fence_values.ended);
  out->set_last_value(view.last_value);
  out->set_open_uses(view.open_uses);
  if (view.open_uses > 0) ToProto(view.open_since, out->mutable_open_use_time());
}

// ---- module_conversion.h -------------------------------------------------------------------------------------

absl::StatusOr<Digest> ReadDigest(absl::string_view field, const std::string& bytes) {
  Digest digest;
  if (bytes.size() != Digest::kBytes) {
    return Refuse(Reason::kInvalidField, "{field}: {value} bytes; a SHA-256 has {limit}",
                  {{"field", field}, {"value", bytes.size()}, {"limit", Digest::kBytes}});
  }
  memcpy(digest.bits.data(), bytes.data(), bytes.size());
  return digest;
}

void ToProto(const core::ModuleView& view, v1::KeptModule* out) {
  out->set_id(view.id.value());
  ToProto(view.record.tenant, out->mutable_tenant());
  out->set_key(ToBytes(view.record.key));
  out->set_architecture(view.record.architecture);
  out->set_compiler(view.record.compiler);
  out->set_label(view.record.label);
  out->set_state(static_cast<v1::KeptModule::State>(view.state));
  out->set_bytes(view.record.bytes.count());
  out->set_content(ToBytes(view.record.content));
  ToProto(view.record.create_time, out->mutable_create_time());
  ToProto(view.use_time, out->mutable_use_time());
  out->set_hits(view.hits);
  out->set_waiters(view.waiters);
  if (view.state != core::ModuleState::kCompiling) return;
  ToProto(view.compiling, out->mutable_compiling());
  ToProto(view.expires, out->mutable_expire_time());
}

void ToProto(const core::ModuleUsage& usage, v1::ModuleUsage* out) {
  out->set_hits(usage.counts.hits);
  out->set_misses(usage.counts.misses);
  out->set_waits(usage.counts.waits);
  out->set_stored(usage.counts.stored);
  out->set_failed(usage.counts.failed);
  out->set_corrupt(usage.counts.corrupt);
  out->set_evicted(usage.counts.evicted);
  out->set_modules(usage.modules);
  out->set_bytes(usage.bytes.count());
  out->set_limit_bytes(usage.limit.count());
}

}  // namespace berth::service
