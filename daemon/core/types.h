// The core's vocabulary: what comes in with a request, what is told about what it holds. Plain values.

#ifndef DAEMON_CORE_TYPES_H_
#define DAEMON_CORE_TYPES_H_

#include <compare>
#include <cstdint>
#include <map>
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
#include "common/secret.h"
#include "common/session_capsule.h"
#include "daemon/core/fence_types.h"

namespace berth::core {

// Who is charged: a user, in a container or outside any (container empty).
struct Tenant {
  uint32_t uid = 0;
  std::string container;

  friend auto operator<=>(const Tenant&, const Tenant&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const Tenant& tenant) {
    return H::combine(std::move(state), tenant.uid, tenant.container);
  }
};

// A process as the kernel described it when it connected. For display: nothing is decided by a pid.
struct ProcessInfo {
  int32_t pid = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::string name;
};

// Who calls: what the caller says of itself (proved by the secret) and what the kernel says of its
// connection.
struct Caller {
  Credentials credentials;
  Tenant tenant;
  // The connection came in on admin.sock.
  bool admin = false;
};

// Names a mutating request on its channel; see berth.v1.RequestTag.
struct RequestTag {
  uint64_t sequence = 0;
  uint64_t answered_below = 0;
  std::vector<uint64_t> open = {};
};

// ---- What is asked ----------------------------------------------------------------------------------------

// Which device a permit is to name.
enum class DevicePick { kNone = 0, kAny = 1, kBest = 2, kNamed = 3 };

struct DeviceWish {
  DevicePick pick = DevicePick::kNone;
  // kNamed.
  std::string uuid;
  // Free bytes that the device must have when the permit is granted.
  Bytes min_free;
  // Bytes that the holder's processes will take there past Berth: set aside until the permit is back.
  Bytes declared;

  friend auto operator<=>(const DeviceWish&, const DeviceWish&) = default;
};

struct AcquireRequest {
  std::string pool;
  uint64_t units = 1;
  std::string holder_key;
  std::string label;
  // False: refuse with NO_PERMIT rather than wait.
  bool wait = true;
  // When waiting ends; InfiniteFuture for never.
  absl::Time deadline = absl::InfiniteFuture();
  // Grant only while fewer than this many units are out; 0 is no limit beyond the cap.
  uint64_t client_cap = 0;
  bool adoptable = false;
  bool independent = false;
  // Higher goes first; kLeastPriority to kMostPriority.
  int32_t priority = 0;
  // While nobody else has a permit of the pool, and nobody else gets one.
  bool exclusive = false;
  DeviceWish device;
};

inline constexpr int32_t kLeastPriority = -10;
inline constexpr int32_t kMostPriority = 10;

// How a block leaves the daemon; see berth.v1.ExportKind.
enum class ExportKind { kFd = 1, kCudaIpc = 2 };

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
  // By UUID where that is not empty, else by ordinal.
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
};

// Bytes on one device.
struct ReserveItem {
  uint32_t device = 0;
  std::string device_uuid;
  Bytes bytes;
};

