// Ten thousand waiters over the wire: their cost to other waiters, and to an operator.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <berth/session.h>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/session.grpc.pb.h"
#include "client/sdk/admin/inspector.h"
#include "client/sdk/transport/status_conversion.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/wire/session_credentials.h"
#include "tests/bench/measurements/measurements.h"
#include "tests/bench/servers.h"
#include "tests/bench/statistics.h"
#include "tests/bench/stopwatch.h"
#include "tests/support/wire/raw_client.h"

namespace berth::bench {
namespace {

constexpr uint64_t kFew = 100;
constexpr uint64_t kMany = 10'000;
constexpr uint64_t kClients = 20;

// A daemon whose only permit is granted, and many waiting calls of twenty processes.
class Crowd {
 public:
  static absl::StatusOr<std::unique_ptr<Crowd>> Gather(const Programs& programs, uint64_t size) {
    std::unique_ptr<Crowd> crowd(new Crowd);
    BERTH_ASSIGN_OR_RETURN(crowd->daemon_, StartDaemon(programs));
    BERTH_ASSIGN_OR_RETURN(crowd->operator_,
                           Session::Open({.folder = crowd->daemon_->folder(), .admin = true}));
    // Only the last client's calls come and go.
    for (uint64_t i = 0; i <= kClients; ++i) {
      crowd->clients_.push_back(testing::RawClient::Open(crowd->daemon_->folder()));
      crowd->stubs_.push_back(v1::PermitService::NewStub(crowd->clients_.back().grpc_channel()));
    }
    v1::SetPoolRequest one;
    one.set_pool("gpu-tests");
    one.set_cap(1);
    BERTH_RETURN_IF_ERROR(Inspector(crowd->operator_).SetPool(one).status());
    for (uint64_t i = 0; i <= size; ++i) crowd->Acquire();
    const absl::Time patience = absl::Now() + absl::Minutes(1);
    while (absl::Now() < patience) {
      BERTH_ASSIGN_OR_RETURN(const v1::ListPoolsResponse pools, Inspector(crowd->operator_).ListPools());
      if (pools.pools(0).waiters() == size) return crowd;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return absl::DeadlineExceededError("the waiters do not wait");
  }

  ~Crowd() {
    for (const auto& call : calls_) call->context.TryCancel();
    MutexLock lock(&mu_);
    while (open_ > 0) changed_.Wait(&mu_);
  }

  Inspector inspector() const { return Inspector(operator_); }

  // A waiter cancels: from its request for a permit to the answer that it no longer waits.
  absl::StatusOr<double> EnqueueAndCancel() {
    testing::RawClient& client = clients_[kClients];
    return Microseconds([&]() -> absl::Status {
      const Waiting& call = Acquire(kClients);
      v1::ForgetRequestRequest forget;
      forget.set_sequence(call.request.request().sequence());
      return client.Call(&v1::SessionService::Stub::ForgetRequest, forget).status();
    });
  }

  // From the release to the next grant; then one more waiter joins.
  absl::StatusOr<double> ReleaseAndGrant() {
    const Waiting& holder = AwaitGrant();
    v1::ReleasePermitRequest release;
    *release.mutable_request() = clients_[holder.client].NextTag();
    release.set_acquisition(holder.response.acquisition());
    BERTH_ASSIGN_OR_RETURN(
        const double time, Microseconds([&]() -> absl::Status {
          BERTH_RETURN_IF_ERROR(
              clients_[holder.client].Call(&v1::PermitService::Stub::ReleasePermit, release).status());
          MutexLock lock(&mu_);
          while (granted_.empty()) changed_.Wait(&mu_);
          return absl::OkStatus();
        }));
    Acquire();
    return time;
  }

 private:
  // One AcquirePermit call. Must outlive its answer.
  struct Waiting {
    uint64_t client = 0;
    grpc::ClientContext context;
    v1::AcquirePermitRequest request;
    v1::AcquirePermitResponse response;
  };

  Crowd() = default;

  Waiting& Acquire() { return Acquire(calls_.size() % kClients); }
  Waiting& Acquire(uint64_t client) {
    Waiting& call = *calls_.emplace_back(std::make_unique<Waiting>());
    call.client = client;
    call.context.AddMetadata(kCredentialsHeader, EncodeCredentials(clients_[client].credentials()));
    *call.request.mutable_request() = clients_[client].NextTag();
    if (client == kClients)
      call.request.mutable_request()->set_answered_below(call.request.request().sequence());
    call.request.set_holder_key(absl::StrCat("waiter ", calls_.size()));
    {
      MutexLock lock(&mu_);
      ++open_;
    }
    stubs_[client]->async()->AcquirePermit(&call.context, &call.request, &call.response,
                                           [this, &call](const grpc::Status& status) {
                                             MutexLock lock(&mu_);
                                             --open_;
                                             if (status.ok()) granted_.push_back(&call);
                                             changed_.SignalAll();
                                           });
    return call;
  }
  // Returns the holder of the permit.
  const Waiting& AwaitGrant() {
    MutexLock lock(&mu_);
    while (granted_.empty()) changed_.Wait(&mu_);
    const Waiting& call = *granted_.front();
    granted_.pop_front();
    return call;
  }

  std::unique_ptr<Server> daemon_;
  std::shared_ptr<Session> operator_;
  std::vector<testing::RawClient> clients_;
  std::vector<std::unique_ptr<v1::PermitService::Stub>> stubs_;
  std::vector<std::unique_ptr<Waiting>> calls_;

  Mutex mu_;
  CondVar changed_;
  // Unanswered calls, and calls that were granted and not released.
  uint64_t open_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<const Waiting*> granted_ ABSL_GUARDED_BY(mu_);
};

// Returns an estimate without uncertainty, for a counted value.
Estimate Exactly(double measurement) { return {.value = measurement, .low = measurement, .high = measurement}; }

}  // namespace

absl::StatusOr<std::vector<Measurement>> WaiterMeasurements(const Programs& programs) {
  constexpr int kTurns = 300;
  BERTH_ASSIGN_OR_RETURN(const auto few, Crowd::Gather(programs, kFew));
  BERTH_ASSIGN_OR_RETURN(const auto many, Crowd::Gather(programs, kMany));
  Pairs cancels, grants;
  for (int i = 0; i < kTurns; ++i) {
    for (const auto& [crowd, mine, theirs] : {std::tuple(many.get(), &cancels.ours, &grants.ours),
                                              std::tuple(few.get(), &cancels.theirs, &grants.theirs)}) {
      BERTH_ASSIGN_OR_RETURN(mine->emplace_back(), crowd->EnqueueAndCancel());
      BERTH_ASSIGN_OR_RETURN(theirs->emplace_back(), crowd->ReleaseAndGrant());
    }
  }
  return std::vector<Measurement>{ComparePairs(absl::StrCat("acquire and take it back, ", kMany, " wait"), cancels,
                                               "us", absl::StrCat(kFew, " wait"), 2),
                                  ComparePairs(absl::StrCat("release to the next grant, ", kMany, " wait"), grants,
                                               "us", absl::StrCat(kFew, " wait"), 2)};
}

absl::StatusOr<std::vector<Measurement>> OperatorMeasurements(const Programs& programs) {
  constexpr int kLooks = 200;
  BERTH_ASSIGN_OR_RETURN(const auto crowd, Crowd::Gather(programs, kMany));
  const Inspector inspector = crowd->inspector();
  // Waiters come, go and are granted meanwhile.
  std::atomic<bool> over = false;
  absl::Status turned;
  std::thread turns([&] {
    while (!over && turned.ok()) {
      turned = crowd->EnqueueAndCancel().status();
      turned.Update(crowd->ReleaseAndGrant().status());
    }
  });
  absl::Cleanup join = [&] {
    over = true;
    turns.join();
  };
  std::vector<double> pools, permits, explained, changed;
  v1::Pressure pressure;
  uint64_t memory = 0;
  for (int i = 0; i < kLooks; ++i) {
    BERTH_ASSIGN_OR_RETURN(pools.emplace_back(), Microseconds([&] { return inspector.ListPools().status(); }));
    uint64_t last = 0;
    BERTH_ASSIGN_OR_RETURN(permits.emplace_back(), Microseconds([&]() -> absl::Status {
                             BERTH_ASSIGN_OR_RETURN(const v1::ListPermitsResponse all, inspector.ListPermits());
                             // The list has the first thousand: this one still waits.
                             last = all.waiters(all.waiters_size() - 1).number();
                             return absl::OkStatus();
                           }));
    BERTH_ASSIGN_OR_RETURN(explained.emplace_back(),
                           Microseconds([&] { return inspector.ExplainWait(last).status(); }));
    v1::SetPoolRequest change;
    change.set_pool("gpu-tests");
    change.mutable_ageing()->set_seconds(600 + i % 2);
    BERTH_ASSIGN_OR_RETURN(changed.emplace_back(),
                           Microseconds([&] { return inspector.SetPool(change).status(); }));
    BERTH_ASSIGN_OR_RETURN(const v1::Node node, inspector.GetNode());
    pressure = node.pressure();
    memory = std::max(memory, pressure.memory_bytes());
  }
  std::move(join).Invoke();
  BERTH_RETURN_IF_ERROR(turned);
  std::vector<Measurement> measurements;
  double longest = 0;
  for (const auto& [what, times] :
       {std::pair("pools listed", &pools), std::pair("holders and waiters listed", &permits),
        std::pair("a waiter explained", &explained), std::pair("a pool changed", &changed)}) {
    for (double& time : *times) longest = std::max(longest, time *= 1e-3);
    measurements.push_back({.name = absl::StrCat(what, ", p99 of ", kLooks, ", ", kMany, " wait, come and go"),
                            .value = Quantile(std::move(*times), 0.99),
                            .unit = "ms",
                            .bound = 50});
  }
  measurements.push_back({.name = "the longest of those", .value = Exactly(longest), .unit = "ms", .bound = 1'000});
  measurements.push_back({.name = "memory of the broker meanwhile, at most",
                          .value = Exactly(std::ldexp(static_cast<double>(memory), -20)),
                          .unit = "MiB",
                          .bound = std::ldexp(static_cast<double>(pressure.memory_bound_bytes()), -20)});
  return measurements;
}

}  // namespace berth::bench
