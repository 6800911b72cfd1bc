// The requests for blocks, reservations and budgets (rpc_traits.h).

#ifndef DAEMON_SERVICE_RPC_MEMORY_REQUESTS_H_
#define DAEMON_SERVICE_RPC_MEMORY_REQUESTS_H_

#include <cstdint>
#include <variant>

#include <berth/block_handle.h>
#include <berth/bytes.h>
#include <berth/error.h>
#include <berth/ids.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/resources.pb.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "common/wire/ipc_handle.h"
#include "daemon/core/core.h"
#include "daemon/service/conversion/conversion.h"
#include "daemon/service/conversion/memory_conversion.h"
#include "daemon/service/conversion/placement_conversion.h"
#include "daemon/service/rpc/rpc_traits.h"

namespace berth::service {

template <>
struct RpcTraits<core::AllocateRequest> : RpcDefaultsFor<core::AllocateRequest> {
  static constexpr const char* kAuditName = "allocate";
  static constexpr auto kMethod = &core::Core::Allocate;

  static absl::StatusOr<core::AllocateRequest> Decode(const v1::AllocateBlockRequest& request, absl::Time now) {
    BERTH_RETURN_IF_ERROR(ValidateLabel("device_uuid", request.device_uuid()));
    core::AllocateRequest out{.device = request.device(),
                              .device_uuid = request.device_uuid(),
                              .bytes = Bytes(request.bytes()),
                              .label = ToLabel(request.label()),
                              .reservation = ReservationId(request.reservation())};
    BERTH_ASSIGN_OR_RETURN(out.kinds, ReadExportKinds(request.export_kinds()));
    BERTH_ASSIGN_OR_RETURN(out.constraint, FromProto("wish", request.wish()));
    const char* const odd = request.reservation() != 0          ? "reservation"
                            : out.constraint.declared > Bytes() ? "wish.declared_bytes"
                                                                : nullptr;
    if (out.constraint.pick != core::DevicePick::kNone && odd != nullptr) {
      return Refuse(Reason::kInvalidField, "{field} is {value}; expected {limit} with a device constraint",
                    {{"field", odd},
                     {"value", request.reservation() != 0 ? request.reservation() : out.constraint.declared.count()},
                     {"limit", 0}});
    }
    if (request.has_max_wait()) {
      BERTH_ASSIGN_OR_RETURN(const absl::Duration wait, FromProto("max_wait", request.max_wait()));
      out.wait = wait > absl::ZeroDuration();
      out.deadline = now + wait;
    }
    return out;
  }
  static void Encode(const core::AllocateResult& result, v1::AllocateBlockResponse* out) {
    ToProto(result.block, out->mutable_block());
    out->set_import(result.import.value());
    if (result.ipc_handle.has_value()) out->set_ipc_handle(&result.ipc_handle->bytes, sizeof(IpcHandle));
  }
  static void AddFacts(const core::AllocateRequest& request, AuditFacts* facts) {
    facts->emplace_back("bytes", absl::StrCat(request.bytes.count()));
    facts->emplace_back("on", request.device_uuid.empty() ? absl::StrCat(request.device) : request.device_uuid);
    if (request.reservation) facts->emplace_back("reservation", absl::StrCat(request.reservation.value()));
    AddLabel(request.label, facts);
  }
  static void AddResultFacts(const core::AllocateResult& result, AuditFacts* facts) {
    facts->emplace_back("block", absl::StrCat(result.block.handle.block.value()));
    facts->emplace_back("import", absl::StrCat(result.import.value()));
  }
};

template <>
struct RpcTraits<core::FreeRequest> : RpcDefaultsFor<core::FreeRequest> {
  static constexpr const char* kAuditName = "free";
  static constexpr auto kMethod = &core::Core::Free;

  static absl::StatusOr<core::FreeRequest> Decode(const v1::FreeBlockRequest& request, absl::Time) {
    core::FreeRequest out;
    BERTH_ASSIGN_OR_RETURN(out.handle, FromProto(request.handle()));
    for (const uint64_t import : request.let_go()) out.let_go.push_back(ImportId(import));
    return out;
  }
  static void Encode(const core::FreeResult& result, v1::FreeBlockResponse* out) {
    out->set_state(static_cast<v1::Block::State>(result.state));
  }
  static void AddFacts(const core::FreeRequest& request, AuditFacts* facts) {
    facts->emplace_back("block", absl::StrCat(request.handle.block.value()));
  }
};

template <>
struct RpcTraits<core::GrantRequest> : RpcDefaultsFor<core::GrantRequest> {
  static constexpr const char* kAuditName = "grant";
  static constexpr auto kMethod = &core::Core::Grant;

