// Fakes of an arena's dependencies, for tests: memory that consists of addresses only, and streams that progress as the
// test commands.

#ifndef CLIENT_SDK_ARENA_TESTING_ARENA_FAKES_H_
#define CLIENT_SDK_ARENA_TESTING_ARENA_FAKES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include <berth/arena_stream.h>
#include <berth/bytes.h>
#include <berth/error.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sdk/arena/arena_source.h"
#include "common/mutex.h"

namespace berth::internal {

// Fakes a daemon with a budget and no memory. Thread-safe, except for its public members.
class FakeArenaSource : public ArenaSource {
 public:
  // Limit of leased bytes; a lease beyond it is refused.
  Bytes budget = GiB(1024);
  // Block sizes are rounded up to this.
  Bytes granularity = kArenaLeaseUnit;
  // Whether Check() of every lease fails from now on.
  bool stale = false;

  Bytes leased() const {
    MutexLock lock(&mu_);
    return leased_;
  }
  // Number of all requests, including refused ones.
  uint64_t requests() const {
    MutexLock lock(&mu_);
    return requests_;
  }

  absl::StatusOr<std::unique_ptr<ArenaLease>> Lease(Bytes bytes) override {
    MutexLock lock(&mu_);
    ++requests_;
    bytes = *bytes.RoundUp(granularity);
    if (bytes > SaturatingSub(budget, leased_)) {
      return Refuse(Reason::kOverBudget, "{layer}: requested {requested}",
                    {{"layer", "device"}, {"requested", bytes.count()}});
    }
    leased_ = *CheckedAdd(leased_, bytes);
    // Neighbours touch, so that an overrun of one lease lands in the next.
    const uintptr_t address = next_address_;
    next_address_ += bytes.count();
    return std::make_unique<FakeLease>(this, address, bytes);
  }

  absl::StatusOr<std::shared_ptr<StreamProgress>> MakeProgress() override {
    return std::make_shared<ImmediateProgress>();
  }

 private:
  class FakeLease : public ArenaLease {
   public:
    FakeLease(FakeArenaSource* source, uintptr_t address, Bytes bytes)
        : source_(source), address_(address), bytes_(bytes) {}
    ~FakeLease() override {
      MutexLock lock(&source_->mu_);
      source_->leased_ = SaturatingSub(source_->leased_, bytes_);
    }
    uintptr_t address() const override { return address_; }
    Bytes bytes() const override { return bytes_; }
    absl::Status Check() const override {
      if (source_->stale) return Refuse(Reason::kStale, "{why}", {{"why", "context rebuilt"}});
      return absl::OkStatus();
    }

   private:
    FakeArenaSource* const source_;
    const uintptr_t address_;
    const Bytes bytes_;
  };

  mutable Mutex mu_;
  Bytes leased_ ABSL_GUARDED_BY(mu_);
  uint64_t requests_ ABSL_GUARDED_BY(mu_) = 0;
  uintptr_t next_address_ ABSL_GUARDED_BY(mu_) = uintptr_t{1} << 40;
};

// Streams whose progress the test controls. Thread-safe.
class FakeProgress : public StreamProgress {
 public:
  // Moves the stream past all its marks.
  void Finish(ArenaStream stream) {
    MutexLock lock(&mu_);
    Of(stream).reached = Of(stream).marked;
  }
  // Whether the stream passes each mark at once.
  void SetIdle(ArenaStream stream, bool idle) {
    MutexLock lock(&mu_);
    Of(stream).idle = idle;
    if (idle) Of(stream).reached = Of(stream).marked;
  }
  uint64_t marked(ArenaStream stream) {
    MutexLock lock(&mu_);
    return Of(stream).marked;
  }
  bool known(ArenaStream stream) {
    MutexLock lock(&mu_);
    return streams_.contains(stream);
  }
  // Error that Mark() returns; OK for none.
  void SetFailure(const absl::Status& failure) {
    MutexLock lock(&mu_);
    failure_ = failure;
  }

  absl::StatusOr<Point> Mark(ArenaStream stream) override {
    MutexLock lock(&mu_);
    if (!failure_.ok()) return failure_;
    State& state = Of(stream);
    ++state.marked;
    if (state.idle) state.reached = state.marked;
    return state.marked;
  }
  absl::StatusOr<bool> Reached(ArenaStream stream, Point point) override {
    MutexLock lock(&mu_);
    return Of(stream).reached >= point;
  }
  void Forget(ArenaStream stream) override {
    MutexLock lock(&mu_);
    streams_.erase(stream);
  }

 private:
  struct State {
    Point marked = 0;
    Point reached = 0;
    bool idle = false;
  };
  State& Of(ArenaStream stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return streams_[stream]; }

  Mutex mu_;
  std::map<ArenaStream, State> streams_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_ARENA_TESTING_ARENA_FAKES_H_
