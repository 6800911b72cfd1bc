// Account: every permit, waiter and block in a daemon's own lists. Two accounts are equal where nothing was lost,
// duplicated or moved to another owner in between.

#ifndef TESTS_BENCH_MEASUREMENTS_ACCOUNT_H_
#define TESTS_BENCH_MEASUREMENTS_ACCOUNT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace berth::bench {

struct Account {
  // Sorted; a line of text for each, with its identity and its owner.
  std::vector<std::string> permits;
  std::vector<std::string> waiters;
  std::vector<std::string> blocks;
  // By the daemon's sums: units of the pool, bytes of the devices.
  uint64_t units = 0;
  uint64_t live_bytes = 0;
  // Bytes that are retired, quarantined or reserved.
  uint64_t other_bytes = 0;
};

// Takes the account of pool `pool`, of all blocks and all bytes, on the admin socket. Errors: the daemon's; kInternal
// where its sums differ from its lists, or a list has an entry twice.
absl::StatusOr<Account> TakeAccount(const std::string& folder, const std::string& pool);

// Errors: kInternal, naming the entries that `later` lacks or has in addition.
absl::Status ExpectSame(const Account& before, const Account& later);

}  // namespace berth::bench

#endif  // TESTS_BENCH_MEASUREMENTS_ACCOUNT_H_
