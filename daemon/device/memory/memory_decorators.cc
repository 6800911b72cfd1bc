// Decorators of memory resources; each adds one thing.

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "daemon/device/memory/budget_resource.h"
#include "daemon/device/memory/guard_resource.h"
#include "daemon/device/memory/logging_resource.h"
#include "daemon/device/memory/memory_log.h"
#include "daemon/device/memory/statistics_resource.h"

namespace berth {
namespace {

std::atomic<uint64_t> last_order = 0;

std::string ResultOf(const absl::Status& status) {
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  if (details.has_value()) return std::string(ReasonName(details->reason));
  return absl::StatusCodeToString(status.code());
}

// Returns a record with the fields of `block` from before the call.
MemoryRecord RecordOf(MemoryAction action, const MemoryBlock& block) {
  return {.action = action, .generation = block.generation, .bytes = block.bytes, .tag = block.tag};
}

}  // namespace

// ---- budget_resource.h ---------------------------------------------------------------------------------------

absl::StatusOr<MemoryBlock> BudgetResource::Allocate(Bytes bytes, absl::string_view tag) {
  // Bytes that cannot be reaped stay charged, and the error shows them.
  if (bytes <= limit_ && bytes > Remaining()) inner().Reap().IgnoreError();
  if (bytes <= Remaining()) return inner().Allocate(bytes, tag);
  return Refuse(
      Reason::kOverBudget,
      "{layer} budget on device {device}: requested {requested} bytes, current {current}, remaining "
      "{remaining}, limit {limit}",
      {{"layer", "device_runtime"},
       {"device", device()},
       {"requested", bytes.count()},
       {"current", outstanding().count()},
       {"remaining", Remaining().count()},
       {"limit", limit_.count()}});
}

// ---- guard_resource.h ----------------------------------------------------------------------------------------

absl::StatusOr<Poison> ParsePoison(absl::string_view text) {
  Poison poison;
  for (const absl::string_view word : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    if (word == "fresh") {
      poison.fresh = true;
    } else if (word == "freed") {
      poison.freed = true;
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", word, "\" is invalid: expected fresh, freed, or both with a comma"));
    }
  }
  return poison;
}

GuardResource::GuardResource(std::unique_ptr<MemoryResource> inner, Poison poison)
    : MemoryDecorator(std::move(inner)), poison_(poison) {}

absl::StatusOr<MemoryBlock> GuardResource::Allocate(Bytes bytes, absl::string_view tag) {
  BERTH_ASSIGN_OR_RETURN(MemoryBlock block, inner().Allocate(bytes, tag));
  if (block.address != 0) {
    if (Overlaps(block)) {
      const absl::Status status = absl::InternalError(
          absl::StrCat("device ", device(), " returned ", bytes.count(), " bytes that overlap an existing block"));
      quarantined_.push_back(std::move(block));
      return status;
    }
    ends_[block.address] = block.address + block.bytes.count();
    starts_[block.generation] = block.address;
  }
  if (poison_.fresh) {
    const absl::Status poisoned = PoisonBlock(block);
    if (!poisoned.ok()) {
      // Memory that cannot be freed either stays outstanding in the resource inside.
      Deallocate(block).IgnoreError();
      return poisoned;
    }
  }
  return block;
}

