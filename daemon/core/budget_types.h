// Budgets, reservations and usage: what is asked, what is told and what is answered. Plain values.

#ifndef DAEMON_CORE_BUDGET_TYPES_H_
#define DAEMON_CORE_BUDGET_TYPES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/ids.h"
#include "daemon/core/caller.h"
#include "daemon/core/device_types.h"

namespace berth::core {

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

// Whose share of a device; the device's own budget for nobody's.
using BudgetOwner = std::variant<std::monostate, Tenant, SessionId>;

// Sets the limit of one layer. Where no device is named, on every device.
struct SetBudgetRequest {
  std::optional<uint32_t> device;
  BudgetOwner of;
  // Nothing: the configured default. A device always has a limit.
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
  ReservationView reservation;
};
template <typename Archive>
void Fields(Archive& archive, ReserveResult& value) {
  archive(value.reservation);
}

struct ReleaseReservationResult {};
template <typename Archive>
void Fields(Archive&, ReleaseReservationResult&) {}

}  // namespace berth::core

#endif  // DAEMON_CORE_BUDGET_TYPES_H_
