#include "client/cli/run/wait_notice.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "berth/v1/permit.pb.h"
#include "client/cli/exit_status.h"
#include "client/cli/format.h"
#include "client/cli/run/wait_cause.h"
#include "client/sdk/admin/inspector.h"
#include "client/sdk/transport/call_limits.h"
#include "client/sdk/transport/environment.h"
#include "client/sdk/transport/session_core.h"
#include "common/concurrency_limit.h"
#include "common/os/process_start.h"
#include "common/wire/attach_wire.h"

namespace berth::cli {
namespace {

// More names make the line unreadable.
constexpr size_t kMaxNamed = 4;

// " (3 stopped)"; empty if no waiter is skipped.
std::string DescribeStopped(const v1::Pool& pool) {
  return pool.stopped_waiters() == 0 ? "" : absl::StrCat(" (", pool.stopped_waiters(), " stopped)");
}

// More than the depth of any process tree. A tree that changes during the walk could form a cycle.
constexpr size_t kMaxAncestors = 1000;

std::string ReadOfProcess(pid_t pid, absl::string_view what) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/", what));
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// Returns the pid in the line `name` of a file of the process; 0 without one.
pid_t PidIn(pid_t pid, absl::string_view file, absl::string_view name) {
  const std::string text = ReadOfProcess(pid, file);
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, '\t');
    pid_t found = 0;
    if (fields[0] == name && fields.size() > 1 && absl::SimpleAtoi(fields[1], &found)) return found;
  }
  return 0;
}

// Returns 0 if the process has ended, or is the first of its PID namespace.
pid_t ParentOf(pid_t pid) { return PidIn(pid, "status", "PPid:"); }

// Returns the process that a holder process watches by a pidfd; 0 if this process may not read it.
pid_t OwnerOf(pid_t holder) {
  std::error_code error;
  const std::filesystem::directory_iterator fds(absl::StrCat("/proc/", holder, "/fdinfo"), error);
  for (auto at = fds; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    const pid_t owner = PidIn(holder, absl::StrCat("fdinfo/", at->path().filename().string()), "Pid:");
    if (owner > 0) return owner;
  }
  return 0;
}

// Matches "berth", options, "run" or "ctest-run".
bool RunsCommand(pid_t pid) {
  const std::string line = ReadOfProcess(pid, "cmdline");
  const std::vector<absl::string_view> words = absl::StrSplit(line, '\0');
  if (words[0] != "berth" && !absl::EndsWith(words[0], "/berth")) return false;
  const auto end = std::find(words.begin(), words.end(), "--");
  return std::any_of(words.begin(), end, [](absl::string_view word) { return word == "run" || word == "ctest-run"; });
}

// Whether the process was started in a session whose owner process still runs, and that `own`, this process's
// BERTH_SESSION, does not name. False for a process whose environment this one may not read.
bool IsInOtherSession(pid_t pid, absl::string_view own) {
  constexpr absl::string_view kVariable = "BERTH_SESSION=";
  const std::string environment = ReadOfProcess(pid, "environ");
  for (const absl::string_view entry : absl::StrSplit(environment, '\0')) {
    if (!absl::StartsWith(entry, kVariable) || entry.substr(kVariable.size()) == own) continue;
    const auto name = internal::ParseSessionName(entry.substr(kVariable.size()));
    if (!name.ok() || !name->session || name->pid_namespace != internal::PidNamespace()) return false;
    const auto started = StartTicksOf(name->opener);
    return started.ok() && *started == name->opener_start;
  }
  return false;
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
  const std::string ancestor = DescribeAncestor(wait, ReadAncestors(), ReadOwners(wait));
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
  // ListPermits() returns only the first waiters of a crowd. Without a crowd, the wait is over.
  for (const v1::PoolUse& use : permits->pools()) {
    if (use.visible_waiters() == static_cast<uint64_t>(permits->waiters_size())) return;
  }
  const auto pools = inspector.ListPools();
  if (!pools.ok() || over()) return;
  for (const v1::Pool& pool : pools->pools()) {
    if (pool.name() == pool_) Complain(DescribeCrowd(pool));
  }
}

// ---- wait_cause.h --------------------------------------------------------------------------------------------

std::vector<Ancestor> ReadAncestors() {
  const char* const own = ::getenv("BERTH_SESSION");
  std::vector<Ancestor> ancestors;
  for (pid_t pid = ::getppid(); pid > 0 && ancestors.size() < kMaxAncestors; pid = ParentOf(pid)) {
    std::string name = ReadOfProcess(pid, "comm");
    if (absl::EndsWith(name, "\n")) name.pop_back();
    ancestors.push_back({.pid = pid,
                         .name = std::move(name),
                         .runs = RunsCommand(pid),
                         .in_session = IsInOtherSession(pid, own == nullptr ? "" : own)});
  }
  return ancestors;
}

