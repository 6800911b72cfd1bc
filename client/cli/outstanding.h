// The leases that a verb would end, and the user's confirmation.

#ifndef CLIENT_CLI_OUTSTANDING_H_
#define CLIENT_CLI_OUTSTANDING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "berth/v1/permit_resources.pb.h"
#include "client/sdk/admin/inspector.h"

namespace berth::cli {

struct Outstanding {
  std::vector<v1::Permit> permits;
  // Number of waiting requests; unset for a device, as another device may serve them.
  std::optional<uint64_t> waiting;
  // Number of live blocks; number of those that are published under a name; bytes of the live blocks.
  uint64_t blocks = 0;
  uint64_t named = 0;
  uint64_t bytes = 0;

  bool empty() const { return permits.empty() && waiting.value_or(0) == 0 && blocks == 0; }
};

// Reads the leases of all tenants, or with `device` only those on that device. Requires: an operator's inspector.
// Errors: kFailedPrecondition if the daemon cannot read its ledger, so that leases are unknown.
absl::StatusOr<Outstanding> LookAtOutstanding(const Inspector& inspector,
                                              std::optional<uint32_t> device = std::nullopt);

// "out: 2 permits, 1 waiting request, 3 blocks of 96.0 MiB (1 named)", and a line for each holder.
std::string Describe(const Outstanding& out, absl::Time now);

// "1 block", "2 blocks".
std::string CountOf(uint64_t count, absl::string_view noun);

// Prints `effect`, and asks `question` if stdin and stderr are terminals. With `yes` it does not ask.
// Errors: kFailedPrecondition naming --yes if one of them is no terminal; kCancelled unless the answer is y or yes.
absl::Status Confirm(absl::string_view effect, absl::string_view question, bool yes);

}  // namespace berth::cli

#endif  // CLIENT_CLI_OUTSTANDING_H_
