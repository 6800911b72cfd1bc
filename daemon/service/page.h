// Pages of a list: a page token is the key of the last row sent, so what comes or goes between two pages neither
// repeats a row nor shifts another.

#ifndef DAEMON_SERVICE_PAGE_H_
#define DAEMON_SERVICE_PAGE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/core/page.h"

namespace berth::service {

inline constexpr int32_t kMaxPageSize = 1000;
// Imports or processes that the rows of one page name, beside those of its last row: about half a megabyte of the four
// that gRPC's clients take.
inline constexpr uint64_t kMaxPageParts = 4096;

// What a request for a page asks of the core. Errors: INVALID_FIELD for a negative size or a token that none of ours
// is.
absl::StatusOr<core::PageRequest> ReadPage(int32_t page_size, const std::string& token);
// The same of a list whose keys mean something within `scope` alone: a token of another one's begins anew.
absl::StatusOr<core::PageRequest> ReadPage(int32_t page_size, const std::string& token, uint64_t scope);

// The token for the rows after the one with this key.
std::string PageToken(uint64_t key);
std::string PageToken(uint64_t key, uint64_t scope);

// The token that continues `page`; empty if nothing comes after it.
template <typename View>
std::string NextPageToken(const core::Page<View>& page) {
  return page.more ? PageToken(page.last) : "";
}

}  // namespace berth::service

#endif  // DAEMON_SERVICE_PAGE_H_
