#include "client/cli/run/wait_notice.h"

#include <stdio.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "berth/v1/permit.pb.h"
#include "client/cli/exit_status.h"
#include "client/cli/format.h"
#include "client/cli/run/wait_cause.h"
#include "client/sdk/admin/inspector.h"
#include "client/sdk/transport/call_limits.h"
#include "client/sdk/transport/session_core.h"
#include "common/concurrency_limit.h"
#include "common/wire/attach_wire.h"

namespace berth::cli {
namespace {

// More names make the line unreadable.
constexpr size_t kMaxNamed = 4;

// " (3 stopped)"; empty if no waiter is set aside.
std::string DescribeStopped(const v1::Pool& pool) {
  return pool.stopped_waiters() == 0 ? "" : absl::StrCat(" (", pool.stopped_waiters(), " stopped)");
}

}  // namespace

std::string DescribeWait(const v1::WaitExplanation& wait, absl::Time now) {
  const v1::Pool& pool = wait.pool();
  std::vector<std::string> holders;
  for (const v1::Permit& permit : wait.holders()) {
    if (holders.size() == kMaxNamed) break;
    holders.push_back(absl::StrCat(permit.id() == 0 ? "another tenant" : FormatProcess(permit.process()),
                                   " for ", FormatSince(permit.grant_time(), now),
                                   permit.stopped() ? " (stopped)" : ""));
  }
  if (pool.holders() > holders.size())
    holders.push_back(absl::StrCat(pool.holders() - holders.size(), " more"));
  return absl::StrCat("waiting for pool ", pool.name(), ": ", DescribeCause(wait), ", place ",
                      wait.waiter().position(), " of ", pool.waiters(), DescribeStopped(pool),
                      holders.empty() ? "" : absl::StrCat("; held by ", absl::StrJoin(holders, ", ")),
                      "; see berth explain ", wait.waiter().number());
}

std::string DescribeCrowd(const v1::Pool& pool) {
  return absl::StrCat("waiting for pool ", pool.name(), ": ", pool.out(), " of ", pool.cap(), " out, ",
                      pool.waiters(), " wait", DescribeStopped(pool));
}

WaitNotice::WaitNotice(std::shared_ptr<Session> session, std::string pool, std::string holder_key)
    : session_(std::move(session)),
      pool_(pool.empty() ? std::string(kDefaultPool) : std::move(pool)),
      holder_key_(std::move(holder_key)),
      // The notice is optional: a process that cannot start a thread for it waits without it.
      thread_(Thread::Start("the notice of a wait", [this] { Run(); }).value_or(Thread())) {}

WaitNotice::~WaitNotice() {
  {
    MutexLock lock(&mu_);
    over_ = true;
    notified_.Signal();
  }
  cancellation_.Cancel();
  if (thread_.joinable()) thread_.join();
}

bool WaitNotice::over() {
  MutexLock lock(&mu_);
  return over_;
}

void WaitNotice::Explain(const v1::WaitExplanation& wait) {
  if (over()) return;
  Complain(DescribeWait(wait, absl::Now()));
  const std::string ancestor = DescribeAncestor(wait, ReadAncestors());
  if (!ancestor.empty()) Complain(ancestor);
}

void WaitNotice::Run() {
  {
    const absl::Time deadline = SteadyNow() + kPatience;
    MutexLock lock(&mu_);
    for (bool late = false; !over_ && !late;) late = notified_.WaitWithDeadline(&mu_, deadline);
    if (over_) return;
  }
  // The notice is optional: the wait itself reports errors.
  internal::SessionCore& core = *session_->core();
  internal::CallLimits limits = core.DefaultLimits();
  limits.cancellation = &cancellation_;
  v1::WaitExplanation own;
  if (core.Ask(limits, attach::Method::kExplainWait, v1::ExplainWaitRequest(), &own).ok()) return Explain(own);
  if (over()) return;
  const Inspector inspector(session_, &cancellation_);
  const auto permits = inspector.ListPermits(pool_);
  if (!permits.ok()) return;
  for (const v1::Waiter& waiter : permits->waiters()) {
    if (waiter.session() != session_->id().value() || waiter.holder_key() != holder_key_) continue;
    const auto wait = inspector.ExplainWait(waiter.number());
    if (!wait.ok()) return;
    return Explain(*wait);
  }
  // ListPermits() returns only the first waiters of a crowd.
  const auto pools = inspector.ListPools();
  if (!pools.ok() || over()) return;
  for (const v1::Pool& pool : pools->pools()) {
    if (pool.name() != pool_ || pool.waiters() <= static_cast<uint64_t>(permits->waiters_size())) continue;
    Complain(DescribeCrowd(pool));
  }
}

}  // namespace berth::cli
