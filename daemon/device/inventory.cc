#include "daemon/device/inventory.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/cuda/driver.h"
#include "common/cuda/nvml.h"
#include "common/error.h"
#include "common/ids.h"
#include "common/os_error.h"
#include "common/status_macros.h"
#include "daemon/device/vmm_backend.h"

namespace berth {
namespace {

constexpr Bytes kHostBytesMax = GiB(8);

template <size_t kSize>
void SetText(absl::string_view text, char (&field)[kSize]) {
  const size_t length = std::min(text.size(), kSize - 1);
  std::copy_n(text.data(), length, field);
  field[length] = '\0';
}

// The kernel's estimate of the memory that a new program could use; 0 if it cannot be read.
Bytes AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    uint64_t kib;
    if (absl::ConsumePrefix(&rest, "MemAvailable:") && absl::ConsumeSuffix(&rest, " kB") &&
        absl::SimpleAtoi(rest, &kib)) {
      return KiB(kib);
    }
  }
  return Bytes(0);
}

Bytes HostBytes(const InventoryOptions& options) {
  const Bytes asked = options.host_bytes > Bytes(0)
                          ? options.host_bytes
                          : std::min(kHostBytesMax, Bytes(AvailableMemory().count() / 2));
  return Bytes(asked.count() - asked.count() % kBlockGranularity);
}

std::vector<DeviceRecord> HostDevices(const InventoryOptions& options) {
  const Bytes bytes = HostBytes(options);
  std::vector<DeviceRecord> records(std::min(options.host_devices, kMaxDeviceOrdinals));
  for (uint32_t ordinal = 0; ordinal < records.size(); ++ordinal) {
    DeviceRecord& record = records[ordinal];
    record.ordinal = ordinal;
    record.backend = BackendKind::kHost;
    SetText(absl::StrCat("HOST-", ordinal), record.uuid);
    SetText("host memory", record.name);
    record.total_bytes = bytes.count();
    record.free_bytes = bytes.count();
    record.granularity = kBlockGranularity;
    SetText("not tried: the kernel clears memory", record.clears.detail);
  }
  return records;
}

absl::StatusOr<DeviceRecord> CudaDevice(cuda::Driver& driver, uint32_t ordinal) {
  BERTH_ASSIGN_OR_RETURN(const int shareable, driver.Attribute(ordinal, cuda::DeviceAttribute::kMemoryAsFd));
  if (shareable == 0) {
    return Refuse(Reason::kUnsupported, "it lacks {capability}",
                  {{"capability", "memory that can be shared as an fd"}});
  }
  DeviceRecord record = {.ordinal = ordinal, .backend = BackendKind::kCudaVmm};
  BERTH_ASSIGN_OR_RETURN(const std::string uuid, driver.DeviceUuid(ordinal));
  BERTH_ASSIGN_OR_RETURN(const std::string name, driver.DeviceName(ordinal));
  BERTH_ASSIGN_OR_RETURN(const Bytes total, driver.DeviceTotalMemory(ordinal));
  BERTH_ASSIGN_OR_RETURN(const Bytes granularity, VmmGranularity(driver, ordinal));
  BERTH_ASSIGN_OR_RETURN(const int major,
                         driver.Attribute(ordinal, cuda::DeviceAttribute::kComputeCapabilityMajor));
  BERTH_ASSIGN_OR_RETURN(const int minor,
                         driver.Attribute(ordinal, cuda::DeviceAttribute::kComputeCapabilityMinor));
  BERTH_ASSIGN_OR_RETURN(const int processors,
                         driver.Attribute(ordinal, cuda::DeviceAttribute::kMultiprocessors));
  SetText(uuid, record.uuid);
  SetText(name, record.name);
  SetText("not tried: turned off", record.clears.detail);
  record.total_bytes = total.count();
  record.free_bytes = total.count();
  record.granularity = granularity.count();
  record.compute_capability = static_cast<uint32_t>(10 * major + minor);
  record.multiprocessors = static_cast<uint32_t>(processors);
  // CUDA knows what is free only inside a context; NVML knows without.
  if (const absl::StatusOr<cuda::Nvml*> nvml = cuda::Nvml::Get(); nvml.ok()) {
    const absl::StatusOr<cuda::Nvml::Memory> memory = (*nvml)->GetMemory(uuid);
    if (memory.ok()) record.free_bytes = std::min(total, memory->free).count();
  }
  return record;
}

absl::StatusOr<std::vector<DeviceRecord>> CudaDevices() {
  BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
  BERTH_ASSIGN_OR_RETURN(const int count, driver->DeviceCount());
  std::vector<DeviceRecord> records;
  for (uint32_t ordinal = 0; ordinal < std::min<uint32_t>(count, kMaxDeviceOrdinals); ++ordinal) {
    const absl::StatusOr<DeviceRecord> record = CudaDevice(*driver, ordinal);
    if (record.ok()) {
      records.push_back(*record);
    } else {
      // One sick device never hides the others.
      dprintf(STDERR_FILENO, "berthd: device %u is left out: %s\n", ordinal,
              std::string(record.status().message()).c_str());
    }
  }
  if (records.empty()) {
    return Refuse(Reason::kUnsupported, "no {capability}: {count} devices, none that can be used",
                  {{"capability", "CUDA"}, {"count", count}});
  }
  return records;
}

}  // namespace

absl::StatusOr<std::vector<DeviceRecord>> TakeInventory(const InventoryOptions& options) {
  if (options.backend == BackendChoice::kHost) return HostDevices(options);
  absl::StatusOr<std::vector<DeviceRecord>> devices = CudaDevices();
  // Absence is an answer; a fault is an error, lest a broken driver turn a GPU node into a host one
  // unnoticed.
  if (options.backend == BackendChoice::kAuto && IsRefusal(devices.status(), Reason::kUnsupported)) {
    return HostDevices(options);
  }
  return devices;
}

absl::Status WriteInventory(int fd, const std::vector<DeviceRecord>& records) {
  for (const DeviceRecord& record : records) {
    if (::write(fd, &record, sizeof(record)) != sizeof(record)) return OsError("write(inventory)", errno);
  }
  return absl::OkStatus();
}

}  // namespace berth
