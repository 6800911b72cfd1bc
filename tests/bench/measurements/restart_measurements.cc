// Broker and supervisor are killed while ten thousand leases are granted.

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <berth/block.h>
#include <berth/permit.h>
#include <berth/session.h>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/sdk/admin/inspector.h"
#include "common/status_macros.h"
#include "tests/bench/measurements/account.h"
#include "tests/bench/measurements/crowd.h"
#include "tests/bench/measurements/measurements.h"
#include "tests/bench/quiet.h"
#include "tests/bench/stopwatch.h"

namespace berth::bench {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr int kKills = 20;
// The least lifetime of each broker once it has the waiters' calls. The SDK gives up a call of which three brokers in a
// row died within half a second, as one that kills them.
constexpr absl::Duration kLife = absl::Seconds(1);
constexpr HoardShare kShare = {.blocks = 9, .permits = 1, .waiters = 1};
constexpr size_t kLeases = Crowd::kSessions * (kShare.blocks + kShare.permits);
static_assert(kLeases == 10'000);

// A daemon whose leases a crowd holds; every check covers all of them.
class FullDaemon {
 public:
  static absl::StatusOr<std::unique_ptr<FullDaemon>> Make(const Programs& programs) {
    HoardShare share = kShare;
    // Only host memory is checked here.
    share.written = programs.backend == "host";
    std::vector<std::string> flags = Crowd::Flags(programs, share);
    flags.push_back("--warm-blocks=0");
    BERTH_ASSIGN_OR_RETURN(auto daemon, StartDaemon(programs, std::move(flags)));
    BERTH_ASSIGN_OR_RETURN(Crowd crowd, Crowd::Start(programs, daemon->folder(), share));
    std::unique_ptr<FullDaemon> full(new FullDaemon(std::move(daemon), std::move(crowd)));
    const absl::Time deadline = absl::Now() + kPatience;
    do {
      BERTH_ASSIGN_OR_RETURN(full->begin_, TakeAccount(full->folder(), kHoardPool));
    } while (full->begin_.waiters.size() < Crowd::kSessions && absl::Now() < deadline);
    BERTH_RETURN_IF_ERROR(ExpectSizes(full->begin_, {kShare.blocks, false, kShare.permits, kShare.waiters}));
    // A call that three brokers in a row died right after is not sent to a fourth
    // (client/sdk/transport/call_attempts.h). With this wait each broker has the call for longer.
    absl::SleepFor(kLife);
    return full;
  }

  const std::string& folder() const { return daemon_->folder(); }

  // Kills the daemon's process of that short name, which another one replaces. Returns the time of its end.
  absl::StatusOr<int64_t> Kill(const std::string& name) const {
    BERTH_ASSIGN_OR_RETURN(const pid_t pid,
                           name == kSupervisorName ? daemon_->FindSupervisor() : daemon_->FindBroker());
    return KillAndAwait(pid);
  }

  // Errors: kInternal where a lease was lost or exists twice.
  absl::Status CheckAccount() const {
    BERTH_ASSIGN_OR_RETURN(const Account account, TakeAccount(folder(), kHoardPool));
    return ExpectSame(begin_, account);
  }

  // After the last kill: checks the blocks' bytes, lets the waiters be granted, and expects everything back once.
  absl::Status Finish() {
    BERTH_RETURN_IF_ERROR(crowd_.CheckBytes());
    BERTH_RETURN_IF_ERROR(crowd_.PassPermitsOn());
    BERTH_ASSIGN_OR_RETURN(const Account passed_on, TakeAccount(folder(), kHoardPool));
    BERTH_RETURN_IF_ERROR(ExpectSizes(passed_on, {kShare.blocks, false, kShare.waiters, 0}));
    BERTH_RETURN_IF_ERROR(crowd_.Return());
    BERTH_RETURN_IF_ERROR(AwaitNothingFreed());
    BERTH_ASSIGN_OR_RETURN(const Account end, TakeAccount(folder(), kHoardPool));
    return ExpectSame(Account(), end);
  }

  // Waits until the freed blocks no longer exist.
  absl::Status AwaitNothingFreed() const {
    BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = folder(), .admin = true}));
    return AwaitQuiet(Inspector(session), Bytes(0));
  }

  // Waits until a supervisor replaces the one that was killed.
  absl::Status AwaitSupervisor() const {
    const absl::Time deadline = absl::Now() + kPatience;
    while (!daemon_->FindSupervisor().ok()) {
      if (absl::Now() > deadline) return absl::DeadlineExceededError("no supervisor follows");
      absl::SleepFor(absl::Milliseconds(1));
    }
    return absl::OkStatus();
  }

  static constexpr char kSupervisorName[] = "berthd";
  static constexpr char kBrokerName[] = "berth-broker";

 private:
  FullDaemon(std::unique_ptr<Server> daemon, Crowd crowd) : daemon_(std::move(daemon)), crowd_(std::move(crowd)) {}

  static absl::Status ExpectSizes(const Account& account, const HoardShare& share) {
    if (account.blocks.size() == Crowd::kSessions * share.blocks &&
        account.permits.size() == Crowd::kSessions * share.permits && account.units == account.permits.size() &&
        account.waiters.size() == Crowd::kSessions * share.waiters &&
        account.live_bytes == account.blocks.size() * Crowd::kBlock.count() && account.other_bytes == 0) {
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat(account.blocks.size(), " blocks, ", account.permits.size(), " permits, ",
                                            account.waiters.size(), " waiters, ", account.live_bytes, " live bytes"));
  }

  const std::unique_ptr<Server> daemon_;
  Crowd crowd_;
  // The account once the crowd had everything.
  Account begin_;
};

