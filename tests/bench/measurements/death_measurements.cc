#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <utility>

#include <berth/session.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/permit.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/os/os_error.h"
#include "common/os/process.h"
#include "common/status_macros.h"
#include "tests/bench/child_process.h"
#include "tests/bench/measurements/measurements.h"
#include "tests/bench/stopwatch.h"
#include "tests/bench/witness.h"

namespace berth::bench {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

// Clients that report their permits on one pipe.
class Clients {
 public:
  static absl::StatusOr<Clients> Make(const Programs& programs, std::string folder) {
    BERTH_ASSIGN_OR_RETURN(Pipe pipe, MakePipe());
    return Clients(programs, std::move(folder), std::move(pipe));
  }

  absl::Status Start(const std::string& mode) {
    BERTH_ASSIGN_OR_RETURN(
        ChildProcess child,
        ChildProcess::Start({.command = {programs_.client, mode, folder_}, .pipe = pipe_.write.get()}));
    const int pid = child.pid();
    children_.emplace(pid, std::move(child));
    return absl::OkStatus();
  }

  // Returns the next fact that a client reports. Errors: kDeadlineExceeded after `patience`.
  absl::StatusOr<Fact> Next(absl::Duration patience = kPatience) {
    BERTH_RETURN_IF_ERROR(AwaitReadable(pipe_.read.get(), patience));
    Fact fact;
    if (::read(pipe_.read.get(), &fact, sizeof(fact)) != sizeof(fact)) return OsError("read", errno);
    return fact;
  }

  const ChildProcess& at(int pid) const { return children_.at(pid); }
  bool IsGone(int pid) const { return !children_.contains(pid) || berth::IsGone(at(pid).pidfd()); }
  size_t size() const { return children_.size(); }
  int pid_at(size_t index) const { return std::next(children_.begin(), index)->first; }
  // Kills the client if it still runs, and reaps it.
  void Remove(int pid) { children_.erase(pid); }

 private:
  Clients(const Programs& programs, std::string folder, Pipe pipe)
      : programs_(programs), folder_(std::move(folder)), pipe_(std::move(pipe)) {}

  const Programs& programs_;
  const std::string folder_;
  Pipe pipe_;
  std::map<int, ChildProcess> children_;
};

absl::StatusOr<v1::Pool> GpuTests(const Inspector& inspector) {
  BERTH_ASSIGN_OR_RETURN(const v1::ListPoolsResponse pools, inspector.ListPools());
  for (const v1::Pool& pool : pools.pools()) {
    if (pool.name() == "gpu-tests") return pool;
  }
  return absl::NotFoundError("pool gpu-tests");
}

// Waits until `waiters` requests wait: the queue is complete, and no request is in transit.
absl::Status AwaitQueue(const Inspector& inspector, uint64_t waiters) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (absl::Now() < deadline) {
    BERTH_ASSIGN_OR_RETURN(const v1::Pool pool, GpuTests(inspector));
    if (pool.waiters() == waiters && pool.out() == pool.cap()) return absl::OkStatus();
  }
  return absl::DeadlineExceededError(absl::StrCat("the queue did not grow to ", waiters));
}

// Kills the holders of a queue of `length` in a pool of cap 1, one after the other. Appends the milliseconds from each
// holder's pidfd to the next grant, as the granted process itself saw it.
absl::Status KillDownTheQueue(const Inspector& inspector, Clients* clients, int length,
                              std::vector<double>* milliseconds) {
  for (int i = 0; i < length; ++i) BERTH_RETURN_IF_ERROR(clients->Start("hold"));
  BERTH_ASSIGN_OR_RETURN(Fact holder, clients->Next());
  for (int waiters = length - 1; waiters > 0; --waiters) {
    BERTH_RETURN_IF_ERROR(AwaitQueue(inspector, waiters));
    const ChildProcess& process = clients->at(holder.pid);
    process.Signal(SIGKILL);
    BERTH_RETURN_IF_ERROR(AwaitReadable(process.pidfd(), kPatience));
    const int64_t gone = MonotonicNanoseconds();
    BERTH_ASSIGN_OR_RETURN(const Fact next, clients->Next());
    // The next process may have run before this one did.
    milliseconds->push_back(std::max<int64_t>(next.nanoseconds - gone, 0) * 1e-6);
    clients->Remove(holder.pid);
    holder = next;
  }
  clients->Remove(holder.pid);
  return absl::OkStatus();
}

