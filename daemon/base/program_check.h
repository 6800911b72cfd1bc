// Checks that a file is a program, before an upgrade executes it.

#ifndef DAEMON_BASE_PROGRAM_CHECK_H_
#define DAEMON_BASE_PROGRAM_CHECK_H_

#include <string>

#include "absl/status/status.h"

namespace berth {

// Checks that the file at `path` may be executed, as far as this process can tell without executing it.
// An empty path, of a program that is not known, passes.
// Errors: kFailedPrecondition if there is no file, or none that the kernel executes.
absl::Status CheckProgram(const std::string& path);

}  // namespace berth

#endif  // DAEMON_BASE_PROGRAM_CHECK_H_
