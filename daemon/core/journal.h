// Journal: which rows a step may have changed. Tables note a row whenever they hand it out to be changed; once the step
// is over the core writes what these rows are then. To note one that did not change costs little and is no mistake; to
// miss one loses it at the next restart (Core::AllRows() is how tests find that).

#ifndef DAEMON_CORE_JOURNAL_H_
#define DAEMON_CORE_JOURNAL_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/row.h"
#include "daemon/core/row_kind.h"

namespace berth::core {

// Thread-compatible.
class Journal {
 public:
  void Touch(const RowKey& key) {
    ++touches_;
    if (touched_.empty() || touched_.back() != key) touched_.push_back(key);
  }
  void Touch(RowKind kind, uint64_t id = 0, uint64_t part = 0) { Touch(KeyOf(kind, id, part)); }

  // The rows noted since the last call, each once.
  std::vector<RowKey> Take() {
    std::sort(touched_.begin(), touched_.end());
    touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
    return std::exchange(touched_, {});
  }

  // Rises with every row that is noted.
  uint64_t touches() const { return touches_; }

 private:
  uint64_t touches_ = 0;
  std::vector<RowKey> touched_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_JOURNAL_H_
