// Broker and vault are killed with ten thousand leases out.

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/block.h"
#include "client/inspector.h"
#include "client/permit.h"
#include "client/session.h"
#include "common/os_error.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "tests/bench/account.h"
#include "tests/bench/child_process.h"
#include "tests/bench/crowd.h"
#include "tests/bench/figures.h"
#include "tests/bench/quiet.h"
#include "tests/bench/stopwatch.h"
#include "tests/support/proc.h"

namespace berth::bench {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr int kKills = 20;
// How long each broker lives at least once it has the waiters' calls: a call that three in a row die of within half a
// second of it is given up, as one that kills them.
constexpr absl::Duration kLife = absl::Seconds(1);
constexpr HoardShare kShare = {.blocks = 9, .permits = 1, .waiters = 1};
constexpr size_t kLeases = Crowd::kSessions * (kShare.blocks + kShare.permits);
static_assert(kLeases == 10'000);

// A daemon whose leases a crowd has; every check of it is of all of them.
class FullDaemon {
 public:
  static absl::StatusOr<std::unique_ptr<FullDaemon>> Make(const Programs& programs) {
    HoardShare share = kShare;
    // Only memory of the host is looked at here.
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
    // A wait that three brokers in a row die right after is sent to no fourth (client/internal/call_attempts.h): each
    // has been with one for longer.
    absl::SleepFor(kLife);
    return full;
  }

  const std::string& folder() const { return daemon_->folder(); }

  // Kills the daemon's process of that short name, which is followed by another. Returns when it was gone.
  absl::StatusOr<int64_t> Kill(const std::string& name) const {
    BERTH_ASSIGN_OR_RETURN(const pid_t pid, name == kVaultName ? daemon_->FindVault() : FindBroker());
    const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!pidfd) return OsError("pidfd_open", errno);
    if (::kill(pid, SIGKILL) < 0) return OsError("kill", errno);
    BERTH_RETURN_IF_ERROR(AwaitReadable(pidfd.get(), kPatience));
    return MonotonicNanoseconds();
  }

  // Errors: kInternal where a lease was lost or is there twice.
  absl::Status CheckAccount() const {
    BERTH_ASSIGN_OR_RETURN(const Account account, TakeAccount(folder(), kHoardPool));
    return ExpectSame(begin_, account);
  }

  // After the last kill: the bytes are what was written, who waited is granted, and all comes back once.
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

  // Waits until what was freed is gone.
  absl::Status AwaitNothingFreed() const {
    BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = folder(), .admin = true}));
    return AwaitQuiet(Inspector(session), Bytes(0));
  }

  // Waits until a vault follows the one that was killed.
  absl::Status AwaitVault() const {
    const absl::Time deadline = absl::Now() + kPatience;
    while (!daemon_->FindVault().ok()) {
      if (absl::Now() > deadline) return absl::DeadlineExceededError("no vault follows");
      absl::SleepFor(absl::Milliseconds(1));
    }
    return absl::OkStatus();
  }

  static constexpr char kVaultName[] = "berthd";
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

  absl::StatusOr<pid_t> FindBroker() const {
    for (const testing::ChildInfo& process :
         testing::ProcessesWith("berthd", absl::StrCat("--folder=", folder()))) {
      if (process.name == kBrokerName) return process.pid;
    }
    return absl::NotFoundError("the daemon has no broker");
  }

  const std::unique_ptr<Server> daemon_;
  Crowd crowd_;
  // Once the crowd had everything.
  Account begin_;
};

std::string Load(const Programs& programs) {
  return absl::StrCat(kLeases, " leases out (", Crowd::kSessions * kShare.blocks, " blocks",
                      programs.backend == "host" ? " with data" : "", ", ", Crowd::kSessions * kShare.permits,
                      " permits) of ", Crowd::kSessions, " sessions, ", Crowd::kSessions * kShare.waiters, " waiters");
}

// Kills the process of that name again and again, and has a client that comes and one that knew it served, in turn, so
// that neither waits for the other. Returns the milliseconds that each was served after.
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
    BERTH_RETURN_IF_ERROR(full.AwaitVault());
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

// Which wants custody of its fd.
absl::Status AllocateAndFree(const std::shared_ptr<Session>& session) {
  BERTH_ASSIGN_OR_RETURN(Block block, Block::Allocate(session, {.bytes = Crowd::kBlock}));
  return block.Free();
}

Figure MakeFigure(const std::string& name, const std::string& load, std::vector<double> milliseconds, double bound) {
  return {.name = absl::StrCat(name, ", with ", load),
          .value = Median(std::move(milliseconds)),
          .unit = "ms",
          .bound = bound};
}

// What the death of the process of that name costs, of which people speak as `whose`, who comes and who does `what`.
absl::StatusOr<std::vector<Figure>> DeathFigures(
    const Programs& programs, const std::string& name, const std::string& whose, const std::string& what,
    absl::FunctionRef<absl::Status(const std::shared_ptr<Session>&)> call) {
  BERTH_ASSIGN_OR_RETURN(const auto full, FullDaemon::Make(programs));
  BERTH_ASSIGN_OR_RETURN(Served served, KillAgainAndAgain(*full, name, call));
  BERTH_RETURN_IF_ERROR(full->Finish());
  const std::string load = Load(programs);
  return std::vector<Figure>{
      MakeFigure(absl::StrCat(whose, " death to a new session"), load, std::move(served.comes), 100),
      MakeFigure(absl::StrCat(whose, " death to a client's next ", what), load, std::move(served.knew), 200)};
}

}  // namespace

absl::StatusOr<std::vector<Figure>> BrokerDeathFigures(const Programs& programs) {
  return DeathFigures(programs, FullDaemon::kBrokerName, "a broker's", "permit", AcquireAndRelease);
}

absl::StatusOr<std::vector<Figure>> VaultDeathFigures(const Programs& programs) {
  return DeathFigures(programs, FullDaemon::kVaultName, "a vault's", "block, allocated and freed", AllocateAndFree);
}

}  // namespace berth::bench
