// Converts errno into a status that names the call.

#ifndef COMMON_OS_OS_ERROR_H_
#define COMMON_OS_OS_ERROR_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace berth {

// Returns "<call>: <strerror>" with the matching code: kResourceExhausted for EDQUOT, EFBIG, EMFILE, ENFILE, ENOMEM,
// ENOSPC; kNotFound for ENOENT; kPermissionDenied for EACCES, EPERM; kUnavailable for EAGAIN, ECONNREFUSED, ECONNRESET,
// EPIPE; kInternal else. For EMFILE, and for ENOMEM and EFBIG under a limit of this process, the text names the limit
// and how to raise it.
absl::Status OsError(absl::string_view call, int error);

}  // namespace berth

#endif  // COMMON_OS_OS_ERROR_H_