  static absl::StatusOr<core::GrantRequest> Decode(const v1::GrantBlockRequest& request, absl::Time) {
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
        return Refuse(Reason::kInvalidField, "invalid {field} \"{value}\": expected {limit}",
                      {{"field", "grantee"}, {"value", ""}, {"limit", "a session or a tenant"}});
    }
    return out;
  }
  static void AddFacts(const core::GrantRequest& request, AuditFacts* facts) {
    facts->emplace_back("block", absl::StrCat(request.handle.block.value()));
    const auto* const session = std::get_if<SessionId>(&request.grantee);
    facts->emplace_back("to", session != nullptr ? absl::StrCat("session ", session->value())
                                                 : OwnerOf(std::get<core::Tenant>(request.grantee)));
  }
};

template <>
struct RpcTraits<core::ImportRequest> : RpcDefaultsFor<core::ImportRequest> {
  static constexpr const char* kAuditName = "import";
  static constexpr auto kMethod = &core::Core::Import;

  static absl::StatusOr<core::ImportRequest> Decode(const v1::ImportBlockRequest& request, absl::Time) {
    core::ImportRequest out = {.read_only = request.read_only(), .name = request.name()};
    BERTH_RETURN_IF_ERROR(ValidateLabel("name", request.name()));
    BERTH_ASSIGN_OR_RETURN(out.kinds, ReadExportKinds(request.export_kinds()));
    if (request.has_publisher()) {
      BERTH_RETURN_IF_ERROR(ValidateLabel("publisher.container", request.publisher().container()));
      out.publisher = core::Tenant{.uid = request.publisher().uid(), .container = request.publisher().container()};
    }
    if (!request.name().empty()) return out;
    BERTH_ASSIGN_OR_RETURN(out.handle, FromProto(request.handle()));
    return out;
  }
  static void Encode(const core::ImportResult& result, v1::ImportBlockResponse* out) {
    ToProto(result.block, out->mutable_block());
    out->set_import(result.import.value());
    out->set_read_only(static_cast<v1::ReadOnly>(result.read_only));
    if (result.ipc_handle.has_value()) out->set_ipc_handle(&result.ipc_handle->bytes, sizeof(IpcHandle));
  }
  static void AddFacts(const core::ImportRequest& request, AuditFacts* facts) {
    if (request.name.empty()) {
      facts->emplace_back("asked_block", absl::StrCat(request.handle.block.value()));
    } else {
      facts->emplace_back("asked_name", request.name);
      if (request.publisher.has_value()) facts->emplace_back("of", OwnerOf(*request.publisher));
    }
    if (request.read_only) facts->emplace_back("read_only", "true");
  }
  static void AddResultFacts(const core::ImportResult& result, AuditFacts* facts) {
    facts->emplace_back("block", absl::StrCat(result.block.handle.block.value()));
    facts->emplace_back("import", absl::StrCat(result.import.value()));
  }
};

template <>
struct RpcTraits<core::PublishRequest> : RpcDefaultsFor<core::PublishRequest> {
  static constexpr const char* kAuditName = "publish";
  static constexpr auto kMethod = &core::Core::Publish;

  static absl::StatusOr<core::PublishRequest> Decode(const v1::PublishBlockRequest& request, absl::Time) {
    core::PublishRequest out = {.name = request.name()};
    BERTH_ASSIGN_OR_RETURN(out.handle, FromProto(request.handle()));
    BERTH_RETURN_IF_ERROR(ValidateLabel("name", request.name()));
    if (request.name().empty()) {
      return Refuse(Reason::kInvalidField, "invalid {field} \"{value}\": expected {limit}",
                    {{"field", "name"}, {"value", ""}, {"limit", "1 to 128 bytes"}});
    }
    for (const uint64_t import : request.let_go()) out.let_go.push_back(ImportId(import));
    out.replace = request.replace();
    return out;
  }
  static void Encode(const core::PublishResult& result, v1::PublishBlockResponse* out) {
    ToProto(result.block, out->mutable_block());
  }
  static void AddFacts(const core::PublishRequest& request, AuditFacts* facts) {
    facts->emplace_back("block", absl::StrCat(request.handle.block.value()));
    facts->emplace_back("block_name", request.name);
    if (request.replace) facts->emplace_back("replace", "true");
  }
};

