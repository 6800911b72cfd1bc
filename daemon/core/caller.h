// Who calls, who is charged for it, and how a request is named.

#ifndef DAEMON_CORE_CALLER_H_
#define DAEMON_CORE_CALLER_H_

#include <compare>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/session_capsule.h"

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
template <typename Archive>
void Fields(Archive& archive, Tenant& value) {
  archive(value.uid, value.container);
}

// A process as the kernel described it when it connected. For display: nothing is decided by a pid.
struct ProcessInfo {
  int32_t pid = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::string name;
};
template <typename Archive>
void Fields(Archive& archive, ProcessInfo& value) {
  archive(value.pid, value.uid, value.gid, value.name);
}

// Who calls: what the caller says of itself (proved by the secret) and what the kernel says of its
// connection.
struct Caller {
  Credentials credentials;
  Tenant tenant;
  // The connection came in on admin.sock.
  bool admin = false;
  // It came in on observer.sock: it may look at everything, has no session, and may ask for nothing else.
  bool observer = false;

  // Whether other tenants' are shown to it.
  bool sees_all() const { return admin || observer; }
};

// Names a mutating request on its channel; see berth.v1.RequestTag.
struct RequestTag {
  uint64_t sequence = 0;
  uint64_t answered_below = 0;
  std::vector<uint64_t> open = {};
};

}  // namespace berth::core

#endif  // DAEMON_CORE_CALLER_H_
