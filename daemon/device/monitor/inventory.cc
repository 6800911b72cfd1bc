#include "daemon/device/monitor/inventory.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <berth/error.h>
#include <berth/ids.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/cuda/driver.h"
#include "common/cuda/nvml.h"
#include "common/cuda/nvml_survey.h"
#include "common/device_metrics.h"
#include "common/device_name.h"
#include "common/label.h"
#include "common/os/os_error.h"
#include "common/patience.h"
#include "common/status_macros.h"
#include "common/thread.h"
#include "daemon/base/stderr_log.h"
#include "daemon/device/memory/vmm_backend.h"
#include "daemon/device/monitor/node_script.h"

namespace berth {
namespace {

constexpr Bytes kHostBytesMax = GiB(8);
// A device is described in less than a millisecond once cuInit has ended.
constexpr std::chrono::seconds kPatience(3);
constexpr char kVisibleDevices[] = "CUDA_VISIBLE_DEVICES";

template <size_t kSize>
void SetText(absl::string_view text, char (&field)[kSize]) {
  const size_t length = std::min(text.size(), kSize - 1);
  std::copy_n(text.data(), length, field);
  field[length] = '\0';
}

// Returns the kernel's estimate of the memory that a new program could use; 0 if it cannot be read.
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
    SetText("not tried: the kernel clears memory", record.scrub.detail);
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
    const MetricValue& free = device.metrics[DeviceMetric::kFreeBytes];
    record.free_bytes = free.known() ? std::min(free.value, record.total_bytes) : record.total_bytes;
    record.granularity = kBlockGranularity;
    record.compute_capability = device.compute_capability;
    record.multiprocessors = device.multiprocessors;
    record.threads_per_multiprocessor = device.threads_per_multiprocessor;
    record.shared_bytes_per_block = device.shared_bytes_per_block;
    record.l2_bytes = device.l2_bytes;
    record.nvlink_peers = script.NvlinkPeersOf(ordinal);
    SetText("not tried: the kernel clears memory", record.scrub.detail);
  }
  return records;
}

absl::Status NoAnswer() {
  return absl::UnavailableError(absl::StrCat("the driver did not answer in ", Patient(kPatience).count(), " s"));
}

// Returns an attribute that is not needed to serve the device; 0 if the driver does not report it.
uint32_t Optional(cuda::Driver& driver, int ordinal, cuda::DeviceAttribute attribute) {
  return static_cast<uint32_t>(std::max(0, driver.Attribute(ordinal, attribute).value_or(0)));
}

// Returns a placeholder record for a device whose UUID cannot be read.
DeviceRecord UnknownDevice(uint32_t ordinal) {
  DeviceRecord record = {.ordinal = ordinal, .backend = BackendKind::kCudaVmm, .granularity = kBlockGranularity};
  SetText(absl::StrCat(kUnidentifiedDevice, ordinal), record.uuid);
  SetText("not tried: turned off", record.scrub.detail);
  return record;
}

