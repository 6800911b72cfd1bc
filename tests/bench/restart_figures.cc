#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/inspector.h"
#include "client/permit.h"
#include "client/session.h"
#include "common/os_error.h"
#include "common/secret.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/idle_sink.h"
#include "daemon/broker/recorded_call.h"
#include "daemon/core/core.h"
#include "daemon/core/row_kind.h"
#include "daemon/ledger/ledger.h"
#include "tests/bench/child_process.h"
#include "tests/bench/crowd.h"
#include "tests/bench/figures.h"
#include "tests/bench/stopwatch.h"
#include "tests/support/proc.h"

namespace berth::bench {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

// A broker in this process, with a ledger or without, and a client's calls to it.
class InProcess {
 public:
  static absl::StatusOr<std::unique_ptr<InProcess>> Make(bool keeps) {
    BERTH_ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::Make(keeps ? "/dev/shm" : "/tmp"));
    std::unique_ptr<Ledger> ledger;
    if (keeps) {
      BERTH_ASSIGN_OR_RETURN(ledger, Ledger::Create(folder.path(), {.schema = core::kRowSchema, .boot = "bench"}));
    }
    return std::unique_ptr<InProcess>(new InProcess(std::move(folder), std::move(ledger)));
  }

  // Acquires a permit and releases it.
  absl::Status Cycle() {
    RecordedCall acquire;
    broker_.Submit(broker_.NewCall(), &acquire,
                   [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                     core.Acquire(now, id, caller_, NextTag(), {.pool = "gpu-tests", .holder_key = "bench"}, effects);
                   });
    BERTH_ASSIGN_OR_RETURN(const core::Response granted, acquire.Await());
    absl::Status released;
    broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
      released = core.GiveBack(now, caller_.credentials.channel, std::get<core::AcquireResult>(granted).acquisition,
                               /*if_idle=*/false, effects)
                     .status();
    });
    return released;
  }

 private:
  InProcess(TemporaryFolder folder, std::unique_ptr<Ledger> ledger)
      : folder_(std::move(folder)), ledger_(std::move(ledger)) {
    broker_.Step([&](core::Core& core, absl::Time now, core::Effects*) {
      caller_.credentials.session =
          core.OpenSession(now, caller_.credentials.secret, caller_.tenant, "bench", {}).value();
      caller_.credentials.channel =
          core.JoinSession(now, caller_.credentials.session, caller_.credentials.secret, caller_.tenant, {}).value();
    });
  }
  core::RequestTag NextTag() {
    ++sequence_;
    return {.sequence = sequence_, .answered_below = sequence_};
  }

  const TemporaryFolder folder_;
  const std::unique_ptr<Ledger> ledger_;
  IdleSink sink_;
  core::Core core_{core::Config{.node = 1, .incarnation = 1, .pools = {{.name = "gpu-tests", .cap = 2}}}, RandomId,
                   [](core::StreamKey) { return core::StreamWords(); }};
  Broker broker_{&core_, &sink_, ledger_.get()};
  core::Caller caller_;
  uint64_t sequence_ = 0;
};

// Of many cycles, the median, in microseconds.
absl::StatusOr<double> CycleTime(int count, Step cycle) {
  std::vector<double> times;
  for (int i = -count / 4; i < count; ++i) {
    BERTH_ASSIGN_OR_RETURN(const double time, Microseconds(cycle));
    if (i >= 0) times.push_back(time);
  }
  return Median(std::move(times)).value;
}

absl::StatusOr<pid_t> FindBroker(int vault) {
  for (const testing::ChildInfo& child : testing::ChildrenOf(vault)) {
    if (child.name == "berth-broker") return child.pid;
  }
  return absl::NotFoundError("the daemon has no broker");
}