struct ReserveRequest {
  // All or nothing; several of one device are added up.
  std::vector<ReserveItem> items;
  std::string label;
  // How long what is not drawn stays set aside.
  absl::Duration ttl = absl::InfiniteDuration();
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

// Whose share of a device; the device's own budget for nobody's.
using BudgetOwner = std::variant<std::monostate, Tenant, SessionId>;

// Sets the limit of one layer. Where no device is named, on every device.
struct SetBudgetRequest {
  std::optional<uint32_t> device;
  BudgetOwner of;
  // Nothing: the configured default. A device always has a limit.
  std::optional<Bytes> limit;
};

struct OpenStreamRequest {
  uint32_t device = 0;
  bool default_stream = false;
};

struct CloseStreamRequest {
  uint32_t slot = 0;
};

struct PrepareUseRequest {
  uint32_t slot = 0;
  std::vector<BlockUse> uses;
  // How long to wait while others' uses are open; no longer than Limits::prepare_patience.
  absl::Duration patience = absl::InfiniteDuration();
};

struct FinishUseRequest {
  UseId use;
  uint64_t value = 0;
};

struct AbandonUseRequest {
  UseId use;
};

// A pool of permits, as it is configured.
struct PoolConfig {
  std::string name;
  // Units that may be out at once, at least 1.
  uint64_t cap = 2;
  // Who has waited so long is served as one of the highest priority that waits.
  absl::Duration ageing = absl::Minutes(10);
  // Units that one tenant may have out at once; 0 is no limit but the cap.
  uint64_t tenant_cap = 0;
  // What a tenant gets of the pool beside others that wait, by uid; 1 where there is none. From 1 to kMostWeight.
  std::map<uint32_t, uint32_t> weights = {};
  // A permit held for so long is shown as overdue, or revoked.
  absl::Duration hold_warning = absl::InfiniteDuration();
  absl::Duration hold_limit = absl::InfiniteDuration();
};

inline constexpr uint32_t kMostWeight = 1'000;
// Of a pool's hold warning and limit.
inline constexpr absl::Duration kLeastHold = absl::Seconds(1);

// What an operator changes of a pool; what is not set stays.
struct PoolChange {
  std::optional<uint64_t> cap;
  std::optional<uint64_t> tenant_cap;
  std::optional<absl::Duration> ageing;
  std::optional<absl::Duration> hold_warning;
  std::optional<absl::Duration> hold_limit;
  // By uid; 1 takes a weight away.
  std::map<uint32_t, uint32_t> weights = {};
};

// Which rows of a list: those whose key comes after `after`, at most `rows`, and no more once those taken name `parts`
// imports or processes.
struct PageRequest {
  uint64_t after = 0;
  uint64_t rows = UINT64_MAX;
  uint64_t parts = UINT64_MAX;
};

// ---- What is told -----------------------------------------------------------------------------------------

enum class MemoryKind { kHost = 1, kCudaVmm = 2, kCudaDirect = 3 };
enum class ReadOnly { kNo = 0, kEnforced = 1, kCooperative = 2 };
enum class SessionState { kActive = 1, kEnding = 2 };
enum class BlockState { kReserved = 1, kLive = 2, kRetired = 3, kQuarantined = 4 };
enum class DeviceState { kReady = 1, kRebuilding = 2, kStopped = 3, kDropped = 4, kIdle = 5 };

struct ByteCounts {
  Bytes live;
  Bytes retired;
  Bytes quarantined;
  Bytes warm;
  Bytes reserved;
  // The daemon's own.
  Bytes daemon;

