// The requests for permits (rpc_traits.h).

#ifndef DAEMON_SERVICE_RPC_PERMIT_REQUESTS_H_
#define DAEMON_SERVICE_RPC_PERMIT_REQUESTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "berth/v1/permit.pb.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "daemon/core/core.h"
#include "daemon/service/conversion/conversion.h"
#include "daemon/service/conversion/memory_conversion.h"
#include "daemon/service/conversion/permit_conversion.h"
#include "daemon/service/conversion/placement_conversion.h"
#include "daemon/service/rpc/rpc_traits.h"

namespace berth::service {

// Reads whether the request waits, and until when.
template <typename Message, typename Request>
absl::Status ReadWait(const Message& message, absl::Time now, Request* out) {
  if (!message.has_max_wait()) return absl::OkStatus();
  BERTH_ASSIGN_OR_RETURN(const absl::Duration wait, FromProto("max_wait", message.max_wait()));
  out->wait = wait > absl::ZeroDuration();
  out->deadline = now + wait;
  return absl::OkStatus();
}

template <>
struct RpcTraits<core::AcquireRequest> : RpcDefaultsFor<core::AcquireRequest> {
  static constexpr const char* kAuditName = "acquire";
  static constexpr auto kMethod = &core::Core::Acquire;

  static absl::StatusOr<core::AcquireRequest> Decode(const v1::AcquirePermitRequest& request, absl::Time now) {
    BERTH_RETURN_IF_ERROR(ValidateLabel("pool", request.pool()));
    BERTH_RETURN_IF_ERROR(CheckHolder(request.holder_key(), request.priority()));
    core::AcquireRequest out = {.pool = PoolName(request.pool()),
                                .units = request.has_units() ? request.units() : 1,
                                .holder_key = request.holder_key(),
                                .label = ToLabel(request.label()),
                                .client_cap = request.client_cap(),
                                .adoptable = request.adoptable(),
                                .independent = request.independent(),
                                .priority = request.priority(),
                                .exclusive = request.exclusive(),
                                .keep = request.keep()};
    BERTH_ASSIGN_OR_RETURN(out.device, FromProto("device", request.device()));
    BERTH_RETURN_IF_ERROR(ReadWait(request, now, &out));
    return out;
  }
  static void Encode(const core::AcquireResult& result, v1::AcquirePermitResponse* out) {
    out->set_acquisition(result.acquisition.value());
    out->set_permit(result.permit.value());
    out->set_nested(result.nested);
    out->set_epoch(result.epoch);
    out->set_kept(result.cached);
    if (!result.device.has_value()) return;
    ToProto(*result.device, out->mutable_device());
    out->set_device_sharers(result.device_sharers);
    if (result.device->kind == core::MemoryKind::kHost) return;
    SetEnvironment({result.device->uuid}, out->mutable_environment());
  }
  static void AddFacts(const core::AcquireRequest& request, AuditFacts* facts) {
    facts->emplace_back("pool", request.pool);
    facts->emplace_back("units", absl::StrCat(request.units));
    if (request.priority != 0) facts->emplace_back("priority", absl::StrCat(request.priority));
    if (request.exclusive) facts->emplace_back("exclusive", "true");
    AddLabel(request.label, facts);
  }
  static void AddResultFacts(const core::AcquireResult& result, AuditFacts* facts) {
    facts->emplace_back("permit", absl::StrCat(result.permit.value()));
    facts->emplace_back("acquisition", absl::StrCat(result.acquisition.value()));
    if (result.nested) facts->emplace_back("nested", "true");
    if (result.device.has_value()) facts->emplace_back("device", result.device->uuid);
  }
};

template <>
struct RpcTraits<core::GangRequest> : RpcDefaultsFor<core::GangRequest> {
  static constexpr const char* kAuditName = "acquire_gang";
  static constexpr auto kMethod = &core::Core::AcquireGang;

