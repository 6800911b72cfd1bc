// Ten thousand waiters in the core: their cost to each other, including the records to persist. waiter_measurements.cc
// measures the effect on waiting clients.

#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include <berth/ids.h>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "daemon/base/ledger_record.h"
#include "daemon/core/core.h"
#include "tests/bench/measurements/measurements.h"
#include "tests/bench/stopwatch.h"

namespace berth::bench {
namespace {

constexpr uint64_t kFew = 100;
constexpr uint64_t kMany = 10'000;
constexpr uint32_t kTenants = 8;
// Processes that come and go, in addition to the waiters.
constexpr uint64_t kSpare = 100;

// A core whose only pool is exhausted, and many waiters for it, of several tenants and priorities, with various
// requests. Each operation returns the nanoseconds of the core's step, including the extraction of its records. Drawing
// the requester before, and recording the answer after, are untimed.
class Queue {
 public:
  static absl::StatusOr<std::unique_ptr<Queue>> Gather(uint64_t waiters) {
    std::unique_ptr<Queue> queue(new Queue);
    for (uint64_t i = 0; i < waiters + kSpare; ++i) BERTH_RETURN_IF_ERROR(queue->Join());
    while (queue->core_.ListPools().front().waiters < waiters) queue->Enqueue();
    return queue;
  }

  int64_t Enqueue() {
    const size_t process = idle_.back();
    idle_.pop_back();
    const CallId call(process_of_.size());
    process_of_.push_back(process);
    waiting_.push_back(call);
    const core::AcquireRequest request = {
        .pool = "p", .units = 1 + Draw(2), .holder_key = "h", .priority = static_cast<int32_t>(Draw(3))};
    const core::RequestTag tag = {.sequence = call.value(), .answered_below = call.value()};
    return Time([&] { core_.Acquire(now_, call, processes_[process], tag, request, &effects_); });
  }
  int64_t Cancel() {
    while (true) {
      std::swap(waiting_[Draw(waiting_.size())], waiting_.back());
      const CallId call = waiting_.back();
      waiting_.pop_back();
      if (granted_.erase(call) > 0) continue;
      return Time([&] { core_.CancelCall(now_, call, &effects_); });
    }
  }
  int64_t ReleaseAndGrant() {
    const AcquisitionId acquisition = held_.back().second;
    const ChannelId channel = processes_[held_.back().first].credentials.channel;
    idle_.push_back(held_.back().first);
    held_.pop_back();
    now_ += absl::Milliseconds(1);
    return Time([&] { core_.GiveBack(now_, channel, acquisition, /*if_idle=*/false, &effects_).IgnoreError(); });
  }

 private:
  Queue() = default;

  absl::Status Join() {
    core::Caller caller = {.tenant = {.uid = Draw(kTenants)}};
    Credentials& own = caller.credentials;
    BERTH_ASSIGN_OR_RETURN(own.session, core_.OpenSession(now_, own.secret, caller.tenant, "bench", {}));
    BERTH_ASSIGN_OR_RETURN(own.channel, core_.JoinSession(now_, own.session, own.secret, caller.tenant, {}));
    idle_.push_back(processes_.size());
    processes_.push_back(caller);
    return absl::OkStatus();
  }
  uint32_t Draw(uint64_t below) { return static_cast<uint32_t>(random_() % below); }
  template <typename Step>
  int64_t Time(Step step) {
    const int64_t start = MonotonicNanoseconds();
    step();
    core_.TakeChanges(&changes_);
    const int64_t nanoseconds = MonotonicNanoseconds() - start;
    changes_.Clear();
    RecordAnswers();
    return nanoseconds;
  }
  void RecordAnswers() {
    for (const core::Effect& effect : effects_) {
      const auto* const reply = std::get_if<core::Reply>(&effect.what);
      if (reply == nullptr) continue;
      const size_t process = process_of_[reply->call.value()];
      if (!reply->response.ok()) {
        idle_.push_back(process);
        continue;
      }
      granted_.insert(reply->call);
      held_.push_back({process, std::get<core::AcquireResult>(*reply->response).acquisition});
    }
    effects_.clear();
  }

  uint64_t last_id_ = 0;
  core::Core core_{core::Config{.node = 1,
                                .incarnation = 1,
                                .pools = {{.name = "p", .cap = 2}},
                                .limits = {.sessions = 2 * kMany}},
                   [this] { return ++last_id_; }, nullptr};
  std::mt19937_64 random_{1};
  absl::Time now_ = absl::UnixEpoch();
  core::Effects effects_;
  RecordBatch changes_;
  // Each process has at most one request. `idle_`: the indices of those without one.
  std::vector<core::Caller> processes_;
  std::vector<size_t> idle_;
  // The process of a call, by call id; id 0 is unused.
  std::vector<size_t> process_of_{0};
  std::vector<std::pair<size_t, AcquisitionId>> held_;
  // Calls that wait, including some that were granted since.
  std::vector<CallId> waiting_;
  absl::flat_hash_set<CallId> granted_;
};

using Operation = int64_t (Queue::*)();

// Returns the mean nanoseconds of one operation in a batch.
double MeanOf(Queue& queue, Operation operation) {
  constexpr int kBatch = 32;
  int64_t nanoseconds = 0;
  for (int i = 0; i < kBatch; ++i) nanoseconds += (queue.*operation)();
  return static_cast<double>(nanoseconds) / kBatch;
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> QueueMeasurements(const Programs&) {
  constexpr int kBatches = 400;
  BERTH_ASSIGN_OR_RETURN(const auto few, Queue::Gather(kFew));
  BERTH_ASSIGN_OR_RETURN(const auto many, Queue::Gather(kMany));
  const std::pair<const char*, Operation> ops[] = {{"enqueue", &Queue::Enqueue},
                                                   {"cancel", &Queue::Cancel},
                                                   {"enqueue again", &Queue::Enqueue},
                                                   {"release and grant", &Queue::ReleaseAndGrant}};
  Pairs pairs[4];
  for (int batch = 0; batch < kBatches; ++batch) {
    // Equally many come and go.
    for (int i = 0; i < 4; ++i) {
      pairs[i].ours.push_back(MeanOf(*many, ops[i].second));
      pairs[i].theirs.push_back(MeanOf(*few, ops[i].second));
    }
  }
  std::vector<Measurement> measurements;
  for (const int i : {0, 1, 3}) {
    measurements.push_back(ComparePairs(absl::StrCat(ops[i].first, " in the core, ", kMany, " wait"), pairs[i], "ns",
                                        absl::StrCat(kFew, " wait"), 2));
  }
  return measurements;
}

}  // namespace berth::bench
