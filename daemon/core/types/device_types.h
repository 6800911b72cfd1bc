// Devices and the bytes on them, as the core reports them. Plain values.

#ifndef DAEMON_CORE_TYPES_DEVICE_TYPES_H_
#define DAEMON_CORE_TYPES_DEVICE_TYPES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/time/time.h"

namespace berth::core {

enum class MemoryKind { kHost = 1, kCudaVmm = 2, kCudaDirect = 3 };
constexpr auto ArchivedValues(MemoryKind) { return std::pair(MemoryKind::kHost, MemoryKind::kCudaDirect); }

enum class DeviceState {
  kReady = 1,
  kRebuilding = 2,
  kStopped = 3,
  kDropped = 4,
  kIdle = 5,
  kDraining = 6,
  kProbation = 7
};

struct ByteCounts {
  Bytes live;
  Bytes retired;
  Bytes quarantined;
  Bytes warm;
  Bytes reserved;
  // Bytes that the daemon itself uses.
  Bytes daemon;

  Bytes outstanding() const { return Bytes(live.count() + retired.count() + quarantined.count()); }
  // Returns the bytes that count against the budget.
  Bytes charged() const {
    return Bytes(outstanding().count() + warm.count() + reserved.count() + daemon.count());
  }
  friend bool operator==(const ByteCounts&, const ByteCounts&) = default;
};

// Result of the memory-scrub check: whether the device's driver clears memory between two owners. Values match the
// wire.
struct MemoryScrubCheck {
  enum class Outcome { kNotTried = 1, kClear = 2, kStale = 3 };
  Outcome outcome = Outcome::kNotTried;
  std::string detail;
};

struct DeviceView {
  uint32_t ordinal = 0;
  std::string uuid;
  std::string name;
  MemoryKind kind = MemoryKind::kHost;
  DeviceState state = DeviceState::kRebuilding;
  uint64_t generation = 0;
  Bytes total;
  Bytes budget;
  Bytes granularity;
  ByteCounts bytes;
  // Number of failed releases so far. Blocks not yet released are part of the retired bytes.
  uint64_t failed_releases = 0;
  // Number of further worker failures after which the supervisor still starts a new worker.
  uint32_t restarts_left = 0;
  // Why the last worker ended or the device is out of service; empty if neither has happened.
  std::string last_failure;
  struct ContextWorker {
    DeviceState state = DeviceState::kIdle;
    uint64_t generation = 0;
    uint32_t restarts_left = 0;
    std::string last_failure;
  };
  // Set if the device offers CUDA_IPC blocks.
  std::optional<ContextWorker> context;
  MemoryScrubCheck scrub;
  // The driver's last reading; empty if no monitor reads the device.
  struct Reading {
    absl::Time taken;
    Bytes free;
    // Bytes used by processes that belong to no session.
    Bytes others;
    std::optional<uint32_t> utilisation;
  };
  std::optional<Reading> reading;
  // Reason for which an operator drains the device; empty if it is not drained.
  std::string drain_reason;
  // Device bytes that the core assumes for one process's context.
  Bytes context_cost;
  // Number of blocks that are not freed although their memory is lost.
  uint64_t lost_blocks = 0;
  // Weight of the device when work is split now (common/device_score.h), based on the bytes that it could grant. Set
  // whether the device serves or not.
  double score = 0;
};

// A device's position in the NVLink topology.
struct IslandView {
  uint32_t ordinal = 0;
  std::string uuid;
  uint64_t generation = 0;
  // Least ordinal among the devices reachable over NVLink, directly or through other devices.
  uint32_t island = 0;
};

// Health and topology of a device, as far as core decisions depend on them.
struct DeviceSurvey {
  // The driver has lost the device. `trouble` is the reason, for people.
  bool lost = false;
  std::string trouble;
  // Bit mask of ordinals that the device reaches over NVLink; empty if the driver does not report it.
  std::optional<uint64_t> nvlink_peers;
};

// A process that uses a device, as reported by the driver.
struct ProcessReading {
  int32_t pid = 0;
  uint32_t uid = 0;
  std::string name;
  // Device bytes of the process, its context included.
  Bytes bytes;
  // Ancestor pids, parent first.
  std::vector<int32_t> ancestors;
  // The process belongs to the daemon.
  bool daemon = false;
};

// One reading of a device from its driver.
struct DeviceReading {
  absl::Time taken;
  Bytes total;
  Bytes free;
  // Percent; empty if the driver does not report it.
  std::optional<uint32_t> utilisation;
  std::vector<ProcessReading> processes;
  // Bytes of the processes that did not fit into `processes`.
  Bytes rest;
};

// A process that uses a device without a permit; its session, if any, has none either.
struct StrayView {
  uint32_t device = 0;
  std::string uuid;
  ProcessReading process;
  // 0 if the process belongs to no session.
  SessionId session;
  // Time of the first reading that lists the process.
  absl::Time since;
};

// The supervisor's report on one of a device's workers, apart from whether the worker is running.
struct DeviceReport {
  // Generation of the memory that the worker makes.
  uint64_t generation = 1;
  // The device is permanently gone from the node.
  bool dropped = false;
  // A worker process exists that SIGKILL does not end.
  bool abandoned = false;
  // Reason for which an operator drains the device; empty if it is not drained. Set in the main worker's report.
  std::string drain_reason;
  uint32_t restarts_left = 0;
  std::string last_failure;
  // The supervisor has ended the last worker to replace it, e.g. in an upgrade.
  bool replaced = false;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_DEVICE_TYPES_H_
