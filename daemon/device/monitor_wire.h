// The messages of the monitor (daemon/device/monitor.h) on its SEQPACKET socket.
//
//   vault → monitor   Devices + the fd of the device table, once
//   monitor → broker  Reading, Survey: each of one device, unasked, every second
//
// Structs are sent as they lie in memory: all ends are one program. The first word of every message is its kind.

#ifndef DAEMON_DEVICE_MONITOR_WIRE_H_
#define DAEMON_DEVICE_MONITOR_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/device_figures.h"

namespace berth::monitor {

enum class Kind : uint32_t { kDevices = 1, kReading, kSurvey };

// With the fd of a memfd of `count` DeviceRecords (daemon/device/device_record.h).
struct Devices {
  Kind kind = Kind::kDevices;
  uint32_t count = 0;
};

// A process at a device.
struct ProcessReading {
  int32_t pid = 0;
  uint32_t uid = 0;
  // With its context.
  uint64_t bytes = 0;
  // Its parent first; 0 past the last.
  int32_t ancestors[8] = {};
  // Zero-terminated.
  char name[16] = {};
  // 1 for one of the daemon's own.
  uint32_t daemon = 0;
  uint32_t padding = 0;
};

// Who has a device's memory. Sent without the processes past `count`; not at all where the driver does not say.
struct Reading {
  static constexpr uint32_t kMaxProcesses = 48;
  Kind kind = Kind::kReading;
  uint32_t count = 0;
  // Of CLOCK_MONOTONIC.
  int64_t taken_ns = 0;
  uint64_t total = 0;
  uint64_t free = 0;
  // Bytes of processes for which there was no room.
  uint64_t rest = 0;
  // In percent; -1 where the driver does not say.
  int32_t utilisation = -1;
  uint32_t device = 0;
  ProcessReading processes[kMaxProcesses] = {};

  static constexpr size_t BytesOf(uint32_t count) { return 48 + count * sizeof(ProcessReading); }
};
static_assert(sizeof(Reading) == Reading::BytesOf(Reading::kMaxProcesses));

// What was reported once or more.
struct Event {
  DeviceEventKind kind = DeviceEventKind::kXid;
  uint32_t padding = 0;
  uint64_t code = 0;
  uint64_t count = 1;
  // The last time: of CLOCK_MONOTONIC, and what events_total was with it.
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

// How a device is.
struct Survey {
  static constexpr uint32_t kMaxEvents = 8;
  static constexpr uint32_t kMaxInstances = 8;
  Kind kind = Kind::kSurvey;
  uint32_t device = 0;
  // Of CLOCK_MONOTONIC.
  int64_t taken_ns = 0;
  Health health = Health::kAnswers;
  uint32_t event_count = 0;
  // For people, zero-terminated.
  char trouble[128] = {};
  DeviceFigures figures;
  // Ordinals that it reaches so, and those of which that is known, a bit each.
  uint64_t nvlink_peers = 0;
  uint64_t peers = 0;
  uint64_t known_peers = 0;
  uint32_t instance_count = 0;
  uint32_t padding = 0;
  // Since the monitor started; and those of them that were reported last, by kind and code, oldest first.
  uint64_t events_total = 0;
  Event events[kMaxEvents] = {};
  Instance instances[kMaxInstances] = {};
};

static_assert(std::is_trivially_copyable_v<Devices> && std::is_trivially_copyable_v<Reading> &&
              std::is_trivially_copyable_v<Survey>);

}  // namespace berth::monitor

#endif  // DAEMON_DEVICE_MONITOR_WIRE_H_
