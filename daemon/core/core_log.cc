// The log of what happens to memory: a record for each request about it with its answer, and one for each thing that
// happens without a request.

#include <utility>

#include "absl/status/status.h"
#include "common/error.h"
#include "common/label.h"
#include "daemon/core/core_impl.h"

namespace berth::core {
namespace {

void SetBlock(const BlockView& block, LogRecord* record) {
  record->device = block.device;
  record->block = block.handle.block;
  record->block_generation = block.handle.block_generation;
  record->bytes = block.bytes;
}

// What the answer says beyond the request.
void SetResult(const Response& response, LogRecord* record) {
  if (const auto* const allocated = std::get_if<AllocateResult>(&response)) {
    SetBlock(allocated->block, record);
    record->import = allocated->import;
  } else if (const auto* const imported = std::get_if<ImportResult>(&response)) {
    SetBlock(imported->block, record);
    record->import = imported->import;
  } else if (const auto* const published = std::get_if<PublishResult>(&response)) {
    SetBlock(published->block, record);
  } else if (const auto* const reserved = std::get_if<ReserveResult>(&response)) {
    record->reservation = reserved->reservation.id;
  }
}

}  // namespace

LogRecord& Core::Impl::Note(const Admitted& admitted, LogAction action) {
  std::unique_ptr<LogRecord>& note = pending_.at(admitted.request).note;
  note = std::make_unique<LogRecord>();
  note->action = action;
  note->session = admitted.session.id;
  note->tenant = admitted.session.tenant;
  note->request = admitted.request;
  return *note;
}

void Core::Impl::LogAnswer(const Step& step, Pending& pending, const absl::StatusOr<Response>& response) {
  if (pending.note == nullptr) return;
  if (response.ok()) SetResult(*response, pending.note.get());
  Log(step, std::move(*pending.note), response.status());
}

void Core::Impl::Log(const Step& step, LogRecord record, const absl::Status& status) {
  record.number = ++last_record_;
  record.time = step.now;
  if (!status.ok()) {
    const std::optional<ErrorDetails> details = GetErrorDetails(status);
    record.error = details.has_value() ? std::string(ReasonName(details->reason))
                                       : absl::StatusCodeToString(status.code());
    record.message = ToMessage(status.message(), LogRecord::kMaxMessageBytes);
  }
  Emit(step, std::move(record));
}

LogRecord Core::Impl::RecordOf(const Block& block, LogAction action, LogCause cause) const {
  return {.action = action,
          .cause = cause,
          .session = block.owner,
          .tenant = block.tenant,
          .device = block.device,
          .block = block.id,
          .block_generation = block.generation,
          .bytes = block.bytes,
          .label = block.label};
}

}  // namespace berth::core
