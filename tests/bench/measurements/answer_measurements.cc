// One user has stored its full share of answers, and the broker is killed: the time for which another user waits for a
// session.

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>
#include <berth/session.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/permit.grpc.pb.h"
#include "common/status_macros.h"
#include "tests/bench/measurements/measurements.h"
#include "tests/bench/servers.h"
#include "tests/bench/stopwatch.h"
#include "tests/support/wire/raw_client.h"

namespace berth::bench {
namespace {

// An entry costs a restore more than its bytes, so each answer is as small as possible: a refusal.
absl::Status StoreAnswer(testing::RawClient& client) {
  v1::ReleasePermitRequest release;
  *release.mutable_request() = client.NextTag();
  release.set_acquisition(1);
  return client.Call(&v1::PermitService::Stub::ReleasePermit, release).status();
}

// A user that never acknowledges an answer.
class Hoarder {
 public:
  explicit Hoarder(std::string folder) : folder_(std::move(folder)) {}

  // Opens sessions and stores answers until the user's limit. Returns the number of answers.
  absl::StatusOr<uint64_t> Fill() {
    uint64_t stored = 0;
    for (uint64_t before = UINT64_MAX; before != stored;) {
      before = stored;
      Open();
      absl::Status refused;
      while (IsRefusal(refused = StoreAnswer(clients_.back()), Reason::kNotFound)) ++stored;
      if (!IsRefusal(refused, Reason::kLimit)) return refused;
    }
    return stored;
  }
  // Errors: kInternal where the daemon has forgotten answers.
  absl::Status CheckFull() {
    // Connections end with the broker: the user opens new ones.
    Open();
    const absl::Status refused = StoreAnswer(clients_.back());
    if (IsRefusal(refused, Reason::kLimit)) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("the user may store answers again: ", refused.ToString()));
  }

 private:
  void Open() {
    clients_.push_back(testing::RawClient::Open(folder_, "berthd.sock", ::geteuid() == 0 ? kUid : 0));
  }

  static constexpr uid_t kUid = 60'001;
  const std::string folder_;
  std::vector<testing::RawClient> clients_;
};

}  // namespace

absl::StatusOr<std::vector<Measurement>> StoredAnswerMeasurements(const Programs& programs) {
  constexpr int kKills = 10;
  // The supervisor treats brokers that die in quick succession as broken.
  constexpr absl::Duration kLife = absl::Seconds(1);
  Programs host = programs;
  host.backend = "host";
  BERTH_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(host));
  OpenToAllUsers(daemon->folder());
  Hoarder hoarder(daemon->folder());
  BERTH_ASSIGN_OR_RETURN(const uint64_t stored, hoarder.Fill());
  std::vector<double> milliseconds;
  for (int i = 0; i < kKills; ++i) {
    BERTH_ASSIGN_OR_RETURN(const pid_t broker, daemon->FindBroker());
    BERTH_ASSIGN_OR_RETURN(const int64_t death, KillAndAwait(broker));
    BERTH_RETURN_IF_ERROR(Session::Open({.folder = daemon->folder(), .always_new = true}).status());
    milliseconds.push_back((MonotonicNanoseconds() - death) * 1e-6);
    absl::SleepFor(kLife);
  }
  BERTH_RETURN_IF_ERROR(hoarder.CheckFull());
  return std::vector<Measurement>{
      {.name = "a broker's death to a new session, one user's stored answers at their limit",
       .value = Median(std::move(milliseconds)),
       .unit = "ms",
       .against = absl::StrCat(stored, " answers"),
       .bound = 200}};
}

}  // namespace berth::bench
