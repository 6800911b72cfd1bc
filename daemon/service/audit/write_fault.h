// The reason why a log's file lacks records, in the daemon's log.

#ifndef DAEMON_SERVICE_AUDIT_WRITE_FAULT_H_
#define DAEMON_SERVICE_AUDIT_WRITE_FAULT_H_

#include <string>

#include "absl/status/status.h"

namespace berth::service {

// Thread-compatible.
class WriteFault {
 public:
  // Logs the reason, unless it is that of the previous failed write. `status` is the result of a write to the file at
  // `path`; OK ends the fault.
  void Report(const std::string& path, const absl::Status& status);

 private:
  // Empty while writes succeed.
  std::string reason_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_AUDIT_WRITE_FAULT_H_