// Counts the holders by the clients' reports and their pidfds: never more than the true number.
class HolderCount {
 public:
  explicit HolderCount(const Clients* clients) : clients_(*clients) {}

  // Returns the number of holders after `fact`.
  size_t Take(const Fact& fact) {
    const auto known = std::find(holders_.begin(), holders_.end(), fact.pid);
    if (fact.kind == Fact::Kind::kReleases) {
      if (known != holders_.end()) holders_.erase(known);
      return holders_.size();
    }
    // A process that ended released its permit before this grant: the daemon saw the same pidfd first.
    holders_.push_back(fact.pid);
    std::erase_if(holders_, [&](int pid) { return clients_.IsGone(pid); });
    return holders_.size();
  }

 private:
  const Clients& clients_;
  std::vector<int> holders_;
};

}  // namespace

absl::StatusOr<std::vector<Measurement>> HandOverMeasurements(const Programs& programs) {
  constexpr int kQueue = 41;
  constexpr size_t kKills = 1000;
  BERTH_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(programs, {}, {"BERTH_GPU_TEST_CONCURRENCY=1"}));
  BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = daemon->folder()}));
  const Inspector inspector(session);
  BERTH_ASSIGN_OR_RETURN(Clients clients, Clients::Make(programs, daemon->folder()));
  std::vector<double> milliseconds;
  while (milliseconds.size() < kKills) {
    BERTH_RETURN_IF_ERROR(KillDownTheQueue(inspector, &clients, kQueue, &milliseconds));
  }
  return std::vector<Measurement>{
      {.name = "dead holder to next grant, median", .value = Median(milliseconds), .unit = "ms"},
      {.name = absl::StrCat("dead holder to next grant, p99 of ", milliseconds.size()),
       .value = Quantile(milliseconds, 0.99),
       .unit = "ms",
       .bound = 5}};
}

absl::StatusOr<std::vector<Measurement>> RandomKillMeasurements(const Programs& programs) {
  constexpr size_t kClients = 16;
  constexpr int kKills = 10'000;
  constexpr uint64_t kSeed = 20'240'229;
  BERTH_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(programs));
  BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = daemon->folder()}));
  const Inspector inspector(session);
  BERTH_ASSIGN_OR_RETURN(const v1::Pool before, GpuTests(inspector));
  std::mt19937_64 random(kSeed);
  size_t most = 0;
  {
    BERTH_ASSIGN_OR_RETURN(Clients clients, Clients::Make(programs, daemon->folder()));
    HolderCount holders(&clients);
    for (int kills = 0; kills < kKills; ++kills) {
      while (clients.size() < kClients) BERTH_RETURN_IF_ERROR(clients.Start("cycle"));
      // Lets them run for a while; then one of them ends at any point of its work.
      for (uint64_t facts = random() % 24; facts > 0; --facts) {
        BERTH_ASSIGN_OR_RETURN(const Fact fact, clients.Next());
        most = std::max(most, holders.Take(fact));
      }
      clients.Remove(clients.pid_at(random() % clients.size()));
    }
  }
  // The daemon holds nothing once it has seen the last of them end.
  const absl::Time deadline = absl::Now() + kPatience;
  v1::Pool after;
  do {
    BERTH_ASSIGN_OR_RETURN(after, GpuTests(inspector));
  } while ((after.out() != 0 || after.waiters() != 0) && absl::Now() < deadline);
  if (after.out() != 0 || after.waiters() != 0) {
    return absl::InternalError(
        absl::StrCat(after.out(), " permits and ", after.waiters(), " waiters were left over"));
  }
  const double out = std::max<double>(most, after.peak());
  return std::vector<Measurement>{
      {.name = absl::StrCat("most permits out in ", kKills, " random kills, seed ", kSeed),
       .value = {.value = out, .low = out, .high = out},
       .unit = "permits",
       .against = absl::StrCat("cap ", before.cap(), ", ", after.granted_total(), " grants"),
       .bound = before.cap()}};
}

}  // namespace berth::bench
