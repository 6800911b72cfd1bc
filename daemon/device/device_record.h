// DeviceRecord: what the inventory found of one device, as a plain struct, so that vault and broker learn of
// devices without a driver in their process.

#ifndef DAEMON_DEVICE_DEVICE_RECORD_H_
#define DAEMON_DEVICE_DEVICE_RECORD_H_

#include <cstdint>
#include <type_traits>

namespace berth {

// What a device's blocks are made of.
enum class BackendKind : uint32_t {
  // memfds, mapped with mmap.
  kHost = 1,
  // cuMemCreate allocations, exported as fds.
  kCudaVmm = 2,
  // cuMemAlloc allocations, opened by their IPC handles.
  kCudaDirect = 3,
  // Files, opened by what stands for IPC handles on the host.
  kHostNamed = 4,
};

// Which devices the operator wants.
enum class BackendChoice {
  // CUDA's, or host devices where there is no CUDA.
  kAuto,
  kHost,
  kCuda,
};

// What is known of whether a device's driver clears memory between one owner and the next.
enum class ClearsOutcome : uint32_t {
  kNotTried = 1,
  // Freed memory came back as zeroes.
  kClear = 2,
  // It came back as somebody left it.
  kStale = 3,
};

struct ClearsFinding {
  ClearsOutcome outcome = ClearsOutcome::kNotTried;
  // For people; zero-terminated.
  char detail[124] = {};
};

// Every device's granularity is a multiple of this and its blocks are rounded up to it, so that backends
// round alike.
inline constexpr uint64_t kBlockGranularity = uint64_t{2} << 20;

// A table of these, by ordinal, is a memfd that the vault keeps.
struct DeviceRecord {
  // The node-local label; for CUDA also the driver's own ordinal in the daemon's environment.
  uint32_t ordinal = 0;
  BackendKind backend = BackendKind::kHost;
  // "GPU-xxxxxxxx-xxxx-…" as nvidia-smi prints it, "HOST-<ordinal>", or a simulated node's own; zero-terminated.
  char uuid[64] = {};
  // Zero-terminated.
  char name[92] = {};
  // 1 for one that could not be described when the daemon started, and is out of service: what could be read is here,
  // and clears.detail says what failed.
  uint32_t failed = 0;
  uint64_t total_bytes = 0;
  // When the daemon started.
  uint64_t free_bytes = 0;
  // Sizes of blocks are multiples of this.
  uint64_t granularity = 0;
  // 10 x major + minor; 0 for host.
  uint32_t compute_capability = 0;
  // Streaming multiprocessors; 0 for host.
  uint32_t multiprocessors = 0;
  // When the daemon started.
  ClearsFinding clears;
  // What does not change of it; 0 and empty where it has none.
  uint32_t threads_per_multiprocessor = 0;
  // What a context took of it when the daemon started, rounded up; 0 where nobody measured it.
  uint32_t context_mib = 0;
  uint64_t shared_bytes_per_block = 0;
  uint64_t l2_bytes = 0;
  // "00000000:4E:00.0"; zero-terminated.
  char pci_id[32] = {};
  // The device that it is a MIG instance of; zero-terminated.
  char mig_parent[64] = {};
  // Ordinals of those that it reaches over NVLink, a bit each.
  uint64_t nvlink_peers = 0;
};
static_assert(std::is_trivially_copyable_v<DeviceRecord> && sizeof(DeviceRecord) == 456);

}  // namespace berth

#endif  // DAEMON_DEVICE_DEVICE_RECORD_H_