// Fills in all readable fields of CUDA's device `ordinal`. Errors: UNSUPPORTED if the device's memory cannot be shared;
// the driver's.
absl::Status Describe(cuda::Driver& driver, int ordinal, DeviceRecord* described) {
  DeviceRecord& record = *described;
  BERTH_ASSIGN_OR_RETURN(const std::string uuid, driver.DeviceUuid(ordinal));
  SetText(uuid, record.uuid);
  BERTH_ASSIGN_OR_RETURN(const std::string name, driver.DeviceName(ordinal));
  SetText(name, record.name);
  BERTH_ASSIGN_OR_RETURN(const int shareable, driver.Attribute(ordinal, cuda::DeviceAttribute::kMemoryAsFd));
  if (shareable == 0) {
    return Refuse(Reason::kUnsupported, "the device lacks {capability}",
                  {{"capability", "memory that can be shared as an fd"}});
  }
  BERTH_ASSIGN_OR_RETURN(const Bytes total, driver.DeviceTotalMemory(ordinal));
  record.total_bytes = record.free_bytes = total.count();
  BERTH_ASSIGN_OR_RETURN(const Bytes granularity, VmmGranularity(driver, ordinal));
  record.granularity = granularity.count();
  BERTH_ASSIGN_OR_RETURN(const int major,
                         driver.Attribute(ordinal, cuda::DeviceAttribute::kComputeCapabilityMajor));
  BERTH_ASSIGN_OR_RETURN(const int minor,
                         driver.Attribute(ordinal, cuda::DeviceAttribute::kComputeCapabilityMinor));
  BERTH_ASSIGN_OR_RETURN(const int processors,
                         driver.Attribute(ordinal, cuda::DeviceAttribute::kMultiprocessors));
  record.compute_capability = static_cast<uint32_t>(10 * major + minor);
  record.multiprocessors = static_cast<uint32_t>(processors);
  record.threads_per_multiprocessor =
      Optional(driver, ordinal, cuda::DeviceAttribute::kThreadsPerMultiprocessor);
  record.shared_bytes_per_block = Optional(driver, ordinal, cuda::DeviceAttribute::kSharedMemoryPerBlock);
  record.l2_bytes = Optional(driver, ordinal, cuda::DeviceAttribute::kL2Cache);
  return absl::OkStatus();
}

// Adds what NVML knows of the device of `records` at `index`, as far as it answers: free memory, PCI location, and
// links. CUDA reports free memory only inside a context.
DeviceRecord WithPlace(const std::vector<DeviceRecord>& records, size_t index) {
  DeviceRecord record = records[index];
  const absl::StatusOr<cuda::Nvml*> nvml = cuda::Nvml::Get();
  if (!nvml.ok()) return record;
  if (const auto memory = (*nvml)->GetMemory(record.uuid); memory.ok()) {
    record.free_bytes = std::min(record.total_bytes, memory->free.count());
  }
  const absl::StatusOr<std::unique_ptr<cuda::NvmlSurvey>> survey = cuda::NvmlSurvey::Open(record.uuid);
  if (!survey.ok()) return record;
  if (const absl::StatusOr<std::string> pci = (*survey)->PciId(); pci.ok()) SetText(*pci, record.pci_id);
  if (absl::StartsWith(record.uuid, "MIG-")) {
    if (const auto parent = (*survey)->MigParent(); parent.ok()) SetText(*parent, record.mig_parent);
  }
  for (const DeviceRecord& peer : records) {
    if (peer.ordinal == record.ordinal) continue;
    const absl::StatusOr<cuda::NvmlSurvey::Reach> reach = (*survey)->ReachOf(peer.uuid);
    if (reach.ok() && reach->nvlink) record.nvlink_peers |= uint64_t{1} << peer.ordinal;
  }
  return record;
}

// Calls `ask` for 0 to `count` - 1, each on its own thread. Returns the answers; nullopt for one that does not arrive
// in time.
// Errors: kResourceExhausted if threads cannot be created.
template <typename Ask, typename Answer = std::invoke_result_t<Ask, size_t>>
absl::StatusOr<std::vector<std::optional<Answer>>> AskEach(size_t count, Ask ask) {
  const auto deadline = std::chrono::steady_clock::now() + Patient(kPatience);
  std::vector<std::future<Answer>> coming;
  for (size_t i = 0; i < count; ++i) {
    std::promise<Answer> promise;
    coming.push_back(promise.get_future());
    auto answer = [ask, i, promise = std::move(promise)]() mutable { promise.set_value(ask(i)); };
    BERTH_ASSIGN_OR_RETURN(Thread asking, Thread::Start("the inventory", std::move(answer)));
    asking.detach();
  }
  std::vector<std::optional<Answer>> answers;
  for (std::future<Answer>& one : coming) {
    const bool there = one.wait_until(deadline) == std::future_status::ready;
    answers.push_back(there ? std::optional<Answer>(one.get()) : std::nullopt);
  }
  return answers;
}

