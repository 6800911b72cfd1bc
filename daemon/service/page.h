// Pages of a list that has a rising key: a page token is the key of the last row sent.

#ifndef DAEMON_SERVICE_PAGE_H_
#define DAEMON_SERVICE_PAGE_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/error.h"

namespace berth::service {

inline constexpr int32_t kMaxPageSize = 1000;

// Emits the rows of `rows` (sorted by `key`, a string that sorts as the rows do) that come after `token`, at most
// `page_size`, and sets `next_token` if there are more. Rows that come or go meanwhile are neither repeated nor do they
// shift others. Errors: INVALID_FIELD for a negative size or a token that none of ours is.
template <typename Row, typename Key, typename Emit>
absl::Status EmitPage(const std::vector<Row>& rows, int32_t page_size, const std::string& token, Key key,
                      Emit emit, std::string* next_token) {
  if (page_size < 0) {
    return Refuse(Reason::kInvalidField, "{field}: {value} is negative; {limit}",
                  {{"field", "page_size"}, {"value", page_size}, {"limit", "0 to 1000"}});
  }
  if (page_size == 0 || page_size > kMaxPageSize) page_size = kMaxPageSize;
  std::string after;
  if (!token.empty() && !absl::WebSafeBase64Unescape(token, &after)) {
    return Refuse(
        Reason::kInvalidField, "{field}: \"{value}\" is not from an earlier answer; {limit}",
        {{"field", "page_token"}, {"value", absl::CHexEscape(token.substr(0, 64))}, {"limit", "opaque"}});
  }
  auto row =
      std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return token.empty() || key(r) > after; });
  for (int32_t sent = 0; row != rows.end() && sent < page_size; ++row, ++sent) emit(*row);
  if (row != rows.end()) *next_token = absl::WebSafeBase64Escape(key(*(row - 1)));
  return absl::OkStatus();
}

// A number as a key that sorts as numbers do.
inline std::string SortableKey(uint64_t number) { return absl::StrCat(absl::Hex(number, absl::kZeroPad16)); }

}  // namespace berth::service

#endif  // DAEMON_SERVICE_PAGE_H_
