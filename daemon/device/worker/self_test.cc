#include "daemon/device/worker/self_test.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/cuda/device_mapping.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"
#include "daemon/device/memory/vmm_backend.h"

namespace berth {
namespace {

// Bytes read back at a time.
constexpr Bytes kLook = MiB(2);

absl::Status Check(cuda::Driver& driver, const cuda::DeviceMapping& memory, Bytes bytes, uint8_t pattern) {
  BERTH_RETURN_IF_ERROR(driver.Fill(memory.ptr(), pattern, bytes));
  BERTH_RETURN_IF_ERROR(driver.SynchronizeContext());
  const std::vector<uint8_t> written(kLook.count(), pattern);
  std::vector<uint8_t> read(kLook.count());
  for (uint64_t at = 0; at < bytes.count(); at += kLook.count()) {
    BERTH_RETURN_IF_ERROR(driver.CopyToHost(std::as_writable_bytes(std::span(read)), memory.ptr() + at));
    // One comparison of all bytes takes a tiny part of the time of a count.
    if (read == written) continue;
    const auto right = static_cast<uint64_t>(std::count(read.begin(), read.end(), pattern));
    return absl::InternalError(
        absl::StrCat(kLook.count() - right, " of ", kLook.count(), " bytes are not what was written to them"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TestCudaDevice(cuda::Driver& driver, int ordinal, Bytes bytes) {
  BERTH_ASSIGN_OR_RETURN(const int shared, driver.Attribute(ordinal, cuda::DeviceAttribute::kManyContexts));
  if (shared == 0) return absl::OkStatus();
  BERTH_ASSIGN_OR_RETURN(const cuda::Context context, driver.RetainPrimaryContext(ordinal));
  const absl::Cleanup release = [&] { driver.ReleasePrimaryContext(ordinal).IgnoreError(); };
  BERTH_RETURN_IF_ERROR(driver.SetCurrentContext(context));
  BERTH_ASSIGN_OR_RETURN(const std::unique_ptr<VmmBackend> backend, VmmBackend::Open(driver, ordinal));
  BERTH_ASSIGN_OR_RETURN(MemoryBlock block, backend->Allocate(bytes, "self-test"));
  BERTH_ASSIGN_OR_RETURN(const UniqueFd fd, backend->HandOver(block));
  BERTH_ASSIGN_OR_RETURN(const cuda::DeviceMapping memory,
                         cuda::DeviceMapping::Map(driver, fd.get(), bytes, ordinal, false));
  BERTH_RETURN_IF_ERROR(Check(driver, memory, bytes, 0xA5));
  return Check(driver, memory, bytes, 0x5A);
}

absl::Status TestBackend(MemoryResource& resource) {
  BERTH_ASSIGN_OR_RETURN(MemoryBlock block, resource.Allocate(resource.granularity(), "self-test"));
  BERTH_RETURN_IF_ERROR(resource.Fill(block, 0xA5));
  return resource.Deallocate(block);
}

}  // namespace berth
