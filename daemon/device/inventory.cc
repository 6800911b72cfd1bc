#include "daemon/device/inventory.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/cuda/driver.h"
#include "common/cuda/nvml.h"
#include "common/cuda/nvml_survey.h"
#include "common/device_figures.h"
#include "common/error.h"
#include "common/ids.h"
#include "common/os_error.h"
#include "common/status_macros.h"
#include "daemon/device/node_script.h"
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

absl::StatusOr<std::vector<DeviceRecord>> ScriptedDevices(const InventoryOptions& options) {
  BERTH_ASSIGN_OR_RETURN(const NodeScript script, ReadNodeScript(options.host_devices_file));
  const Bytes bytes = HostBytes(options);
  std::vector<DeviceRecord> records;
  for (uint32_t ordinal = 0; ordinal < script.devices.size(); ++ordinal) {
    const ScriptedDevice& device = script.devices[ordinal];
    DeviceRecord& record =
        records.emplace_back(DeviceRecord{.ordinal = ordinal, .backend = BackendKind::kHost});
    SetText(device.uuid, record.uuid);
    SetText(device.name, record.name);
    SetText(device.mig_parent, record.mig_parent);
    const Bytes total = device.memory.value_or(bytes);
    record.total_bytes = total.count() - total.count() % kBlockGranularity;
    const FigureValue& free = device.figures[DeviceFigure::kFreeBytes];
    record.free_bytes = free.known() ? std::min(free.value, record.total_bytes) : record.total_bytes;
    record.granularity = kBlockGranularity;
    record.compute_capability = device.compute_capability;
    record.multiprocessors = device.multiprocessors;
    record.threads_per_multiprocessor = device.threads_per_multiprocessor;
    record.shared_bytes_per_block = device.shared_bytes_per_block;
    record.l2_bytes = device.l2_bytes;
    record.nvlink_peers = script.NvlinkPeersOf(ordinal);
    SetText("not tried: the kernel clears memory", record.clears.detail);
  }
  return records;
}

// What is not needed to serve the device: 0 where the driver does not say.
uint32_t Optional(cuda::Driver& driver, uint32_t ordinal, cuda::DeviceAttribute attribute) {
  return static_cast<uint32_t>(std::max(0, driver.Attribute(ordinal, attribute).value_or(0)));
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
  record.threads_per_multiprocessor =
      Optional(driver, ordinal, cuda::DeviceAttribute::kThreadsPerMultiprocessor);
  record.shared_bytes_per_block = Optional(driver, ordinal, cuda::DeviceAttribute::kSharedMemoryPerBlock);
  record.l2_bytes = Optional(driver, ordinal, cuda::DeviceAttribute::kL2Cache);
  // CUDA knows what is free only inside a context; NVML knows without.
  if (const absl::StatusOr<cuda::Nvml*> nvml = cuda::Nvml::Get(); nvml.ok()) {
    const absl::StatusOr<cuda::Nvml::Memory> memory = (*nvml)->GetMemory(uuid);
    if (memory.ok()) record.free_bytes = std::min(total, memory->free).count();
  }
  return record;
}

// Where the devices are, and what they are linked to: by NVML, which may know less.
void AddPlaces(std::vector<DeviceRecord>* records) {
  for (DeviceRecord& record : *records) {
    const absl::StatusOr<std::unique_ptr<cuda::NvmlSurvey>> survey = cuda::NvmlSurvey::Open(record.uuid);
    if (!survey.ok()) continue;
    if (const absl::StatusOr<std::string> pci = (*survey)->PciId(); pci.ok()) SetText(*pci, record.pci_id);
    for (const DeviceRecord& peer : *records) {
      if (peer.ordinal == record.ordinal) continue;
      const absl::StatusOr<cuda::NvmlSurvey::Reach> reach = (*survey)->ReachOf(peer.uuid);
      if (reach.ok() && reach->nvlink) record.nvlink_peers |= uint64_t{1} << peer.ordinal;
    }
  }
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
  AddPlaces(&records);
  return records;
}

}  // namespace

absl::StatusOr<std::vector<DeviceRecord>> TakeInventory(const InventoryOptions& options) {
  if (!options.host_devices_file.empty()) return ScriptedDevices(options);
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
