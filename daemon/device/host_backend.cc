#include "daemon/device/host_backend.h"

#include <errno.h>

#include <utility>

#include "common/error.h"
#include "common/memfd.h"
#include "common/status_macros.h"

namespace berth {

HostBackend::HostBackend(std::string uuid, Bytes total) : uuid_(std::move(uuid)), total_(total) {}

absl::StatusOr<UniqueFd> HostBackend::Create(Bytes bytes) {
  BERTH_RETURN_IF_ERROR(ValidateBlockSize(bytes, granularity()));
  if (bytes > total_) {
    return Refuse(Reason::kOutOfMemory,
                  "device {device}: out of memory, asked {requested} bytes, has {total} ({driver_code})",
                  {{"device", uuid_},
                   {"requested", bytes.count()},
                   {"total", total_.count()},
                   {"driver_code", ENOMEM}});
  }
  BERTH_ASSIGN_OR_RETURN(UniqueFd fd, CreateMemfd("berth-block", bytes.count()));
  BERTH_RETURN_IF_ERROR(SealMemfd(fd.get()));
  return fd;
}

}  // namespace berth
