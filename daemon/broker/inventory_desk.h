// InventoryDesk: what the monitor said last of each device. It takes the monitor's messages, tells the core what
// decisions turn on, and keeps the rest for who looks; a monitor that hangs or is gone delays nobody, its words only
// grow old.

#ifndef DAEMON_BROKER_INVENTORY_DESK_H_
#define DAEMON_BROKER_INVENTORY_DESK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/device_figures.h"
#include "common/gpu_capability.h"
#include "common/mutex.h"
#include "common/unique_fd.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/event_loop.h"
#include "daemon/device/device_record.h"
#include "daemon/device/monitor_wire.h"

namespace berth {

// What a device is.
struct DeviceHardware {
  std::string pci_id;
  GpuCapability capability;
  uint32_t multiprocessors = 0;
  uint32_t threads_per_multiprocessor = 0;
  uint64_t shared_bytes_per_block = 0;
  uint64_t l2_bytes = 0;
  std::string mig_parent;
};

// Whether the driver answers for a device: the numbers are the wire's.
enum class DeviceHealth { kUnknown = 0, kAnswers = 1, kDegraded = 2, kLost = 3, kSilent = 4 };

// How it is.
struct DeviceCondition {
  DeviceHealth health = DeviceHealth::kUnknown;
  std::string trouble;
  // Nothing where nothing was said yet.
  std::optional<absl::Time> read_at;
  DeviceFigures figures;
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
  // Ordinals that it reaches over NVLink, those over that or PCIe, and those of which the driver says whether, a bit
  // each.
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
  // Ordinals that it reaches over NVLink, as the driver said it last of each.
  uint64_t nvlink_peers = 0;
};

// Thread-safe: it is looked at on any thread; the monitor speaks on the event loop's.
class InventoryDesk {
 public:
  // Nothing heard for so long is SILENT.
  static constexpr absl::Duration kFresh = absl::Seconds(5);

  // `loop` and `broker` must outlive it.
  InventoryDesk(EventLoop* loop, Broker* broker, const std::vector<DeviceRecord>& records);

  // There is a monitor, at the other end of `socket`; one that was there before is heard no more. Errors: the loop's.
  absl::Status MonitorIsUp(UniqueFd socket) ABSL_LOCKS_EXCLUDED(mu_);

  // All devices as of `now`, by ordinal.
  std::map<uint32_t, DeviceLook> Look(absl::Time now) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void OnMonitorEvent();
  // Takes one message. Returns whether there may be more.
  bool TakeMessage();
  void OnReading(const monitor::Reading& reading);
  void OnSurvey(const monitor::Survey& survey) ABSL_LOCKS_EXCLUDED(mu_);
  void MonitorIsGone();

  EventLoop& loop_;
  Broker& broker_;

  // The event loop's alone.
  UniqueFd socket_;
  EventLoop::WatchId watch_ = 0;

  // What was reported of a device to all monitors that there were, and what of that before this one.
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

#endif  // DAEMON_BROKER_INVENTORY_DESK_H_