// Returns the ordinal of a GPU on the node. Errors: OUT_OF_RANGE; NVML's.
absl::StatusOr<uint32_t> OrdinalOnNode(const std::string& uuid) {
  BERTH_ASSIGN_OR_RETURN(cuda::Nvml* const nvml, cuda::Nvml::Get());
  BERTH_ASSIGN_OR_RETURN(const uint32_t ordinal, nvml->Index(uuid));
  if (ordinal < kMaxDeviceOrdinals) return ordinal;
  return Refuse(Reason::kOutOfRange, "{field} {value} exceeds the last, {limit}",
                {{"field", "device ordinal"}, {"value", ordinal}, {"limit", kMaxDeviceOrdinals - 1}});
}

bool IsWholeGpu(const DeviceRecord& record) { return absl::StartsWith(record.uuid, "GPU-"); }

// Takes a device out of service whose ordinal on the node is not known: under another ordinal, its users would get
// another device.
void RejectUnnumbered(const absl::Status& why, DeviceRecord* record) {
  record->fault = DeviceFault::kNotDescribed;
  // No self-test enables a device without a size.
  record->total_bytes = record->free_bytes = 0;
  SetText(absl::StrCat(kVisibleDevices, " is set, and NVML reports no ordinal: ", why.message()), record->scrub.detail);
}

// Replaces CUDA's ordinals by those of the node, which differ if CUDA_VISIBLE_DEVICES is set: CUDA then counts only the
// devices that it names. A device that has no ordinal on the node gets a free one: a MIG instance, or a device that the
// driver has not identified.
// Errors: NVML's, if it does not work for any device.
absl::Status NumberByNode(std::vector<DeviceRecord>* numbered) {
  std::vector<DeviceRecord>& records = *numbered;
  if (::getenv(kVisibleDevices) == nullptr || std::none_of(records.begin(), records.end(), IsWholeGpu)) {
    return absl::OkStatus();
  }
  BERTH_RETURN_IF_ERROR(cuda::Nvml::Get().status());
  const auto others = std::stable_partition(records.begin(), records.end(), IsWholeGpu);
  const auto ask = [gpus = std::vector<DeviceRecord>(records.begin(), others)](size_t index) {
    return OrdinalOnNode(gpus[index].uuid);
  };
  BERTH_ASSIGN_OR_RETURN(const auto ordinals, AskEach(static_cast<size_t>(others - records.begin()), ask));
  std::set<uint32_t> taken;
  std::vector<DeviceRecord*> unnumbered;
  for (size_t i = 0; i < records.size(); ++i) {
    DeviceRecord& record = records[i];
    if (i < ordinals.size() && ordinals[i].has_value() && ordinals[i]->ok()) {
      record.ordinal = **ordinals[i];
      taken.insert(record.ordinal);
      continue;
    }
    if (i < ordinals.size() && record.fault == DeviceFault::kNone) {
      RejectUnnumbered(ordinals[i].has_value() ? ordinals[i]->status() : NoAnswer(), &record);
    }
    unnumbered.push_back(&record);
  }
  uint32_t next = 0;
  for (DeviceRecord* const record : unnumbered) {
    while (taken.contains(next)) ++next;
    record->ordinal = next++;
    if (absl::StartsWith(record->uuid, kUnidentifiedDevice)) {
      SetText(absl::StrCat(kUnidentifiedDevice, record->ordinal), record->uuid);
    }
  }
  std::sort(records.begin(), records.end(),
            [](const DeviceRecord& a, const DeviceRecord& b) { return a.ordinal < b.ordinal; });
  return absl::OkStatus();
}

