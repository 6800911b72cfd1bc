// DeviceRecord: the inventory's findings on one device, as a plain struct, so that supervisor and broker know devices
// without loading a driver.

#ifndef DAEMON_DEVICE_MONITOR_DEVICE_RECORD_H_
#define DAEMON_DEVICE_MONITOR_DEVICE_RECORD_H_

#include <cstdint>
#include <type_traits>

namespace berth {

// Kind of memory that backs a device's blocks.
enum class BackendKind : uint32_t {
  // memfds, mapped with mmap.
  kHost = 1,
  // cuMemCreate allocations, exported as fds.
  kCudaVmm = 2,
  // cuMemAlloc allocations, opened by their IPC handles.
  kCudaDirect = 3,
  // Files, opened by host-memory equivalents of IPC handles.
  kHostNamed = 4,
};

// Devices that the operator selects.
enum class BackendChoice {
  // CUDA devices, or host devices if no CUDA driver is installed.
  kAuto,
  kHost,
  // CUDA devices, also of a driver that is installed later.
  kCuda,
};

// Whether a device's driver clears memory between one owner and the next.
enum class ScrubOutcome : uint32_t {
  kNotTried = 1,
  // Reallocated memory was all zeroes.
  kClear = 2,
  // Reallocated memory had an earlier owner's data.
  kStale = 3,
};

struct ScrubFinding {
  ScrubOutcome outcome = ScrubOutcome::kNotTried;
  // For people; zero-terminated.
  char detail[124] = {};
};

// Every device's granularity is a multiple of this. Blocks are rounded up to the device's granularity, so that all
// backends round alike.
inline constexpr uint64_t kBlockGranularity = uint64_t{2} << 20;

// Why a device is out of service from the start on.
enum class DeviceFault : uint32_t {
  kNone = 0,
  // The device could not be described.
  kNotDescribed = 1,
  // The driver lists no device yet. The one record of the table stands for the devices to come.
  kNoDriver = 2,
};

// A table of these records, by ordinal, is a memfd that the supervisor holds.
struct DeviceRecord {
  // Node-local label; of a GPU its place in PCI order. CUDA's ordinal may be another one in each process.
  uint32_t ordinal = 0;
  BackendKind backend = BackendKind::kHost;
  // "GPU-xxxxxxxx-xxxx-…" as nvidia-smi prints it, "HOST-<ordinal>", or a simulated node's own; zero-terminated.
  char uuid[64] = {};
  // Zero-terminated.
  char name[92] = {};
  // If not kNone, the other fields have what could be read, and scrub.detail has the error.
  DeviceFault fault = DeviceFault::kNone;
  uint64_t total_bytes = 0;
  // Free memory when the daemon started.
  uint64_t free_bytes = 0;
  // Block sizes are multiples of this.
  uint64_t granularity = 0;
  // 10 x major + minor; 0 for host.
  uint32_t compute_capability = 0;
  // Streaming multiprocessors; 0 for host.
  uint32_t multiprocessors = 0;
  // Result of the memory-scrub check when the daemon started.
  ScrubFinding scrub;
  // Constant properties; 0 or empty if the device has none.
  uint32_t threads_per_multiprocessor = 0;
  // Memory that a context took when the daemon started, rounded up; 0 if not measured.
  uint32_t context_mib = 0;
  uint64_t shared_bytes_per_block = 0;
  uint64_t l2_bytes = 0;
  // "00000000:4E:00.0"; zero-terminated.
  char pci_id[32] = {};
  // UUID of the device that this one is a MIG instance of; zero-terminated.
  char mig_parent[64] = {};
  // Bit set of the ordinals that the device reaches over NVLink.
  uint64_t nvlink_peers = 0;
};
static_assert(std::is_trivially_copyable_v<DeviceRecord> && sizeof(DeviceRecord) == 456);

}  // namespace berth

#endif  // DAEMON_DEVICE_MONITOR_DEVICE_RECORD_H_
