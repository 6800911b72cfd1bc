// LogRecord: one thing that happened to the node's memory. The core emits them among its effects, in the order in which
// things happened; the broker keeps the last ones and writes them where that is wanted. No record holds a handle, an fd
// or a secret.

#ifndef DAEMON_CORE_LOG_RECORD_H_
#define DAEMON_CORE_LOG_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/ids.h"
#include "daemon/core/caller.h"
#include "daemon/core/fence_types.h"
#include "daemon/core/request_memory.h"

namespace berth::core {

enum class LogAction {
  kAllocate = 1,
  kFree,
  kGrant,
  kImport,
  // A process's import has ended, as `cause` says.
  kImportEnd,
  kPublish,
  kUnpublish,
  // Importers were asked to let go of a block that stays.
  kRecall,
  // The driver has a block's memory back, or did not take it.
  kRelease,
  // A plan's reservation may be reserved and ended in parts, as the plan is made anew.
  kReserve,
  kReservationEnd,
  // Failed releases were tried again.
  kReap,
  // Uses of blocks that several processes share, and their handing over; recorded where Config::log_fences says so.
  kUsePrepare,
  kUseFinish,
  kUseAbandon,
  kHandOver,
  // A process died while it wrote the block; somebody says that the block is whole.
  kTorn,
  kClearTorn,
};
constexpr auto ArchivedValues(LogAction) { return std::pair(LogAction::kAllocate, LogAction::kClearTorn); }

// Why something ended.
enum class LogCause {
  kNone = 0,
  // Its session has ended.
  kSessionEnd = 1,
  // The request that made it was forgotten, or its call cancelled.
  kForgotten,
  // Its tenant or an operator named it by its id.
  kById,
  kExpired,
  // Of an import: its process said so.
  kLetGo,
  // Its process is gone, as its pidfd proves.
  kProcessGone,
  // Its process was never sent the fd.
  kNeverSent,
  // Nobody has its memory any more.
  kLost,
};
constexpr auto ArchivedValues(LogCause) { return std::pair(LogCause::kNone, LogCause::kLost); }

struct LogRecord {
  // Of a message.
  static constexpr size_t kMaxMessageBytes = 256;

  // 1, 2, 3, … over the broker's life, which is an incarnation.
  uint64_t number = 0;
  uint64_t incarnation = 0;
  absl::Time time;
  LogAction action = LogAction::kAllocate;
  LogCause cause = LogCause::kNone;
  // Who asked, or whose it is that ends; 0 where it is nobody's.
  SessionId session;
  Tenant tenant;
  // Channel and sequence 0 where nobody asked.
  RequestId request;
  // The importer of an import that ends, or who tore the block.
  ProcessInfo process;
  uint32_t device = 0;
  // Id 0 where no block was had.
  BlockId block;
  uint64_t block_generation = 0;
  ImportId import;
  ReservationId reservation;
  // As asked, where it was refused; else what the block really takes, or the reservation.
  Bytes bytes;
  std::string label;
  // Of a use; id 0 where it was refused.
  UseId use;
  std::optional<Access> access;
  uint32_t slot = 0;
  uint64_t value = 0;
  // Empty: it went well. Else a refusal's reason such as "OUT_OF_MEMORY", or the name of the status.
  std::string error;
  // At most kMaxMessageBytes, and an ellipsis where it was cut; between two characters.
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

#endif  // DAEMON_CORE_LOG_RECORD_H_
