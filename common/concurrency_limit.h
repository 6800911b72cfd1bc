// How many may use the GPU at once, as the environment says it: one parse rule for the daemon, whose
// environment sets the cap of pool gpu-tests, and for clients, whose environment can only lower it for their
// own requests.

#ifndef COMMON_CONCURRENCY_LIMIT_H_
#define COMMON_CONCURRENCY_LIMIT_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace berth {

// The pool that always exists, and that the variables speak of.
inline constexpr char kDefaultPool[] = "gpu-tests";
// The first of these that is set counts.
inline constexpr char kConcurrencyVariable[] = "BERTH_GPU_TEST_CONCURRENCY";
inline constexpr char kConcurrencyAlias[] = "REALIZAR_GPU_TEST_CONCURRENCY";
// The cap where nothing says otherwise, and what text that is no number means.
inline constexpr uint64_t kDefaultConcurrency = 2;

// Reads a limit: white space around it is trimmed; what is no unsigned number (a '-' too) is
// kDefaultConcurrency; 0 is 1.
uint64_t ParseConcurrency(absl::string_view text);

// The limit in this process's environment; nothing if neither variable is set. Reads the environment at each
// call.
std::optional<uint64_t> ConcurrencyFromEnvironment();

}  // namespace berth

#endif  // COMMON_CONCURRENCY_LIMIT_H_