  static absl::StatusOr<core::GangRequest> Decode(const v1::AcquireGangRequest& request, absl::Time now) {
    BERTH_RETURN_IF_ERROR(CheckHolder(request.holder_key(), request.priority()));
    core::GangRequest out = {.holder_key = request.holder_key(),
                             .label = ToLabel(request.label()),
                             .adoptable = request.adoptable(),
                             .independent = request.independent(),
                             .priority = request.priority(),
                             .exclusive = request.exclusive()};
    for (const v1::AcquireGangRequest::Member& member : request.members()) {
      BERTH_RETURN_IF_ERROR(ValidateLabel("members.pool", member.pool()));
      core::GangMember& to =
          out.members.emplace_back(core::GangMember{.pool = PoolName(member.pool()),
                                                    .units = member.has_units() ? member.units() : 1,
                                                    .client_cap = member.client_cap()});
      BERTH_ASSIGN_OR_RETURN(to.device, FromProto("device", member.device()));
    }
    for (const v1::AcquireGangRequest::Bytes& item : request.reserve()) {
      BERTH_RETURN_IF_ERROR(ValidateLabel("reserve.device_uuid", item.device_uuid()));
      out.reserve.push_back(
          {.device = item.device(), .device_uuid = item.device_uuid(), .bytes = Bytes(item.bytes())});
    }
    if (request.has_reserve_ttl()) {
      BERTH_ASSIGN_OR_RETURN(out.reserve_for, FromProto("reserve_ttl", request.reserve_ttl()));
    }
    BERTH_RETURN_IF_ERROR(ReadWait(request, now, &out));
    return out;
  }
  static void Encode(const core::GangResult& result, v1::AcquireGangResponse* out) {
    // Sorted by ordinal, as expected by programs that number devices by their order.
    std::map<uint32_t, std::string> devices;
    for (const core::AcquireResult& permit : result.permits) {
      RpcTraits<core::AcquireRequest>::Encode(permit, out->add_permits());
      if (!permit.device.has_value() || permit.device->kind == core::MemoryKind::kHost) continue;
      devices.emplace(permit.device->ordinal, permit.device->uuid);
    }
    std::vector<std::string> uuids;
    for (auto& [ordinal, uuid] : devices) uuids.push_back(std::move(uuid));
    SetEnvironment(uuids, out->mutable_environment());
    if (result.reservation.has_value()) ToProto(*result.reservation, out->mutable_reservation());
  }
  static void AddFacts(const core::GangRequest& request, AuditFacts* facts) {
    facts->emplace_back("members", absl::StrJoin(request.members, ", ", [](std::string* out, const auto& member) {
                          absl::StrAppend(out, member.units, " of ", member.pool);
                        }));
    AddItems(request.reserve, facts);
    AddLabel(request.label, facts);
  }
  static void AddResultFacts(const core::GangResult& result, AuditFacts* facts) {
    facts->emplace_back("permits", absl::StrJoin(result.permits, ", ", [](std::string* out, const auto& permit) {
                          absl::StrAppend(out, permit.permit.value());
                        }));
    if (result.reservation.has_value()) {
      facts->emplace_back("reservation", absl::StrCat(result.reservation->id.value()));
    }
  }
};

// Releases an acquisition.
template <>
struct RpcTraits<AcquisitionId> : RpcDefaultsFor<AcquisitionId> {
  static constexpr const char* kAuditName = "release";
  static constexpr auto kMethod = &core::Core::Release;

  static absl::StatusOr<AcquisitionId> Decode(const v1::ReleasePermitRequest& request, absl::Time) {
    return AcquisitionId(request.acquisition());
  }
  static void Encode(const core::ReleaseResult& result, v1::ReleasePermitResponse* out) {
    out->set_returned(result.returned);
  }
  static void AddFacts(const AcquisitionId& acquisition, AuditFacts* facts) {
    facts->emplace_back("acquisition", absl::StrCat(acquisition.value()));
  }
  static void AddResultFacts(const core::ReleaseResult& result, AuditFacts* facts) {
    facts->emplace_back("returned", result.returned ? "true" : "false");
  }
};

template <>
struct RpcTraits<core::ReleaseIfIdleRequest> : RpcTraits<AcquisitionId> {
  static constexpr auto kMethod = &core::Core::ReleaseIfIdle;

  static absl::StatusOr<core::ReleaseIfIdleRequest> Decode(const v1::ReleasePermitRequest& request, absl::Time) {
    return core::ReleaseIfIdleRequest{.acquisition = AcquisitionId(request.acquisition())};
  }
  static void AddFacts(const core::ReleaseIfIdleRequest& request, AuditFacts* facts) {
    RpcTraits<AcquisitionId>::AddFacts(request.acquisition, facts);
  }
};

template <>
struct RpcTraits<core::KeepPermitsRequest> : RpcDefaultsFor<core::KeepPermitsRequest> {
  static constexpr auto kMethod = &core::Core::KeepPermits;

  static absl::StatusOr<core::KeepPermitsRequest> Decode(const v1::KeepPermitsRequest&, absl::Time) {
    return core::KeepPermitsRequest();
  }
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_RPC_PERMIT_REQUESTS_H_
