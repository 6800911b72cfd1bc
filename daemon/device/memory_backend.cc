#include "daemon/device/memory_backend.h"

#include "absl/strings/str_cat.h"
#include "common/error.h"

namespace berth {

absl::Status ValidateBlockSize(Bytes bytes, Bytes granularity) {
  if (bytes.count() != 0 && bytes.count() % granularity.count() == 0) return absl::OkStatus();
  return Refuse(Reason::kInvalidField, "{field}: {value}, limit {limit}",
                {{"field", "bytes"},
                 {"value", bytes.count()},
                 {"limit", absl::StrCat("a positive multiple of ", granularity.count())}});
}

absl::Status RefuseMoreThan(const std::string& uuid, Bytes bytes, Bytes total) {
  return Refuse(
      Reason::kOutOfMemory, "device {device}: {requested} bytes asked, {total} in all",
      {{"device", uuid}, {"requested", bytes.count()}, {"total", total.count()}, {"driver_code", 0}});
}

}  // namespace berth
