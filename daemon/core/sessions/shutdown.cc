#include "daemon/core/sessions/shutdown.h"

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/status/status.h"
#include "daemon/core/managers.h"

namespace berth::core {

OutCounts Shutdown::CountOut() const {
  OutCounts out;
  std::set<SessionId> owners;
  core_.blocks.table().ForEach([&](const Block& block) {
    if (block.phase != BlockPhase::kLive) return;
    if (block.owner) owners.insert(block.owner);
    ++out.blocks;
    out.bytes = Bytes(out.bytes.count() + block.bytes.count());
  });
  core_.sessions.table().ForEachAfter(0, [&](const Session& session) {
    uint64_t units = 0;
    for (const auto& [name, pool] : core_.permits.pools()) {
      units += pool.UnitsOf(session.id);
      out.waiters += pool.WaitersOf(session.id);
    }
    out.units += units;
    out.sessions += units > 0 || owners.contains(session.id) ? 1 : 0;
    return true;
  });
  return out;
}

void Shutdown::DrainToStop(StepContext& step, CallId call, const Caller& caller, absl::Time deadline) {
  absl::Status may = core_.sessions.Authenticate(caller).status();
  if (may.ok() && !caller.admin) {
    may = Refuse(Reason::kAdminOnly, "{verb} needs admin.sock, which accepts operators only", {{"verb", "StopNode"}});
  }
  if (!may.ok()) return core_.requests.Reply(step, call, may);
  drain_.calls.emplace(call, deadline);
  core_.permits.SetPaused(step, true);
}

bool Shutdown::CancelDrain(StepContext& step, CallId call) {
  if (drain_.calls.erase(call) == 0) return false;
  core_.requests.Reply(step, call, Refuse(Reason::kCancelled, "the call was cancelled"));
  if (drain_.calls.empty() && !drain_.done) core_.permits.SetPaused(step, false);
  return true;
}

void Shutdown::AnswerDrains(StepContext& step) {
  if (drain_.calls.empty()) return;
  bool empty = true;
  for (const auto& [name, pool] : core_.permits.pools()) empty = empty && !pool.HasPermits();
  core_.blocks.table().ForEach(
      [&](const Block& block) { empty = empty && !(block.phase == BlockPhase::kLive && block.owner); });
  for (auto it = drain_.calls.begin(); it != drain_.calls.end();) {
    if (!empty && step.now < it->second) {
      ++it;
      continue;
    }
    drain_.done = true;
    core_.requests.Reply(step, it->first, Response(DrainResult{.out = CountOut()}));
    it = drain_.calls.erase(it);
  }
}

void Shutdown::ShutDown(StepContext& step) {
  shutting_down_ = true;
  std::vector<RequestId> requests;
  core_.sessions.table().ForEachChannel([&](const Channel& channel) {
    for (const RequestId& request : core_.requests.PendingOf(channel)) requests.push_back(request);
  });
  const absl::Status stopping = Refuse(Reason::kShuttingDown, "the daemon is stopping");
  core_.requests.Dismiss(step, requests, stopping);
  core_.workers.CancelReaps(step, stopping);
  for (const auto& [call, deadline] : std::exchange(drain_.calls, {})) core_.requests.Reply(step, call, stopping);
}

}  // namespace berth::core
