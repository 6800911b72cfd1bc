// LogRecord: one event of the node's memory. The core emits records among its effects, in the order of events. The
// broker holds the latest records and writes them to a file if configured. No record contains a handle, an fd or a
// secret.

#ifndef DAEMON_CORE_TYPES_LOG_RECORD_H_
#define DAEMON_CORE_TYPES_LOG_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/types/block_types.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/fence_types.h"
#include "daemon/core/types/request_id.h"

namespace berth::core {

// Why a logged lease or import ended.
enum class LogCause {
  kNone = 0,
  // The session has ended.
  kSessionEnd = 1,
  // The request that created the lease was forgotten, or its call was cancelled.
  kForgotten,
  // The tenant or an operator ended the lease by its id.
  kById,
  kExpired,
  // The importing process released the import.
  kLetGo,
  // The process has died, as its pidfd proves.
  kProcessGone,
  // The fd was never sent to the process.
  kNeverSent,
  // The memory is lost to every client.
  kLost,
};
constexpr auto ArchivedValues(LogCause) { return std::pair(LogCause::kNone, LogCause::kLost); }

struct LogRecord {
  // Longest message, in bytes.
  static constexpr size_t kMaxMessageBytes = 256;

  // 1, 2, 3, … over the broker's life, which is one incarnation.
  uint64_t number = 0;
  uint64_t incarnation = 0;
  absl::Time time;
  LogAction action = LogAction::kAllocate;
  LogCause cause = LogCause::kNone;
  // Requesting session, or owner session of what ended; 0 if it has no owner.
  SessionId session;
  Tenant tenant;
  // Channel and sequence are 0 if no client requested the action.
  RequestId request;
  // The importing process of an import that ended, or the process that tore the block.
  ProcessInfo process;
  uint32_t device = 0;
  // Id 0 if the action involves no block.
  BlockId block;
  uint64_t block_generation = 0;
  ImportId import;
  ReservationId reservation;
  // For a refused request the requested bytes; else the actual size of the block or reservation.
  Bytes bytes;
  std::string label;
  // Set for a use; id 0 if the use was refused.
  UseId use;
  std::optional<Access> access;
  uint32_t slot = 0;
  uint64_t value = 0;
  // Empty on success. Else a refusal's reason such as "OUT_OF_MEMORY", or the status code's name.
  std::string error;
  // At most kMaxMessageBytes, plus an ellipsis if it was cut, always between two characters.
  std::string message;
};

template <typename Archive>
void Fields(Archive& archive, LogRecord& value) {
  archive(value.number, value.incarnation, value.time, value.action, value.cause, value.session, value.tenant,
          value.request, value.process, value.device, value.block, value.block_generation, value.import,
          value.reservation, value.bytes, value.label, value.use, value.access, value.slot, value.value,
          value.error, value.message);
}

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_LOG_RECORD_H_
