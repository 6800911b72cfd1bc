#include "daemon/service/audit/audit_who.h"

#include <utility>

#include "common/os/process.h"

namespace berth::service {

std::shared_ptr<const AuditWho> ReadWho(const core::ProcessInfo& process, const absl::StatusOr<UniqueFd>& pidfd) {
  AuditWho who = {.process = process};
  if (pidfd.ok()) who.origin = ReadOrigin(process.pid);
  // If the process lives now, the data read before is its own.
  if (pidfd.ok() && IsGone(pidfd->get())) who.origin = ProcessOrigin();
  return std::make_shared<const AuditWho>(std::move(who));
}

}  // namespace berth::service
