#include "common/os/os_error.h"

#include <errno.h>
#include <sys/resource.h>

#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace berth {
namespace {

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case EDQUOT:
    case EFBIG:
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

// Returns "4 KiB" or "100 bytes": never rounded.
std::string SizeOf(const rlimit& limit) {
  const bool whole = limit.rlim_cur % 1024 == 0;
  return absl::StrCat(whole ? limit.rlim_cur / 1024 : limit.rlim_cur, whole ? " KiB" : " bytes");
}

// Returns the exceeded limit, if it is this process's own, and how to raise it.
std::string LimitOf(int error) {
  rlimit limit = {};
  if (error == EMFILE && ::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    return absl::StrCat(" (RLIMIT_NOFILE is ", limit.rlim_cur, ": ulimit -n raises it)");
  }
  if (error == ENOMEM) {
    // Either limit may be the exceeded one.
    std::string limits;
    if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
      absl::StrAppend(&limits, " (RLIMIT_AS is ", SizeOf(limit), ": ulimit -v raises it)");
    }
    if (::getrlimit(RLIMIT_DATA, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
      absl::StrAppend(&limits, " (RLIMIT_DATA is ", SizeOf(limit), ": ulimit -d raises it)");
    }
    return limits;
  }
  if (error == EFBIG && ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    return absl::StrCat(" (RLIMIT_FSIZE is ", SizeOf(limit), ": ulimit -f raises it)");
  }
  return "";
}

}  // namespace

absl::Status OsError(absl::string_view call, int error) {
  return absl::Status(CodeOf(error), absl::StrCat(call, ": ", std::generic_category().message(error), LimitOf(error)));
}

}  // namespace berth
