#include "daemon/service/audit/write_fault.h"

#include <utility>

#include "spdlog/spdlog.h"

namespace berth::service {

void WriteFault::Report(const std::string& path, const absl::Status& status) {
  std::string reason(status.message());
  if (reason == reason_) return;
  if (status.ok()) {
    spdlog::info("writes to {} succeed again", path);
  } else {
    spdlog::warn("cannot write {}: {}; the file lacks these records", path, reason);
  }
  reason_ = std::move(reason);
}

}  // namespace berth::service
