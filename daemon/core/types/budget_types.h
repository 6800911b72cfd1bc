// Budgets, reservations and usage: requests, results and views. Plain values.

#ifndef DAEMON_CORE_TYPES_BUDGET_TYPES_H_
#define DAEMON_CORE_TYPES_BUDGET_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/device_types.h"
#include "daemon/core/types/request_traits.h"

namespace berth::core {

// Bytes on one device.
struct ReserveItem {
  uint32_t device = 0;
  std::string device_uuid;
  Bytes bytes;
};

template <typename Archive>
void Fields(Archive& archive, ReserveItem& value) {
  archive(value.device, value.device_uuid, value.bytes);
}
void Payload(auto& add, const ReserveItem& item) { add(item.device, item.device_uuid, item.bytes); }

struct ReserveRequest {
  // Granted together or not at all; items of one device add up.
  std::vector<ReserveItem> items;
  std::string label;
  // Lifetime of the part that is not drawn.
  absl::Duration ttl = absl::InfiniteDuration();
};
void Payload(auto& add, const ReserveRequest& request) { add(request.items, request.label, request.ttl); }

// Budget owner: an account, a session, or monostate for the device itself.
using BudgetOwner = std::variant<std::monostate, Account, SessionId>;

// Sets the limit of one layer; on every device where `device` is empty.
struct SetBudgetRequest {
  std::optional<uint32_t> device;
  BudgetOwner of;
  // Empty: the configured default. A device always has a limit.
  std::optional<Bytes> limit;
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
  // Set for a tenant's or a session's share.
  Tenant tenant;
  SessionId session;
  // Empty: only the outer layers limit.
  std::optional<Bytes> limit;
  ByteCounts bytes;
  // Most bytes ever allocated or reserved at once.
  Bytes peak;
  uint64_t allocations = 0;
  uint64_t refusals = 0;
  uint64_t failed_releases = 0;
  // `stuck`: bytes of blocks that could not be released and stay charged. `busy`: bytes of freed blocks with open uses.
  Bytes stuck;
  Bytes busy;
};

struct ReservationView {
  struct Claim {
    uint32_t device = 0;
    // `bytes` as granted; `left` to draw.
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
template <typename Archive>
void Fields(Archive& archive, ReservationView::Claim& value) {
  archive(value.device, value.bytes, value.left);
}
template <typename Archive>
void Fields(Archive& archive, ReservationView& value) {
  archive(value.id, value.session, value.tenant, value.label, value.since, value.expires, value.claims);
}

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

struct ReserveResult {
  static constexpr size_t kResponseIndex = 8;

  ReservationView reservation;
};
template <typename Archive>
void Fields(Archive& archive, ReserveResult& value) {
  archive(value.reservation);
}
bool Undo(const UndoStep& undo, const ReserveResult& result);

struct ReleaseReservationResult {
  static constexpr size_t kResponseIndex = 9;
};
template <typename Archive>
void Fields(Archive&, ReleaseReservationResult&) {}
inline bool Undo(const UndoStep&, const ReleaseReservationResult&) { return false; }

// ---- Kinds of requests (request_traits.h) ----------------------------------------------------------------

template <>
struct RequestTraits<ReserveRequest> {
  using Result = ReserveResult;
  static constexpr uint64_t kKind = 12;
};
// Releases the reservation.
template <>
struct RequestTraits<ReservationId> {
  using Result = ReleaseReservationResult;
  static constexpr uint64_t kKind = 13;
};

using BudgetResults = ResultList<ReserveResult, ReleaseReservationResult>;

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_BUDGET_TYPES_H_
