// Accounts: everything that a daemon holds for its clients at one moment, by the daemon's accounting and by the
// kernel's.

#ifndef TESTS_SUPPORT_ACCOUNTS_H_
#define TESTS_SUPPORT_ACCOUNTS_H_

#include <cstdint>
#include <map>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "client/sdk/admin/inspector.h"

namespace berth::testing {

struct Accounts {
  // By the daemon's accounting.
  uint64_t permits = 0;
  uint64_t units = 0;
  uint64_t waiters = 0;
  uint64_t sessions = 0;
  uint64_t processes = 0;
  uint64_t blocks = 0;
  uint64_t imports = 0;
  uint64_t live = 0;
  uint64_t retired = 0;
  uint64_t quarantined = 0;
  uint64_t warm = 0;
  uint64_t reserved = 0;
  // By the kernel's accounting: open fds of each process of the daemon, by its short name.
  std::map<std::string, uint64_t> fds;

  friend bool operator==(const Accounts&, const Accounts&) = default;
};

// Reads the daemon's accounting through an inspector on admin.sock; leaves the kernel's part empty.
absl::StatusOr<Accounts> ReadAccounts(const Inspector& inspector);

// For messages: the text that GoogleTest prints for a mismatch.
std::string Describe(const Accounts& accounts);
void PrintTo(const Accounts& accounts, std::ostream* out);

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACCOUNTS_H_
