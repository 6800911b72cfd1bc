// Books: everything that a daemon holds for its clients at one moment, by its own account and by the
// kernel's.

#ifndef TESTS_SUPPORT_BOOKS_H_
#define TESTS_SUPPORT_BOOKS_H_

#include <cstdint>
#include <map>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "client/inspector.h"

namespace berth::testing {

struct Books {
  // By the daemon's account.
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
  // By the kernel's, for each of the daemon's processes by its short name.
  std::map<std::string, uint64_t> fds;

  friend bool operator==(const Books&, const Books&) = default;
};

// Reads the daemon's account through an inspector on admin.sock; the kernel's part is left empty.
absl::StatusOr<Books> ReadBooks(const Inspector& inspector);

// For messages; what GoogleTest prints of one that is not as expected.
std::string Describe(const Books& books);
void PrintTo(const Books& books, std::ostream* out);

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_BOOKS_H_
