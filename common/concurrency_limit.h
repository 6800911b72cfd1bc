// The GPU concurrency limit in the environment. One parse rule for both sides: the daemon's environment sets the cap of
// pool gpu-tests, and a client's environment can only lower the cap for the client's own requests.

#ifndef COMMON_CONCURRENCY_LIMIT_H_
#define COMMON_CONCURRENCY_LIMIT_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace berth {

// The pool that always exists; the variables apply to it.
inline constexpr char kDefaultPool[] = "gpu-tests";
// The first variable that is set wins.
inline constexpr char kConcurrencyVariable[] = "BERTH_GPU_TEST_CONCURRENCY";
inline constexpr char kConcurrencyAlias[] = "REALIZAR_GPU_TEST_CONCURRENCY";
// The cap if no variable is set or its text is not a number.
inline constexpr uint64_t kDefaultConcurrency = 2;

// Parses a limit. Ignores surrounding white space. Text that is not an unsigned number (a '-' included) yields
// kDefaultConcurrency; 0 yields 1.
uint64_t ParseConcurrency(absl::string_view text);

// Returns the limit in this process's environment; nothing if neither variable is set. Reads the environment at each
// call.
std::optional<uint64_t> ConcurrencyFromEnvironment();

}  // namespace berth

#endif  // COMMON_CONCURRENCY_LIMIT_H_
