// Blocks and their imports: requests, results and views. Plain values.

#ifndef DAEMON_CORE_TYPES_BLOCK_TYPES_H_
#define DAEMON_CORE_TYPES_BLOCK_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <berth/block_handle.h>
#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/wire/ipc_handle.h"
#include "daemon/base/worker_kind.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/device_types.h"
#include "daemon/core/types/placement_types.h"
#include "daemon/core/types/request_traits.h"

namespace berth::core {

// How a block is exported to clients; see berth.v1.ExportKind.
enum class ExportKind { kFd = 1, kCudaIpc = 2 };
constexpr auto ArchivedValues(ExportKind) { return std::pair(ExportKind::kFd, ExportKind::kCudaIpc); }

// "CUDA_IPC".
constexpr absl::string_view ExportKindName(ExportKind kind) {
  return kind == ExportKind::kFd ? "FD" : "CUDA_IPC";
}

// Returns which of a device's workers makes blocks of that kind.
constexpr WorkerKind WorkerKindOf(ExportKind kind) {
  return kind == ExportKind::kFd ? WorkerKind::kMain : WorkerKind::kContext;
}

// The export kinds that a caller accepts.
struct ExportKinds {
  bool fd = true;
  bool cuda_ipc = false;

  bool Has(ExportKind kind) const { return kind == ExportKind::kFd ? fd : cuda_ipc; }
};
void Payload(auto& add, const ExportKinds& kinds) { add((kinds.fd ? 1 : 0) | (kinds.cuda_ipc ? 2 : 0)); }

void Payload(auto& add, const BlockHandle& handle) {
  add(handle.node, handle.incarnation, handle.device_uuid, handle.block, handle.generation, handle.block_generation);
}

struct AllocateRequest {
  // The device: by UUID where that is not empty, else by ordinal; by the constraint where there is one.
  uint32_t device = 0;
  std::string device_uuid;
  Bytes bytes;
  std::string label;
  // The session's reservation to draw on; 0 for none.
  ReservationId reservation;
  // Wait until `deadline` for capacity that others hold, instead of a refusal.
  bool wait = false;
  absl::Time deadline = absl::InfiniteFuture();
  ExportKinds kinds = {};
  // Constraint on the device. With one, the request declares no bytes and draws on no reservation.
  DeviceConstraint constraint = {};
};
void Payload(auto& add, const AllocateRequest& request) {
  add(request.device, request.device_uuid, request.bytes, request.label, request.reservation, request.wait,
      request.kinds, request.constraint);
}

struct FreeRequest {
  BlockHandle handle;
  // Imports of the calling channel that are unmapped already.
  std::vector<ImportId> let_go;
};
void Payload(auto& add, const FreeRequest& request) { add(request.handle, request.let_go); }

// Grantee of the right to import: one session, or every session of a tenant.
using Grantee = std::variant<SessionId, Tenant>;

struct GrantRequest {
  BlockHandle handle;
  Grantee grantee;
};
void Payload(auto& add, const GrantRequest& request) {
  add(request.handle, request.grantee.index());
  std::visit([&](const auto& grantee) { add(grantee); }, request.grantee);
}

struct ImportRequest {
  BlockHandle handle;
  bool read_only = false;
  // Not empty: imports by this name instead, read-only.
  std::string name;
  ExportKinds kinds = {};
  // With a name: the tenant that published it; the caller's own where empty.
  std::optional<Tenant> publisher = std::nullopt;
};
void Payload(auto& add, const ImportRequest& request) {
  add(request.handle, request.read_only, request.name, request.kinds);
  if (request.publisher.has_value()) add(*request.publisher);
}

struct PublishRequest {
  BlockHandle handle;
  std::string name;
  // Imports of the calling channel that are unmapped already.
  std::vector<ImportId> let_go;
  // Frees the block that has the name in the same step.
  bool replace = false;
};
void Payload(auto& add, const PublishRequest& request) {
  add(request.handle, request.name, request.let_go);
  if (request.replace) add("replace");
}

struct UnpublishRequest {
  std::string name;
  // For admins: the tenant that published the name; empty for the caller's own.
  std::optional<Tenant> tenant;
};
void Payload(auto& add, const UnpublishRequest& request) {
  add(request.name, request.tenant.has_value(), request.tenant.value_or(Tenant()));
}

enum class ReadOnly { kNo = 0, kEnforced = 1, kCooperative = 2 };
constexpr auto ArchivedValues(ReadOnly) { return std::pair(ReadOnly::kNo, ReadOnly::kCooperative); }

enum class BlockState { kReserved = 1, kLive = 2, kRetired = 3, kQuarantined = 4 };
constexpr auto ArchivedValues(BlockState) { return std::pair(BlockState::kReserved, BlockState::kQuarantined); }

// The event of a LogRecord (log_record.h). Values match the wire.
enum class LogAction {
  kAllocate = 1,
  kFree,
  kGrant,
  kImport,
  // A process's import has ended, for the reason in `cause`.
  kImportEnd,
  kPublish,
  kUnpublish,
  // Importers were asked to release a block that stays.
  kRecall,
  // The driver has taken a block's memory back, or has failed to.
  kRelease,
  // A plan's reservation may be reserved and ended in parts while the plan is replaced.
  kReserve,
  kReservationEnd,
  // Failed releases were retried.
  kReap,
  // Uses and hand-overs of blocks that several processes share; recorded if Config::log_fences is set.
  kUsePrepare,
  kUseFinish,
  kUseAbandon,
  kHandOver,
  // kTorn: a process died while it wrote the block. kClearTorn: a caller declared the block whole.
  kTorn,
  kClearTorn,
};
constexpr auto ArchivedValues(LogAction) { return std::pair(LogAction::kAllocate, LogAction::kClearTorn); }

struct ImportView {
  ImportId id;
  SessionId session;
  ProcessInfo process;
  ReadOnly read_only = ReadOnly::kNo;
  absl::Time since;
  bool recalled = false;
};
template <typename Archive>
void Fields(Archive& archive, ImportView& value) {
  archive(value.id, value.session, value.process, value.read_only, value.since, value.recalled);
}

struct BlockView {
  BlockHandle handle;
  uint32_t device = 0;
  Bytes bytes;
  MemoryKind kind = MemoryKind::kHost;
  ExportKind export_kind = ExportKind::kFd;
  BlockState state = BlockState::kReserved;
  // 0 once the owner is no longer charged.
  SessionId owner;
  Tenant tenant;
  std::string label;
  // Name of a published block.
  std::string name;
  absl::Time live_since;
  // A process died while writing the block, and no process has written it since.
  bool torn = false;
  // The block's memory is lost. Not part of a cached answer.
  bool lost = false;
  // Why the driver has not taken its memory back.
  std::string release_error;
  std::vector<ImportView> imports;
};
template <typename Archive>
void Fields(Archive& archive, BlockView& value) {
  archive(value.handle, value.device, value.bytes, value.kind, value.export_kind, value.state, value.owner,
          value.tenant, value.label, value.name, value.live_since, value.torn, value.release_error, value.imports);
}

struct AllocateResult {
  static constexpr size_t kResponseIndex = 2;

