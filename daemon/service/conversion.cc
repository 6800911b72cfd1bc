#include "daemon/service/conversion.h"

#include <optional>

#include "common/error.h"
#include "common/label.h"
#include "common/status_macros.h"

namespace berth::service {
namespace {

// google.protobuf.Duration's own range.
constexpr int64_t kMaxDurationSeconds = 315'576'000'000;

absl::StatusOr<absl::Duration> FromProto(absl::string_view field,
                                         const google::protobuf::Duration& duration) {
  if (duration.seconds() < 0 || duration.nanos() < 0 || duration.nanos() > 999'999'999 ||
      duration.seconds() > kMaxDurationSeconds) {
    return Refuse(Reason::kInvalidField, "{field}: {value} is not a duration from 0 to {limit}",
                  {{"field", field},
                   {"value", absl::StrCat(duration.seconds(), "s ", duration.nanos(), "ns")},
                   {"limit", absl::StrCat(kMaxDurationSeconds, "s")}});
  }
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

absl::StatusOr<core::DeviceWish> FromProto(const v1::DeviceWish& wish) {
  BERTH_RETURN_IF_ERROR(ValidateLabel("device.uuid", wish.uuid()));
  const auto refuse = [](absl::string_view field, const absl::AlphaNum& value, absl::string_view expected) {
    return Refuse(Reason::kInvalidField, "{field}: \"{value}\"; expected {limit}",
                  {{"field", field}, {"value", std::string(value.Piece())}, {"limit", expected}});
  };
  const bool named = wish.pick() == v1::DeviceWish::NAMED;
  if (wish.pick() < v1::DeviceWish::PICK_UNSPECIFIED || wish.pick() > v1::DeviceWish::NAMED) {
    return refuse("device.pick", static_cast<int>(wish.pick()), "0 to 3");
  }
  if (named == wish.uuid().empty())
    return refuse("device.uuid", wish.uuid(), "a UUID with NAMED, and only then");
  if (wish.pick() == v1::DeviceWish::PICK_UNSPECIFIED &&
      (wish.min_free_bytes() != 0 || wish.declared_bytes() != 0)) {
    return refuse("device.pick", 0, "a pick where bytes are asked");
  }
  return core::DeviceWish{.pick = static_cast<core::DevicePick>(wish.pick()),
                          .uuid = wish.uuid(),
                          .min_free = Bytes(wish.min_free_bytes()),
                          .declared = Bytes(wish.declared_bytes())};
}

// Zero is never.
absl::StatusOr<absl::Duration> HoldFromProto(absl::string_view field,
                                             const google::protobuf::Duration& duration) {
  BERTH_ASSIGN_OR_RETURN(const absl::Duration hold, FromProto(field, duration));
  return hold == absl::ZeroDuration() ? absl::InfiniteDuration() : hold;
}

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

void ToProto(absl::Duration duration, google::protobuf::Duration* out) {
  const int64_t seconds = absl::IDivDuration(duration, absl::Seconds(1), &duration);
  out->set_seconds(seconds);
  out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
}

void ToProto(const core::Tenant& tenant, v1::Tenant* out) {
  out->set_uid(tenant.uid);
  out->set_container(tenant.container);
}

void ToProto(const core::ProcessInfo& process, v1::Process* out) {
  out->set_pid(process.pid);
  out->set_uid(process.uid);
  out->set_gid(process.gid);
  out->set_name(process.name);
}

void ToProto(const BlockHandle& handle, v1::BlockHandle* out) {
  out->set_node(handle.node);
  out->set_incarnation(handle.incarnation);
  out->set_device_uuid(handle.device_uuid);
  out->set_block(handle.block.value());
  out->set_generation(handle.generation);
  out->set_block_generation(handle.block_generation);
}

void ToProto(const core::ByteCounts& bytes, v1::ByteCounts* out) {
  out->set_live(bytes.live.count());
  out->set_retired(bytes.retired.count());
  out->set_quarantined(bytes.quarantined.count());
  out->set_warm(bytes.warm.count());
  out->set_reserved(bytes.reserved.count());
  out->set_outstanding(bytes.outstanding().count());
  out->set_daemon(bytes.daemon.count());
}

void ToProto(const core::ImportView& view, v1::Import* out) {
  out->set_id(view.id.value());
  out->set_session(view.session.value());
  ToProto(view.process, out->mutable_process());
  out->set_read_only(static_cast<v1::ReadOnly>(view.read_only));
  service::ToProto(view.since, out->mutable_import_time());
  out->set_recalled(view.recalled);
}

void ToProto(const core::PlacedDevice& device, v1::PlacedDevice* out) {
  out->set_ordinal(device.ordinal);
  out->set_uuid(device.uuid);
  out->set_generation(device.generation);
}

std::string NameOf(const core::DeviceWish& wish) {
  switch (wish.pick) {
    case core::DevicePick::kNone:
      return "";
    case core::DevicePick::kAny:
      return "any";
    case core::DevicePick::kBest:
      return "best";
    case core::DevicePick::kNamed:
      return wish.uuid;
  }
  return "";
}

// The core's enums carry the wire's numbers.
static_assert(static_cast<int>(core::DevicePick::kNamed) == v1::DeviceWish::NAMED);
static_assert(static_cast<int>(core::MemoryKind::kCudaDirect) == v1::MEMORY_KIND_CUDA_DIRECT);
static_assert(static_cast<int>(core::ExportKind::kCudaIpc) == v1::EXPORT_KIND_CUDA_IPC);
static_assert(static_cast<int>(core::ReadOnly::kCooperative) == v1::READ_ONLY_COOPERATIVE);
static_assert(static_cast<int>(core::SessionState::kEnding) == v1::Session::ENDING);
static_assert(static_cast<int>(core::BlockState::kQuarantined) == v1::Block::QUARANTINED);
static_assert(static_cast<int>(core::DeviceState::kIdle) == v1::Device::IDLE);
static_assert(static_cast<int>(core::LogAction::kReap) == v1::LogRecord::REAP);
static_assert(static_cast<int>(core::LogCause::kNeverSent) == v1::LogRecord::NEVER_SENT);
static_assert(static_cast<int>(core::Layer::kSession) == v1::Budget::SESSION);
static_assert(static_cast<int>(core::WaitCause::kDevice) == v1::WaitExplanation::DEVICE);
static_assert(static_cast<int>(core::ForgetOutcome::kNothingToDo) ==
              v1::ForgetRequestResponse::NOTHING_TO_DO);

}  // namespace

core::RequestTag FromProto(const v1::RequestTag& tag) {
  return {.sequence = tag.sequence(),
          .answered_below = tag.answered_below(),
          .open = {tag.open().begin(), tag.open().end()}};
}

std::string PoolName(const std::string& name) { return name.empty() ? "gpu-tests" : name; }

absl::StatusOr<core::AcquireRequest> FromProto(const v1::AcquirePermitRequest& request, absl::Time now) {
  BERTH_RETURN_IF_ERROR(ValidateLabel("pool", request.pool()));
  BERTH_RETURN_IF_ERROR(ValidateLabel("holder_key", request.holder_key()));
  BERTH_RETURN_IF_ERROR(ValidateLabel("label", request.label()));
  if (request.holder_key().empty()) {
    return Refuse(Reason::kInvalidField, "{field}: \"{value}\" names no holder; expected {limit}",
                  {{"field", "holder_key"}, {"value", ""}, {"limit", "1 to 128 bytes"}});
  }
  core::AcquireRequest out = {.pool = PoolName(request.pool()),
                              .units = request.units() == 0 ? 1 : request.units(),
                              .holder_key = request.holder_key(),
                              .label = request.label(),
                              .client_cap = request.client_cap(),
                              .adoptable = request.adoptable(),
                              .independent = request.independent(),
                              .priority = request.priority(),
                              .exclusive = request.exclusive()};
  if (out.priority < core::kLeastPriority || out.priority > core::kMostPriority) {
    return Refuse(
        Reason::kInvalidField, "{field}: {value} is no priority; expected {limit}",
        {{"field", "priority"},
         {"value", out.priority},
         {"limit", absl::StrCat("a number from ", core::kLeastPriority, " to ", core::kMostPriority)}});
  }
  BERTH_ASSIGN_OR_RETURN(out.device, FromProto(request.device()));
  if (request.has_max_wait()) {
    BERTH_ASSIGN_OR_RETURN(const absl::Duration wait, FromProto("max_wait", request.max_wait()));
    out.wait = wait > absl::ZeroDuration();
    out.deadline = now + wait;
  }
  return out;
}

absl::StatusOr<core::PoolChange> FromProto(const v1::SetPoolRequest& request) {
  BERTH_RETURN_IF_ERROR(ValidateLabel("pool", request.pool()));
  core::PoolChange change;
  if (request.has_cap()) change.cap = request.cap();
  if (request.has_tenant_cap()) change.tenant_cap = request.tenant_cap();
  if (request.has_ageing()) {
    BERTH_ASSIGN_OR_RETURN(change.ageing, FromProto("ageing", request.ageing()));
  }
  if (request.has_hold_warning()) {
    BERTH_ASSIGN_OR_RETURN(change.hold_warning, HoldFromProto("hold_warning", request.hold_warning()));
  }
  if (request.has_hold_limit()) {
    BERTH_ASSIGN_OR_RETURN(change.hold_limit, HoldFromProto("hold_limit", request.hold_limit()));
  }
  for (const v1::TenantWeight& weight : request.weights()) change.weights[weight.uid()] = weight.weight();
  return change;
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

absl::StatusOr<core::PrepareUseRequest> FromProto(const v1::PrepareUseRequest& request) {
  core::PrepareUseRequest out = {.slot = request.slot()};
  for (const v1::PrepareUseRequest::Use& use : request.uses()) {
    if (use.access() < v1::PrepareUseRequest::READ || use.access() > v1::PrepareUseRequest::READ_WRITE) {
      return Refuse(
          Reason::kInvalidField, "{field}: {value} is no access; expected {limit}",
          {{"field", "uses.access"}, {"value", static_cast<int>(use.access())}, {"limit", "1 to 3"}});
    }
    out.uses.push_back({.block = BlockId(use.block()), .access = static_cast<core::Access>(use.access())});
  }
  if (request.has_max_wait()) {
    BERTH_ASSIGN_OR_RETURN(out.patience, FromProto("max_wait", request.max_wait()));
  }
  return out;
}

void ToProto(absl::Time time, google::protobuf::Timestamp* out) {
  const int64_t seconds = absl::ToUnixSeconds(time);
  out->set_seconds(seconds);
  out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(seconds))));
}