  Bytes outstanding() const { return Bytes(live.count() + retired.count() + quarantined.count()); }
  // What counts against the budget.
  Bytes charged() const {
    return Bytes(outstanding().count() + warm.count() + reserved.count() + daemon.count());
  }
  friend bool operator==(const ByteCounts&, const ByteCounts&) = default;
};

// Rows of a list, in its order.
template <typename View>
struct Page : std::vector<View> {
  // The key of the last row, and whether there are rows after it.
  uint64_t last = 0;
  bool more = false;
};

struct PoolView {
  // As it is now.
  PoolConfig config;
  uint64_t out = 0;
  uint64_t holders = 0;
  uint64_t waiters = 0;
  uint64_t peak = 0;
  uint64_t granted_total = 0;
  uint64_t refused_total = 0;
  uint64_t revoked_total = 0;
  // Permits held past the warning.
  uint64_t overdue = 0;
  // The one permit that is out keeps the others out.
  bool exclusive = false;
  // For how long permits were held, the latest counting most; zero while none has come back.
  absl::Duration mean_hold;
};

// The device that a permit names.
struct PlacedDevice {
  uint32_t ordinal = 0;
  std::string uuid;
  MemoryKind kind = MemoryKind::kHost;
  // Of its memory, at the grant.
  uint64_t generation = 0;
};

struct PermitView {
  PermitId id;
  std::string pool;
  uint64_t units = 0;
  uint64_t depth = 0;
  SessionId session;
  std::string holder_key;
  std::string label;
  bool adoptable = false;
  bool exclusive = false;
  int32_t priority = 0;
  // Held past the pool's warning.
  bool overdue = false;
  std::optional<PlacedDevice> device;
  Bytes declared;
  absl::Time granted_at;
  absl::Duration waited;
  ProcessInfo process;
};

struct WaiterView {
  // Node-wide, never reused.
  uint64_t number = 0;
  std::string pool;
  uint64_t units = 0;
  uint64_t position = 0;
  SessionId session;
  std::string holder_key;
  std::string label;
  int32_t priority = 0;
  bool exclusive = false;
  DeviceWish device;
  absl::Time since;
  ProcessInfo process;
};

// What a waiter waits for, first of all.
enum class WaitCause {
  // Too few units are free.
  kUnits = 1,
  // What is free is kept for one that has been passed too often.
  kKeptForAnother = 2,
  // One permit is out that shuts all others out.
  kExclusiveOut = 3,
  // It wants the pool for itself, and others have permits.
  kOthersOut = 4,
  // Its tenant has all that a tenant may have.
  kTenantCap = 5,
  // More are out than its own environment allows.
  kClientCap = 6,
  // No device that it would take has the bytes free, or serves.
  kDevice = 7,
};

// Why somebody waits.
struct WaitView {
  WaiterView waiter;
  PoolView pool;
  WaitCause cause = WaitCause::kUnits;
  // Who has permits, oldest first, at most 8; of another tenant's only units and times.
  std::vector<PermitView> holders;
  // Units that its own tenant has out.
  uint64_t tenant_out = 0;
  // Units asked by those before it.
  uint64_t units_ahead = 0;
  // How often somebody was granted past it while it was the first.
  uint64_t passes = 0;
  // Until it is granted if permits are held as long as they were; infinite where none has come back yet.
  absl::Duration estimate = absl::InfiniteDuration();
};

struct SessionView {
  SessionId id;
  Tenant tenant;
  std::string label;
  SessionState state = SessionState::kActive;
  absl::Time opened_at;
  ProcessInfo opener;
  std::vector<ProcessInfo> processes;
  uint64_t permit_units = 0;
  uint64_t waiters = 0;
  Bytes live;
};

struct ImportView {
  ImportId id;
  SessionId session;
  ProcessInfo process;
  ReadOnly read_only = ReadOnly::kNo;
  absl::Time since;
  bool recalled = false;
};

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
  std::vector<ImportView> imports;
};

struct StreamView {
  // Rises with every stream opened.
  uint64_t number = 0;
  StreamKey stream;
  ProcessInfo process;
  uint32_t device = 0;
  // 0 is the device's default stream.
  uint32_t id = 0;
  absl::Time since;
  StreamWords words;
  // The last use that was finished: `words.done` comes to it.
  uint64_t last_value = 0;
  uint64_t open_uses = 0;
  // Of the oldest open use; InfiniteFuture for none.
  absl::Time open_since = absl::InfiniteFuture();
};

// What is known of whether a device's driver clears memory between one owner and the next: the numbers are the wire's.
struct ClearsCheck {
  enum class Outcome { kNotTried = 1, kClear = 2, kStale = 3 };
  Outcome outcome = Outcome::kNotTried;
  std::string detail;
};

struct DeviceView {
  uint32_t ordinal = 0;
  std::string uuid;
  std::string name;
  MemoryKind kind = MemoryKind::kHost;
  DeviceState state = DeviceState::kRebuilding;
  uint64_t generation = 0;
  Bytes total;
  Bytes budget;
  Bytes granularity;
  ByteCounts bytes;
  // Blocks that the worker could not release, ever. Those still there are among the retired bytes.
  uint64_t failed_releases = 0;
  // Ends of its worker that would still be followed by another one.
  uint32_t restarts_left = 0;
  // Why its last worker ended, or the device is out of service; empty if nothing ever happened.
  std::string last_failure;
  struct ContextWorker {
    DeviceState state = DeviceState::kIdle;
    uint64_t generation = 0;
    uint32_t restarts_left = 0;
    std::string last_failure;
  };
  // Where the device offers CUDA_IPC blocks.
  std::optional<ContextWorker> context;
  ClearsCheck clears;
};

