#include "client/cli/wait_cause.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/cli/format.h"

namespace berth::cli {

std::string DescribeCause(const v1::WaitExplanation& wait) {
  const v1::Pool& pool = wait.pool();
  const uint64_t free = pool.out() < pool.cap() ? pool.cap() - pool.out() : 0;
  switch (wait.cause()) {
    case v1::WaitExplanation::KEPT_FOR_ANOTHER:
      return absl::StrCat(free, " free, kept for one that was passed too often");
    case v1::WaitExplanation::EXCLUSIVE_OUT:
      return "one permit is out that shuts all others out";
    case v1::WaitExplanation::OTHERS_OUT:
      return "it wants the pool for itself, and others have permits";
    case v1::WaitExplanation::TENANT_CAP:
      return absl::StrCat("its tenant has ", wait.tenant_out(), " of the ", pool.tenant_cap(),
                          " that a tenant may have");
    case v1::WaitExplanation::TENANT_QUOTA:
      return "its tenant has all that it may have over all pools";
    case v1::WaitExplanation::DEVICE:
      return absl::StrCat(
          "device ", wait.waiter().gang().empty() ? wait.waiter().device() : "(one of several)", " has not ",
          FormatCount(std::max(wait.waiter().declared_bytes(), wait.waiter().min_free_bytes())),
          " free, or does not serve");
    case v1::WaitExplanation::ELSEWHERE:
      return "another pool has not what it asks there; both are given together";
    case v1::WaitExplanation::OLD_READING:
      return "what is free on the devices was last read too long ago to go by: does the worker's driver "
             "answer?";
    case v1::WaitExplanation::ROOM:
      return "the bytes that it would reserve are not free";
    case v1::WaitExplanation::CLIENT_CAP:
      return "more are out than its own environment allows";
    default:
      return absl::StrCat(free, " of ", pool.cap(), " free");
  }
}

}  // namespace berth::cli
