// Gangs: several permits, and perhaps reserved bytes, all or nothing, in one step. Plain values.

#ifndef DAEMON_CORE_TYPES_GANG_TYPES_H_
#define DAEMON_CORE_TYPES_GANG_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/types/budget_types.h"
#include "daemon/core/types/permit_types.h"
#include "daemon/core/types/request_traits.h"

namespace berth::core {

struct GangMember {
  std::string pool;
  uint64_t units = 1;
  uint64_t client_cap = 0;
  // Members that ask for any device or the best device get different devices.
  DeviceConstraint device;
};

template <typename Archive>
void Fields(Archive& archive, GangMember& value) {
  archive(value.pool, value.units, value.client_cap, value.device);
}
void Payload(auto& add, const GangMember& member) {
  add(member.pool, member.units, member.client_cap, member.device);
}

struct GangRequest {
  // 1 to kMaxGangMembers.
  std::vector<GangMember> members;
  // Bytes to reserve per device, as in ReserveRequest.
  std::vector<ReserveItem> reserve;
  absl::Duration reserve_for = absl::InfiniteDuration();
  // The rest as in AcquireRequest.
  std::string holder_key;
  std::string label;
  bool wait = true;
  absl::Time deadline = absl::InfiniteFuture();
  bool adoptable = false;
  bool independent = false;
  int32_t priority = 0;
  bool exclusive = false;
};

template <typename Archive>
void Fields(Archive& archive, GangRequest& value) {
  archive(value.members, value.reserve, value.reserve_for, value.holder_key, value.label, value.wait,
          value.deadline, value.adoptable, value.independent, value.priority, value.exclusive);
}
void Payload(auto& add, const GangRequest& request) {
  add(request.members.size(), request.members, request.reserve, request.reserve_for, request.holder_key,
      request.label, request.wait, request.adoptable, request.independent, request.priority, request.exclusive);
}

inline constexpr size_t kMaxGangMembers = 64;

struct GangResult {
  static constexpr size_t kResponseIndex = 17;

  // In the order of the members.
  std::vector<AcquireResult> permits;
  std::optional<ReservationView> reservation;
};

template <typename Archive>
void Fields(Archive& archive, GangResult& value) {
  archive(value.permits, value.reservation);
}
bool Undo(const UndoStep& undo, const GangResult& result);

// ---- Kinds of requests (request_traits.h) ----------------------------------------------------------------

template <>
struct RequestTraits<GangRequest> {
  using Result = GangResult;
  static constexpr uint64_t kKind = 16;
};

using GangResults = ResultList<GangResult>;

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_GANG_TYPES_H_