Owners ReadOwners(const v1::WaitExplanation& wait) {
  Owners owners;
  for (const v1::Permit& permit : wait.holders()) {
    const pid_t holder = permit.process().pid();
    // client/cli/run/holder_process.cc sets the name.
    if (permit.id() == 0 || permit.process().name() != "berth-holder") continue;
    if (const pid_t owner = OwnerOf(holder); owner > 0) owners[holder] = owner;
  }
  return owners;
}

std::string DescribeAncestor(const v1::WaitExplanation& wait, const std::vector<Ancestor>& ancestors,
                             const Owners& owners) {
  bool unnamed = wait.pool().holders() > static_cast<uint64_t>(wait.holders_size());
  for (const v1::Permit& permit : wait.holders()) {
    unnamed |= permit.id() == 0;
    const auto owner = owners.find(permit.process().pid());
    for (const Ancestor& ancestor : ancestors) {
      const bool owns = owner != owners.end() && owner->second == ancestor.pid;
      if (permit.id() == 0 || (permit.process().pid() != ancestor.pid && !owns)) continue;
      return absl::StrCat(
          "the holder ", FormatProcess(permit.process()),
          owns ? absl::StrCat(" holds for ", ancestor.name, "(", ancestor.pid, "), which is an ancestor")
               : " is an ancestor",
          " of this process and may wait for its end: pass BERTH_SESSION and the session's fds "
          "on, so that this process nests in that permit, or drop one of the two permits");
    }
  }
  if (!unnamed) return "";
  // An unnamed holder, for example another user's process, may be an ancestor that runs a command. With --exec and
  // `acquire`, no such ancestor is left, and only a session shows where the processes come from.
  for (const Ancestor& ancestor : ancestors) {
    if (!ancestor.runs) continue;
    return absl::StrCat(
        "a holder may be ", ancestor.name, "(", ancestor.pid,
        "), an ancestor of this process that may wait for its end: run one of the two without a permit");
  }
  for (const Ancestor& ancestor : ancestors) {
    if (!ancestor.in_session) continue;
    return absl::StrCat("a holder may be the session of ", ancestor.name, "(", ancestor.pid,
                        "), an ancestor of this process that may wait for its end: run one of the two without a "
                        "permit");
  }
  return "";
}

std::string DescribeCause(const v1::WaitExplanation& wait) {
  const v1::Pool& pool = wait.pool();
  const uint64_t free = pool.out() < pool.cap() ? pool.cap() - pool.out() : 0;
  switch (wait.cause()) {
    case v1::WaitExplanation::KEPT_FOR_ANOTHER:
      return absl::StrCat(free, " free, but reserved for an earlier waiter that was passed too often");
    case v1::WaitExplanation::EXCLUSIVE_OUT:
      return "an exclusive permit is out";
    case v1::WaitExplanation::OTHERS_OUT:
      return "the request is exclusive, and other permits are out";
    case v1::WaitExplanation::TENANT_CAP:
      return absl::StrCat("the tenant has ", wait.tenant_out(), " of the ", pool.tenant_cap(),
                          " units that a tenant may hold");
    case v1::WaitExplanation::TENANT_QUOTA:
      return "the tenant has reached its quota of units over all pools";
    case v1::WaitExplanation::NO_DEVICE:
      return absl::StrCat(pool.out_without_device(), " of ", pool.no_device_cap(),
                          " units without a device are out; request a device (--gpus 1) to avoid this limit");
    case v1::WaitExplanation::STOPPING:
      return "an operator is stopping the daemon, which grants no more permits";
    case v1::WaitExplanation::DEVICE:
      // For a request that needs only a device, the daemon reports what each device lacks.
      if (!wait.lacking().empty()) return wait.lacking();
      return "no eligible device serves and has capacity for the request";
    case v1::WaitExplanation::ELSEWHERE:
      return "another pool lacks units for this request, which takes both pools in one step";
    case v1::WaitExplanation::OLD_READING:
      return "the last reading of the devices' free bytes is too old: check with `berth devices` that the driver "
             "answers";
    case v1::WaitExplanation::ROOM:
      return "the bytes that the request would reserve are not free";
    case v1::WaitExplanation::STOPPED:
      return "the waiting process is stopped, or has not reconnected since the daemon's restart: Berth grants it "
             "nothing until it continues (fg, kill -CONT, the thaw of its cgroup, the detach of its debugger); its "
             "place in the queue stays reserved";
    case v1::WaitExplanation::CLIENT_CAP:
      return "more units are out than the client's environment allows";
    default:
      return absl::StrCat(free, " of ", pool.cap(), " free");
  }
}

}  // namespace berth::cli
