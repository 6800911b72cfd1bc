#include "common/row.h"

#include <cstring>

namespace berth {
namespace {

// What stands before a row's content. As it lies in memory: who writes and who reads are one program on one machine.
struct Head {
  uint32_t kind;
  // kErased: the row is gone.
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

RowViews ViewsOf(const Rows& rows) { return RowViews(rows.begin(), rows.end()); }

void RowBatch::Put(const RowKey& key, absl::string_view content) {
  Append({key.kind, static_cast<uint32_t>(content.size()), key.id, key.part}, content, &bytes_);
}

void RowBatch::Erase(const RowKey& key) { Append({key.kind, kErased, key.id, key.part}, {}, &bytes_); }

absl::Status RowBatch::Walk(absl::string_view bytes, Visit visit) {
  while (!bytes.empty()) {
    Head head;
    if (bytes.size() < sizeof(head)) return absl::DataLossError("a batch of rows ends inside a row's head");
    std::memcpy(&head, bytes.data(), sizeof(head));
    bytes.remove_prefix(sizeof(head));
    const RowKey key = {.kind = head.kind, .id = head.id, .part = head.part};
    if (head.size == kErased) {
      visit(key, std::nullopt);
      continue;
    }
    if (bytes.size() < head.size) return absl::DataLossError("a batch of rows ends inside a row");
    visit(key, bytes.substr(0, head.size));
    bytes.remove_prefix(head.size);
  }
  return absl::OkStatus();
}

void RowBatch::ApplyTo(Rows* rows) const {
  ForEach([rows](const RowKey& key, std::optional<absl::string_view> content) {
    if (content.has_value()) {
      (*rows)[key] = std::string(*content);
    } else {
      rows->erase(key);
    }
  });
}

}  // namespace berth
