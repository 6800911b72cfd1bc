#include "daemon/service/limits/client_limits.h"

#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/broker/event_loop.h"

namespace berth::service {

ClientLimits::ClientLimits(ConnectionTable* connections, AuditLog* audit, const AcceptRates& accepts)
    : connections_(*connections),
      audit_(*audit),
      accept_gate_(accepts),
      read_gate_([this](int fd, const FrameCost& cost) { return Charge(fd, cost); }) {}

bool ClientLimits::Charge(int fd, const FrameCost& cost) {
  const absl::Time now = EventLoop::SteadyNow();
  const std::optional<EndedConnection> ended = connections_.Charge(fd, cost, now);
  if (!ended.has_value()) return true;
  const core::ProcessInfo& process = ended->peer->process;
  accept_gate_.Punish(UserOf(*ended->peer), now);
  const std::string limit = absl::StrCat(std::llround(ended->limit.burst), " ", ended->what, " at once and ",
                                         std::llround(ended->limit.per_second), " a second");
  const absl::string_view whose = ended->of_uid ? "uid" : "connection";
  log_.Warn(absl::StrCat("connection of pid ", process.pid, " (", process.name, ", uid ", process.uid,
                         ") closed: the traffic of its ", whose, " exceeded ", limit));
  audit_.Append({.what = "end_connection",
                 .facts = {{"of", std::string(whose)}, {"limit", limit}},
                 .caller = {.tenant = ended->peer->tenant},
                 .who = std::make_shared<const AuditWho>(AuditWho{.process = process})});
  return false;
}

}  // namespace berth::service