absl::Status GuardResource::Deallocate(MemoryBlock& block) {
  // An unknown block is rejected before any write.
  if (poison_.freed) BERTH_RETURN_IF_ERROR(PoisonBlock(block));
  BERTH_RETURN_IF_ERROR(inner().Deallocate(block));
  Forget(block);
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> GuardResource::HandOver(MemoryBlock& block) {
  BERTH_ASSIGN_OR_RETURN(UniqueFd fd, inner().HandOver(block));
  Forget(block);
  return fd;
}

absl::Status GuardResource::PoisonBlock(const MemoryBlock& block) {
  const absl::Status filled = inner().Fill(block, kPoison);
  return IsRefusal(filled, Reason::kUnsupported) ? absl::OkStatus() : filled;
}

bool GuardResource::Overlaps(const MemoryBlock& block) const {
  // Only the last block that starts before this one's end can overlap it.
  const auto after = ends_.lower_bound(block.address + block.bytes.count());
  return after != ends_.begin() && std::prev(after)->second > block.address;
}

void GuardResource::Forget(const MemoryBlock& block) {
  const auto start = starts_.find(block.generation);
  if (start == starts_.end()) return;
  ends_.erase(start->second);
  starts_.erase(start);
}

// ---- logging_resource.h --------------------------------------------------------------------------------------

absl::StatusOr<MemoryBlock> LoggingResource::Allocate(Bytes bytes, absl::string_view tag) {
  absl::StatusOr<MemoryBlock> block = inner().Allocate(bytes, tag);
  Record({.action = MemoryAction::kAllocate,
          .generation = block.ok() ? block->generation : 0,
          .bytes = bytes,
          .tag = std::string(tag)},
         block.status());
  return block;
}

absl::Status LoggingResource::Deallocate(MemoryBlock& block) {
  const MemoryRecord record = RecordOf(MemoryAction::kDeallocate, block);
  const absl::Status status = inner().Deallocate(block);
  Record(record, status);
  return status;
}

absl::StatusOr<UniqueFd> LoggingResource::HandOver(MemoryBlock& block) {
  const MemoryRecord record = RecordOf(MemoryAction::kHandOver, block);
  absl::StatusOr<UniqueFd> fd = inner().HandOver(block);
  Record(record, fd.status());
  return fd;
}

absl::StatusOr<MemoryBlock> LoggingResource::Adopt(UniqueFd fd, absl::string_view tag) {
  absl::StatusOr<MemoryBlock> block = inner().Adopt(std::move(fd), tag);
  Record({.action = MemoryAction::kAdopt,
          .generation = block.ok() ? block->generation : 0,
          .tag = std::string(tag)},
         block.status());
  return block;
}

absl::Status LoggingResource::Reap() {
  const absl::Status status = inner().Reap();
  Record({.action = MemoryAction::kReap}, status);
  return status;
}

void LoggingResource::Record(MemoryRecord record, const absl::Status& status) {
  record.order = ++last_order;
  record.time = absl::Now();
  record.device = device();
  record.result = ResultOf(status);
  record.message = ToMessage(status.message(), MemoryRecord::kMaxMessageBytes);
  if (!sink_.Append(record).ok()) ++dropped_records_;
}

// ---- memory_log.h --------------------------------------------------------------------------------------------

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

// ---- statistics_resource.h -----------------------------------------------------------------------------------

std::string ToString(const MemoryStatistics& statistics) {
  return absl::StrCat("made ", statistics.allocations, " (", statistics.failed_allocations,
                      " failed), handed over ", statistics.handed_over, ", adopted ", statistics.adopted,
                      ", freed ", statistics.deallocations, " (", statistics.failed_deallocations,
                      " failed), outstanding ", FormatBytes(statistics.outstanding), ", at most ",
                      FormatBytes(statistics.peak));
}

MemoryStatistics StatisticsResource::statistics() const {
  MemoryStatistics statistics = counts_;
  statistics.outstanding = outstanding();
  return statistics;
}

absl::StatusOr<MemoryBlock> StatisticsResource::Allocate(Bytes bytes, absl::string_view tag) {
  absl::StatusOr<MemoryBlock> block = inner().Allocate(bytes, tag);
  ++(block.ok() ? counts_.allocations : counts_.failed_allocations);
  if (block.ok()) counts_.peak = std::max(counts_.peak, outstanding());
  return block;
}

absl::Status StatisticsResource::Deallocate(MemoryBlock& block) {
  const absl::Status status = inner().Deallocate(block);
  ++(status.ok() ? counts_.deallocations : counts_.failed_deallocations);
  return status;
}

absl::StatusOr<UniqueFd> StatisticsResource::HandOver(MemoryBlock& block) {
  absl::StatusOr<UniqueFd> fd = inner().HandOver(block);
  if (fd.ok()) ++counts_.handed_over;
  return fd;
}

absl::StatusOr<MemoryBlock> StatisticsResource::Adopt(UniqueFd fd, absl::string_view tag) {
  absl::StatusOr<MemoryBlock> block = inner().Adopt(std::move(fd), tag);
  if (block.ok()) ++counts_.adopted;
  return block;
}

}  // namespace berth
