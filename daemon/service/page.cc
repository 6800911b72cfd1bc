#include "daemon/service/page.h"

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/error.h"

namespace berth::service {
namespace {

constexpr size_t kKeyDigits = 16;

}  // namespace

absl::StatusOr<core::PageRequest> ReadPage(int32_t page_size, const std::string& token) {
  if (page_size < 0) {
    return Refuse(Reason::kInvalidField, "{field}: {value} is negative; {limit}",
                  {{"field", "page_size"}, {"value", page_size}, {"limit", "0 to 1000"}});
  }
  core::PageRequest page = {.rows = kMaxPageSize, .parts = kMaxPageParts};
  if (page_size != 0 && page_size < kMaxPageSize) page.rows = static_cast<uint64_t>(page_size);
  if (token.empty()) return page;
  std::string key;
  if (!absl::WebSafeBase64Unescape(token, &key) || key.size() != kKeyDigits ||
      !absl::SimpleHexAtoi(key, &page.after)) {
    return Refuse(
        Reason::kInvalidField, "{field}: \"{value}\" is not from an earlier answer; {limit}",
        {{"field", "page_token"}, {"value", absl::CHexEscape(token.substr(0, 64))}, {"limit", "opaque"}});
  }
  return page;
}

std::string PageToken(uint64_t key) {
  return absl::WebSafeBase64Escape(absl::StrCat(absl::Hex(key, absl::kZeroPad16)));
}

}  // namespace berth::service
