#include "daemon/base/ledger_record.h"

#include <cstring>

namespace berth {
namespace {

// Header of a record, in memory representation: writer and reader are one program on one machine.
struct Head {
  uint32_t kind;
  // kErased: the record is erased.
  uint32_t size;
  uint64_t id;
  uint64_t part;
};
constexpr uint32_t kErased = UINT32_MAX;

void Append(const Head& head, absl::string_view content, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&head), sizeof(head));
  bytes->append(content.data(), content.size());
}

}  // namespace

RecordViews ViewsOf(const LedgerRecords& records) { return RecordViews(records.begin(), records.end()); }

void RecordBatch::Put(const RecordKey& key, absl::string_view content) {
  Append({key.kind, static_cast<uint32_t>(content.size()), key.id, key.part}, content, &bytes_);
}

void RecordBatch::Erase(const RecordKey& key) { Append({key.kind, kErased, key.id, key.part}, {}, &bytes_); }

absl::Status RecordBatch::Walk(absl::string_view bytes, Visit visit) {
  while (!bytes.empty()) {
    Head head;
    if (bytes.size() < sizeof(head)) return absl::DataLossError("a batch of records ends inside a record's head");
    std::memcpy(&head, bytes.data(), sizeof(head));
    bytes.remove_prefix(sizeof(head));
    const RecordKey key = {.kind = head.kind, .id = head.id, .part = head.part};
    if (head.size == kErased) {
      visit(key, std::nullopt);
      continue;
    }
    if (bytes.size() < head.size) return absl::DataLossError("a batch of records ends inside a record");
    visit(key, bytes.substr(0, head.size));
    bytes.remove_prefix(head.size);
  }
  return absl::OkStatus();
}

void RecordBatch::ApplyTo(LedgerRecords* records) const {
  ForEach([records](const RecordKey& key, std::optional<absl::string_view> content) {
    if (content.has_value()) {
      (*records)[key] = std::string(*content);
    } else {
      records->erase(key);
    }
  });
}

}  // namespace berth
