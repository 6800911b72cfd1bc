#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/ids.h"
#include "daemon/core/permit_pool.h"
#include "tests/bench/figures.h"
#include "tests/bench/stopwatch.h"

namespace berth::bench {
namespace {

using core::AcquireOutcome;
using core::AcquireOutcomes;
using core::PermitIds;
using core::PermitPool;
using core::RequestId;

constexpr uint64_t kFew = 100;
constexpr uint64_t kMany = 10'000;

// A pool that is out, and so many that wait for it: of several tenants and priorities, asking for one thing and
// another.
class Queue {
 public:
  explicit Queue(uint64_t waiters)
      : pool_({.config = {.name = "p", .cap = 2}, .max_waiters = 2 * kMany, .passes_before_hold = 16}, &ids_,
              &placement_, &journal_) {
    Enqueue();
    while (pool_.View().waiters < waiters) Enqueue();
  }

  void Enqueue() {
    const RequestId request{ChannelId(1), ++last_};
    pool_.Acquire({now_, &outcomes_}, request, {.session = SessionId(last_), .tenant = {.uid = Draw(8)}},
                  {.units = 1 + Draw(2), .holder_key = "h", .priority = static_cast<int32_t>(Draw(3))});
    waiting_.push_back(request);
    Take();
  }
  void Cancel() {
    while (true) {
      std::swap(waiting_[Draw(waiting_.size())], waiting_.back());
      const RequestId request = waiting_.back();
      waiting_.pop_back();
      if (!pool_.Waits(request)) continue;
      pool_.Leave(request);
      pool_.Serve({now_, &outcomes_});
      journal_.Take();
      return Take();
    }
  }
  void ReleaseAndGrant() {
    const AcquisitionId held = held_.back();
    held_.pop_back();
    now_ += absl::Milliseconds(1);
    pool_.Release({now_, &outcomes_}, held);
    journal_.Take();
    Take();
  }

 private:
  uint32_t Draw(uint64_t below) { return static_cast<uint32_t>(random_() % below); }
  void Take() {
    for (const AcquireOutcome& outcome : outcomes_)
      held_.push_back(std::get<core::AcquireResult>(*outcome.result).acquisition);
    outcomes_.clear();
  }

  PermitIds ids_;
  core::Placement placement_;
  core::Journal journal_;
  PermitPool pool_;
  std::mt19937_64 random_{1};
  absl::Time now_ = absl::UnixEpoch();
  uint64_t last_ = 0;
  AcquireOutcomes outcomes_;
  std::vector<AcquisitionId> held_;
  // And some that do not any more.
  std::vector<RequestId> waiting_;
};

// Nanoseconds of one `op`, as a mean of a batch.
double Time(Queue& queue, void (Queue::*op)()) {
  constexpr int kBatch = 32;
  const int64_t start = MonotonicNanoseconds();
  for (int i = 0; i < kBatch; ++i) (queue.*op)();
  return static_cast<double>(MonotonicNanoseconds() - start) / kBatch;
}

}  // namespace

absl::StatusOr<std::vector<Figure>> QueueFigures(const Programs&) {
  constexpr int kBatches = 400;
  Queue few(kFew);
  Queue many(kMany);
  const std::pair<const char*, void (Queue::*)()> ops[] = {{"enqueue", &Queue::Enqueue},
                                                           {"cancel", &Queue::Cancel},
                                                           {"enqueue again", &Queue::Enqueue},
                                                           {"release and grant", &Queue::ReleaseAndGrant}};
  Pairs pairs[4];
  for (int batch = 0; batch < kBatches; ++batch) {
    // As many come as go.
    for (int i = 0; i < 4; ++i) {
      pairs[i].ours.push_back(Time(many, ops[i].second));
      pairs[i].theirs.push_back(Time(few, ops[i].second));
    }
  }
  std::vector<Figure> figures;
  for (const int i : {0, 1, 3}) {
    figures.push_back(ComparePairs(absl::StrCat(ops[i].first, ", ", kMany, " wait"), pairs[i], "ns",
                                   absl::StrCat(kFew, " wait"), 2));
  }
  return figures;
}

}  // namespace berth::bench
