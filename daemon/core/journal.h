// Journal: which rows a step may have changed. Tables note a row whenever they hand it out to be changed; once the step
// is over the core writes what these rows are then. To note one that did not change costs little and is no mistake; to
// miss one loses it at the next restart (Core::AllRows() is how tests find that). A table may say that a row is gone,
// which saves the core to look for it.

#ifndef DAEMON_CORE_JOURNAL_H_
#define DAEMON_CORE_JOURNAL_H_

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "common/row.h"
#include "daemon/core/row_kind.h"

namespace berth::core {

// Thread-compatible.
class Journal {
 public:
  struct Note {
    RowKey key;
    // Of those of one key the last holds.
    uint64_t number = 0;
    bool gone = false;
  };

  void Touch(const RowKey& key) { Add(key, /*gone=*/false); }
  void Touch(RowKind kind, uint64_t id = 0, uint64_t part = 0) { Touch(KeyOf(kind, id, part)); }
  // There is no such row any more, until it is touched again.
  void Erase(RowKind kind, uint64_t id, uint64_t part) { Add(KeyOf(kind, id, part), /*gone=*/true); }

  // The rows noted since the last call, each once, by their keys.
  std::vector<Note> Take() {
    // The last of each key first.
    const auto before = [](const Note& a, const Note& b) {
      return std::tie(a.key, b.number) < std::tie(b.key, a.number);
    };
    const auto same = [](const Note& a, const Note& b) { return a.key == b.key; };
    std::sort(notes_.begin(), notes_.end(), before);
    notes_.erase(std::unique(notes_.begin(), notes_.end(), same), notes_.end());
    return std::exchange(notes_, {});
  }

  // Rises with every row that is noted of memory and its devices.
  uint64_t memory_touches() const { return memory_touches_; }

 private:
  void Add(const RowKey& key, bool gone) {
    ++touches_;
    if (key.kind >= static_cast<uint32_t>(RowKind::kMemoryCounters)) ++memory_touches_;
    if (notes_.empty() || notes_.back().key != key) {
      notes_.push_back({.key = key, .number = touches_, .gone = gone});
    } else {
      notes_.back().gone = gone;
    }
  }

  uint64_t touches_ = 0;
  uint64_t memory_touches_ = 0;
  std::vector<Note> notes_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_JOURNAL_H_
