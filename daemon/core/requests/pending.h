// Pending: an accepted request without an answer, and the place where it waits.

#ifndef DAEMON_CORE_REQUESTS_PENDING_H_
#define DAEMON_CORE_REQUESTS_PENDING_H_

#include <cstdint>
#include <memory>
#include <vector>

#include <berth/ids.h>

#include "absl/container/node_hash_map.h"
#include "absl/time/time.h"
#include "daemon/core/plans/plan_transaction.h"
#include "daemon/core/requests/request_memory.h"
#include "daemon/core/requests/wait_place.h"
#include "daemon/core/types/log_record.h"

namespace berth::core {

struct Session;

struct Pending {
  // Request memory of the channel, and the channel's session; both outlive the request.
  RequestMemory* memory = nullptr;
  const Session* session = nullptr;
  // 0 if no call waits for the answer.
  CallId call;
  // Where the request waits; null before that is decided.
  WaitPlace* place = nullptr;
  WaitTicket ticket;
  // The request counts as one of its tenant's waiting requests (`counted`), and as one that waits for units
  // (`for_units`).
  bool counted = false;
  bool for_units = false;
  // For a counted request: its weight (wait_weight.h).
  uint64_t weight = 0;
  // As in the last call's tag (RequestTag), and the arrival time of that call.
  bool takes_up = false;
  absl::Time called = absl::InfinitePast();
  // A call has resumed the wait since the request was skipped.
  bool resumed = false;
  // Arrival time; InfiniteFuture if an earlier broker did not record it.
  absl::Time since = absl::InfiniteFuture();
  // Log records to emit with the answer.
  std::vector<LogRecord> log_records;
  // Draft that turns the answer into a plan; null for a plain answer.
  std::unique_ptr<PlanDraft> plan;
};

// Entries have stable addresses until they are erased.
using PendingRequests = absl::node_hash_map<RequestId, Pending>;
using PendingRequest = PendingRequests::value_type;

}  // namespace berth::core

#endif  // DAEMON_CORE_REQUESTS_PENDING_H_
