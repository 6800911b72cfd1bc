// The log of what happens to memory: a record for each request about it with its answer, and one for each thing that
// happens without a request.

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
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
  } else if (const auto* const prepared = std::get_if<Prepared>(&response)) {
    record->use = prepared->use;
  }
}

}  // namespace

LogRecord& Core::Impl::Note(const Admitted& admitted, LogAction action) {
  LogRecord& note = pending_.at(admitted.request).notes.emplace_back();
  note.action = action;
  note.session = admitted.session.id;
  note.tenant = admitted.session.tenant;
  note.request = admitted.request;
  return note;
}

void Core::Impl::NoteUses(const Admitted& admitted, LogAction action, const std::vector<BlockUse>& uses,
                          const LogRecord& known) {
  // One that names more is refused.
  const size_t most = config_.limits.fences.blocks_per_use;
  for (const BlockUse& use : absl::MakeConstSpan(uses).first(std::min(uses.size(), most))) {
    LogRecord& note = Note(admitted, action);
    note.use = known.use;
    note.slot = known.slot;
    note.value = known.value;
    note.access = use.access;
    note.block = use.block;
    const Block* const block = blocks_.Find(use.block);
    if (block == nullptr) continue;
    note.device = block->device;
    note.block_generation = block->generation;
    note.bytes = block->bytes;
    note.label = block->label;
  }
}

void Core::Impl::LogAnswer(const Step& step, Pending& pending, const absl::StatusOr<Response>& response) {
  for (LogRecord& note : pending.notes) {
    if (response.ok()) SetResult(*response, &note);
    Log(step, std::move(note), response.status());
  }
}

void Core::Impl::Log(const Step& step, LogRecord record, const absl::Status& status) {
  record.number = ++last_record_;
  journal_.Touch(RowKind::kCounters);
  record.incarnation = config_.incarnation;
  record.time = step.now;
  if (!status.ok()) {
    const std::optional<ErrorDetails> details = GetErrorDetails(status);
    record.error = details.has_value() ? std::string(ReasonName(details->reason))
                                       : absl::StatusCodeToString(status.code());
    record.message = ToMessage(status.message(), LogRecord::kMaxMessageBytes);
  }
  Emit(step, std::move(record));
}

void Core::Impl::LogForgotten(const Step& step, ChannelId channel, UseId id) {
  if (!config_.log_fences) return;
  for (const BlockUse& use : fences_.UsesOf(channel, id)) {
    const Block* const block = blocks_.Find(use.block);
    if (block == nullptr) continue;
    LogRecord record = RecordOf(*block, LogAction::kUseAbandon, LogCause::kForgotten);
    record.request.channel = channel;
    record.use = id;
    record.access = use.access;
    Log(step, std::move(record));
  }
}

void Core::Impl::LogHandOver(const Step& step, const Block& block, ChannelId from) {
  if (!config_.log_fences) return;
  LogRecord record = RecordOf(block, LogAction::kHandOver);
  record.request.channel = from;
  const Channel* const channel = sessions_.FindChannel(from);
  if (channel != nullptr) record.process = channel->process;
  Log(step, std::move(record));
}

void Core::Impl::LogTorn(const Step& step, BlockId id, ChannelId by) {
  const Block* const block = blocks_.Find(id);
  // A freed block's end is told by its release alone.
  if (block == nullptr || block->phase != BlockPhase::kLive) return;
  LogRecord record = RecordOf(*block, LogAction::kTorn, LogCause::kProcessGone);
  record.request.channel = by;
  const Channel* const channel = sessions_.FindChannel(by);
  if (channel != nullptr) record.process = channel->process;
  Log(step, std::move(record));
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
