#include "daemon/service/conversion/page.h"

#include <optional>
#include <vector>

#include <berth/error.h>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace berth::service {
namespace {

constexpr size_t kKeyDigits = 16;

std::string Encode(absl::string_view digits) { return absl::WebSafeBase64Escape(digits); }

// Returns the `count` numbers of a token; nothing for an invalid token.
std::optional<std::vector<uint64_t>> Decode(const std::string& token, size_t count) {
  std::string digits;
  if (!absl::WebSafeBase64Unescape(token, &digits) || digits.size() != count * kKeyDigits)
    return std::nullopt;
  std::vector<uint64_t> numbers(count);
  for (size_t i = 0; i < count; ++i) {
    if (!absl::SimpleHexAtoi(digits.substr(i * kKeyDigits, kKeyDigits), &numbers[i])) return std::nullopt;
  }
  return numbers;
}

absl::Status NotOurs(const std::string& token) {
  return Refuse(Reason::kInvalidField,
                "invalid {field} \"{value}\": expected a token of an earlier answer; tokens are {limit}",
                {{"field", "page_token"}, {"value", absl::CHexEscape(token.substr(0, 64))}, {"limit", "opaque"}});
}

// Returns the request for the first page.
absl::StatusOr<core::PageRequest> ReadSize(int32_t page_size) {
  if (page_size < 0) {
    return Refuse(Reason::kInvalidField, "{field}: {value} is negative; {limit}",
                  {{"field", "page_size"}, {"value", page_size}, {"limit", "0 to 1000"}});
  }
  core::PageRequest page = {.rows = kMaxPageSize, .parts = kMaxPageParts};
  if (page_size != 0 && page_size < kMaxPageSize) page.rows = static_cast<uint64_t>(page_size);
  return page;
}

}  // namespace

absl::StatusOr<core::PageRequest> ReadPage(int32_t page_size, const std::string& token) {
  BERTH_ASSIGN_OR_RETURN(core::PageRequest page, ReadSize(page_size));
  if (token.empty()) return page;
  const std::optional<std::vector<uint64_t>> key = Decode(token, 1);
  if (!key.has_value()) return NotOurs(token);
  page.after = key->front();
  return page;
}

absl::StatusOr<core::PageRequest> ReadPage(int32_t page_size, const std::string& token, uint64_t scope) {
  BERTH_ASSIGN_OR_RETURN(core::PageRequest page, ReadSize(page_size));
  if (token.empty()) return page;
  const std::optional<std::vector<uint64_t>> key = Decode(token, 2);
  if (!key.has_value()) return NotOurs(token);
  if (key->back() == scope) page.after = key->front();
  return page;
}

std::string PageToken(uint64_t key) { return Encode(absl::StrCat(absl::Hex(key, absl::kZeroPad16))); }

std::string PageToken(uint64_t key, uint64_t scope) {
  return Encode(absl::StrCat(absl::Hex(key, absl::kZeroPad16), absl::Hex(scope, absl::kZeroPad16)));
}

}  // namespace berth::service
