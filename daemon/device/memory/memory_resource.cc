#include "daemon/device/memory/memory_resource.h"

#include <map>

#include <berth/error.h>

#include "absl/strings/str_cat.h"

namespace berth {

absl::Status ValidateBlockSize(Bytes bytes, Bytes granularity) {
  if (bytes.count() != 0 && bytes.count() % granularity.count() == 0) return absl::OkStatus();
  return Refuse(Reason::kInvalidField, "{field}: {value}, limit {limit}",
                {{"field", "bytes"},
                 {"value", bytes.count()},
                 {"limit", absl::StrCat("a positive multiple of ", granularity.count())}});
}

absl::Status RefuseMoreThan(const std::string& device, Bytes bytes, Bytes total) {
  return Refuse(Reason::kOutOfMemory, "device {device}: requested {requested} bytes, total {total}",
                {{"device", device}, {"requested", bytes.count()}, {"total", total.count()}, {"driver_code", 0}});
}

absl::Status RefuseCapability(const std::string& device, absl::string_view capability) {
  return Refuse(Reason::kUnsupported, "device {device}: no {capability}",
                {{"device", device}, {"capability", capability}});
}

absl::Status ExplainDriverError(const absl::Status& error, const std::string& device, Bytes requested) {
  std::optional<ErrorDetails> details = GetErrorDetails(error);
  if (!details.has_value()) return error;
  return Refuse(details->reason, "device {device}: {requested} bytes: {why}",
                {{"device", device},
                 {"requested", requested.count()},
                 {"why", error.message()},
                 {"call", details->metadata["call"]},
                 {"driver_code", details->metadata["driver_code"]}});
}

absl::Status ExplainSystemError(const absl::Status& error, const std::string& device, Bytes requested) {
  if (!absl::IsResourceExhausted(error)) return error;
  return Refuse(Reason::kOutOfMemory, "device {device}: {requested} bytes: the daemon's worker: {why}",
                {{"device", device}, {"requested", requested.count()}, {"driver_code", 0}, {"why", error.message()}});
}

}  // namespace berth
