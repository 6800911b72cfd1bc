// Messages of the monitor (daemon/device/monitor/monitor.h) on its SEQPACKET socket.
//
//   supervisor → monitor   Devices + the fd of the device table, once
//   monitor → broker       Reading, Survey: each for one device, without a request, every second
//
// Structs are sent in their memory layout: all ends are the same program. The first 32-bit value of every message is
// its kind.

#ifndef DAEMON_DEVICE_MONITOR_MONITOR_WIRE_H_
#define DAEMON_DEVICE_MONITOR_MONITOR_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/device_metrics.h"

namespace berth::monitor {

enum class Kind : uint32_t { kDevices = 1, kReading, kSurvey };

// Carries the fd of a memfd with `count` DeviceRecords (daemon/device/monitor/device_record.h).
struct Devices {
  Kind kind = Kind::kDevices;
  uint32_t count = 0;
};

// A process that uses a device.
struct ProcessReading {
  int32_t pid = 0;
  uint32_t uid = 0;
  // Device memory, including the context.
  uint64_t bytes = 0;
  // Ancestors, the parent first; 0 past the last.
  int32_t ancestors[8] = {};
  // Zero-terminated.
  char name[16] = {};
  // 1 for one of the daemon's own processes.
  uint32_t daemon = 0;
  uint32_t padding = 0;
};

// The processes that have a device's memory. Sent without the entries past `count`. Not sent at all if the driver does
// not report them.
struct Reading {
  static constexpr uint32_t kMaxProcesses = 48;
  Kind kind = Kind::kReading;
  uint32_t count = 0;
  // Time of CLOCK_MONOTONIC.
  int64_t taken_ns = 0;
  uint64_t total = 0;
  uint64_t free = 0;
  // Bytes of the processes that found no place in `processes`.
  uint64_t rest = 0;
  // In percent; -1 if the driver does not report it.
  int32_t utilisation = -1;
  uint32_t device = 0;
  ProcessReading processes[kMaxProcesses] = {};

  static constexpr size_t BytesOf(uint32_t count) { return 48 + count * sizeof(ProcessReading); }
};
static_assert(sizeof(Reading) == Reading::BytesOf(Reading::kMaxProcesses));

// An event that was reported once or more.
struct Event {
  DeviceEventKind kind = DeviceEventKind::kXid;
  uint32_t padding = 0;
  uint64_t code = 0;
  uint64_t count = 1;
  // Last report: its time of CLOCK_MONOTONIC, and the value of events_total including it.
  int64_t heard_ns = 0;
  uint64_t number = 0;
};

struct Instance {
  // Zero-terminated.
  char uuid[64] = {};
  uint32_t multiprocessors = 0;
  uint32_t padding = 0;
  uint64_t total = 0;
};

// Whether the driver answers for a device.
enum class Health : uint32_t { kAnswers = 1, kDegraded, kLost };

// Condition of a device.
struct Survey {
  static constexpr uint32_t kMaxEvents = 8;
  static constexpr uint32_t kMaxInstances = 8;
  Kind kind = Kind::kSurvey;
  uint32_t device = 0;
  // Time of CLOCK_MONOTONIC.
  int64_t taken_ns = 0;
  Health health = Health::kAnswers;
  uint32_t event_count = 0;
  // For people, zero-terminated.
  char trouble[128] = {};
  DeviceMetrics metrics;
  // Bit sets of ordinals: reachable over NVLink, reachable as peers, and those for which reachability is known.
  uint64_t nvlink_peers = 0;
  uint64_t peers = 0;
  uint64_t known_peers = 0;
  uint32_t instance_count = 0;
  uint32_t padding = 0;
  // Number of events since the monitor started; and the last reported of them, by kind and code, oldest first.
  uint64_t events_total = 0;
  Event events[kMaxEvents] = {};
  Instance instances[kMaxInstances] = {};
};

static_assert(std::is_trivially_copyable_v<Devices> && std::is_trivially_copyable_v<Reading> &&
              std::is_trivially_copyable_v<Survey>);

}  // namespace berth::monitor

#endif  // DAEMON_DEVICE_MONITOR_MONITOR_WIRE_H_
