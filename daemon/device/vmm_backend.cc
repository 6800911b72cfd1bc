#include "daemon/device/vmm_backend.h"

#include <numeric>
#include <optional>

#include "common/error.h"
#include "common/status_macros.h"

namespace berth {

absl::StatusOr<Bytes> VmmGranularity(cuda::Driver& driver, int ordinal) {
  BERTH_ASSIGN_OR_RETURN(const Bytes granularity, driver.AllocationGranularity(ordinal));
  return Bytes(std::lcm(granularity.count(), kBlockGranularity));
}

absl::StatusOr<VmmBackend> VmmBackend::Open(cuda::Driver& driver, int ordinal) {
  BERTH_ASSIGN_OR_RETURN(std::string uuid, driver.DeviceUuid(ordinal));
  BERTH_ASSIGN_OR_RETURN(const Bytes total, driver.DeviceTotalMemory(ordinal));
  BERTH_ASSIGN_OR_RETURN(const Bytes granularity, VmmGranularity(driver, ordinal));
  return VmmBackend(driver, ordinal, std::move(uuid), total, granularity);
}

absl::StatusOr<UniqueFd> VmmBackend::Create(Bytes bytes) {
  BERTH_RETURN_IF_ERROR(ValidateBlockSize(bytes, granularity_));
  if (bytes > total_) return RefuseMoreThan(uuid_, bytes, total_);
  const absl::StatusOr<cuda::Allocation> allocation = driver_.CreateMemory(ordinal_, bytes);
  if (!allocation.ok()) return Explain(allocation.status(), bytes);
  absl::StatusOr<UniqueFd> fd = driver_.ExportFd(*allocation);
  // Before anybody else has the fd: from here on its last close gives the memory back.
  const absl::Status released = driver_.ReleaseMemory(*allocation);
  if (!fd.ok()) return Explain(fd.status(), bytes);
  if (!released.ok()) return Explain(released, bytes);
  return fd;
}

absl::Status VmmBackend::Explain(const absl::Status& error, Bytes bytes) const {
  std::optional<ErrorDetails> details = GetErrorDetails(error);
  if (!details.has_value()) return error;
  return Refuse(details->reason, "device {device}: {requested} bytes: {why}",
                {{"device", uuid_},
                 {"requested", bytes.count()},
                 {"why", error.message()},
                 {"call", details->metadata["call"]},
                 {"driver_code", details->metadata["driver_code"]}});
}

}  // namespace berth
