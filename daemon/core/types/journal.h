// Journal: lists the ledger records that a step may have changed. Tables touch a record whenever they return it for
// modification. At the end of the step the core writes the current content of these records. Touching an unchanged
// record is cheap and harmless. Failing to touch a changed record loses the change at the next restart (tests detect
// that with Core::AllRecords()). A table may mark a record as erased, which saves the core a lookup.

#ifndef DAEMON_CORE_TYPES_JOURNAL_H_
#define DAEMON_CORE_TYPES_JOURNAL_H_

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "daemon/base/ledger_record.h"
#include "daemon/core/types/record_kind.h"

namespace berth::core {

// Thread-compatible.
class Journal {
 public:
  struct Mark {
    RecordKey key;
    // Order of the note; for one key the highest number wins.
    uint64_t number = 0;
    bool gone = false;
  };

  void Touch(const RecordKey& key) { Add(key, /*gone=*/false); }
  void Touch(RecordKind kind, uint64_t id = 0, uint64_t part = 0) { Touch(KeyOf(kind, id, part)); }
  // Marks the record as gone until it is touched again.
  void Erase(RecordKind kind, uint64_t id, uint64_t part) { Add(KeyOf(kind, id, part), /*gone=*/true); }

  // Returns the records touched since the last call, each once, sorted by key.
  std::vector<Mark> Take() {
    // Sorts the latest note of each key first.
    const auto before = [](const Mark& a, const Mark& b) {
      return std::tie(a.key, b.number) < std::tie(b.key, a.number);
    };
    const auto same = [](const Mark& a, const Mark& b) { return a.key == b.key; };
    std::sort(marks_.begin(), marks_.end(), before);
    marks_.erase(std::unique(marks_.begin(), marks_.end(), same), marks_.end());
    return std::exchange(marks_, {});
  }

  // Counter that rises with each touched record about memory or its devices.
  uint64_t memory_touches() const { return memory_touches_; }

 private:
  void Add(const RecordKey& key, bool gone) {
    ++touches_;
    if (key.kind >= static_cast<uint32_t>(RecordKind::kMemoryCounters)) ++memory_touches_;
    if (marks_.empty() || marks_.back().key != key) {
      marks_.push_back({.key = key, .number = touches_, .gone = gone});
    } else {
      marks_.back().gone = gone;
    }
  }

  uint64_t touches_ = 0;
  uint64_t memory_touches_ = 0;
  std::vector<Mark> marks_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_JOURNAL_H_
