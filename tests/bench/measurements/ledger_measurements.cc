#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/permit.h>
#include <berth/session.h>

#include "common/secret.h"
#include "common/status_macros.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/testing/idle_sink.h"
#include "daemon/broker/testing/recorded_call.h"
#include "daemon/core/core.h"
#include "daemon/core/types/record_kind.h"
#include "daemon/ledger/ledger.h"
#include "tests/bench/measurements/measurements.h"
#include "tests/bench/stopwatch.h"

namespace berth::bench {
namespace {

// A broker in this process, with or without a ledger, and a client's calls to it.
class InProcess {
 public:
  static absl::StatusOr<std::unique_ptr<InProcess>> Make(bool keeps) {
    BERTH_ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::Make(keeps ? "/dev/shm" : "/tmp"));
    std::unique_ptr<Ledger> ledger;
    if (keeps) {
      BERTH_ASSIGN_OR_RETURN(ledger, Ledger::Create(folder.path(), {.schema = core::kRecordSchema, .boot = "bench"}));
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
                   [](core::StreamKey) { return core::FenceValues(); }};
  Broker broker_{&core_, &sink_, ledger_.get()};
  core::Caller caller_;
  uint64_t sequence_ = 0;
};

// Returns the median of many cycles, in microseconds.
absl::StatusOr<double> CycleTime(int count, Step cycle) {
  std::vector<double> times;
  for (int i = -count / 4; i < count; ++i) {
    BERTH_ASSIGN_OR_RETURN(const double time, Microseconds(cycle));
    if (i >= 0) times.push_back(time);
  }
  return Median(std::move(times)).value;
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> LedgerMeasurements(const Programs& programs) {
  // The smallest number whose median has a 95 % interval is 6.
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
    // The daemon's cycle includes it.
    ratios.push_back(wire / (wire - costs.back()));
  }
  return std::vector<Measurement>{{.name = "the ledger's part of permit acquire+release",
                                   .value = Median(costs),
                                   .unit = "us",
                                   .against = "acquire+release without",
                                   .ratio = Median(ratios),
                                   .bound = 1.03}};
}

}  // namespace berth::bench