void ToProto(const core::AcquireResult& result, v1::AcquirePermitResponse* out) {
  out->set_acquisition(result.acquisition.value());
  out->set_permit(result.permit.value());
  out->set_nested(result.nested);
  out->set_epoch(result.epoch);
  if (!result.device.has_value()) return;
  ToProto(*result.device, out->mutable_device());
  if (result.device->kind == core::MemoryKind::kHost) return;
  (*out->mutable_environment())["CUDA_VISIBLE_DEVICES"] = result.device->uuid;
  (*out->mutable_environment())["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
}

void ToProto(const core::ReleaseResult& result, v1::ReleasePermitResponse* out) {
  out->set_returned(result.returned);
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

void ToProto(const core::ForgetResult& result, v1::ForgetRequestResponse* out) {
  out->set_outcome(static_cast<v1::ForgetRequestResponse::Outcome>(result.outcome));
}

void ToProto(const core::OpenStreamResult& result, v1::OpenStreamResponse* out) {
  out->set_slot(result.stream.slot);
  out->set_id(result.id);
  out->set_last_value(result.last_value);
  for (const BlockId block : result.shared) out->add_shared_blocks(block.value());
}

void ToProto(const core::CloseStreamResult&, v1::CloseStreamResponse*) {}

void ToProto(const core::Prepared& result, v1::PrepareUseResponse* out) {
  out->set_use(result.use.value());
  for (const core::FenceWait& wait : result.waits) {
    v1::PrepareUseResponse::Wait* const to = out->add_waits();
    to->set_channel(wait.stream.channel.value());
    to->set_slot(wait.stream.slot);
    to->set_value(wait.value);
  }
  for (const BlockId block : result.torn) out->add_torn_blocks(block.value());
}

void ToProto(const core::FinishUseResult& result, v1::FinishUseResponse* out) {
  for (const BlockId block : result.torn) out->add_torn_blocks(block.value());
}

void ToProto(const core::AbandonUseResult&, v1::AbandonUseResponse*) {}

void ToProto(const core::StreamView& view, v1::FenceStream* out) {
  out->set_channel(view.stream.channel.value());
  out->set_slot(view.stream.slot);
  ToProto(view.process, out->mutable_process());
  out->set_device(view.device);
  out->set_id(view.id);
  ToProto(view.since, out->mutable_open_time());
  out->set_done(view.words.done);
  out->set_local_begun(view.words.begun);
  out->set_local_ended(view.words.ended);
  out->set_last_value(view.last_value);
  out->set_open_uses(view.open_uses);
  if (view.open_uses > 0) ToProto(view.open_since, out->mutable_open_use_time());
}

void ToProto(const core::SessionView& view, v1::Session* out) {
  out->set_id(view.id.value());
  ToProto(view.tenant, out->mutable_tenant());
  out->set_label(view.label);
  out->set_state(static_cast<v1::Session::State>(view.state));
  ToProto(view.opened_at, out->mutable_create_time());
  ToProto(view.opener, out->mutable_opener());
  for (const core::ProcessInfo& process : view.processes) ToProto(process, out->add_processes());
  out->set_permit_units(view.permit_units);
  out->set_waiters(view.waiters);
  out->set_live_bytes(view.live.count());
}

void ToProto(const core::PoolView& view, v1::Pool* out) {
  out->set_name(view.config.name);
  out->set_cap(view.config.cap);
  out->set_out(view.out);
  out->set_holders(view.holders);
  out->set_waiters(view.waiters);
  out->set_peak(view.peak);
  out->set_granted_total(view.granted_total);
  out->set_refused_total(view.refused_total);
  ToProto(view.config.ageing, out->mutable_ageing());
  out->set_tenant_cap(view.config.tenant_cap);
  for (const auto& [uid, weight] : view.config.weights) {
    v1::TenantWeight* const to = out->add_weights();
    to->set_uid(uid);
    to->set_weight(weight);
  }
  if (view.config.hold_warning != absl::InfiniteDuration()) {
    ToProto(view.config.hold_warning, out->mutable_hold_warning());
  }
  if (view.config.hold_limit != absl::InfiniteDuration()) {
    ToProto(view.config.hold_limit, out->mutable_hold_limit());
  }
  out->set_overdue(view.overdue);
  out->set_revoked_total(view.revoked_total);
  out->set_exclusive(view.exclusive);
  if (view.mean_hold > absl::ZeroDuration()) ToProto(view.mean_hold, out->mutable_mean_hold());
}

void ToProto(const core::PermitView& view, v1::Permit* out) {
  out->set_id(view.id.value());
  out->set_pool(view.pool);
  out->set_units(view.units);
  out->set_depth(view.depth);
  out->set_session(view.session.value());
  out->set_holder_key(view.holder_key);
  out->set_label(view.label);
  out->set_adoptable(view.adoptable);
  ToProto(view.granted_at, out->mutable_grant_time());
  ToProto(view.waited, out->mutable_waited());
  ToProto(view.process, out->mutable_process());
  out->set_priority(view.priority);
  out->set_exclusive(view.exclusive);
  out->set_overdue(view.overdue);
  if (view.device.has_value()) ToProto(*view.device, out->mutable_device());
  out->set_declared_bytes(view.declared.count());
}

void ToProto(const core::WaiterView& view, v1::Waiter* out) {
  out->set_pool(view.pool);
  out->set_units(view.units);
  out->set_position(view.position);
  out->set_session(view.session.value());
  out->set_holder_key(view.holder_key);
  out->set_label(view.label);
  ToProto(view.since, out->mutable_wait_start_time());
  ToProto(view.process, out->mutable_process());
  out->set_priority(view.priority);
  out->set_exclusive(view.exclusive);
  out->set_number(view.number);
  out->set_device(NameOf(view.device));
  out->set_declared_bytes(view.device.declared.count());
  out->set_min_free_bytes(view.device.min_free.count());
}

void ToProto(const core::WaitView& view, v1::WaitExplanation* out) {
  ToProto(view.waiter, out->mutable_waiter());
  ToProto(view.pool, out->mutable_pool());
  out->set_cause(static_cast<v1::WaitExplanation::Cause>(view.cause));
  for (const core::PermitView& holder : view.holders) ToProto(holder, out->add_holders());
  out->set_tenant_out(view.tenant_out);
  out->set_units_ahead(view.units_ahead);
  out->set_passes(view.passes);
  if (view.estimate != absl::InfiniteDuration()) ToProto(view.estimate, out->mutable_estimate());
}

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
  for (const core::ImportView& import : view.imports) ToProto(import, out->add_imports());
}

void ToProto(const core::DeviceView& view, v1::Device* out) {
  out->set_ordinal(view.ordinal);
  out->set_uuid(view.uuid);
  out->set_name(view.name);
  out->set_kind(static_cast<v1::MemoryKind>(view.kind));
  out->set_state(static_cast<v1::Device::State>(view.state));
  out->set_generation(view.generation);
  out->set_total_bytes(view.total.count());
  out->set_budget_bytes(view.budget.count());
  out->set_granularity(view.granularity.count());
  ToProto(view.bytes, out->mutable_bytes());
  out->set_failed_releases(view.failed_releases);
  out->set_restarts_left(view.restarts_left);
  out->set_last_failure(view.last_failure);
  out->set_clears_check(static_cast<v1::Device::ClearsCheck>(view.clears.outcome));
  out->set_clears_check_detail(view.clears.detail);
  if (!view.context.has_value()) return;
  v1::Device::ContextWorker* const context = out->mutable_context_worker();
  context->set_state(static_cast<v1::Device::State>(view.context->state));
  context->set_generation(view.context->generation);
  context->set_restarts_left(view.context->restarts_left);
  context->set_last_failure(view.context->last_failure);
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
  ToProto(record.time, out->mutable_time());
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
