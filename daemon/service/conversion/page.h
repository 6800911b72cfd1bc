// Pages of a list: a page token is the key of the last entry sent, so entries added or removed between two pages
// neither repeat nor shift others.

#ifndef DAEMON_SERVICE_CONVERSION_PAGE_H_
#define DAEMON_SERVICE_CONVERSION_PAGE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/core/types/page.h"

namespace berth::service {

inline constexpr int32_t kMaxPageSize = 1000;
// Limit of imports or processes that the entries of one page name, excluding the last entry's: about 0.5 MB of the 4 MB
// that gRPC's clients accept.
inline constexpr uint64_t kMaxPageParts = 4096;

// Converts a page request for the core. Errors: INVALID_FIELD for a negative size or an invalid token.
absl::StatusOr<core::PageRequest> ReadPage(int32_t page_size, const std::string& token);
// Like ReadPage() above, for keys that are valid within `scope` alone: a token of another scope restarts the list.
absl::StatusOr<core::PageRequest> ReadPage(int32_t page_size, const std::string& token, uint64_t scope);

// Returns the token for the entries after the entry with this key.
std::string PageToken(uint64_t key);
std::string PageToken(uint64_t key, uint64_t scope);

// Returns the token that continues `page`; empty after the last page.
template <typename View>
std::string NextPageToken(const core::Page<View>& page) {
  return page.more ? PageToken(page.last) : "";
}

}  // namespace berth::service

#endif  // DAEMON_SERVICE_CONVERSION_PAGE_H_
