// Blocks and their imports: what is asked, what is told and what is answered. Plain values.

#ifndef DAEMON_CORE_BLOCK_TYPES_H_
#define DAEMON_CORE_BLOCK_TYPES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/block_handle.h"
#include "common/bytes.h"
#include "common/ids.h"
#include "common/ipc_handle.h"
#include "common/lane.h"
#include "daemon/core/caller.h"
#include "daemon/core/device_types.h"
#include "daemon/core/placement_types.h"

namespace berth::core {

// How a block leaves the daemon; see berth.v1.ExportKind.
enum class ExportKind { kFd = 1, kCudaIpc = 2 };
constexpr auto ArchivedValues(ExportKind) { return std::pair(ExportKind::kFd, ExportKind::kCudaIpc); }

// "CUDA_IPC".
constexpr absl::string_view ExportKindName(ExportKind kind) {
  return kind == ExportKind::kFd ? "FD" : "CUDA_IPC";
}

// Which of a device's workers makes blocks of that kind.
constexpr Lane LaneOf(ExportKind kind) { return kind == ExportKind::kFd ? Lane::kMain : Lane::kContext; }

// What a caller can take.
struct ExportKinds {
  bool fd = true;
  bool cuda_ipc = false;

  bool Has(ExportKind kind) const { return kind == ExportKind::kFd ? fd : cuda_ipc; }
};

struct AllocateRequest {
  // By UUID where that is not empty, else by ordinal; by the wish where there is one.
  uint32_t device = 0;
  std::string device_uuid;
  Bytes bytes;
  std::string label;
  // Draws on this reservation of the session's, where it is one.
  ReservationId reservation;
  // Wait for room that others hold until `deadline`, rather than be refused.
  bool wait = false;
  absl::Time deadline = absl::InfiniteFuture();
  ExportKinds kinds = {};
  // Declares nothing, and draws on no reservation.
  DeviceWish wish = {};
};

struct FreeRequest {
  BlockHandle handle;
  // Imports of the calling channel that are unmapped already.
  std::vector<ImportId> let_go;
};

// A right to import: for one session, or for every session of a tenant.
using Grantee = std::variant<SessionId, Tenant>;

struct GrantRequest {
  BlockHandle handle;
  Grantee grantee;
};

struct ImportRequest {
  BlockHandle handle;
  bool read_only = false;
  // Not empty: by this name instead, read-only.
  std::string name;
  ExportKinds kinds = {};
};

struct PublishRequest {
  BlockHandle handle;
  std::string name;
  // Imports of the calling channel that are unmapped already.
  std::vector<ImportId> let_go;
};

struct UnpublishRequest {
  std::string name;
  // Whose: an admin may say so.
  std::optional<Tenant> tenant;
};

enum class ReadOnly { kNo = 0, kEnforced = 1, kCooperative = 2 };
constexpr auto ArchivedValues(ReadOnly) { return std::pair(ReadOnly::kNo, ReadOnly::kCooperative); }

enum class BlockState { kReserved = 1, kLive = 2, kRetired = 3, kQuarantined = 4 };
constexpr auto ArchivedValues(BlockState) { return std::pair(BlockState::kReserved, BlockState::kQuarantined); }

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
  // Of a published block.
  std::string name;
  absl::Time live_since;
  // Somebody died while writing it, and nobody has written it since.
  bool torn = false;
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
  BlockView block;
  ImportId import;
  // Of a CUDA_IPC block.
  std::optional<IpcHandle> ipc_handle;
};
template <typename Archive>
void Fields(Archive& archive, AllocateResult& value) {
  archive(value.block, value.import, value.ipc_handle);
}

struct FreeResult {
  BlockState state = BlockState::kRetired;
};
template <typename Archive>
void Fields(Archive& archive, FreeResult& value) {
  archive(value.state);
}

struct GrantResult {};
template <typename Archive>
void Fields(Archive&, GrantResult&) {}

struct PublishResult {
  BlockView block;
};
template <typename Archive>
void Fields(Archive& archive, PublishResult& value) {
  archive(value.block);
}

struct UnpublishResult {
  BlockState state = BlockState::kRetired;
};
template <typename Archive>
void Fields(Archive& archive, UnpublishResult& value) {
  archive(value.state);
}

struct ReapResult {
  // Failed releases that were tried again, and what came back of them.
  uint64_t tried = 0;
  Bytes tried_bytes;
  uint64_t back = 0;
  Bytes back_bytes;
};
template <typename Archive>
void Fields(Archive& archive, ReapResult& value) {
  archive(value.tried, value.tried_bytes, value.back, value.back_bytes);
}

struct ImportResult {
  BlockView block;
  ImportId import;
  ReadOnly read_only = ReadOnly::kNo;
  // Of a CUDA_IPC block.
  std::optional<IpcHandle> ipc_handle;
};
template <typename Archive>
void Fields(Archive& archive, ImportResult& value) {
  archive(value.block, value.import, value.read_only, value.ipc_handle);
}

}  // namespace berth::core

#endif  // DAEMON_CORE_BLOCK_TYPES_H_
