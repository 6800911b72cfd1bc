#include "client/cli/wait_notice.h"

#include <stdio.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/format.h"
#include "client/inspector.h"
#include "common/concurrency_limit.h"

namespace berth::cli {
namespace {

// More names than this say nothing on one line.
constexpr int kMaxNamed = 4;

}  // namespace

std::string DescribeWait(const v1::Pool& pool, const v1::ListPermitsResponse& permits, absl::Time now) {
  std::vector<std::string> holders;
  uint64_t named = 0;
  for (const v1::Permit& permit : permits.permits()) {
    if (permit.pool() != pool.name() || named == kMaxNamed) continue;
    ++named;
    holders.push_back(
        absl::StrCat(FormatProcess(permit.process()), " for ", FormatSince(permit.grant_time(), now)));
  }
  if (pool.holders() > named) holders.push_back(absl::StrCat(pool.holders() - named, " more"));
  return absl::StrCat("waiting for pool ", pool.name(), ": ", pool.out(), " of ", pool.cap(), " out, ",
                      pool.waiters(), pool.waiters() == 1 ? " waits" : " wait",
                      holders.empty() ? "" : absl::StrCat("; held by ", absl::StrJoin(holders, ", ")));
}

WaitNotice::WaitNotice(std::shared_ptr<Session> session, std::string pool)
    : session_(std::move(session)),
      pool_(pool.empty() ? std::string(kDefaultPool) : std::move(pool)),
      thread_([this] { Run(); }) {}

WaitNotice::~WaitNotice() {
  over_.Notify();
  cancellation_.Cancel();
  thread_.join();
}

void WaitNotice::Run() {
  if (over_.WaitForNotificationWithTimeout(kPatience)) return;
  const Inspector inspector(session_, &cancellation_);
  const auto pools = inspector.ListPools();
  const auto permits = inspector.ListPermits(pool_);
  // Only a courtesy: the wait itself says what is wrong, if something is.
  if (!pools.ok() || !permits.ok() || over_.HasBeenNotified()) return;
  for (const v1::Pool& pool : pools->pools()) {
    if (pool.name() != pool_) continue;
    ::fprintf(stderr, "berth: %s\n", DescribeWait(pool, *permits, absl::Now()).c_str());
  }
}

}  // namespace berth::cli
