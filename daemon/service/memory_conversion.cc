#include "daemon/service/memory_conversion.h"

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "daemon/service/conversion.h"
#include "daemon/service/device_conversion.h"
#include "daemon/service/placement_conversion.h"

namespace berth::service {
namespace {

absl::StatusOr<core::ExportKinds> FromProto(const google::protobuf::RepeatedField<int>& kinds) {
  core::ExportKinds out = {.fd = kinds.empty()};
  for (const int kind : kinds) {
    if (kind != v1::EXPORT_KIND_FD && kind != v1::EXPORT_KIND_CUDA_IPC) {
      return Refuse(Reason::kInvalidField, "{field}: {value} is no export kind; expected {limit}",
                    {{"field", "export_kinds"}, {"value", kind}, {"limit", "1 or 2"}});
    }
    (kind == v1::EXPORT_KIND_FD ? out.fd : out.cuda_ipc) = true;
  }
  return out;
}

void ToProto(const core::ImportView& view, v1::Import* out) {
  out->set_id(view.id.value());
  out->set_session(view.session.value());
  service::ToProto(view.process, out->mutable_process());
  out->set_read_only(static_cast<v1::ReadOnly>(view.read_only));
  service::ToProto(view.since, out->mutable_import_time());
  out->set_recalled(view.recalled);
}

// The core's enums carry the wire's numbers.
static_assert(static_cast<int>(core::ExportKind::kCudaIpc) == v1::EXPORT_KIND_CUDA_IPC);
static_assert(static_cast<int>(core::ReadOnly::kCooperative) == v1::READ_ONLY_COOPERATIVE);
static_assert(static_cast<int>(core::BlockState::kQuarantined) == v1::Block::QUARANTINED);
static_assert(static_cast<int>(core::LogAction::kClearTorn) == v1::LogRecord::CLEAR_TORN);
static_assert(static_cast<int>(core::LogCause::kLost) == v1::LogRecord::LOST);
static_assert(static_cast<int>(core::Layer::kSession) == v1::Budget::SESSION);

}  // namespace

absl::StatusOr<BlockHandle> FromProto(const v1::BlockHandle& handle) {
  BERTH_RETURN_IF_ERROR(ValidateLabel("handle.device_uuid", handle.device_uuid()));
  if (handle.block() == 0 || handle.device_uuid().empty()) {
    return Refuse(Reason::kInvalidField, "{field}: \"{value}\" names no block; expected {limit}",
                  {{"field", "handle"},
                   {"value", absl::StrCat(handle.device_uuid(), "/", absl::Hex(handle.block()))},
                   {"limit", "a device_uuid and a block"}});
  }
  return BlockHandle{.node = handle.node(),
                     .incarnation = handle.incarnation(),
                     .device_uuid = handle.device_uuid(),
                     .block = BlockId(handle.block()),
                     .generation = handle.generation(),
                     .block_generation = handle.block_generation()};
}

void ToProto(const BlockHandle& handle, v1::BlockHandle* out) {
  out->set_node(handle.node);
  out->set_incarnation(handle.incarnation);
  out->set_device_uuid(handle.device_uuid);
  out->set_block(handle.block.value());
  out->set_generation(handle.generation);
  out->set_block_generation(handle.block_generation);
}

absl::StatusOr<core::AllocateRequest> FromProto(const v1::AllocateBlockRequest& request, absl::Time now) {
  BERTH_RETURN_IF_ERROR(ValidateLabel("label", request.label()));
  BERTH_RETURN_IF_ERROR(ValidateLabel("device_uuid", request.device_uuid()));
  core::AllocateRequest out{.device = request.device(),
                            .device_uuid = request.device_uuid(),
                            .bytes = Bytes(request.bytes()),
                            .label = request.label(),
                            .reservation = ReservationId(request.reservation())};
  BERTH_ASSIGN_OR_RETURN(out.kinds, FromProto(request.export_kinds()));
  BERTH_ASSIGN_OR_RETURN(out.wish, FromProto("wish", request.wish()));
  const char* const odd = request.reservation() != 0    ? "reservation"
                          : out.wish.declared > Bytes() ? "wish.declared_bytes"
                                                        : nullptr;
  if (out.wish.pick != core::DevicePick::kNone && odd != nullptr) {
    return Refuse(Reason::kInvalidField, "{field} is {value}; expected {limit} with a wish",
                  {{"field", odd},
                   {"value", request.reservation() != 0 ? request.reservation() : out.wish.declared.count()},
                   {"limit", 0}});
  }
  if (request.has_max_wait()) {
    BERTH_ASSIGN_OR_RETURN(const absl::Duration wait, FromProto("max_wait", request.max_wait()));
    out.wait = wait > absl::ZeroDuration();
    out.deadline = now + wait;
  }
  return out;
}

absl::StatusOr<core::PublishRequest> FromProto(const v1::PublishBlockRequest& request) {
  core::PublishRequest out = {.name = request.name()};
  BERTH_ASSIGN_OR_RETURN(out.handle, FromProto(request.handle()));
  BERTH_RETURN_IF_ERROR(ValidateLabel("name", request.name()));
  if (request.name().empty()) {
    return Refuse(Reason::kInvalidField, "{field}: \"{value}\" is no name; expected {limit}",
                  {{"field", "name"}, {"value", ""}, {"limit", "1 to 128 bytes"}});
  }
  for (const uint64_t import : request.let_go()) out.let_go.push_back(ImportId(import));
  return out;
}

absl::StatusOr<core::UnpublishRequest> FromProto(const v1::UnpublishBlockRequest& request) {
  BERTH_RETURN_IF_ERROR(ValidateLabel("name", request.name()));
  core::UnpublishRequest out = {.name = request.name()};
  if (request.has_tenant()) {
    BERTH_RETURN_IF_ERROR(ValidateLabel("tenant.container", request.tenant().container()));
    out.tenant = core::Tenant{.uid = request.tenant().uid(), .container = request.tenant().container()};
  }
  return out;
}

absl::StatusOr<core::ReserveRequest> FromProto(const v1::ReserveBytesRequest& request) {
  BERTH_RETURN_IF_ERROR(ValidateLabel("label", request.label()));
  core::ReserveRequest out{.label = request.label()};
  for (const v1::ReserveBytesRequest::Item& item : request.items()) {
    BERTH_RETURN_IF_ERROR(ValidateLabel("device_uuid", item.device_uuid()));
    out.items.push_back(
        {.device = item.device(), .device_uuid = item.device_uuid(), .bytes = Bytes(item.bytes())});
  }
  if (request.has_ttl()) {
    BERTH_ASSIGN_OR_RETURN(out.ttl, FromProto("ttl", request.ttl()));
  }
  return out;
}

absl::StatusOr<core::SetBudgetRequest> FromProto(const v1::SetBudgetRequest& request) {
  core::SetBudgetRequest out;
  if (request.has_device()) out.device = request.device();
  if (request.has_limit_bytes()) out.limit = Bytes(request.limit_bytes());
  if (request.has_tenant()) {
    BERTH_RETURN_IF_ERROR(ValidateLabel("tenant.container", request.tenant().container()));
    out.of = core::Tenant{.uid = request.tenant().uid(), .container = request.tenant().container()};
  } else if (request.owner_case() == v1::SetBudgetRequest::kSession) {
    out.of = SessionId(request.session());
  }
  return out;
}

absl::StatusOr<core::FreeRequest> FromProto(const v1::FreeBlockRequest& request) {
  core::FreeRequest out;
  BERTH_ASSIGN_OR_RETURN(out.handle, FromProto(request.handle()));
  for (const uint64_t import : request.let_go()) out.let_go.push_back(ImportId(import));
  return out;
}

absl::StatusOr<core::GrantRequest> FromProto(const v1::GrantBlockRequest& request) {
  core::GrantRequest out;
  BERTH_ASSIGN_OR_RETURN(out.handle, FromProto(request.handle()));
  switch (request.grantee_case()) {
    case v1::GrantBlockRequest::kSession:
      out.grantee = SessionId(request.session());
      break;
    case v1::GrantBlockRequest::kTenant:
      BERTH_RETURN_IF_ERROR(ValidateLabel("tenant.container", request.tenant().container()));
      out.grantee = core::Tenant{.uid = request.tenant().uid(), .container = request.tenant().container()};
      break;
    case v1::GrantBlockRequest::GRANTEE_NOT_SET:
      return Refuse(Reason::kInvalidField, "{field}: \"{value}\" is nobody; expected {limit}",
                    {{"field", "grantee"}, {"value", ""}, {"limit", "a session or a tenant"}});
  }
  return out;
}

absl::StatusOr<core::ImportRequest> FromProto(const v1::ImportBlockRequest& request) {
  core::ImportRequest out = {.read_only = request.read_only(), .name = request.name()};
  BERTH_RETURN_IF_ERROR(ValidateLabel("name", request.name()));
  BERTH_ASSIGN_OR_RETURN(out.kinds, FromProto(request.export_kinds()));
  if (!request.name().empty()) return out;
  BERTH_ASSIGN_OR_RETURN(out.handle, FromProto(request.handle()));
  return out;
}

void ToProto(const core::AllocateResult& result, v1::AllocateBlockResponse* out) {
  ToProto(result.block, out->mutable_block());
  out->set_import(result.import.value());
  if (result.ipc_handle.has_value()) out->set_ipc_handle(&result.ipc_handle->bytes, sizeof(IpcHandle));
}

void ToProto(const core::FreeResult& result, v1::FreeBlockResponse* out) {
  out->set_state(static_cast<v1::Block::State>(result.state));
}

void ToProto(const core::GrantResult&, v1::GrantBlockResponse*) {}

void ToProto(const core::ImportResult& result, v1::ImportBlockResponse* out) {
  ToProto(result.block, out->mutable_block());
  out->set_import(result.import.value());
  out->set_read_only(static_cast<v1::ReadOnly>(result.read_only));
  if (result.ipc_handle.has_value()) out->set_ipc_handle(&result.ipc_handle->bytes, sizeof(IpcHandle));
}

void ToProto(const core::PublishResult& result, v1::PublishBlockResponse* out) {
  ToProto(result.block, out->mutable_block());
}

void ToProto(const core::UnpublishResult& result, v1::UnpublishBlockResponse* out) {
  out->set_state(static_cast<v1::Block::State>(result.state));
}

void ToProto(const core::ReserveResult& result, v1::Reservation* out) { ToProto(result.reservation, out); }

void ToProto(const core::ReapResult& result, v1::ReapBlocksResponse* out) {
  out->set_tried_blocks(result.tried);
  out->set_tried_bytes(result.tried_bytes.count());
  out->set_returned_blocks(result.back);
  out->set_returned_bytes(result.back_bytes.count());
}

void ToProto(const core::ReleaseReservationResult&, v1::ReleaseReservationResponse*) {}

void ToProto(const core::BlockView& view, v1::Block* out) {
  ToProto(view.handle, out->mutable_handle());
  out->set_device(view.device);
  out->set_bytes(view.bytes.count());
  out->set_kind(static_cast<v1::MemoryKind>(view.kind));
  out->set_export_kind(static_cast<v1::ExportKind>(view.export_kind));
  out->set_state(static_cast<v1::Block::State>(view.state));
  out->set_owner(view.owner.value());
  ToProto(view.tenant, out->mutable_tenant());
  out->set_label(view.label);
  out->set_name(view.name);
  if (view.state != core::BlockState::kReserved) ToProto(view.live_since, out->mutable_create_time());
  out->set_torn(view.torn);
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

}  // namespace berth::service
