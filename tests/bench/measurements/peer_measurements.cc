// Sixty-four processes that contend for one unit: Berth's pool and common alternatives, alternating in one run.

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"
#include "tests/bench/child_process.h"
#include "tests/bench/measurements/measurements.h"
#include "tests/bench/peers/peer_locks.h"
#include "tests/bench/stopwatch.h"
#include "tests/bench/witness.h"

namespace berth::bench {
namespace {

constexpr int kClients = 64;
// The smallest number whose median has a 95 % interval is 6.
constexpr int kRounds = 6;
constexpr absl::Duration kPatience = absl::Seconds(60);
// Dropped warm-up time, then the measured time.
constexpr int64_t kWarmUpNanoseconds = 500'000'000;
constexpr int64_t kWindowNanoseconds = 2'000'000'000;

// The results of one system in one round.
struct Contention {
  // Microseconds from a release to the next grant, and milliseconds from a request to its grant: medians; and the 99th
  // percentile of the wait.
  double hand_over = 0;
  double wait = 0;
  double wait_p99 = 0;
  // The inverse of Jain's index of the clients' grants: 1 where all had equally many, 64 where one client had all.
  double spread = 0;
  // Ratio of the most to the fewest grants of a client; zero grants count as one.
  double most_by_least = 0;
};

absl::StatusOr<int> FreePort() {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (!socket || ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) < 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) < 0) {
    return OsError("bind(loopback)", errno);
  }
  return ntohs(address.sin_port);
}

// Another system's server, on a separate loopback port, with its files, if any, in memory.
class PeerServer {
 public:
  static absl::StatusOr<PeerServer> StartRedis() {
    BERTH_ASSIGN_OR_RETURN(const int port, FreePort());
    return Start(port, TemporaryFolder::Make(),
                 {"/usr/bin/redis-server", "--port", absl::StrCat(port), "--bind", "127.0.0.1", "--save", "",
                  "--appendonly", "no"});
  }
  static absl::StatusOr<PeerServer> StartEtcd() {
    BERTH_ASSIGN_OR_RETURN(const int port, FreePort());
    BERTH_ASSIGN_OR_RETURN(const int peer_port, FreePort());
    absl::StatusOr<TemporaryFolder> folder = TemporaryFolder::Make("/dev/shm");
    BERTH_RETURN_IF_ERROR(folder.status());
    const std::string url = absl::StrCat("http://127.0.0.1:", port);
    const std::string peer_url = absl::StrCat("http://127.0.0.1:", peer_port);
    std::vector<std::string> command = {"/usr/bin/etcd",
                                        "--data-dir",
                                        folder->path() + "/data",
                                        "--listen-client-urls",
                                        url,
                                        "--advertise-client-urls",
                                        url,
                                        "--listen-peer-urls",
                                        peer_url,
                                        "--initial-advertise-peer-urls",
                                        peer_url,
                                        "--initial-cluster",
                                        "default=" + peer_url,
                                        "--logger",
                                        "zap",
                                        "--log-outputs",
                                        "/dev/null"};
    return Start(port, std::move(folder), std::move(command));
  }
  const std::string& port() const { return port_; }

 private:
  PeerServer(int port, TemporaryFolder folder, ChildProcess process)
      : folder_(std::move(folder)), process_(std::move(process)), port_(absl::StrCat(port)) {}
  static absl::StatusOr<PeerServer> Start(int port, absl::StatusOr<TemporaryFolder> folder,
                                          std::vector<std::string> command) {
    BERTH_RETURN_IF_ERROR(folder.status());
    const UniqueFd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    BERTH_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start({.command = std::move(command),
                                                                      .output = nowhere.get(),
                                                                      .error = nowhere.get()}));
    return PeerServer(port, *std::move(folder), std::move(process));
  }
  TemporaryFolder folder_;
  ChildProcess process_;
  std::string port_;
};

// Accumulates the clients' reports, in their order.
class Ledger {
 public:
  explicit Ledger(int64_t start) : start_(start + kWarmUpNanoseconds), end_(start_ + kWindowNanoseconds) {}

  bool over(int64_t now) const { return now > end_; }
  void Take(const Fact& fact) {
    const bool counts = fact.nanoseconds >= start_ && fact.nanoseconds <= end_;
    switch (fact.kind) {
      case Fact::Kind::kAsks:
        asked_[fact.pid] = fact.nanoseconds;
        break;
      case Fact::Kind::kHolds:
        if (counts && released_ > 0)
          hand_overs_.push_back(std::max(0.0, (fact.nanoseconds - released_) * 1e-3));
        if (counts) waits_.push_back((fact.nanoseconds - asked_[fact.pid]) * 1e-6);
        if (counts) ++grants_[fact.pid];
        asked_.erase(fact.pid);
        break;
      case Fact::Kind::kReleases:
        released_ = fact.nanoseconds;
        break;
      case Fact::Kind::kReady:
      case Fact::Kind::kDone:
      case Fact::Kind::kFailed:
        break;
    }
  }
  absl::StatusOr<Contention> Sum() {
    if (waits_.empty()) return absl::DeadlineExceededError("nobody was granted anything");
    // Pending waits count with their duration so far: these clients are starved.
    for (const auto& [pid, asked] : asked_) {
      if (asked < end_) waits_.push_back((end_ - std::max(asked, start_)) * 1e-6);
    }
    double sum = 0;
    double squares = 0;
    double most = 0;
    double least = grants_.size() < kClients ? 1 : 1e18;
    for (const auto& [pid, grants] : grants_) {
      sum += grants;
      squares += grants * grants;
      most = std::max(most, grants);
      least = std::min(least, grants);
    }
    return Contention{.hand_over = Median(hand_overs_).value,
                      .wait = Median(waits_).value,
                      .wait_p99 = Quantile(waits_, 0.99).value,
                      .spread = kClients * squares / (sum * sum),
                      .most_by_least = most / least};
  }

