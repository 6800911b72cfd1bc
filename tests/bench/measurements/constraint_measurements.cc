// Sixteen thousand waiters that cannot be served, each with a different constraint: their cost to another user's
// permit or block, while they wait and while they arrive.

#include <unistd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <berth/block.h>
#include <berth/bytes.h>
#include <berth/session.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/placement.pb.h"
#include "client/sdk/admin/inspector.h"
#include "client/sdk/transport/status_conversion.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/wire/session_credentials.h"
#include "tests/bench/echo_client.h"
#include "tests/bench/measurements/measurements.h"
#include "tests/bench/servers.h"
#include "tests/bench/stopwatch.h"
#include "tests/support/wire/raw_client.h"

namespace berth::bench {
namespace {

constexpr uint64_t kWaiters = 16'000;
constexpr uint64_t kBursts = 32;
constexpr uint64_t kBurst = kWaiters / kBursts;
// One user may have only so many waiting places of a pool.
constexpr uint64_t kUsers = 8;
// A session may have 256 reservations. Its gangs that would reserve bytes count, too.
constexpr uint64_t kClientsPerUser = 8;
static_assert(kWaiters <= kUsers * kClientsPerUser * 256);
constexpr double kBound = 1.3;

constexpr Bytes kOnADevice = MiB(64);
constexpr Bytes kHeld = MiB(16);

struct Kind {
  std::string name;
  uint32_t devices = 1;
  bool gangs = false;
  // Each waiter lists other devices.
  bool lists = false;
  // The gangs would reserve bytes, and the other user allocates blocks.
  bool reserves = false;

