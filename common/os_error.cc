#include "common/os_error.h"

#include <errno.h>

#include <system_error>

#include "absl/strings/str_cat.h"

namespace berth {
namespace {

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOSPC:
      return absl::StatusCode::kResourceExhausted;
    case ENOENT:
      return absl::StatusCode::kNotFound;
    case EACCES:
    case EPERM:
      return absl::StatusCode::kPermissionDenied;
    case EAGAIN:
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status OsError(absl::string_view call, int error) {
  return absl::Status(CodeOf(error), absl::StrCat(call, ": ", std::generic_category().message(error)));
}

}  // namespace berth
