#include "daemon/device/memory/memory_log.h"

#include "absl/strings/str_cat.h"

namespace berth {

absl::string_view MemoryActionName(MemoryAction action) {
  switch (action) {
    case MemoryAction::kAllocate:
      return "allocate";
    case MemoryAction::kDeallocate:
      return "deallocate";
    case MemoryAction::kHandOver:
      return "hand over";
    case MemoryAction::kAdopt:
      return "adopt";
    case MemoryAction::kReap:
      return "reap";
  }
  return "?";
}

std::string ToString(const MemoryRecord& record) {
  std::string text = absl::StrCat(record.order, " ", absl::FormatTime(record.time), " ", record.device, " ",
                                  MemoryActionName(record.action));
  if (record.generation != 0) absl::StrAppend(&text, " ", record.generation);
  if (record.bytes > Bytes(0)) absl::StrAppend(&text, " of ", record.bytes.count(), " bytes");
  if (!record.tag.empty()) absl::StrAppend(&text, " (", record.tag, ")");
  absl::StrAppend(&text, ": ", record.result);
  if (!record.message.empty()) absl::StrAppend(&text, ": ", record.message);
  return text;
}

absl::Status MemoryLogRing::Append(const MemoryRecord& record) {
  if (records_.size() == capacity_) records_.pop_front();
  records_.push_back(record);
  return absl::OkStatus();
}

}  // namespace berth
