// The core's own state of a device and of its workers.

#ifndef DAEMON_CORE_DEVICE_STATE_H_
#define DAEMON_CORE_DEVICE_STATE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/ids.h"
#include "common/lane.h"
#include "daemon/core/byte_budget.h"
#include "daemon/core/call_watch.h"
#include "daemon/core/core.h"
#include "daemon/core/device_types.h"
#include "daemon/core/utilisation_log.h"
#include "daemon/core/warm_shelf.h"

namespace berth::core {

// A making that failed for lack of memory: to be tried again after so many of the device's releases.
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
  // Of the memory that it makes, now.
  uint64_t generation;
  // Stopped, and the last one is not gone.
  bool abandoned = false;
  uint32_t restarts_left = 0;
  std::string last_failure;
  // What it is at.
  CallWatch calls;

  // ---- Of a context worker --------------------------------------------------------------------------------

  // Memory of earlier generations than this went with those who made it.
  uint64_t lost_before = 0;
  // Blocks of its kind that there are or shall be.
  uint64_t blocks = 0;
  // When it is ended because nobody needs it; InfiniteFuture while somebody does, or there is none.
  absl::Time idle_at = absl::InfiniteFuture();
};

struct Device {
  Device(const DeviceConfig& config, uint32_t warm_sizes, const CallLimits& calls)
      : config(config),
        uuid(std::make_shared<const std::string>(config.uuid)),
        main(DeviceState::kRebuilding, config.generation, calls),
        context(DeviceState::kIdle, config.context_generation, calls),
        account(config.budget),
        warm(warm_sizes),
        nvlink_peers(config.facts.nvlink_peers),
        island(config.ordinal),
        survey_patience(calls.base) {}

  // Whether anything new may be leased on it.
  bool takes_leases() const {
    return main.in_service() && main.state != DeviceState::kProbation && drain_reason.empty();
  }
  // What a process's context is taken to take of it.
  Bytes context_cost() const { return context_bytes.value_or(config.context); }
  Worker& worker(Lane lane) { return lane == Lane::kMain ? main : context; }
  const Worker& worker(Lane lane) const { return lane == Lane::kMain ? main : context; }

  const DeviceConfig config;
  // The config's, for those who share it.
  const std::shared_ptr<const std::string> uuid;
  Worker main;
  Worker context;
  ByteBudget account;
  WarmShelf warm;
  // When the shelf is filled again; InfiniteFuture while it is full or being filled.
  absl::Time refill_at = absl::InfiniteFuture();
  // Releases asked of the workers, and ended.
  uint64_t releases_asked = 0;
  uint64_t releases_ended = 0;
  std::deque<Retry> retries;
  // What the driver said last, and when it first said that it was at something, or had that process.
  std::optional<DeviceReading> reading;
  absl::Time busy_at = absl::InfinitePast();
  UtilisationLog utilisation;
  std::map<int32_t, absl::Time> seen;
  // Why an operator drains it; empty where nobody does.
  std::string drain_reason;
  // The vault has told this broker, or this broker the vault: what the vault says later may be older than an order.
  bool drain_known = false;
  // What a context takes of it, where a context worker measured that.
  std::optional<Bytes> context_bytes;
  // The driver has lost it, and it has not served since; and a process looks, or looked last, whether it works again.
  bool lost = false;
  bool tested = false;
  // Ordinals that it reaches over NVLink, a bit each, and the least of its island.
  uint64_t nvlink_peers;
  uint32_t island;
  // When the monitor is taken to hang for it, and how long it is waited for from its next start on.
  absl::Time survey_due = absl::InfiniteFuture();
  absl::Duration survey_patience;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_DEVICE_STATE_H_
