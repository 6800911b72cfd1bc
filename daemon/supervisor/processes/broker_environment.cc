#include "daemon/supervisor/processes/broker_environment.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace berth {
namespace {

constexpr char kName[] = "GLIBC_TUNABLES";
constexpr char kLargePages[] = "glibc.malloc.hugetlb=1";

}  // namespace

std::vector<std::string> BrokerEnvironment() { return {absl::StrCat(kName, "=", kLargePages)}; }

bool EnterBrokerEnvironment() {
  return ::getenv(kName) == nullptr && ::setenv(kName, kLargePages, /*overwrite=*/0) == 0;
}

void LeaveBrokerEnvironment() {
  const char* const set = ::getenv(kName);
  if (set != nullptr && absl::string_view(set) == kLargePages) ::unsetenv(kName);
}

}  // namespace berth
