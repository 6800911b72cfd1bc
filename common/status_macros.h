// The two macros that newer Abseil has and Debian 12's lacks, with the same meaning; delete them with that package.

#ifndef COMMON_STATUS_MACROS_H_
#define COMMON_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the function with the status of `expr` unless it is OK.
#define BERTH_RETURN_IF_ERROR(expr)                          \
  do {                                                       \
    if (::absl::Status berth_status = (expr); !berth_status.ok()) return berth_status; \
  } while (false)

// Assigns the value of the StatusOr `expr` to `lhs`, or returns with its status.
#define BERTH_ASSIGN_OR_RETURN(lhs, expr) \
  BERTH_ASSIGN_OR_RETURN_IMPL_(BERTH_CONCAT_(berth_or_, __LINE__), lhs, expr)
#define BERTH_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                 \
  if (!tmp.ok()) return std::move(tmp).status();     \
  lhs = *std::move(tmp)
#define BERTH_CONCAT_(a, b) BERTH_CONCAT_INNER_(a, b)
#define BERTH_CONCAT_INNER_(a, b) a##b

#endif  // COMMON_STATUS_MACROS_H_
