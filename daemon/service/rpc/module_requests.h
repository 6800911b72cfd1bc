// The requests for compiled modules (rpc_traits.h).

#ifndef DAEMON_SERVICE_RPC_MODULE_REQUESTS_H_
#define DAEMON_SERVICE_RPC_MODULE_REQUESTS_H_

#include <cstddef>
#include <string>

#include <berth/bytes.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "berth/v1/module.pb.h"
#include "common/digest.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "daemon/core/core.h"
#include "daemon/service/conversion/conversion.h"
#include "daemon/service/conversion/module_conversion.h"
#include "daemon/service/rpc/rpc_traits.h"

namespace berth::service {

template <>
struct RpcTraits<core::ObtainModuleRequest> : RpcDefaultsFor<core::ObtainModuleRequest> {
  static constexpr const char* kAuditName = "obtain_module";
  static constexpr auto kMethod = &core::Core::ObtainModule;

  static absl::StatusOr<core::ObtainModuleRequest> Decode(const v1::ObtainModuleRequest& request, absl::Time now) {
    core::ObtainModuleRequest out = {
        .architecture = request.architecture(), .compiler = request.compiler(), .label = ToLabel(request.label())};
    BERTH_ASSIGN_OR_RETURN(out.key, ReadDigest("key", request.key()));
    BERTH_RETURN_IF_ERROR(ValidateLabel("architecture", request.architecture()));
    BERTH_RETURN_IF_ERROR(ValidateLabel("compiler", request.compiler()));
    if (request.has_max_wait()) {
      BERTH_ASSIGN_OR_RETURN(const absl::Duration wait, FromProto("max_wait", request.max_wait()));
      out.deadline = now + wait;
    }
    if (!request.distrusted_content().empty()) {
      BERTH_ASSIGN_OR_RETURN(out.distrusted, ReadDigest("distrusted_content", request.distrusted_content()));
    }
    return out;
  }
  static void Encode(const core::ObtainModuleResult& result, v1::ObtainModuleResponse* out) {
    out->set_module(result.module.value());
    out->set_compile(result.compile.value());
    out->set_bytes(result.bytes.count());
    if (result.compile) {
      ToProto(result.expires, out->mutable_expire_time());
    } else {
      out->set_content(std::string(result.content.bytes()));
    }
  }
  static void AddFacts(const core::ObtainModuleRequest& request, AuditFacts* facts) {
    facts->emplace_back("key", ToHex(request.key));
    AddLabel(request.label, facts);
  }
  static void AddResultFacts(const core::ObtainModuleResult& result, AuditFacts* facts) {
    facts->emplace_back("compile", result.compile ? "true" : "false");
  }
};

template <>
struct RpcTraits<core::StoreModuleRequest> : RpcDefaultsFor<core::StoreModuleRequest> {
  static constexpr const char* kAuditName = "store_module";
  static constexpr auto kMethod = &core::Core::StoreModule;

  static absl::StatusOr<core::StoreModuleRequest> Decode(const v1::StoreModuleRequest& request, absl::Time) {
    core::StoreModuleRequest out = {.compile = core::CompileId(request.compile()), .bytes = Bytes(request.bytes())};
    BERTH_ASSIGN_OR_RETURN(out.content, ReadDigest("content", request.content()));
    return out;
  }
  static void AddFacts(const core::StoreModuleRequest& request, AuditFacts* facts) {
    facts->emplace_back("bytes", absl::StrCat(request.bytes.count()));
    facts->emplace_back("content", ToHex(request.content));
  }
};

template <>
struct RpcTraits<core::AbandonModuleRequest> : RpcDefaultsFor<core::AbandonModuleRequest> {
  // Most bytes of a compiler's log; the SDK cuts at the same size.
  static constexpr size_t kMaxErrorBytes = 2'000;

  static constexpr const char* kAuditName = "abandon_module";
  static constexpr auto kMethod = &core::Core::AbandonModule;

  static absl::StatusOr<core::AbandonModuleRequest> Decode(const v1::AbandonModuleRequest& request, absl::Time) {
    return core::AbandonModuleRequest{.compile = core::CompileId(request.compile()),
                                      .error = ToLog(request.compile_error(), kMaxErrorBytes)};
  }
  static void AddFacts(const core::AbandonModuleRequest& request, AuditFacts* facts) {
    facts->emplace_back("of_source", request.error.empty() ? "false" : "true");
  }
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_RPC_MODULE_REQUESTS_H_
