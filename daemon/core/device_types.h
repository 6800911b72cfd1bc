// Devices and the bytes on them, as they are told. Plain values.

#ifndef DAEMON_CORE_DEVICE_TYPES_H_
#define DAEMON_CORE_DEVICE_TYPES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/ids.h"

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
  // The daemon's own.
  Bytes daemon;

  Bytes outstanding() const { return Bytes(live.count() + retired.count() + quarantined.count()); }
  // What counts against the budget.
  Bytes charged() const {
    return Bytes(outstanding().count() + warm.count() + reserved.count() + daemon.count());
  }
  friend bool operator==(const ByteCounts&, const ByteCounts&) = default;
};

// What is known of whether a device's driver clears memory between one owner and the next: the numbers are the wire's.
struct ClearsCheck {
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
  // Blocks that the worker could not release, ever. Those still there are among the retired bytes.
  uint64_t failed_releases = 0;
  // Ends of its worker that would still be followed by another one.
  uint32_t restarts_left = 0;
  // Why its last worker ended, or the device is out of service; empty if nothing ever happened.
  std::string last_failure;
  struct ContextWorker {
    DeviceState state = DeviceState::kIdle;
    uint64_t generation = 0;
    uint32_t restarts_left = 0;
    std::string last_failure;
  };
  // Where the device offers CUDA_IPC blocks.
  std::optional<ContextWorker> context;
  ClearsCheck clears;
  // What the driver said last; nothing where nobody reads it.
  struct Reading {
    absl::Time taken;
    Bytes free;
    // Of processes that are of no session.
    Bytes others;
    std::optional<uint32_t> utilisation;
  };
  std::optional<Reading> reading;
  // Why an operator drains it; empty where nobody does.
  std::string drain_reason;
  // What a process's context is taken to take of it.
  Bytes context_cost;
  // What it is worth beside others when work is split now (common/device_score.h), whether it serves or not: by what
  // could be granted on it.
  double score = 0;
};

// A device's place among those that it reaches over NVLink.
struct IslandView {
  uint32_t ordinal = 0;
  std::string uuid;
  uint64_t generation = 0;
  // The least ordinal of those that it reaches, directly or by way of others.
  uint32_t island = 0;
};

// How a device is, as far as decisions turn on it.
struct DeviceSurvey {
  // The driver has lost it. Why, for people.
  bool lost = false;
  std::string trouble;
  // Ordinals that it reaches over NVLink, a bit each; nothing where the driver does not say.
  std::optional<uint64_t> nvlink_peers;
};

// A process that uses a device, as its driver says.
struct ProcessReading {
  int32_t pid = 0;
  uint32_t uid = 0;
  std::string name;
  // With its context.
  Bytes bytes;
  // Its parent first.
  std::vector<int32_t> ancestors;
  // Of the daemon's own.
  bool daemon = false;
};

// What a device's driver says of it.
struct DeviceReading {
  absl::Time taken;
  Bytes total;
  Bytes free;
  // In percent; nothing where the driver does not say.
  std::optional<uint32_t> utilisation;
  std::vector<ProcessReading> processes;
  // Of those for which there was no more room.
  Bytes rest;
};

// A process at a device without a permit: its session, if it is of one, has none.
struct StrayView {
  uint32_t device = 0;
  std::string uuid;
  ProcessReading process;
  // 0 where it is of none.
  SessionId session;
  // When it was seen first.
  absl::Time since;
};

// What the vault says of one of a device's workers beside whether it is there.
struct DeviceReport {
  // Of the memory that it makes.
  uint64_t generation = 1;
  // Gone from the node for good.
  bool dropped = false;
  // A worker is there that SIGKILL does not end.
  bool abandoned = false;
  // Why an operator drains the device; empty where nobody does. Of the main worker.
  std::string drain_reason;
  uint32_t restarts_left = 0;
  std::string last_failure;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_DEVICE_TYPES_H_
