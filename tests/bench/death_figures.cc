#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/inspector.h"
#include "client/session.h"
#include "common/os_error.h"
#include "common/process.h"
#include "common/status_macros.h"
#include "tests/bench/child_process.h"
#include "tests/bench/figures.h"
#include "tests/bench/stopwatch.h"
#include "tests/bench/witness.h"

namespace berth::bench {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

// Clients that tell what they hold on one pipe.
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

  // The next fact that a client tells. Errors: kDeadlineExceeded after `patience`.
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
  // Kills what is left of it, and reaps.
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

// Waits until `waiters` wait: the queue is complete and nobody is on the way to it.
absl::Status AwaitQueue(const Inspector& inspector, uint64_t waiters) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (absl::Now() < deadline) {
    BERTH_ASSIGN_OR_RETURN(const v1::Pool pool, GpuTests(inspector));
    if (pool.waiters() == waiters && pool.out() == pool.cap()) return absl::OkStatus();
  }
  return absl::DeadlineExceededError(absl::StrCat("the queue did not grow to ", waiters));
}

// Kills one holder after the other of a queue of `length` in a pool of cap 1. Appends the milliseconds from
// each holder's pidfd to the next one's grant, as the granted process itself saw it.
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
    // The next one may have run before this process did.
    milliseconds->push_back(std::max<int64_t>(next.nanoseconds - gone, 0) * 1e-6);
    clients->Remove(holder.pid);
    holder = next;
  }
  clients->Remove(holder.pid);
  return absl::OkStatus();
}

// Counts who holds by what clients told and by their pidfds: never more than is true.
class HolderCount {
 public:
  explicit HolderCount(const Clients* clients) : clients_(*clients) {}

  // Returns how many hold after `fact`.
  size_t Take(const Fact& fact) {
    const auto known = std::find(holders_.begin(), holders_.end(), fact.pid);
    if (fact.kind == Fact::Kind::kReleases) {
      if (known != holders_.end()) holders_.erase(known);
      return holders_.size();
    }
    // Whoever is gone made room before this grant: the daemon saw the same pidfd first.
    holders_.push_back(fact.pid);
    std::erase_if(holders_, [&](int pid) { return clients_.IsGone(pid); });
    return holders_.size();
  }

 private:
  const Clients& clients_;
  std::vector<int> holders_;
};

}  // namespace

absl::StatusOr<std::vector<Figure>> HandOverFigures(const Programs& programs) {
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
  return std::vector<Figure>{
      {.name = "dead holder to next grant, median", .value = Median(milliseconds), .unit = "ms"},
      {.name = absl::StrCat("dead holder to next grant, p99 of ", milliseconds.size()),
       .value = Quantile(milliseconds, 0.99),
       .unit = "ms",
       .bound = 5}};
}

absl::StatusOr<std::vector<Figure>> RandomKillFigures(const Programs& programs) {
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
      // A while of their lives, then one of them ends in the middle of whatever it does.
      for (uint64_t facts = random() % 24; facts > 0; --facts) {
        BERTH_ASSIGN_OR_RETURN(const Fact fact, clients.Next());
        most = std::max(most, holders.Take(fact));
      }
      clients.Remove(clients.pid_at(random() % clients.size()));
    }
  }
  // The books are empty again once the daemon has seen the last of them.
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
  return std::vector<Figure>{
      {.name = absl::StrCat("most permits out in ", kKills, " random kills, seed ", kSeed),
       .value = {.value = out, .low = out, .high = out},
       .unit = "permits",
       .against = absl::StrCat("cap ", before.cap(), ", ", after.granted_total(), " grants"),
       .bound = before.cap()}};
}

}  // namespace berth::bench
