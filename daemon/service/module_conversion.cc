#include "daemon/service/module_conversion.h"

#include <string.h>

#include <string>

#include "common/error.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "daemon/service/conversion.h"

namespace berth::service {
namespace {

// The core's enum carries the wire's numbers.
static_assert(static_cast<int>(core::ModuleState::kCompiling) == v1::KeptModule::COMPILING);
static_assert(static_cast<int>(core::ModuleState::kStoring) == v1::KeptModule::STORING);
static_assert(static_cast<int>(core::ModuleState::kOnDisk) == v1::KeptModule::ON_DISK);
static_assert(static_cast<int>(core::ModuleState::kLoading) == v1::KeptModule::LOADING);
static_assert(static_cast<int>(core::ModuleState::kReady) == v1::KeptModule::READY);

// Of a compiler's log, as the SDK cuts it too.
constexpr size_t kMaxErrorBytes = 2'000;

absl::StatusOr<Digest> ReadDigest(absl::string_view field, const std::string& bytes) {
  Digest digest;
  if (bytes.size() != Digest::kBytes) {
    return Refuse(Reason::kInvalidField, "{field}: {value} bytes; a SHA-256 has {limit}",
                  {{"field", field}, {"value", bytes.size()}, {"limit", Digest::kBytes}});
  }
  memcpy(digest.bits.data(), bytes.data(), bytes.size());
  return digest;
}

std::string ToBytes(const Digest& digest) { return std::string(digest.bytes()); }

}  // namespace

absl::StatusOr<core::ObtainModuleRequest> FromProto(const v1::ObtainModuleRequest& request, absl::Time now) {
  core::ObtainModuleRequest out = {
      .architecture = request.architecture(), .compiler = request.compiler(), .label = request.label()};
  BERTH_ASSIGN_OR_RETURN(out.key, ReadDigest("key", request.key()));
  BERTH_RETURN_IF_ERROR(ValidateLabel("architecture", request.architecture()));
  BERTH_RETURN_IF_ERROR(ValidateLabel("compiler", request.compiler()));
  BERTH_RETURN_IF_ERROR(ValidateLabel("label", request.label()));
  if (request.has_max_wait()) {
    BERTH_ASSIGN_OR_RETURN(const absl::Duration wait, FromProto("max_wait", request.max_wait()));
    out.deadline = now + wait;
  }
  if (!request.distrusted_content().empty()) {
    BERTH_ASSIGN_OR_RETURN(out.distrusted, ReadDigest("distrusted_content", request.distrusted_content()));
  }
  return out;
}

absl::StatusOr<core::StoreModuleRequest> FromProto(const v1::StoreModuleRequest& request) {
  core::StoreModuleRequest out = {.compile = core::CompileId(request.compile()),
                                  .bytes = Bytes(request.bytes())};
  BERTH_ASSIGN_OR_RETURN(out.content, ReadDigest("content", request.content()));
  return out;
}

absl::StatusOr<core::AbandonModuleRequest> FromProto(const v1::AbandonModuleRequest& request) {
  return core::AbandonModuleRequest{.compile = core::CompileId(request.compile()),
                                    .error = ToLog(request.compile_error(), kMaxErrorBytes)};
}

void ToProto(const core::ObtainModuleResult& result, v1::ObtainModuleResponse* out) {
  out->set_module(result.module.value());
  out->set_compile(result.compile.value());
  out->set_bytes(result.bytes.count());
  if (result.compile) {
    ToProto(result.expires, out->mutable_expire_time());
  } else {
    out->set_content(ToBytes(result.content));
  }
}

void ToProto(const core::StoreModuleResult&, v1::StoreModuleResponse*) {}

void ToProto(const core::AbandonModuleResult&, v1::AbandonModuleResponse*) {}

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
