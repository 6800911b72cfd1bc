// AuditWho: the identity of a process that makes requests, for readers of the audit log.

#ifndef DAEMON_SERVICE_AUDIT_AUDIT_WHO_H_
#define DAEMON_SERVICE_AUDIT_AUDIT_WHO_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"
#include "daemon/base/process_origin.h"
#include "daemon/core/types/caller.h"

namespace berth::service {

struct AuditWho {
  core::ProcessInfo process;
  ProcessOrigin origin;
};

// Reads the origin of the process that `pidfd` refers to. Without a pidfd, or once the process has ended, there is no
// origin: data read by its pid may be another process's.
std::shared_ptr<const AuditWho> ReadWho(const core::ProcessInfo& process, const absl::StatusOr<UniqueFd>& pidfd);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_AUDIT_AUDIT_WHO_H_