absl::StatusOr<std::vector<DeviceRecord>> CudaDevices() {
  BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
  BERTH_ASSIGN_OR_RETURN(const int count, driver->DeviceCount());
  struct Described {
    DeviceRecord record;
    absl::Status status;
  };
  const auto describe = [driver](size_t ordinal) {
    Described one = {.record = UnknownDevice(static_cast<uint32_t>(ordinal))};
    one.status = Describe(*driver, static_cast<int>(ordinal), &one.record);
    return one;
  };
  BERTH_ASSIGN_OR_RETURN(const auto described, AskEach(std::min<uint32_t>(count, kMaxDeviceOrdinals), describe));
  // A failing device never hides the others.
  std::vector<DeviceRecord> records;
  for (uint32_t ordinal = 0; ordinal < described.size(); ++ordinal) {
    const absl::Status status = described[ordinal].has_value() ? described[ordinal]->status : NoAnswer();
    if (IsRefusal(status, Reason::kUnsupported)) {
      LogLine(absl::StrCat("berthd: skipping device ", described[ordinal]->record.uuid, ": ", status.message()));
      continue;
    }
    DeviceRecord& record =
        records.emplace_back(described[ordinal].has_value() ? described[ordinal]->record : UnknownDevice(ordinal));
    if (status.ok()) continue;
    record.fault = DeviceFault::kNotDescribed;
    SetText(status.message(), record.scrub.detail);
  }
  if (records.empty()) {
    return Refuse(Reason::kUnsupported, "no {capability}: none of {count} devices is usable",
                  {{"capability", "CUDA"}, {"count", count}});
  }
  BERTH_RETURN_IF_ERROR(NumberByNode(&records));
  const auto place = [records](size_t index) { return WithPlace(records, index); };
  BERTH_ASSIGN_OR_RETURN(const auto placed, AskEach(records.size(), place));
  for (size_t i = 0; i < records.size(); ++i) records[i] = placed[i].value_or(records[i]);
  return records;
}

// Returns the record that stands for the devices of a driver that lists none yet.
DeviceRecord WithoutDriver(const absl::Status& why) {
  DeviceRecord record = UnknownDevice(/*ordinal=*/0);
  record.fault = DeviceFault::kNoDriver;
  std::string text(why.message());
  if (const char* const visible = ::getenv(kVisibleDevices)) {
    absl::StrAppend(&text, " (", kVisibleDevices, "=\"", visible, "\")");
  }
  SetText(ToMessage(text, sizeof(record.scrub.detail) - 1), record.scrub.detail);
  return record;
}

}  // namespace

absl::StatusOr<std::vector<DeviceRecord>> TakeInventory(const InventoryOptions& options) {
  if (!options.host_devices_file.empty()) return ScriptedDevices(options);
  if (options.backend == BackendChoice::kHost) return HostDevices(options);
  absl::StatusOr<std::vector<DeviceRecord>> devices = CudaDevices();
  const absl::Status& why = devices.status();
  if (!IsRefusal(why, Reason::kUnsupported) && !IsRefusal(why, Reason::kDriver)) return devices;
  // A driver that is there and lists no device may do so later. Host memory instead would turn a GPU node whose driver
  // comes up late into a node without a GPU.
  if (options.backend == BackendChoice::kCuda || !cuda::IsNotInstalled(why)) return std::vector{WithoutDriver(why)};
  LogLine(absl::StrCat("berthd: this node has no GPU (", why.message(),
                       "): its devices are host memory, as with --backend=host"));
  return HostDevices(options);
}

std::vector<DeviceRecord> ProvisionalInventory(const InventoryOptions& options) {
  if (!options.host_devices_file.empty() || options.backend == BackendChoice::kHost) return {};
  return {WithoutDriver(absl::UnavailableError("the process that calls the driver ended without a list of devices"))};
}

absl::Status WriteInventory(int fd, const std::vector<DeviceRecord>& records) {
  const size_t bytes = records.size() * sizeof(DeviceRecord);
  if (::pwrite(fd, records.data(), bytes, 0) != static_cast<ssize_t>(bytes)) return OsError("write(inventory)", errno);
  if (::ftruncate(fd, static_cast<off_t>(bytes)) < 0) return OsError("ftruncate(inventory)", errno);
  return absl::OkStatus();
}

}  // namespace berth