template <>
struct RpcTraits<core::UnpublishRequest> : RpcDefaultsFor<core::UnpublishRequest> {
  static constexpr const char* kAuditName = "unpublish";
  static constexpr auto kMethod = &core::Core::Unpublish;

  static absl::StatusOr<core::UnpublishRequest> Decode(const v1::UnpublishBlockRequest& request, absl::Time) {
    BERTH_RETURN_IF_ERROR(ValidateLabel("name", request.name()));
    core::UnpublishRequest out = {.name = request.name()};
    if (request.has_tenant()) {
      BERTH_RETURN_IF_ERROR(ValidateLabel("tenant.container", request.tenant().container()));
      out.tenant = core::Tenant{.uid = request.tenant().uid(), .container = request.tenant().container()};
    }
    return out;
  }
  static void Encode(const core::UnpublishResult& result, v1::UnpublishBlockResponse* out) {
    out->set_state(static_cast<v1::Block::State>(result.state));
  }
  static void AddFacts(const core::UnpublishRequest& request, AuditFacts* facts) {
    facts->emplace_back("block_name", request.name);
    if (request.tenant.has_value()) facts->emplace_back("of", OwnerOf(*request.tenant));
  }
};

template <>
struct RpcTraits<core::ReserveRequest> : RpcDefaultsFor<core::ReserveRequest> {
  static constexpr const char* kAuditName = "reserve";
  static constexpr auto kMethod = &core::Core::Reserve;

  static absl::StatusOr<core::ReserveRequest> Decode(const v1::ReserveBytesRequest& request, absl::Time) {
    core::ReserveRequest out{.label = ToLabel(request.label())};
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
  static void Encode(const core::ReserveResult& result, v1::Reservation* out) { ToProto(result.reservation, out); }
  static void AddFacts(const core::ReserveRequest& request, AuditFacts* facts) {
    AddItems(request.items, facts);
    AddLabel(request.label, facts);
  }
  static void AddResultFacts(const core::ReserveResult& result, AuditFacts* facts) {
    facts->emplace_back("reservation", absl::StrCat(result.reservation.id.value()));
  }
};

// Releases a reservation.
template <>
struct RpcTraits<ReservationId> : RpcDefaultsFor<ReservationId> {
  static constexpr const char* kAuditName = "release_reservation";
  static constexpr auto kMethod = &core::Core::ReleaseReservation;

  static absl::StatusOr<ReservationId> Decode(const v1::ReleaseReservationRequest& request, absl::Time) {
    return ReservationId(request.reservation());
  }
  static void AddFacts(const ReservationId& reservation, AuditFacts* facts) {
    facts->emplace_back("reservation", absl::StrCat(reservation.value()));
  }
};

// Answered at once, without a tag and a stored answer.
template <>
struct RpcTraits<core::SetBudgetRequest> {
  static constexpr const char* kAuditName = "set_budget";

  static absl::StatusOr<core::SetBudgetRequest> Decode(const v1::SetBudgetRequest& request, absl::Time) {
    core::SetBudgetRequest out;
    if (request.has_device()) out.device = request.device();
    if (request.has_limit_bytes()) out.limit = Bytes(request.limit_bytes());
    if (request.has_tenant()) {
      BERTH_RETURN_IF_ERROR(ValidateLabel("tenant.container", request.tenant().container()));
      out.of = core::Account{.uid = request.tenant().uid(), .container = request.tenant().container()};
    } else if (request.owner_case() == v1::SetBudgetRequest::kSession) {
      out.of = SessionId(request.session());
    }
    return out;
  }
  static void AddFacts(const core::SetBudgetRequest& request, AuditFacts* facts) {
    if (request.device.has_value()) facts->emplace_back("device", absl::StrCat(*request.device));
    if (const auto* const account = std::get_if<core::Account>(&request.of)) {
      facts->emplace_back("of", OwnerOf(core::TenantNamedAs(*account)));
    } else if (const auto* const session = std::get_if<SessionId>(&request.of)) {
      facts->emplace_back("of", absl::StrCat("session ", session->value()));
    }
    facts->emplace_back("limit_bytes", request.limit.has_value() ? absl::StrCat(request.limit->count()) : "none");
  }
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_RPC_MEMORY_REQUESTS_H_