std::string Load(const Programs& programs) {
  return absl::StrCat(kLeases, " leases out (", Crowd::kSessions * kShare.blocks, " blocks",
                      programs.backend == "host" ? " with data" : "", ", ", Crowd::kSessions * kShare.permits,
                      " permits) of ", Crowd::kSessions, " sessions, ", Crowd::kSessions * kShare.waiters, " waiters");
}

// Milliseconds after which clients were served. KillAgainAndAgain() kills the process of that name repeatedly, and
// serves a new client and an existing one in turn, so that neither waits for the other.
struct Served {
  std::vector<double> comes;
  std::vector<double> knew;
};
absl::StatusOr<Served> KillAgainAndAgain(const FullDaemon& full, const std::string& name,
                                         absl::FunctionRef<absl::Status(const std::shared_ptr<Session>&)> call) {
  BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = full.folder()}));
  BERTH_RETURN_IF_ERROR(call(session));
  Served served;
  for (int i = 0; i < kKills; ++i) {
    const bool comes = i % 2 == 0;
    BERTH_ASSIGN_OR_RETURN(const int64_t death, full.Kill(name));
    BERTH_RETURN_IF_ERROR(comes ? Session::Open({.folder = full.folder(), .always_new = true}).status()
                                : call(session));
    (comes ? served.comes : served.knew).push_back((MonotonicNanoseconds() - death) * 1e-6);
    BERTH_RETURN_IF_ERROR(full.AwaitSupervisor());
    BERTH_RETURN_IF_ERROR(full.AwaitNothingFreed());
    BERTH_RETURN_IF_ERROR(full.CheckAccount());
    absl::SleepFor(kLife);
  }
  return served;
}

absl::Status AcquireAndRelease(const std::shared_ptr<Session>& session) {
  BERTH_ASSIGN_OR_RETURN(Permit permit, Permit::Acquire(session));
  return permit.Release();
}

// Allocates and frees a block, which requires storing its fd.
absl::Status AllocateAndFree(const std::shared_ptr<Session>& session) {
  BERTH_ASSIGN_OR_RETURN(Block block, Block::Allocate(session, {.bytes = Crowd::kBlock}));
  return block.Free();
}

Measurement MakeMeasurement(const std::string& name, const std::string& load, std::vector<double> milliseconds,
                            double bound) {
  return {.name = absl::StrCat(name, ", with ", load),
          .value = Median(std::move(milliseconds)),
          .unit = "ms",
          .bound = bound};
}

// Measures the cost of the death of process `name`: `whose` names it in the measurements, `what` the measured
// operation.
absl::StatusOr<std::vector<Measurement>> DeathMeasurements(
    const Programs& programs, const std::string& name, const std::string& whose, const std::string& what,
    absl::FunctionRef<absl::Status(const std::shared_ptr<Session>&)> call) {
  BERTH_ASSIGN_OR_RETURN(const auto full, FullDaemon::Make(programs));
  BERTH_ASSIGN_OR_RETURN(Served served, KillAgainAndAgain(*full, name, call));
  BERTH_RETURN_IF_ERROR(full->Finish());
  const std::string load = Load(programs);
  return std::vector<Measurement>{
      MakeMeasurement(absl::StrCat(whose, " death to a new session"), load, std::move(served.comes), 100),
      MakeMeasurement(absl::StrCat(whose, " death to a client's next ", what), load, std::move(served.knew), 200)};
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> BrokerDeathMeasurements(const Programs& programs) {
  return DeathMeasurements(programs, FullDaemon::kBrokerName, "a broker's", "permit", AcquireAndRelease);
}

absl::StatusOr<std::vector<Measurement>> SupervisorDeathMeasurements(const Programs& programs) {
  return DeathMeasurements(programs, FullDaemon::kSupervisorName, "a supervisor's", "block, allocated and freed",
                           AllocateAndFree);
}

}  // namespace berth::bench
