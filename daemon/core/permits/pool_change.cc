#include "daemon/core/permits/pool_change.h"

#include <map>
#include <optional>
#include <string>
#include <utility>

#include <berth/error.h>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "common/device_name.h"
#include "common/status_macros.h"

namespace berth::core {
namespace {

// Returns the UUID of the named device. Errors: as ResolveDevices().
absl::StatusOr<std::string> UuidOf(const Placement& placement, const std::string& name) {
  const absl::StatusOr<uint32_t> device = placement.Find(name);
  if (absl::IsNotFound(device.status())) {
    return Refuse(Reason::kNotFound,
                  "no {kind} {id}: this node has {devices}; nothing is changed; name a device by its ordinal, its UUID "
                  "or a unique prefix",
                  {{"kind", "device"},
                   {"id", NamedValueOf(device.status(), "id").value_or("")},
                   {"devices", NamedValueOf(device.status(), "devices").value_or("")}});
  }
  BERTH_RETURN_IF_ERROR(device.status());
  std::string uuid = placement.Describe(*device).uuid;
  if (!absl::StartsWith(uuid, kUnidentifiedDevice)) return uuid;
  return Refuse(Reason::kInvalidField, "{field} {value} is {limit}: set its cap once `berth devices` shows its UUID",
                {{"field", "device"}, {"value", name}, {"limit", "a device that the driver has not identified"}});
}

}  // namespace

absl::Status ResolveDevices(const Placement& placement, const PoolConfig& config, PoolChange* change) {
  std::map<std::string, std::optional<uint64_t>> resolved;
  for (const auto& [name, cap] : change->device_caps) {
    absl::StatusOr<std::string> uuid = UuidOf(placement, name);
    const bool removes_own = !cap.has_value() && config.device_caps.contains(name);
    if (removes_own || (!uuid.ok() && (change->configured || change->stored))) uuid = name;
    BERTH_RETURN_IF_ERROR(uuid.status());
    if (!resolved.emplace(*uuid, cap).second) {
      return Refuse(Reason::kInvalidField, "{field}: {value} is named twice; expected {limit}",
                    {{"field", "device_caps"}, {"value", *uuid}, {"limit", "one cap for each device"}});
    }
  }
  change->device_caps = std::move(resolved);
  return absl::OkStatus();
}

absl::Status CheckChange(const PoolChange& change) {
  if (change.cap == 0u) {
    return Refuse(Reason::kInvalidField, "{field} is {value}, the least is {limit}",
                  {{"field", "cap"}, {"value", 0}, {"limit", 1}});
  }
  for (const auto& [uid, weight] : change.weights) {
    if (weight >= 1 && weight <= kMostWeight) continue;
    return Refuse(Reason::kInvalidField, "{field} of uid {uid} is {value}, expected 1 to {limit}",
                  {{"field", "weight"}, {"uid", uid}, {"value", weight}, {"limit", kMostWeight}});
  }
  const std::pair<const char*, std::optional<absl::Duration>> holds[] = {
      {"hold_warning", change.hold_warning},
      {"hold_limit", change.hold_limit},
      {"idle_warning", change.idle_warning}};
  for (const auto& [field, hold] : holds) {
    if (!hold.has_value() || *hold >= kLeastHold) continue;
    return Refuse(Reason::kInvalidField, "{field} is {value}, the least is {limit}",
                  {{"field", field},
                   {"value", absl::FormatDuration(*hold)},
                   {"limit", absl::FormatDuration(kLeastHold)}});
  }
  return absl::OkStatus();
}

void ApplyChange(const PoolChange& change, PoolConfig* config) {
  config->cap = change.cap.value_or(config->cap);
  config->tenant_cap = change.tenant_cap.value_or(config->tenant_cap);
  config->ageing = change.ageing.value_or(config->ageing);
  config->hold_warning = change.hold_warning.value_or(config->hold_warning);
  config->hold_limit = change.hold_limit.value_or(config->hold_limit);
  for (const auto& [uid, weight] : change.weights) {
    config->weights.erase(uid);
    if (weight != 1) config->weights.emplace(uid, weight);
  }
  config->device_cap = change.device_cap.value_or(config->device_cap);
  config->no_device_cap = change.no_device_cap.value_or(config->no_device_cap);
  config->idle_warning = change.idle_warning.value_or(config->idle_warning);
  for (const auto& [uuid, cap] : change.device_caps) {
    config->device_caps.erase(uuid);
    if (cap.has_value()) config->device_caps.emplace(uuid, *cap);
  }
}

bool IsEmpty(const PoolChange& change) {
  return !change.cap.has_value() && !change.tenant_cap.has_value() && !change.ageing.has_value() &&
         !change.hold_warning.has_value() && !change.hold_limit.has_value() && change.weights.empty() &&
         !change.device_cap.has_value() && change.device_caps.empty() && !change.idle_warning.has_value() &&
         !change.no_device_cap.has_value();
}

PoolChange Difference(const PoolConfig& from, const PoolConfig& to) {
  PoolChange change;
  if (from.cap != to.cap) change.cap = to.cap;
  if (from.tenant_cap != to.tenant_cap) change.tenant_cap = to.tenant_cap;
  if (from.ageing != to.ageing) change.ageing = to.ageing;
  if (from.hold_warning != to.hold_warning) change.hold_warning = to.hold_warning;
  if (from.hold_limit != to.hold_limit) change.hold_limit = to.hold_limit;
  if (from.idle_warning != to.idle_warning) change.idle_warning = to.idle_warning;
  if (from.no_device_cap != to.no_device_cap) change.no_device_cap = to.no_device_cap;
  if (from.device_cap != to.device_cap) change.device_cap = to.device_cap;
  for (const auto& [uid, weight] : from.weights) change.weights[uid] = 1;
  for (const auto& [uid, weight] : to.weights) change.weights[uid] = weight;
  if (from.weights == to.weights) change.weights.clear();
  for (const auto& [uuid, cap] : from.device_caps) change.device_caps[uuid] = std::nullopt;
  for (const auto& [uuid, cap] : to.device_caps) change.device_caps[uuid] = cap;
  if (from.device_caps == to.device_caps) change.device_caps.clear();
  return change;
}

}  // namespace berth::core
