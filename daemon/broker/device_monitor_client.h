// DeviceMonitorClient: the last report of the monitor on each device. The client receives the monitor's messages,
// passes the values that decisions depend on to the core, and caches the rest for readers. A monitor that hangs or has
// ended delays no caller; its values only grow old.

#ifndef DAEMON_BROKER_DEVICE_MONITOR_CLIENT_H_
#define DAEMON_BROKER_DEVICE_MONITOR_CLIENT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <berth/bytes.h>
#include <berth/gpu_capability.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/device_metrics.h"
#include "common/mutex.h"
#include "common/os/unique_fd.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/event_loop.h"
#include "daemon/device/monitor/device_record.h"
#include "daemon/device/monitor/monitor_wire.h"

namespace berth {

struct DeviceHardware {
  std::string pci_id;
  GpuCapability capability;
  uint32_t multiprocessors = 0;
  uint32_t threads_per_multiprocessor = 0;
  uint64_t shared_bytes_per_block = 0;
  uint64_t l2_bytes = 0;
  std::string mig_parent;
};

// Whether the driver answers for a device. The numbers are those of the wire format.
enum class DeviceHealth { kUnknown = 0, kAnswers = 1, kDegraded = 2, kLost = 3, kSilent = 4 };

// Current condition of a device.
struct DeviceCondition {
  DeviceHealth health = DeviceHealth::kUnknown;
  std::string trouble;
  // Time of the last report; nullopt before the first one.
  std::optional<absl::Time> read_at;
  DeviceMetrics metrics;
  struct Event {
    DeviceEventKind kind = DeviceEventKind::kXid;
    uint64_t code = 0;
    uint64_t count = 1;
    absl::Time heard_at;
  };
  std::vector<Event> events;
  uint64_t events_total = 0;
  struct Instance {
    std::string uuid;
    uint32_t multiprocessors = 0;
    Bytes total;
  };
  std::vector<Instance> instances;
  // Bit sets of ordinals: reachable over NVLink, reachable over NVLink or PCIe, and those for which the driver reports
  // reachability.
  struct Peers {
    uint64_t nvlink = 0;
    uint64_t any = 0;
    uint64_t known = 0;
  };
  Peers peers;
};

struct DeviceLook {
  DeviceHardware hardware;
  DeviceCondition condition;
  // Ordinals reachable over NVLink, as the driver last reported for each.
  uint64_t nvlink_peers = 0;
};

// Thread-safe: readers may use any thread; the monitor's messages arrive on the event loop's.
class DeviceMonitorClient {
 public:
  // A device without a report for so long is SILENT.
  static constexpr absl::Duration kFresh = absl::Seconds(5);

  // `loop` and `broker` must outlive the client.
  DeviceMonitorClient(EventLoop* loop, Broker* broker, const std::vector<DeviceRecord>& records);

  // Listens to a new monitor at the other end of `socket`, and no longer to the previous one. Errors: the loop's.
  absl::Status MonitorIsUp(UniqueFd socket) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns all devices as of `now`, by ordinal.
  std::map<uint32_t, DeviceLook> Look(absl::Time now) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void OnMonitorEvent();
  // Handles one message. Returns whether there may be more.
  bool TakeMessage();
  void OnReading(const monitor::Reading& reading);
  void OnSurvey(const monitor::Survey& survey) ABSL_LOCKS_EXCLUDED(mu_);
  void MonitorIsGone();

  EventLoop& loop_;
  Broker& broker_;

  // Used by the event loop alone.
  UniqueFd socket_;
  EventLoop::WatchId watch_ = 0;

  // Events reported for a device by all monitors so far, and those reported before the current monitor.
  struct Reported {
    std::vector<monitor::Event> latest;
    uint64_t total = 0;
    std::vector<monitor::Event> earlier;
    uint64_t earlier_total = 0;
  };

  mutable Mutex mu_;
  std::map<uint32_t, DeviceLook> devices_ ABSL_GUARDED_BY(mu_);
  std::map<uint32_t, Reported> reported_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth

#endif  // DAEMON_BROKER_DEVICE_MONITOR_CLIENT_H_
