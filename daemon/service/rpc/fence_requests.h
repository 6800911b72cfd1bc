// The requests for streams and uses of blocks (rpc_traits.h).

#ifndef DAEMON_SERVICE_RPC_FENCE_REQUESTS_H_
#define DAEMON_SERVICE_RPC_FENCE_REQUESTS_H_

#include <berth/error.h>
#include <berth/ids.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "berth/v1/fence.pb.h"
#include "common/status_macros.h"
#include "daemon/core/core.h"
#include "daemon/service/conversion/conversion.h"
#include "daemon/service/rpc/rpc_traits.h"

namespace berth::service {

template <>
struct RpcTraits<core::OpenStreamRequest> : RpcDefaultsFor<core::OpenStreamRequest> {
  static constexpr const char* kAuditName = "open_stream";
  static constexpr auto kMethod = &core::Core::OpenStream;

  static absl::StatusOr<core::OpenStreamRequest> Decode(const v1::OpenStreamRequest& request, absl::Time) {
    return core::OpenStreamRequest{.device = request.device(), .default_stream = request.default_stream()};
  }
  static void Encode(const core::OpenStreamResult& result, v1::OpenStreamResponse* out) {
    out->set_slot(result.stream.slot);
    out->set_id(result.id);
    out->set_last_value(result.last_value);
    for (const BlockId block : result.shared) out->add_shared_blocks(block.value());
  }
  static void AddFacts(const core::OpenStreamRequest& request, AuditFacts* facts) {
    facts->emplace_back("device", absl::StrCat(request.device));
  }
  static void AddResultFacts(const core::OpenStreamResult& result, AuditFacts* facts) {
    facts->emplace_back("slot", absl::StrCat(result.stream.slot));
  }
};

template <>
struct RpcTraits<core::CloseStreamRequest> : RpcDefaultsFor<core::CloseStreamRequest> {
  static constexpr const char* kAuditName = "close_stream";
  static constexpr auto kMethod = &core::Core::CloseStream;

  static absl::StatusOr<core::CloseStreamRequest> Decode(const v1::CloseStreamRequest& request, absl::Time) {
    return core::CloseStreamRequest{.slot = request.slot()};
  }
  static void AddFacts(const core::CloseStreamRequest& request, AuditFacts* facts) {
    facts->emplace_back("slot", absl::StrCat(request.slot));
  }
};

template <>
struct RpcTraits<core::PrepareUseRequest> : RpcDefaultsFor<core::PrepareUseRequest> {
  static constexpr auto kMethod = &core::Core::PrepareUse;

  static absl::StatusOr<core::PrepareUseRequest> Decode(const v1::PrepareUseRequest& request, absl::Time) {
    core::PrepareUseRequest out = {.slot = request.slot()};
    for (const v1::PrepareUseRequest::Use& use : request.uses()) {
      if (use.access() < v1::PrepareUseRequest::READ || use.access() > v1::PrepareUseRequest::READ_WRITE) {
        return Refuse(Reason::kInvalidField, "invalid {field} {value}: expected {limit}",
                      {{"field", "uses.access"}, {"value", static_cast<int>(use.access())}, {"limit", "1 to 3"}});
      }
      out.uses.push_back({.block = BlockId(use.block()), .access = static_cast<core::Access>(use.access())});
    }
    if (request.has_max_wait()) {
      BERTH_ASSIGN_OR_RETURN(out.patience, FromProto("max_wait", request.max_wait()));
    }
    return out;
  }
  static void Encode(const core::Prepared& result, v1::PrepareUseResponse* out) {
    out->set_use(result.use.value());
    for (const core::FenceWait& wait : result.waits) {
      v1::PrepareUseResponse::Wait* const to = out->add_waits();
      to->set_channel(wait.stream.channel.value());
      to->set_slot(wait.stream.slot);
      to->set_value(wait.value);
    }
    for (const BlockId block : result.torn) out->add_torn_blocks(block.value());
  }
};

template <>
struct RpcTraits<core::FinishUseRequest> : RpcDefaultsFor<core::FinishUseRequest> {
  static constexpr auto kMethod = &core::Core::FinishUse;

  static absl::StatusOr<core::FinishUseRequest> Decode(const v1::FinishUseRequest& request, absl::Time) {
    return core::FinishUseRequest{.use = UseId(request.use()), .value = request.value()};
  }
  static void Encode(const core::FinishUseResult& result, v1::FinishUseResponse* out) {
    for (const BlockId block : result.torn) out->add_torn_blocks(block.value());
  }
};

template <>
struct RpcTraits<core::AbandonUseRequest> : RpcDefaultsFor<core::AbandonUseRequest> {
  static constexpr auto kMethod = &core::Core::AbandonUse;

  static absl::StatusOr<core::AbandonUseRequest> Decode(const v1::AbandonUseRequest& request, absl::Time) {
    return core::AbandonUseRequest{.use = UseId(request.use())};
  }
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_RPC_FENCE_REQUESTS_H_
