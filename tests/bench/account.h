// Account: every permit, waiter and block of a daemon by its own word, one by one. Two of them are equal where nothing
// was lost, doubled or changed hands in between.

#ifndef TESTS_BENCH_ACCOUNT_H_
#define TESTS_BENCH_ACCOUNT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace berth::bench {

struct Account {
  // Each sorted, a line of text for each: what it is, and whose.
  std::vector<std::string> permits;
  std::vector<std::string> waiters;
  std::vector<std::string> blocks;
  // By the daemon's sums: units of the pool, bytes of the devices.
  uint64_t units = 0;
  uint64_t live_bytes = 0;
  // Retired, quarantined or reserved.
  uint64_t other_bytes = 0;
};

// The account of pool `pool`, of all blocks and all bytes, on the admin socket. Errors: the daemon's; kInternal where
// its sums are not those of what it lists, or something is listed twice.
absl::StatusOr<Account> TakeAccount(const std::string& folder, const std::string& pool);

// Errors: kInternal, naming what `later` has not or has besides.
absl::Status ExpectSame(const Account& before, const Account& later);

}  // namespace berth::bench

#endif  // TESTS_BENCH_ACCOUNT_H_
