// StepContext: one event of the core: its time, its effects so far, and what it has changed that waiters depend on.

#ifndef DAEMON_CORE_TYPES_STEP_CONTEXT_H_
#define DAEMON_CORE_TYPES_STEP_CONTEXT_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/types/effects.h"
#include "daemon/core/types/journal.h"

namespace berth::core {

// Thread-compatible; lives for one call into the core.
class StepContext {
 public:
  // Work that Core::Settle() does before the step ends.
  struct Dirty {
    // Capacity for bytes may have come free: requests that wait for bytes, and gangs that reserve bytes.
    bool bytes = false;
    bool gang_bytes = false;
    // A gang was granted or ended: waiters behind it in its pools may proceed.
    bool pools = false;
    // A device of a plan may have changed.
    bool devices = false;
  };

  // `last_effect` is the number of the last effect over the core's life. All pointers outlive the step.
  StepContext(absl::Time now, Effects* effects, uint64_t* last_effect, Journal* journal)
      : now(now), journal(journal), effects_(effects), last_effect_(last_effect) {}
  StepContext(const StepContext&) = delete;
  StepContext& operator=(const StepContext&) = delete;

  // Adds an effect with the next number.
  template <typename What>
  void Emit(What&& what) {
    effects_->push_back({.number = ++*last_effect_, .what = std::forward<What>(what)});
  }
  template <typename What>
  void EmitAll(std::vector<What> all) {
    for (What& what : all) Emit(std::move(what));
  }
  // Has the requests that wait for bytes judged again at the end of the step.
  void MarkCapacityChanged() { dirty.bytes = dirty.gang_bytes = true; }

  const absl::Time now;
  Journal* const journal;
  Dirty dirty;

 private:
  Effects* const effects_;
  uint64_t* const last_effect_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_STEP_CONTEXT_H_
