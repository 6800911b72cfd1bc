// SideCalls: serves the RPCs that processes call on their side channels (attach::Ask in common/wire/attach_wire.h), for
// processes that have not started gRPC. The requests, their checks, their answers and their audit records are those of
// the RPCs.

#ifndef DAEMON_SERVICE_ATTACH_SIDE_CALLS_H_
#define DAEMON_SERVICE_ATTACH_SIDE_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include <berth/ids.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/mutex.h"
#include "common/wire/attach_wire.h"
#include "daemon/broker/broker.h"
#include "daemon/core/types/caller.h"
#include "daemon/service/audit/audit_log.h"
#include "daemon/service/audit/audit_who.h"

namespace berth::service {

// The process that asks. The callbacks own the connection, and may be called on any thread.
struct Requester {
  // The process's claim, and the kernel's data of its connection.
  core::Caller caller;
  // Sends an answer; must not wait.
  std::function<void(std::span<const std::byte>)> send;
  // Reads the identity of the process at the connection.
  std::function<std::shared_ptr<const AuditWho>()> who;
};

// Thread-safe.
class SideCalls {
 public:
  // `broker` must outlive this object, whose destruction drops the calls that wait.
  explicit SideCalls(Broker* broker);
  SideCalls(const SideCalls&) = delete;
  SideCalls& operator=(const SideCalls&) = delete;
  ~SideCalls();

  // Records decisions in `audit`, which outlives this object. Call before Serve().
  void SetAuditLog(AuditLog* audit) { audit_ = audit; }

  // Serves a call: sends its answer now or later. Requires: `ask.bytes` is at most Ask::kMaxBytes.
  // Errors: INVALID_FIELD for an unknown method, a body that is not the method's request, and a second kAcquirePermit
  // while the channel's first waits; nothing is sent and nothing changed then.
  absl::Status Serve(const attach::Ask& ask, Requester requester) ABSL_LOCKS_EXCLUDED(mu_);
  // Cancels the channel's waiting call, if there is one.
  void Cancel(ChannelId channel) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Waiting;

  absl::Status Acquire(const attach::Ask& ask, Requester requester) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status ExplainWait(const attach::Ask& ask, const Requester& requester) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status EndSession(const attach::Ask& ask, const Requester& requester);
  absl::Status Skip(const attach::Ask& ask, const Requester& requester);
  // Takes the waiting call of the channel out of the table.
  std::unique_ptr<Waiting> Take(ChannelId channel) ABSL_LOCKS_EXCLUDED(mu_);
  void Record(const Requester& requester, AuditRecord record) const;

  Broker& broker_;
  AuditLog* audit_ = nullptr;

  Mutex mu_;
  absl::flat_hash_map<ChannelId, std::unique_ptr<Waiting>> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_ATTACH_SIDE_CALLS_H_
