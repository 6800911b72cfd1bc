// The core's own state of a device and of its workers.

#ifndef DAEMON_CORE_DEVICES_DEVICE_STATE_H_
#define DAEMON_CORE_DEVICES_DEVICE_STATE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/time/time.h"
#include "daemon/base/worker_kind.h"
#include "daemon/core/core.h"
#include "daemon/core/devices/call_watch.h"
#include "daemon/core/devices/utilisation_log.h"
#include "daemon/core/memory/byte_budget.h"
#include "daemon/core/memory/warm_block_cache.h"
#include "daemon/core/types/device_types.h"

namespace berth::core {

// A block creation that failed for lack of memory. The core retries it after the device's release number
// `after_release`.
struct Retry {
  uint64_t after_release = 0;
  BlockId block;
};

// One of a device's workers.
struct Worker {
  Worker(DeviceState state, uint64_t generation, const CallLimits& calls)
      : state(state), generation(generation), calls(calls) {}

  bool in_service() const { return state != DeviceState::kStopped && state != DeviceState::kDropped; }

  DeviceState state;
  // Current generation of the memory that the worker makes.
  uint64_t generation;
  // The device is stopped, and its last worker process has not exited.
  bool abandoned = false;
  uint32_t restarts_left = 0;
  std::string last_failure;
  // The supervisor has ended the last worker to replace it.
  bool replaced = false;
  // Calls that the worker is executing.
  CallWatch calls;

  // ---- Context worker only --------------------------------------------------------------------------------

  // Memory of generations below this value was lost with the workers that made it.
  uint64_t lost_before = 0;
  // Number of blocks of this worker's kind that exist or are being created.
  uint64_t blocks = 0;
  // Time at which the daemon ends the unused worker. InfiniteFuture while the worker is in use or not running.
  absl::Time idle_at = absl::InfiniteFuture();
};

struct Device {
  Device(const DeviceConfig& config, uint32_t warm_sizes, const CallLimits& calls)
      : config(config),
        uuid(std::make_shared<const std::string>(config.uuid)),
        main(DeviceState::kRebuilding, config.generation, calls),
        context(DeviceState::kIdle, config.context_generation, calls),
        configured_budget(config.budget),
        account(config.budget),
        warm(warm_sizes),
        nvlink_peers(config.facts.nvlink_peers),
        island(config.ordinal),
        survey_patience(calls.base) {}

  // Returns whether the device accepts new leases.
  bool takes_leases() const {
    return main.in_service() && main.state != DeviceState::kProbation && drain_reason.empty();
  }
  // Returns why the main worker stopped; empty if it has not stopped.
  std::string WhyStopped() const {
    if (main.state != DeviceState::kStopped) return "";
    return main.last_failure.empty() ? "stopped" : main.last_failure;
  }
  // Returns the device bytes that the core assumes for one process's context.
  Bytes context_cost() const { return context_bytes.value_or(config.context); }
  Worker& worker(WorkerKind worker_kind) { return worker_kind == WorkerKind::kMain ? main : context; }
  const Worker& worker(WorkerKind worker_kind) const { return worker_kind == WorkerKind::kMain ? main : context; }

  const DeviceConfig config;
  // Shared copy of config.uuid.
  const std::shared_ptr<const std::string> uuid;
  Worker main;
  Worker context;
  // The configured budget, which applies unless an operator sets another one.
  Bytes configured_budget;
  ByteBudget account;
  WarmBlockCache warm;
  // Time of the next refill of the warm blocks; InfiniteFuture while they are complete or a refill is in progress.
  absl::Time refill_at = absl::InfiniteFuture();
  // Releases sent to the workers, and releases completed.
  uint64_t releases_asked = 0;
  uint64_t releases_ended = 0;
  std::deque<Retry> retries;
  // The driver's last reading. `busy_at` is when the driver last reported the device busy; `seen` maps each process to
  // the time of the first reading that lists it.
  std::optional<DeviceReading> reading;
  absl::Time busy_at = absl::InfinitePast();
  UtilisationLog utilisation;
  std::map<int32_t, absl::Time> seen;
  // Reason for which an operator drains the device; empty if it is not drained.
  std::string drain_reason;
  // The supervisor has reported the drain state to this broker, or this broker has commanded it. A later report may be
  // older than that command.
  bool drain_known = false;
  // Bytes that one context takes on the device, if a context worker measured them.
  std::optional<Bytes> context_bytes;
  // `lost`: the driver has lost the device, and the device has neither served nor failed a probation since. `tested`:
  // the main worker is on probation, or was when it last went down, so that the supervisor tests whether the device
  // works again.
  bool lost = false;
  bool tested = false;
  // Bit mask of ordinals that the device reaches over NVLink, and the least ordinal of its island.
  uint64_t nvlink_peers;
  uint32_t island;
  // Time at which the core considers the monitor hung on this device, and the timeout that applies from the monitor's
  // next start on.
  absl::Time survey_due = absl::InfiniteFuture();
  absl::Duration survey_patience;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_DEVICES_DEVICE_STATE_H_
