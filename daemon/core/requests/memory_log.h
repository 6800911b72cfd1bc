// MemoryLog: the log of memory events: one record for each request with its answer, and one for each event without a
// request.

#ifndef DAEMON_CORE_REQUESTS_MEMORY_LOG_H_
#define DAEMON_CORE_REQUESTS_MEMORY_LOG_H_

#include <cstdint>
#include <vector>

#include <berth/ids.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/memory/block_table.h"
#include "daemon/core/requests/admitted.h"
#include "daemon/core/requests/pending.h"
#include "daemon/core/types/fence_types.h"
#include "daemon/core/types/log_record.h"
#include "daemon/core/types/response.h"
#include "daemon/core/types/step_context.h"

namespace berth::core {

struct Managers;

// Thread-compatible; part of the core.
class MemoryLog {
 public:
  // `core` outlives the manager.
  explicit MemoryLog(Managers& core) : core_(core) {}

  // ---- For the other managers -------------------------------------------------------------------------------

  // Adds a log record of a request, logged with its answer; the caller completes it before the next AddLogRecord().
  LogRecord& AddLogRecord(const Admitted& admitted, LogAction action);
  // Adds the same record for each of the blocks. Requires: the log includes uses.
  void RecordUses(const Admitted& admitted, LogAction action, const std::vector<BlockUse>& uses,
                  const LogRecord& known);
  // Logs a request's notes with its outcome.
  void LogAnswer(StepContext& step, Pending& pending, const absl::StatusOr<Response>& response);
  void Log(StepContext& step, LogRecord record, const absl::Status& status = absl::OkStatus());
  // Logs that the open use is abandoned because its request was forgotten.
  void LogForgotten(StepContext& step, ChannelId channel, UseId use);
  void LogHandOver(StepContext& step, const Block& block, ChannelId from);
  // Logs that the process of the channel has torn the block.
  void LogTorn(StepContext& step, BlockId block, ChannelId by);
  // Returns a record of an event of the block.
  LogRecord RecordOf(const Block& block, LogAction action, LogCause cause = LogCause::kNone) const;

  // Number of the last record over the broker's life.
  uint64_t last_record() const { return last_record_; }
  void RestoreLastRecord(uint64_t number) { last_record_ = number; }

 private:
  Managers& core_;
  uint64_t last_record_ = 0;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_REQUESTS_MEMORY_LOG_H_
