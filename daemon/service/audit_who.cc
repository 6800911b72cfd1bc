#include "daemon/service/audit_who.h"

#include <utility>

#include "common/process.h"

namespace berth::service {

std::shared_ptr<const AuditWho> ReadWho(const core::ProcessInfo& process, const absl::StatusOr<UniqueFd>& pidfd) {
  AuditWho who = {.process = process};
  if (pidfd.ok()) who.origin = ReadOrigin(process.pid);
  // Alive now, it was alive when it was read.
  if (pidfd.ok() && IsGone(pidfd->get())) who.origin = ProcessOrigin();
  return std::make_shared<const AuditWho>(std::move(who));
}

}  // namespace berth::service
