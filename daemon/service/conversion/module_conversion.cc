#include "daemon/service/conversion/module_conversion.h"

#include <string.h>

#include <string>

#include <berth/error.h>

#include "berth/v1/module.pb.h"
#include "daemon/service/conversion/conversion.h"

namespace berth::service {
namespace {

// The core's enum has the wire's numbers.
static_assert(static_cast<int>(core::ModuleState::kCompiling) == v1::KeptModule::COMPILING);
static_assert(static_cast<int>(core::ModuleState::kStoring) == v1::KeptModule::STORING);
static_assert(static_cast<int>(core::ModuleState::kOnDisk) == v1::KeptModule::ON_DISK);
static_assert(static_cast<int>(core::ModuleState::kLoading) == v1::KeptModule::LOADING);
static_assert(static_cast<int>(core::ModuleState::kReady) == v1::KeptModule::READY);

std::string ToBytes(const Digest& digest) { return std::string(digest.bytes()); }

}  // namespace

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