  BlockView block;
  ImportId import;
  // Set for a CUDA_IPC block.
  std::optional<IpcHandle> ipc_handle;
};
template <typename Archive>
void Fields(Archive& archive, AllocateResult& value) {
  archive(value.block, value.import, value.ipc_handle);
}
bool Undo(const UndoStep& undo, const AllocateResult& result);

struct FreeResult {
  static constexpr size_t kResponseIndex = 3;

  BlockState state = BlockState::kRetired;
};
template <typename Archive>
void Fields(Archive& archive, FreeResult& value) {
  archive(value.state);
}
inline bool Undo(const UndoStep&, const FreeResult&) { return false; }

struct GrantResult {
  static constexpr size_t kResponseIndex = 4;
};
template <typename Archive>
void Fields(Archive&, GrantResult&) {}
inline bool Undo(const UndoStep&, const GrantResult&) { return false; }

struct PublishResult {
  static constexpr size_t kResponseIndex = 6;

  BlockView block;
  // The name belonged to another block before.
  bool replaced = false;
};
template <typename Archive>
void Fields(Archive& archive, PublishResult& value) {
  archive(value.block);
  archive.Since(3, value.replaced);
}
bool Undo(const UndoStep& undo, const PublishResult& result);

struct UnpublishResult {
  static constexpr size_t kResponseIndex = 7;

  BlockState state = BlockState::kRetired;
};
template <typename Archive>
void Fields(Archive& archive, UnpublishResult& value) {
  archive(value.state);
}
inline bool Undo(const UndoStep&, const UnpublishResult&) { return false; }

struct ReapResult {
  static constexpr size_t kResponseIndex = 10;

  // `tried`: failed releases that were retried; `back`: those of them that succeeded.
  uint64_t tried = 0;
  Bytes tried_bytes;
  uint64_t back = 0;
  Bytes back_bytes;
};
template <typename Archive>
void Fields(Archive& archive, ReapResult& value) {
  archive(value.tried, value.tried_bytes, value.back, value.back_bytes);
}
inline bool Undo(const UndoStep&, const ReapResult&) { return false; }

struct ImportResult {
  static constexpr size_t kResponseIndex = 5;

  BlockView block;
  ImportId import;
  ReadOnly read_only = ReadOnly::kNo;
  // Set for a CUDA_IPC block.
  std::optional<IpcHandle> ipc_handle;
};
template <typename Archive>
void Fields(Archive& archive, ImportResult& value) {
  archive(value.block, value.import, value.read_only, value.ipc_handle);
}
bool Undo(const UndoStep& undo, const ImportResult& result);

// ---- Kinds of requests (request_traits.h) ----------------------------------------------------------------

template <>
struct RequestTraits<AllocateRequest> {
  using Result = AllocateResult;
  static constexpr uint64_t kKind = 3;
};
template <>
struct RequestTraits<FreeRequest> {
  using Result = FreeResult;
  static constexpr uint64_t kKind = 4;
};
template <>
struct RequestTraits<GrantRequest> {
  using Result = GrantResult;
  static constexpr uint64_t kKind = 5;
};
template <>
struct RequestTraits<ImportRequest> {
  using Result = ImportResult;
  static constexpr uint64_t kKind = 6;
};
template <>
struct RequestTraits<PublishRequest> {
  using Result = PublishResult;
  static constexpr uint64_t kKind = 14;
};
template <>
struct RequestTraits<UnpublishRequest> {
  using Result = UnpublishResult;
  static constexpr uint64_t kKind = 15;
};

using BlockResults =
    ResultList<AllocateResult, FreeResult, GrantResult, ImportResult, PublishResult, UnpublishResult, ReapResult>;

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_BLOCK_TYPES_H_
