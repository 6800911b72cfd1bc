// AuditWho: who a process is that asks for something, for those who read the audit log.

#ifndef DAEMON_SERVICE_AUDIT_WHO_H_
#define DAEMON_SERVICE_AUDIT_WHO_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/process_origin.h"
#include "common/unique_fd.h"
#include "daemon/core/caller.h"

namespace berth::service {

struct AuditWho {
  core::ProcessInfo process;
  ProcessOrigin origin;
};

// Reads the origin of `process`, whom `pidfd` names. Without a pidfd, or once the process has ended, there is none:
// what is read by its number may be another's.
std::shared_ptr<const AuditWho> ReadWho(const core::ProcessInfo& process, const absl::StatusOr<UniqueFd>& pidfd);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_AUDIT_WHO_H_