  std::string turn() const { return reserves ? "another's block" : "another's permit"; }
};

// A daemon with a block on every device. Other requests need more than the rest: a permit of one device, or a gang of
// one or two.
class ConstraintLoad {
 public:
  // All requests have different constraints where `distinct` is set, otherwise equal ones.
  static absl::StatusOr<std::unique_ptr<ConstraintLoad>> Start(const Programs& programs, const Kind& kind,
                                                               bool distinct) {
    Programs host = programs;
    host.backend = "host";
    std::unique_ptr<ConstraintLoad> load(new ConstraintLoad(kind, distinct));
    BERTH_ASSIGN_OR_RETURN(
        load->daemon_, StartDaemon(host, {absl::StrCat("--host-devices=", kind.devices),
                                          absl::StrCat("--host-bytes=", kOnADevice.count()),
                                          absl::StrCat("--device-budget=", kOnADevice.count())}));
    const std::string& folder = load->daemon_->folder();
    BERTH_ASSIGN_OR_RETURN(load->operator_, Session::Open({.folder = folder, .admin = true}));
    BERTH_ASSIGN_OR_RETURN(load->other_, Session::Open({.folder = folder, .always_new = true}));
    OpenToAllUsers(folder);
    // One user where this process is not root and cannot be several.
    const auto user = [](uint64_t i) { return ::geteuid() == 0 ? static_cast<uid_t>(60'001 + i) : 0; };
    for (uint64_t i = 0; i <= kUsers * kClientsPerUser; ++i) {
      load->clients_.push_back(testing::RawClient::Open(folder, "berthd.sock", user(i / kClientsPerUser)));
      load->stubs_.push_back(v1::PermitService::NewStub(load->clients_.back().grpc_channel()));
    }
    for (uint32_t device = 0; device < kind.devices; ++device) {
      v1::AllocateBlockRequest block;
      testing::RawClient& owner = load->clients_.front();
      *block.mutable_request() = owner.NextTag();
      block.set_device(device);
      block.set_bytes(kHeld.count());
      BERTH_RETURN_IF_ERROR(owner.Call(&v1::MemoryService::Stub::AllocateBlock, block).status());
    }
    return load;
  }

  ~ConstraintLoad() {
    for (const auto& call : calls_) call->context.TryCancel();
    MutexLock lock(&mu_);
    while (open_ > 0) changed_.Wait(&mu_);
  }

  // Sends so many more requests; they may not wait yet on return.
  void Ask(uint64_t more) {
    for (uint64_t i = 0; i < more; ++i) Ask();
  }
  // Errors: a request was answered instead.
  absl::Status AwaitAll() {
    const absl::Time patience = absl::Now() + absl::Minutes(5);
    while (absl::Now() < patience) {
      BERTH_RETURN_IF_ERROR(CheckNoneAnswered());
      BERTH_ASSIGN_OR_RETURN(const v1::ListPoolsResponse pools, Inspector(operator_).ListPools());
      if (pools.pools(0).waiters() == calls_.size()) return absl::OkStatus();
      absl::SleepFor(absl::Milliseconds(5));
    }
    return absl::DeadlineExceededError("the waiters do not wait");
  }
  // Acquires and releases the other user's permit or block.
  absl::StatusOr<double> TakeTurn() {
    if (kind_.reserves) {
      return Microseconds([&]() -> absl::Status {
        BERTH_ASSIGN_OR_RETURN(Block block, Block::Allocate(other_, {.bytes = Bytes(4096)}));
        return block.Free();
      });
    }
    testing::RawClient& client = clients_.back();
    return Microseconds([&]() -> absl::Status {
      v1::AcquirePermitRequest acquire;
      *acquire.mutable_request() = client.NextTag();
      acquire.mutable_request()->set_answered_below(acquire.request().sequence());
      acquire.set_holder_key("h");
      BERTH_ASSIGN_OR_RETURN(const v1::AcquirePermitResponse had,
                             client.Call(&v1::PermitService::Stub::AcquirePermit, acquire));
      v1::ReleasePermitRequest release;
      *release.mutable_request() = client.NextTag();
      release.mutable_request()->set_answered_below(release.request().sequence());
      release.set_acquisition(had.acquisition());
      return client.Call(&v1::PermitService::Stub::ReleasePermit, release).status();
    });
  }

 private:
  // One call of either kind. Must outlive its answer.
  struct Waiting {
    grpc::ClientContext context;
    v1::AcquirePermitRequest permit;
    v1::AcquirePermitResponse granted;
    v1::AcquireGangRequest gang;
    v1::AcquireGangResponse all_granted;
  };

  ConstraintLoad(Kind kind, bool distinct) : kind_(std::move(kind)), distinct_(distinct) {}

  v1::DeviceWish Constraint(uint64_t i) const {
    v1::DeviceWish constraint;
    constraint.set_pick(v1::DeviceWish::ANY);
    if (!kind_.lists) {
      constraint.set_min_free_bytes(kOnADevice.count() - (distinct_ ? i : 0));
      return constraint;
    }
    constraint.set_min_free_bytes(kOnADevice.count());
    // The bits of a number that differs for each waiter choose among the devices.
    const uint64_t listed = distinct_ ? i + 1 : kWaiters;
    for (uint32_t device = 0; device < kind_.devices; ++device) {
      if ((listed >> (device % 16) & 1) != 0) constraint.add_among(absl::StrCat(device));
    }
    return constraint;
  }
  // Returns bytes of the first device that are not free.
  Bytes Reserved(uint64_t i) const { return Bytes(kOnADevice.count() - (distinct_ ? i % 4'000 * 4096 : 0)); }
  absl::Status CheckNoneAnswered() const {
    MutexLock lock(&mu_);
    if (answered_ == 0) return absl::OkStatus();
    const std::string answer = first_answer_.ok() ? "a grant" : first_answer_.ToString();
    return absl::InternalError(
        absl::StrCat(answered_, " of ", calls_.size(), " waiters were answered, the first with: ", answer));
  }
  void Ask() {
    const uint64_t i = calls_.size();
    const uint64_t at = i % (kUsers * kClientsPerUser);
    testing::RawClient& client = clients_[at];
    Waiting& call = *calls_.emplace_back(std::make_unique<Waiting>());
    call.context.AddMetadata(kCredentialsHeader, EncodeCredentials(client.credentials()));
    {
      MutexLock lock(&mu_);
      ++open_;
    }
    const auto done = [this](const grpc::Status& status) {
      MutexLock lock(&mu_);
      --open_;
      if (++answered_ == 1) first_answer_ = FromGrpc(status);
      changed_.SignalAll();
    };
    if (kind_.gangs) {
      *call.gang.mutable_request() = client.NextTag();
      call.gang.set_holder_key(absl::StrCat("waiter ", i));
      if (kind_.reserves) {
        call.gang.add_members();
        v1::AcquireGangRequest::Bytes& item = *call.gang.add_reserve();
        item.set_device(0);
        item.set_bytes(Reserved(i).count());
      }
      for (uint64_t member = 0; !kind_.reserves && member <= i % 2; ++member) {
        *call.gang.add_members()->mutable_device() = Constraint(i);
      }
      stubs_[at]->async()->AcquireGang(&call.context, &call.gang, &call.all_granted, done);
      return;
    }
    *call.permit.mutable_request() = client.NextTag();
    call.permit.set_holder_key(absl::StrCat("waiter ", i));
    *call.permit.mutable_device() = Constraint(i);
    stubs_[at]->async()->AcquirePermit(&call.context, &call.permit, &call.granted, done);
  }

  const Kind kind_;
  const bool distinct_;
  std::unique_ptr<Server> daemon_;
  std::shared_ptr<Session> operator_;
  // The other user's session, for blocks.
  std::shared_ptr<Session> other_;
  // The last client is the other user's.
  std::vector<testing::RawClient> clients_;
  std::vector<std::unique_ptr<v1::PermitService::Stub>> stubs_;
  std::vector<std::unique_ptr<Waiting>> calls_;

  mutable Mutex mu_;
  CondVar changed_;
  uint64_t open_ ABSL_GUARDED_BY(mu_) = 0;
  // Calls that have ended, and the answer to the first of them.
  uint64_t answered_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status first_answer_ ABSL_GUARDED_BY(mu_);
};

// Times a turn of the other user in each of both, alternately.
absl::Status TakeTurns(ConstraintLoad& ours, ConstraintLoad& theirs, uint64_t turns, Pairs* pairs) {
  for (uint64_t i = 0; i < turns; ++i) {
    BERTH_ASSIGN_OR_RETURN(pairs->ours.emplace_back(), ours.TakeTurn());
    BERTH_ASSIGN_OR_RETURN(pairs->theirs.emplace_back(), theirs.TakeTurn());
  }
  return absl::OkStatus();
}

// As above, in one daemon while waiters arrive.
absl::Status TakeTurnsInABurst(ConstraintLoad& load, uint64_t turns, std::vector<double>* times) {
  std::thread asks([&] { load.Ask(kBurst); });
  absl::Status taken;
  for (uint64_t i = 0; i < turns && taken.ok(); ++i) {
    const absl::StatusOr<double> time = load.TakeTurn();
    taken = time.status();
    if (time.ok()) times->push_back(*time);
  }
  asks.join();
  BERTH_RETURN_IF_ERROR(taken);
  return load.AwaitAll();
}

// The part of gRPC in the measurements: an echo beside as many calls that only wait.
absl::StatusOr<Measurement> EchoMeasurement(const Programs& programs, uint64_t turns) {
  BERTH_ASSIGN_OR_RETURN(const auto ours, StartEcho(programs, {"--single-poller"}));
  BERTH_ASSIGN_OR_RETURN(const auto theirs, StartEcho(programs, {"--single-poller"}));
  EchoWaiters waiters(EchoSocket(ours->folder()), kUsers * kClientsPerUser, kWaiters);
  EchoClient beside(EchoSocket(ours->folder()));
  EchoClient alone(EchoSocket(theirs->folder()));
  Pairs pairs;
  // In the first turns the waiting calls still arrive.
  for (uint64_t i = 0; i < 2 * turns; ++i) {
    BERTH_ASSIGN_OR_RETURN(const double our_time, Microseconds([&] { return beside.Call(); }));
    BERTH_ASSIGN_OR_RETURN(const double their_time, Microseconds([&] { return alone.Call(); }));
    if (i < turns) continue;
    pairs.ours.push_back(our_time);
    pairs.theirs.push_back(their_time);
  }
  // The transport refuses calls of a user that sends too many at once.
  if (waiters.open() != kWaiters) return absl::UnavailableError(absl::StrCat("only ", waiters.open(), " calls wait"));
  return ComparePairs(absl::StrCat("an echo beside ", kWaiters, " calls that wait"), pairs, "us", "none waits",
                      std::nullopt);
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> ConstraintMeasurements(const Programs& programs) {
  constexpr uint64_t kTurns = 1'000;
  constexpr uint64_t kTurnsInABurst = 16;
  std::vector<Measurement> measurements;
  for (const Kind& kind : {Kind{.name = "waiters"}, Kind{.name = "waiters, 32 devices", .devices = 32},
                           Kind{.name = "gangs", .devices = 4, .gangs = true},
                           Kind{.name = "gangs, 32 devices", .devices = 32, .gangs = true},
                           Kind{.name = "device lists, 32 devices", .devices = 32, .lists = true},
                           Kind{.name = "gangs that reserve bytes", .gangs = true, .reserves = true}}) {
    BERTH_ASSIGN_OR_RETURN(const auto distinct, ConstraintLoad::Start(programs, kind, /*distinct=*/true));
    Pairs coming;
    {
      BERTH_ASSIGN_OR_RETURN(const auto alike, ConstraintLoad::Start(programs, kind, /*distinct=*/false));
      for (uint64_t burst = 0; burst < kBursts; ++burst) {
        BERTH_RETURN_IF_ERROR(TakeTurnsInABurst(*distinct, kTurnsInABurst, &coming.ours));
        BERTH_RETURN_IF_ERROR(TakeTurnsInABurst(*alike, kTurnsInABurst, &coming.theirs));
      }
    }
    BERTH_ASSIGN_OR_RETURN(const auto empty, ConstraintLoad::Start(programs, kind, /*distinct=*/true));
    Pairs there;
    BERTH_RETURN_IF_ERROR(TakeTurns(*distinct, *empty, kTurns, &there));
    const std::string distinct_ones = absl::StrCat(kWaiters, " distinct ", kind.name);
    measurements.push_back(
        ComparePairs(absl::StrCat(kind.turn(), " beside ", distinct_ones), there, "us", "none waits", kBound));
    measurements.push_back(ComparePairs(absl::StrCat(kind.turn(), " while ", distinct_ones, " come"), coming, "us",
                                        "alike ones come", kBound));
  }
  BERTH_ASSIGN_OR_RETURN(measurements.emplace_back(), EchoMeasurement(programs, kTurns));
  return measurements;
}

}  // namespace berth::bench