 private:
  const int64_t start_;
  const int64_t end_;
  int64_t released_ = 0;
  std::map<int32_t, int64_t> asked_;
  std::map<int32_t, double> grants_;
  std::vector<double> hand_overs_;
  std::vector<double> waits_;
};

absl::StatusOr<Fact> NextFact(int pipe) {
  BERTH_RETURN_IF_ERROR(AwaitReadable(pipe, kPatience));
  Fact fact;
  if (::read(pipe, &fact, sizeof(fact)) != sizeof(fact)) return OsError("read", errno);
  return fact;
}

absl::StatusOr<Contention> Contend(const Programs& programs, const std::string& kind,
                                   const std::string& where) {
  BERTH_RETURN_IF_ERROR(PrepareLock(kind, where));
  BERTH_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::Make());
  const std::string start = folder.path() + "/start";
  BERTH_ASSIGN_OR_RETURN(const Pipe pipe, MakePipe());
  std::vector<ChildProcess> clients;
  for (int i = 0; i < kClients; ++i) {
    BERTH_ASSIGN_OR_RETURN(ChildProcess client,
                           ChildProcess::Start({.command = {programs.client, "contend", start, kind, where},
                                                .pipe = pipe.write.get()}));
    clients.push_back(std::move(client));
  }
  for (int ready = 0; ready < kClients; ++ready) BERTH_RETURN_IF_ERROR(NextFact(pipe.read.get()).status());
  if (!UniqueFd(::open(start.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600))) return OsError(start, errno);
  Ledger ledger(MonotonicNanoseconds());
  while (!ledger.over(MonotonicNanoseconds())) {
    BERTH_ASSIGN_OR_RETURN(const Fact fact, NextFact(pipe.read.get()));
    ledger.Take(fact);
  }
  return ledger.Sum();
}

struct Peer {
  std::string kind;
  std::string name;
  // Berth must be faster than it.
  bool bound = false;
  std::string where = {};
  std::vector<Contention> rounds = {};
};

Measurement Compare(const std::string& name, const Peer& ours, const Peer& theirs, double Contention::*what,
                    const std::string& unit, bool bound) {
  Pairs pairs;
  for (const Contention& round : ours.rounds) pairs.ours.push_back(round.*what);
  for (const Contention& round : theirs.rounds) pairs.theirs.push_back(round.*what);
  return ComparePairs(absl::StrCat(kClients, " clients: ", name), pairs, unit, theirs.name,
                      bound && theirs.bound ? std::optional<double>(1) : std::nullopt);
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> PeerMeasurements(const Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(programs, {}, {"BERTH_GPU_TEST_CONCURRENCY=1"}));
  BERTH_ASSIGN_OR_RETURN(const PeerServer redis, PeerServer::StartRedis());
  BERTH_ASSIGN_OR_RETURN(const PeerServer etcd, PeerServer::StartEtcd());
  Peer berth = {.kind = "berth", .name = "Berth", .where = daemon->folder()};
  std::vector<Peer> peers = {
      {.kind = "redis", .name = "a polling Redis lock", .bound = true, .where = redis.port()},
      {.kind = "etcd", .name = "an etcd lock", .bound = true, .where = etcd.port()},
      {.kind = "blpop", .name = "BLPOP", .where = redis.port()},
      {.kind = "flock", .name = "flock(2)", .where = daemon->folder()}};
  for (int round = 0; round < kRounds; ++round) {
    BERTH_ASSIGN_OR_RETURN(berth.rounds.emplace_back(), Contend(programs, berth.kind, berth.where));
    for (Peer& peer : peers) {
      // A separate lock for each round: clients of the last round may have left state.
      BERTH_ASSIGN_OR_RETURN(peer.rounds.emplace_back(),
                             Contend(programs, peer.kind, absl::StrCat(peer.where, "/lock", round)));
    }
  }
  std::vector<Measurement> measurements;
  for (const Peer& peer : peers) {
    measurements.push_back(
        Compare("release to the next grant", berth, peer, &Contention::hand_over, "us", /*bound=*/true));
    measurements.push_back(Compare("a wait, median", berth, peer, &Contention::wait, "ms", /*bound=*/false));
    measurements.push_back(Compare("a wait, p99", berth, peer, &Contention::wait_p99, "ms", /*bound=*/true));
    measurements.push_back(
        Compare("grants of each, 1/Jain", berth, peer, &Contention::spread, "", /*bound=*/true));
    measurements.push_back(Compare("grants of each, most by least", berth, peer, &Contention::most_by_least, "",
                                   /*bound=*/false));
  }
  return measurements;
}

}  // namespace berth::bench
