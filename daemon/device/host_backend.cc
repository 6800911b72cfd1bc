#include "daemon/device/host_backend.h"

#include <utility>

#include "common/memfd.h"
#include "common/status_macros.h"

namespace berth {

HostBackend::HostBackend(std::string uuid, Bytes total) : uuid_(std::move(uuid)), total_(total) {}

absl::StatusOr<UniqueFd> HostBackend::Create(Bytes bytes) {
  BERTH_RETURN_IF_ERROR(ValidateBlockSize(bytes, granularity()));
  if (bytes > total_) return RefuseMoreThan(uuid_, bytes, total_);
  BERTH_ASSIGN_OR_RETURN(UniqueFd fd, CreateMemfd("berth-block", bytes.count()));
  BERTH_RETURN_IF_ERROR(SealMemfd(fd.get()));
  return fd;
}

}  // namespace berth
