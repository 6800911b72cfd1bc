#include "daemon/device/memory/logging_resource.h"

#include <atomic>
#include <optional>
#include <string>

#include <berth/error.h>

#include "absl/time/clock.h"
#include "common/label.h"

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

}  // namespace berth
