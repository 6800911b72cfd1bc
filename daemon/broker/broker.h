// Broker: the core under its lock, and the one place that executes effects, in the order of their numbers.
//
// A step locks, lets the core decide, persists the changes, and unlocks. The first thread that finds no other thread
// executing effects then executes the queued ones, without the lock. No client therefore learns of a step that a
// restart could forget. A request that can be answered at once is answered on its own thread. No reply leaves before
// every effect with a smaller number is done. gRPC sends such an answer when that thread returns. Later effects that
// take system calls are therefore left to the loop's thread, so that the caller need not wait for them.

#ifndef DAEMON_BROKER_BROKER_H_
#define DAEMON_BROKER_BROKER_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <berth/ids.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "daemon/base/ledger_record.h"
#include "daemon/core/core.h"
#include "daemon/core/types/effects.h"
#include "daemon/ledger/ledger.h"

namespace berth {

// One request that waits for its answer. The broker calls Answer() exactly once and does not touch the call afterwards.
class Call {
 public:
  virtual void Answer(absl::StatusOr<core::Response> response) = 0;

 protected:
  ~Call() = default;
};

// Executes the core's effects except replies. Called by one thread at a time, in the order of the effects' numbers, but
// with the records of a step first; without the broker's lock; must not wait.
class EffectSink {
 public:
  virtual ~EffectSink() = default;
  virtual void Apply(const core::CreateBlock& effect) = 0;
  virtual void Apply(const core::ReleaseBlock& effect) = 0;
  virtual void Apply(const core::MakeFencePage& effect) = 0;
  virtual void Apply(const core::DropFencePage& effect) = 0;
  virtual void Apply(const core::Deliver& effect) = 0;
  virtual void Apply(const core::CloseChannel& effect) = 0;
  virtual void Apply(const core::DropChannel& effect) = 0;
  virtual void Apply(const core::DropSession& effect) = 0;
  virtual void Apply(const core::SendWorkerCommand& effect) = 0;
  virtual void Apply(const core::DevicesChanged& effect) = 0;
  // Called with the broker's lock held.
  virtual void Apply(const core::LogRecord& effect) = 0;
  virtual void Apply(const core::LeaseRecord& effect) = 0;
  virtual void Apply(const core::ModuleWork& effect) = 0;
  virtual void Apply(const core::LookAtProcesses& effect) = 0;
  // The core needs a Tick() at `when`. Called with the broker's lock held.
  virtual void ArmTimer(absl::Time when) = 0;
  // Effects are queued: another thread must call Continue() soon.
  virtual void Wake() = 0;
};

// Thread-safe.
class Broker {
 public:
  // `core` and `sink` must outlive the broker. Each step's changes are persisted in `ledger`, which must outlive the
  // broker too. A null `ledger` is for a core whose records no later broker needs. The process ends if the ledger fails
  // to persist a step although its capacity check had passed.
  Broker(core::Core* core, EffectSink* sink, Ledger* ledger = nullptr)
      : sink_(*sink), core_(*core), ledger_(ledger) {}

  using RequestStep = absl::FunctionRef<void(core::Core&, absl::Time now, CallId, core::Effects*)>;
  using EventStep = absl::FunctionRef<void(core::Core&, absl::Time now, core::Effects*)>;

  // Returns a new id, under which a call is submitted and may be cancelled.
  CallId NewCall() {
    open_calls_.fetch_add(1, std::memory_order_relaxed);
    return CallId(next_call_.fetch_add(1, std::memory_order_relaxed));
  }
  // Records that a call's answer has left the process, or never will.
  void EndCall() { open_calls_.fetch_sub(1, std::memory_order_relaxed); }
  // Returns the number of calls drawn and not ended.
  int64_t open_calls() const { return open_calls_.load(std::memory_order_relaxed); }
  // Makes every later request fail with `why`; events still reach the core.
  void RefuseRequests(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);
  // Checks whether requests reach the core. Errors: the status given to RefuseRequests(); LEDGER_FULL.
  absl::Status CheckServes() ABSL_LOCKS_EXCLUDED(mu_);
  // Checks whether the ledger has capacity for a process's first records: a session, or its own connection to one. An
  // operator's process may use the capacity that remains after other requests are refused. Errors: LEDGER_FULL.
  absl::Status CheckTakesProcesses(bool of_operator) ABSL_LOCKS_EXCLUDED(mu_);
  // Checks whether the core has the ledger's records. Errors: the status given to RefuseRequests().
  absl::Status CheckLedger() ABSL_LOCKS_EXCLUDED(mu_);
  // Passes a request to the core; `call` is answered now or later. `always`: also while requests are refused.
  void Submit(CallId id, Call* call, RequestStep step, bool always = false) ABSL_LOCKS_EXCLUDED(mu_);
  // Cancels the call `id`, whose caller has ended.
  void Cancel(CallId id) ABSL_LOCKS_EXCLUDED(mu_);
  // Passes an event to the core.
  void Step(EventStep step) ABSL_LOCKS_EXCLUDED(mu_);
  // Handles the timer that ArmTimer() set, whether it fired early or late.
  void TimerFired() ABSL_LOCKS_EXCLUDED(mu_);
  // Writes the ledger's file into the folder again if it is missing there, or was changed in place. Returns the damage
  // of a file that was changed; empty for none. Errors: those of the file system.
  absl::StatusOr<std::string> RestoreLedger() ABSL_LOCKS_EXCLUDED(mu_);
  // Executes queued effects, unless another thread does.
  void Continue() ABSL_LOCKS_EXCLUDED(mu_) { Drain(nullptr); }
  // Returns `look` of the core; `look` must not retain references.
  template <typename Look>
  auto Read(Look look) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return look(static_cast<const core::Core&>(core_));
  }

 private:
  // An effect ready to be executed; a reply is already matched with its call.
  struct Ready {
    core::Effect effect;
    Call* call = nullptr;
  };

  absl::Status CheckServesLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Persists the step's changes and queues its effects.
  void EndStepLocked(core::Effects effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CommitChangesLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Executes queued effects. `own` is the call whose handler this thread runs, or null.
  void Drain(const Call* own) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the rest of batch_, from index `from`, to the queue.
  void Leave(size_t from) ABSL_LOCKS_EXCLUDED(mu_);
  void ApplyEffects(Ready& ready) ABSL_LOCKS_EXCLUDED(mu_);

  // Synchronised by themselves.
  std::atomic<uint64_t> next_call_{1};
  std::atomic<int64_t> open_calls_{0};
  EffectSink& sink_;

  // Guarded by mu_.
  Mutex mu_;
  core::Core& core_ ABSL_GUARDED_BY(mu_);
  Ledger* const ledger_ ABSL_PT_GUARDED_BY(mu_);
  RecordBatch changes_ ABSL_GUARDED_BY(mu_);
  // Why requests are refused; OK if they are not.
  absl::Status refusal_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<CallId, Call*> calls_ ABSL_GUARDED_BY(mu_);
  std::vector<Ready> ready_ ABSL_GUARDED_BY(mu_);
  // A thread is in Drain(): it will also execute effects that others enqueue.
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time armed_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();

  // The effects being executed; owned by the thread in Drain().
  std::vector<Ready> batch_;
};

}  // namespace berth

#endif  // DAEMON_BROKER_BROKER_H_
