// The caller of a request, the account it is charged to, and the tag that names the request.

#ifndef DAEMON_CORE_TYPES_CALLER_H_
#define DAEMON_CORE_TYPES_CALLER_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/wire/session_credentials.h"

namespace berth::core {

// The account that usage counts to: quotas, shares, weights, budgets, rates. A user cannot create a second account
// (docs/design/0033): its user namespaces, delegated cgroups and subordinate uids all have the user's own.
struct Account {
  uint32_t uid = 0;
  // A container that root made; empty outside containers.
  std::string container = {};

  friend auto operator<=>(const Account&, const Account&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const Account& account) {
    return H::combine(std::move(state), account.uid, account.container);
  }
};
template <typename Archive>
void Fields(Archive& archive, Account& value) {
  archive(value.uid, value.container);
}

// The owner of sessions, blocks and names: a user, inside a container or outside any. Other tenants cannot see or use
// what the tenant owns.
struct Tenant {
  uint32_t uid = 0;
  std::string container = {};
  // Empty where it is {uid, container}. Not part of the tenant's identity.
  std::optional<Account> charged_account = {};

  Account account() const { return charged_account.value_or(Account{.uid = uid, .container = container}); }
  // Usage counters are keyed by account and accept a tenant in place of its account.
  operator Account() const { return account(); }  // NOLINT(google-explicit-constructor)

  friend bool operator==(const Tenant& a, const Tenant& b) { return a.uid == b.uid && a.container == b.container; }
  friend auto operator<=>(const Tenant& a, const Tenant& b) {
    return std::tie(a.uid, a.container) <=> std::tie(b.uid, b.container);
  }
  template <typename H>
  friend H AbslHashValue(H state, const Tenant& tenant) {
    return H::combine(std::move(state), tenant.uid, tenant.container);
  }
};
// Returns the user for per-user limits and for shares of common limits (user_share.h), whatever its tenants.
inline uint32_t UserOf(const Tenant& tenant) {
  return tenant.charged_account.has_value() ? tenant.charged_account->uid : tenant.uid;
}
// Returns the tenant that shows an account, and by which an operator names it.
inline Tenant TenantNamedAs(const Account& account) { return {.uid = account.uid, .container = account.container}; }
template <typename Archive>
void Fields(Archive& archive, Tenant& value) {
  archive(value.uid, value.container);
  archive.Since(3, value.charged_account);
}
void Payload(auto& add, const Tenant& tenant) { add(tenant.uid, tenant.container); }

// A process as the kernel described it when it connected. For display: no decision depends on a pid.
struct ProcessInfo {
  int32_t pid = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::string name;
  // Start time (common/os/process_start.h); 0 if unknown. With the pid it identifies the process again after its pidfd
  // was lost.
  uint64_t start_ticks = 0;
};
template <typename Archive>
void Fields(Archive& archive, ProcessInfo& value) {
  archive(value.pid, value.uid, value.gid, value.name);
  archive.Since(3, value.start_ticks);
}

// The caller: the credentials it presents (proved by the secret) and what the kernel reports of its connection.
struct Caller {
  Credentials credentials;
  Tenant tenant;
  // The connection came in on admin.sock.
  bool admin = false;
  // The connection came in on observer.sock: it sees everything, has no session, and may make no other request.
  bool observer = false;

  // Whether the caller sees other tenants' objects.
  bool sees_all() const { return admin || observer; }
};

// Names a mutating request on its channel; see berth.v1.RequestTag.
struct RequestTag {
  uint64_t sequence = 0;
  uint64_t answered_below = 0;
  std::vector<uint64_t> open = {};
  // The process takes grants up (common/wire/take_up.h), and sends the request again after PROCESS_STOPPED.
  bool takes_up = false;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_CALLER_H_
