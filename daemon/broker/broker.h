// Broker: the core under its lock, and the one place where effects are carried out in the order of their numbers.
//
// A step is: lock, let the core decide, keep what changed, unlock; then whoever finds nobody at it carries out what is
// queued, without the lock. So nobody hears of a step that a restart could forget, and a request that can be answered
// at once is answered on the thread that brought it, and no reply leaves before every effect of a smaller number is
// done. gRPC sends such an answer when that thread returns: what comes after it and takes system calls is left to the
// loop's thread, so that the caller need not wait for it.

#ifndef DAEMON_BROKER_BROKER_H_
#define DAEMON_BROKER_BROKER_H_

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/row.h"
#include "daemon/core/core.h"
#include "daemon/core/effects.h"
#include "daemon/ledger/ledger.h"

namespace berth {

// One request that waits for its answer. The broker calls Answer() exactly once and does not touch the call again.
class Call {
 public:
  virtual void Answer(absl::StatusOr<core::Response> response) = 0;

 protected:
  ~Call() = default;
};

// Carries out the core's effects but for replies. Called by one thread at a time, in the order of the effects' numbers,
// without the broker's lock; must not wait.
class EffectSink {
 public:
  virtual ~EffectSink() = default;
  virtual void Carry(const core::CreateBlock& effect) = 0;
  virtual void Carry(const core::ReleaseBlock& effect) = 0;
  virtual void Carry(const core::MakeFencePage& effect) = 0;
  virtual void Carry(const core::DropFencePage& effect) = 0;
  virtual void Carry(const core::Deliver& effect) = 0;
  virtual void Carry(const core::CloseChannel& effect) = 0;
  virtual void Carry(const core::DropChannel& effect) = 0;
  virtual void Carry(const core::DropSession& effect) = 0;
  virtual void Carry(const core::OrderDevice& effect) = 0;
  virtual void Carry(const core::DevicesChanged& effect) = 0;
  // Called with the broker's lock held.
  virtual void Carry(const core::LogRecord& effect) = 0;
  virtual void Carry(const core::LeaseRecord& effect) = 0;
  virtual void Carry(const core::ModuleWork& effect) = 0;
  // The core wants a Tick() at `when`. Called with the broker's lock held.
  virtual void ArmTimer(absl::Time when) = 0;
  // Effects are left to be carried out: another thread is to call CarryOn(), soon.
  virtual void Wake() = 0;
};

// Thread-safe.
class Broker {
 public:
  // `core` and `sink` must outlive the broker. Each step's changes are kept in `ledger`, which must outlive it too;
  // null for a core whose rows nobody needs later. A ledger that takes no more although there was room ends the
  // process.
  Broker(core::Core* core, EffectSink* sink, Ledger* ledger = nullptr)
      : sink_(*sink), core_(*core), ledger_(ledger) {}

  using RequestStep = absl::FunctionRef<void(core::Core&, absl::Time now, CallId, core::Effects*)>;
  using EventStep = absl::FunctionRef<void(core::Core&, absl::Time now, core::Effects*)>;

  // Draws the id under which a call is submitted, and may be cancelled.
  CallId NewCall() {
    open_calls_.fetch_add(1, std::memory_order_relaxed);
    return CallId(next_call_.fetch_add(1, std::memory_order_relaxed));
  }
  // A call's answer has left the process, or never will.
  void EndCall() { open_calls_.fetch_sub(1, std::memory_order_relaxed); }
  // Calls drawn and not ended.
  int64_t open_calls() const { return open_calls_.load(std::memory_order_relaxed); }
  // From now on every request is refused so; what happens is told to the core all the same.
  void RefuseRequests(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether requests are put to the core. Errors: that of RefuseRequests(); LEDGER_FULL.
  absl::Status CheckServes() ABSL_LOCKS_EXCLUDED(mu_);
  // Whether what a process begins with, a session or its own connection to one, can be kept: an operator's in what is
  // left where others' requests are refused. Errors: LEDGER_FULL.
  absl::Status CheckTakesProcesses(bool of_operator) ABSL_LOCKS_EXCLUDED(mu_);
  // Puts a request to the core; `call` is answered now or later.
  void Submit(CallId id, Call* call, RequestStep step) ABSL_LOCKS_EXCLUDED(mu_);
  // The caller of `id` is gone.
  void Cancel(CallId id) ABSL_LOCKS_EXCLUDED(mu_);
  // Tells the core what happened.
  void Step(EventStep step) ABSL_LOCKS_EXCLUDED(mu_);
  // The timer that ArmTimer() set has fired, early or late.
  void TimerFired() ABSL_LOCKS_EXCLUDED(mu_);
  // Carries out what is queued, if nobody is at it.
  void CarryOn() ABSL_LOCKS_EXCLUDED(mu_) { Drain(nullptr); }
  // Looks at the core; `look` must not keep references.
  template <typename Look>
  auto Read(Look look) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return look(static_cast<const core::Core&>(core_));
  }

 private:
  // An effect ready to be carried out; a reply has found its call already.
  struct Ready {
    core::Effect effect;
    Call* call = nullptr;
  };

  absl::Status CheckServesLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Keeps what the step changed and queues its effects.
  void EndStepLocked(core::Effects effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void KeepChangesLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `own` is the call whose handler this thread is in, or null.
  void Drain(const Call* own) ABSL_LOCKS_EXCLUDED(mu_);
  // Puts what is left of batch_ back.
  void Leave(size_t from) ABSL_LOCKS_EXCLUDED(mu_);
  void CarryOut(Ready& ready) ABSL_LOCKS_EXCLUDED(mu_);

  // Synchronised by themselves.
  std::atomic<uint64_t> next_call_{1};
  std::atomic<int64_t> open_calls_{0};
  EffectSink& sink_;

  // Guarded by mu_.
  Mutex mu_;
  core::Core& core_ ABSL_GUARDED_BY(mu_);
  Ledger* const ledger_ ABSL_PT_GUARDED_BY(mu_);
  RowBatch changes_ ABSL_GUARDED_BY(mu_);
  // Why requests are refused; OK if they are not.
  absl::Status refusal_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<CallId, Call*> calls_ ABSL_GUARDED_BY(mu_);
  std::vector<Ready> ready_ ABSL_GUARDED_BY(mu_);
  // A thread is in Drain(): it will also take what others enqueue.
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time armed_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();

  // What is being carried out: of the thread in Drain().
  std::vector<Ready> batch_;
};

}  // namespace berth

#endif  // DAEMON_BROKER_BROKER_H_
