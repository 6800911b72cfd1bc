// Ledger records: named byte strings that outlive a process. A writer emits each change of its state as a batch; the
// store (daemon/ledger) applies a batch atomically, and returns all records after a restart.

#ifndef DAEMON_BASE_LEDGER_RECORD_H_
#define DAEMON_BASE_LEDGER_RECORD_H_

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace berth {

// Names a record: its kind and which one; the kind defines the meaning of `id` and `part`.
struct RecordKey {
  uint32_t kind = 0;
  uint64_t id = 0;
  uint64_t part = 0;

  friend auto operator<=>(const RecordKey&, const RecordKey&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const RecordKey& key) {
    return H::combine(std::move(state), key.kind, key.id, key.part);
  }
};

using LedgerRecords = std::map<RecordKey, std::string>;
// Views of the records in place, in the order of their keys.
using RecordViews = std::vector<std::pair<RecordKey, absl::string_view>>;
RecordViews ViewsOf(const LedgerRecords& records);

// RecordBatch is a list of changes, in its stored byte format. A value.
class RecordBatch {
 public:
  // Sets a record's content. Requires: less than 4 GiB.
  void Put(const RecordKey& key, absl::string_view content);
  // Erases a record; a missing record is no error.
  void Erase(const RecordKey& key);

  // Visits the changes in order; `content` is nothing for an erased record. The views point into the batch.
  using Visit = absl::FunctionRef<void(const RecordKey& key, std::optional<absl::string_view> content)>;
  void ForEach(Visit visit) const { (void)Walk(bytes_, visit); }
  // Like ForEach(), for bytes() of a stored batch. Errors: kDataLoss for invalid bytes; the changes before them have
  // been visited.
  static absl::Status Walk(absl::string_view bytes, Visit visit);
  void ApplyTo(LedgerRecords* records) const;

  absl::string_view bytes() const { return bytes_; }
  bool empty() const { return bytes_.empty(); }
  void Clear() { bytes_.clear(); }

 private:
  std::string bytes_;
};

}  // namespace berth

#endif  // DAEMON_BASE_LEDGER_RECORD_H_
