#include "client/cli/wait_notice.h"

#include <stdio.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/format.h"
#include "client/cli/wait_cause.h"
#include "client/inspector.h"
#include "common/concurrency_limit.h"

namespace berth::cli {
namespace {

// More names than this say nothing on one line.
constexpr size_t kMaxNamed = 4;

}  // namespace

std::string DescribeWait(const v1::WaitExplanation& wait, absl::Time now) {
  const v1::Pool& pool = wait.pool();
  std::vector<std::string> holders;
  for (const v1::Permit& permit : wait.holders()) {
    if (holders.size() == kMaxNamed) break;
    holders.push_back(absl::StrCat(permit.id() == 0 ? "another tenant" : FormatProcess(permit.process()),
                                   " for ", FormatSince(permit.grant_time(), now)));
  }
  if (pool.holders() > holders.size())
    holders.push_back(absl::StrCat(pool.holders() - holders.size(), " more"));
  return absl::StrCat("waiting for pool ", pool.name(), ": ", DescribeCause(wait), ", place ",
                      wait.waiter().position(), " of ", pool.waiters(),
                      holders.empty() ? "" : absl::StrCat("; held by ", absl::StrJoin(holders, ", ")),
                      "; see berth explain ", wait.waiter().number());
}

std::string DescribeCrowd(const v1::Pool& pool) {
  return absl::StrCat("waiting for pool ", pool.name(), ": ", pool.out(), " of ", pool.cap(), " out, ",
                      pool.waiters(), " wait");
}

WaitNotice::WaitNotice(std::shared_ptr<Session> session, std::string pool, std::string holder_key)
    : session_(std::move(session)),
      pool_(pool.empty() ? std::string(kDefaultPool) : std::move(pool)),
      holder_key_(std::move(holder_key)),
      thread_([this] { Run(); }) {}

WaitNotice::~WaitNotice() {
  {
    MutexLock lock(&mu_);
    over_ = true;
    told_.Signal();
  }
  cancellation_.Cancel();
  thread_.join();
}

bool WaitNotice::over() {
  MutexLock lock(&mu_);
  return over_;
}

void WaitNotice::Run() {
  {
    const absl::Time deadline = SteadyNow() + kPatience;
    MutexLock lock(&mu_);
    for (bool late = false; !over_ && !late;) late = told_.WaitWithDeadline(&mu_, deadline);
    if (over_) return;
  }
  // Only a courtesy: the wait itself says what is wrong, if something is.
  const Inspector inspector(session_, &cancellation_);
  const auto permits = inspector.ListPermits(pool_);
  if (!permits.ok()) return;
  for (const v1::Waiter& waiter : permits->waiters()) {
    if (waiter.session() != session_->id().value() || waiter.holder_key() != holder_key_) continue;
    const auto wait = inspector.ExplainWait(waiter.number());
    if (!wait.ok() || over()) return;
    ::fprintf(stderr, "berth: %s\n", DescribeWait(*wait, absl::Now()).c_str());
    return;
  }
  // Of a crowd only the first are listed.
  const auto pools = inspector.ListPools();
  if (!pools.ok() || over()) return;
  for (const v1::Pool& pool : pools->pools()) {
    if (pool.name() != pool_ || pool.waiters() <= static_cast<uint64_t>(permits->waiters_size())) continue;
    ::fprintf(stderr, "berth: %s\n", DescribeCrowd(pool).c_str());
  }
}

}  // namespace berth::cli