// Kills the broker and waits until it is gone. Returns when that was.
absl::StatusOr<int64_t> KillBroker(const Server& daemon) {
  BERTH_ASSIGN_OR_RETURN(const pid_t broker, FindBroker(daemon.pid()));
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, broker, 0)));
  if (!pidfd) return OsError("pidfd_open", errno);
  if (::kill(broker, SIGKILL) < 0) return OsError("kill", errno);
  BERTH_RETURN_IF_ERROR(AwaitReadable(pidfd.get(), kPatience));
  return MonotonicNanoseconds();
}

}  // namespace

absl::StatusOr<std::vector<Figure>> LedgerFigures(const Programs& programs) {
  // The fewest whose median has a 95 % interval is 6.
  constexpr int kRounds = 9;
  constexpr int kCycles = 4000;
  std::vector<double> costs;
  std::vector<double> ratios;
  for (int i = 0; i < kRounds; ++i) {
    BERTH_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(programs));
    BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = daemon->folder()}));
    BERTH_ASSIGN_OR_RETURN(const double wire, CycleTime(kCycles / 4, [&]() -> absl::Status {
                             BERTH_ASSIGN_OR_RETURN(Permit permit, Permit::Acquire(session));
                             return permit.Release();
                           }));
    BERTH_ASSIGN_OR_RETURN(const auto keeps, InProcess::Make(true));
    BERTH_ASSIGN_OR_RETURN(const auto forgets, InProcess::Make(false));
    BERTH_ASSIGN_OR_RETURN(const double with, CycleTime(kCycles, [&] { return keeps->Cycle(); }));
    BERTH_ASSIGN_OR_RETURN(const double without, CycleTime(kCycles, [&] { return forgets->Cycle(); }));
    costs.push_back(with - without);
    // The daemon's cycle has it in it.
    ratios.push_back(wire / (wire - costs.back()));
  }
  return std::vector<Figure>{{.name = "the ledger's part of permit acquire+release",
                              .value = Median(costs),
                              .unit = "us",
                              .against = "acquire+release without",
                              .ratio = Median(ratios),
                              .bound = 1.03}};
}

absl::StatusOr<std::vector<Figure>> BrokerDeathFigures(const Programs& programs) {
  constexpr int kKills = 20;
  BERTH_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(programs, Crowd::Flags(programs)));
  BERTH_ASSIGN_OR_RETURN(const Crowd crowd, Crowd::Start(programs, daemon->folder()));
  BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = daemon->folder()}));
  std::vector<double> serving;
  std::vector<double> calls;
  for (int i = 0; i < kKills; ++i) {
    // A client that knew the broker, and one that comes to the next: in turn, so that neither waits for the other.
    BERTH_ASSIGN_OR_RETURN(const int64_t death, KillBroker(*daemon));
    if (i % 2 == 0) {
      BERTH_RETURN_IF_ERROR(Session::Open({.folder = daemon->folder()}).status());
    } else {
      BERTH_ASSIGN_OR_RETURN(Permit permit, Permit::Acquire(session));
      BERTH_RETURN_IF_ERROR(permit.Release());
    }
    (i % 2 == 0 ? serving : calls).push_back((MonotonicNanoseconds() - death) * 1e-6);
    BERTH_ASSIGN_OR_RETURN(const v1::Usage usage, Inspector(session).GetUsage());
    const uint64_t blocks = usage.devices(0).bytes().live() / Crowd::kBlock.count();
    if (blocks != Crowd::kBlocks) return absl::InternalError(absl::StrCat(blocks, " blocks after a broker's death"));
  }
  const std::string load = absl::StrCat(Crowd::kBlocks, " live blocks of ", Crowd::kSessions, " sessions");
  return std::vector<Figure>{
      {.name = absl::StrCat("a broker's death to a new session, with ", load),
       .value = Median(serving),
       .unit = "ms",
       .bound = 100},
      {.name = absl::StrCat("a broker's death to a client's next permit, with ", load),
       .value = Median(calls),
       .unit = "ms",
       .bound = 200}};
}

}  // namespace berth::bench