// What the vault says of one of a device's workers beside whether it is there.
struct DeviceReport {
  // Of the memory that it makes.
  uint64_t generation = 1;
  // Gone from the node for good.
  bool dropped = false;
  // A worker is there that SIGKILL does not end.
  bool abandoned = false;
  uint32_t restarts_left = 0;
  std::string last_failure;
};

enum class Layer { kDevice = 1, kTenant = 2, kSession = 3 };

// "session".
constexpr absl::string_view LayerName(Layer layer) {
  return layer == Layer::kDevice ? "device" : layer == Layer::kTenant ? "tenant" : "session";
}

// One layer's account on one device.
struct BudgetView {
  Layer layer = Layer::kDevice;
  uint32_t device = 0;
  // Of a tenant's or a session's share.
  Tenant tenant;
  SessionId session;
  // Nothing: only the layers outside it bind.
  std::optional<Bytes> limit;
  ByteCounts bytes;
  // The most that was there or reserved at once.
  Bytes peak;
  uint64_t allocations = 0;
  uint64_t refusals = 0;
  uint64_t failed_releases = 0;
  // Of blocks that could not be released and are charged still, and of freed ones whose uses have not ended.
  Bytes stuck;
  Bytes busy;
};

struct ReservationView {
  struct Claim {
    uint32_t device = 0;
    // As granted, and what is left to draw.
    Bytes bytes;
    Bytes left;
  };
  ReservationId id;
  SessionId session;
  Tenant tenant;
  std::string label;
  absl::Time since;
  // InfiniteFuture for never.
  absl::Time expires;
  std::vector<Claim> claims;
};

struct UsageRow {
  uint32_t device = 0;
  Tenant tenant;
  SessionId session;
  std::string label;
  ByteCounts bytes;
};

struct UsageView {
  std::vector<DeviceView> devices;
  std::vector<UsageRow> rows;
};

// ---- What is answered -------------------------------------------------------------------------------------

struct AcquireResult {
  AcquisitionId acquisition;
  PermitId permit;
  bool nested = false;
  // Of the permit.
  std::optional<PlacedDevice> device;
  uint64_t epoch = 0;
};

struct ReleaseResult {
  bool returned = false;
};

struct AllocateResult {
  BlockView block;
  ImportId import;
  // Of a CUDA_IPC block.
  std::optional<IpcHandle> ipc_handle;
};

struct FreeResult {
  BlockState state = BlockState::kRetired;
};

struct GrantResult {};

struct PublishResult {
  BlockView block;
};

struct UnpublishResult {
  BlockState state = BlockState::kRetired;
};

struct ReserveResult {
  ReservationView reservation;
};

struct ReleaseReservationResult {};

struct ReapResult {
  // Failed releases that were tried again, and what came back of them.
  uint64_t tried = 0;
  Bytes tried_bytes;
  uint64_t back = 0;
  Bytes back_bytes;
};

struct ImportResult {
  BlockView block;
  ImportId import;
  ReadOnly read_only = ReadOnly::kNo;
  // Of a CUDA_IPC block.
  std::optional<IpcHandle> ipc_handle;
};

struct OpenStreamResult {
  StreamKey stream;
  uint32_t id = 0;
  // What the slot's values go on from.
  uint64_t last_value = 0;
  // Blocks that the process has imported and others share.
  std::vector<BlockId> shared;
};

struct CloseStreamResult {};

struct FinishUseResult {
  std::vector<BlockId> torn;
};

struct AbandonUseResult {};

enum class ForgetOutcome { kCancelled = 1, kUndone = 2, kRemembered = 3, kNothingToDo = 4 };

struct ForgetResult {
  ForgetOutcome outcome = ForgetOutcome::kNothingToDo;
};

using Response = std::variant<AcquireResult, ReleaseResult, AllocateResult, FreeResult, GrantResult,
                              ImportResult, PublishResult, UnpublishResult, ReserveResult,
                              ReleaseReservationResult, ReapResult, ForgetResult, OpenStreamResult,
                              CloseStreamResult, Prepared, FinishUseResult, AbandonUseResult>;

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_H_
