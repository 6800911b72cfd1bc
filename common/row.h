// Rows: what must outlive a process, as named strings of bytes. Whoever has state to keep writes each change of it as
// a batch; who keeps it (daemon/ledger) takes a batch whole or not at all, and gives all rows back after a restart.

#ifndef COMMON_ROW_H_
#define COMMON_ROW_H_

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

// Names a row: what it is, and which; the numbers' meaning is the kind's.
struct RowKey {
  uint32_t kind = 0;
  uint64_t id = 0;
  uint64_t part = 0;

  friend auto operator<=>(const RowKey&, const RowKey&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const RowKey& key) {
    return H::combine(std::move(state), key.kind, key.id, key.part);
  }
};

using Rows = std::map<RowKey, std::string>;
// The same where they lie, in the order of their keys.
using RowViews = std::vector<std::pair<RowKey, absl::string_view>>;
RowViews ViewsOf(const Rows& rows);

// RowBatch is a list of changes, in the bytes in which it is kept. A value.
class RowBatch {
 public:
  // A row's new content. Requires: less than 4 GiB.
  void Put(const RowKey& key, absl::string_view content);
  // The row is gone; one that never was is no mistake.
  void Erase(const RowKey& key);

  // Visits the changes in their order, nothing for a row that is gone. What is visited points into the batch.
  using Visit = absl::FunctionRef<void(const RowKey& key, std::optional<absl::string_view> content)>;
  void ForEach(Visit visit) const { (void)Walk(bytes_, visit); }
  // The same for bytes() of a batch that has been stored. Errors: kDataLoss for what is none; what came before it has
  // been visited.
  static absl::Status Walk(absl::string_view bytes, Visit visit);
  void ApplyTo(Rows* rows) const;

  absl::string_view bytes() const { return bytes_; }
  bool empty() const { return bytes_.empty(); }
  void Clear() { bytes_.clear(); }

 private:
  std::string bytes_;
};

}  // namespace berth

#endif  // COMMON_ROW_H_
