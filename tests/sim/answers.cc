// Answers to clients: identical for a repeat, and their effects on the simulated world.

#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include <berth/error.h>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/simulation.h"

namespace berth::core {
namespace {

// The parts of an answer that a repeat must reproduce.
std::string Gist(const absl::StatusOr<Response>& response) {
  if (!response.ok()) {
    return absl::StrCat(absl::StatusCodeToString(response.status().code()), ": ", response.status().message());
  }
  if (const auto* acquired = std::get_if<AcquireResult>(&*response)) {
    return absl::StrCat("acquired ", acquired->acquisition.value(), " of ", acquired->permit.value());
  }
  if (const auto* gang = std::get_if<GangResult>(&*response)) {
    std::string gist = "acquired together";
    for (const AcquireResult& permit : gang->permits) absl::StrAppend(&gist, " ", permit.acquisition.value());
    return gang->reservation.has_value() ? absl::StrCat(gist, " reserved ", gang->reservation->id.value())
                                         : gist;
  }
  if (const auto* allocated = std::get_if<AllocateResult>(&*response)) {
    return absl::StrCat("allocated ", allocated->block.handle.block.value(), " as ",
                        allocated->import.value());
  }
  if (const auto* imported = std::get_if<ImportResult>(&*response)) {
    return absl::StrCat("imported ", imported->import.value());
  }
  if (const auto* prepared = std::get_if<Prepared>(&*response)) {
    return absl::StrCat("prepared ", prepared->use.value());
  }
  if (const auto* planned = std::get_if<PlanResult>(&*response)) {
    return absl::StrCat("planned ", planned->layout->id.value(), " revision ", planned->layout->revision);
  }
  if (const auto* reserved = std::get_if<ReserveResult>(&*response)) {
    return absl::StrCat("reserved ", reserved->reservation.id.value());
  }
  if (const auto* module = std::get_if<ObtainModuleResult>(&*response)) {
    return absl::StrCat("module ", module->module.value(), " compile ", module->compile.value());
  }
  return absl::StrCat("answer ", response->index());
}

std::string NameOf(const absl::Status& status) {
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  if (!details.has_value()) return status.ToString();
  return details->reason == Reason::kLimit ? details->metadata.at("what")
                                           : std::string(ReasonName(details->reason));
}

// Refusals of the call rather than answers to the request.
bool IsAboutTheCall(const absl::Status& status) {
  for (const Reason reason : {Reason::kCancelled, Reason::kBadCredentials, Reason::kSessionEnded,
                              Reason::kNotJoined, Reason::kRequestReused, Reason::kRequestForgotten,
                              Reason::kProcessStopped}) {
    if (IsRefusal(status, reason)) return true;
  }
  if (absl::IsUnavailable(status)) return true;
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  return details.has_value() && details->reason == Reason::kLimit &&
         details->metadata.at("what") == "answers_per_channel";
}

// Whether the response is about blocks, pages or modules.
bool IsOfMemory(const Response& response) {
  return !std::holds_alternative<AcquireResult>(response) && !std::holds_alternative<GangResult>(response) &&
         !std::holds_alternative<ReleaseResult>(response) && !std::holds_alternative<PlanResult>(response) &&
         !std::holds_alternative<ReleasePlanResult>(response) && !std::holds_alternative<ReserveResult>(response);
}

// Whether the response grants permits, which a process takes up.
bool IsOfUnits(const Response& response) {
  return std::holds_alternative<AcquireResult>(response) || std::holds_alternative<GangResult>(response) ||
         std::holds_alternative<PlanResult>(response);
}

}  // namespace

void Simulation::ApplyReply(const Reply& reply) {
  if (reaps_.erase(reply.call) > 0) return;
  const auto found = calls_.find(reply.call);
  if (found == calls_.end()) return Fail("a call is answered twice");
  const Call call = found->second;
  calls_.erase(found);
  if (!reply.response.ok()) ++counts_.refusals[NameOf(reply.response.status())];
  Remember(call, reply, /*lost=*/Chance(8));
}

void Simulation::Remember(const Call& call, const Reply& reply, bool lost) {
  const auto living = processes_.find(call.channel);
  const auto ghost = ghosts_.find(call.channel);
  const bool lives = living != processes_.end();
  if (!lives && ghost == ghosts_.end()) return;
  Process& process = lives ? living->second : ghost->second;
  // The calls of a dead process are cancelled one by one. Its later requests may be granted the permits that its
  // earlier ones waited for. No process receives these answers, but the permits are out until an operator acts.
  lost = lost || !lives;
  Request& request = process.requests[call.sequence];
  const bool ok = reply.response.ok();
  if (call.forget) {
    if (!ok) return;
    const ForgetOutcome outcome = std::get<ForgetResult>(*reply.response).outcome;
    if (outcome == ForgetOutcome::kUndone) ++counts_.undone;
    if (outcome == ForgetOutcome::kUndone && request.first.has_value() && request.first->ok()) {
      if (const auto* acquired = std::get_if<AcquireResult>(&**request.first)) {
        if (permits_.contains(acquired->permit))
          permits_.at(acquired->permit).second.erase(acquired->acquisition);
      } else if (const auto* gang = std::get_if<GangResult>(&**request.first)) {
        for (const AcquireResult& permit : gang->permits) {
          if (permits_.contains(permit.permit)) permits_.at(permit.permit).second.erase(permit.acquisition);
        }
      } else if (const auto* planned = std::get_if<PlanResult>(&**request.first)) {
        // A repeated Forget has the same outcome: only the first one ends the plan.
        if (!request.forgotten) ForgetPlan(planned->layout->id);
      }
    }
    if (outcome == ForgetOutcome::kUndone) CheckUndone(request);
    request.forgotten = true;
    request.settled = request.settled || !lost;
    // A withdrawn grant is settled with the next check.
    if (options_.pauses && !take_up_[call.channel].IsWithdrawn(call.sequence)) {
      offers_.erase({call.channel, call.sequence});
    }
    return;
  }
  if (call.reused) {
    if (ok) Fail("a request with another payload is granted");
    return;
  }
  if (IsRefusal(reply.response.status(), Reason::kProcessStopped)) {
    if (!options_.pauses) Fail("a process is said to be stopped that never stops");
    ++counts_.skipped;
    again_.emplace_back(call.channel, call.sequence);
  }
  if (!ok && IsAboutTheCall(reply.response.status())) return;
  if (request.forgotten) return Fail("a forgotten request is answered");
  // The process sent it again because it found the grant withdrawn, or because it never got the answer. The daemon may
  // have withdrawn what was not taken up, and granted it anew.
  if (const auto offer = offers_.find({call.channel, call.sequence}); offer != offers_.end()) {
    const bool anew = request.first.has_value() && Gist(*request.first) != Gist(reply.response);
    if (anew) {
      Unlearn(offer->second.grant);
      request.first.reset();
    }
    if (anew || offer->second.refused || late_) offers_.erase(offer);
  }
  if (request.first.has_value()) {
    ++counts_.replayed;
    if (Gist(*request.first) != Gist(reply.response)) {
      Fail(absl::StrCat("a repeat is answered otherwise: ", Gist(*request.first), ", then ",
                        Gist(reply.response)));
    }
  } else {
    const auto* const asked = std::get_if<AcquireRequest>(&request.payload);
    const auto* const gang = std::get_if<GangRequest>(&request.payload);
    const auto* const wanted = std::get_if<AllocateRequest>(&request.payload);
    const auto* const planned = std::get_if<PlanRequest>(&request.payload);
    const auto* const module = std::get_if<ObtainModuleRequest>(&request.payload);
    // A decision from before the last attempt used the earlier attempt's deadline. So does a request that was set
    // aside meanwhile.
    const absl::Time earlier = late_ || options_.pauses ? request.earlier_deadline : absl::InfiniteFuture();
    const absl::Time deadline = asked != nullptr     ? std::min(asked->deadline, earlier)
                                : gang != nullptr    ? gang->deadline
                                : wanted != nullptr  ? wanted->deadline
                                : planned != nullptr ? planned->deadline
                                : module != nullptr  ? module->deadline
                                                     : absl::InfiniteFuture();
    if (IsRefusal(reply.response.status(), Reason::kWaitTimedOut) && deadline > now_) {
      Fail("a wait ends before its deadline");
    }
    request.first = reply.response;
    // The memory in that answer, or the page that it was about, no longer exists.
    if (ok && (request.of_earlier || !lives) && IsOfMemory(*reply.response)) return;
    if (ok) CheckPlaced(request, *reply.response);
    if (ok) Learn(call.channel, process, request, reply.response);
  }
  if (options_.pauses && ok && IsOfUnits(*reply.response)) {
    RecordOffer(call.channel, call.sequence, *reply.response);
    return lost ? void() : ReceiveGrant(call.channel, process, call.sequence);
  }
  if (!lost) Receive(call.channel, process, request, reply.response);
}

void Simulation::Receive(ChannelId channel, Process& process, Request& request,
                         const absl::StatusOr<Response>& response) {
  const bool fresh = !std::exchange(request.settled, true);
  if (!response.ok()) return;
  Client& client = clients_.at(process.session);
  if (const auto* acquired = std::get_if<AcquireResult>(&*response); acquired != nullptr && acquired->cached) {
    if (fresh) LearnCached(channel, process, *acquired);
  } else if (acquired != nullptr) {
    client.acquisitions.push_back(acquired->acquisition);
  } else if (const auto* gang = std::get_if<GangResult>(&*response)) {
    for (const AcquireResult& permit : gang->permits) client.acquisitions.push_back(permit.acquisition);
    if (gang->reservation.has_value()) client.reservations.push_back(gang->reservation->id);
  } else if (const auto* allocated = std::get_if<AllocateResult>(&*response)) {
    client.blocks.push_back(allocated->block.handle);
    counts_.drawn += std::get<AllocateRequest>(request.payload).reservation ? 1 : 0;
    handles_.push_back(allocated->block.handle);
    if (handles_.size() > 64) handles_.erase(handles_.begin());
  } else if (const auto* reserved = std::get_if<ReserveResult>(&*response)) {
    client.reservations.push_back(reserved->reservation.id);
  } else if (const auto* planned = std::get_if<PlanResult>(&*response)) {
    client.plans.push_back(planned->layout->id);
    // Some clients release a part of it separately, or draw on it.
    for (const PlanDevice& device : planned->layout->devices) {
      if (device.permit && Chance(5)) client.acquisitions.push_back(device.acquisition);
    }
    if (planned->layout->reservation && Chance(60))
      client.reservations.push_back(planned->layout->reservation);
  }
}

void Simulation::LearnGang(const Process& process, const GangRequest& asked, const GangResult& gang) {
  ++counts_.gangs;
  if (gang.permits.size() != asked.members.size()) Fail("a gang is granted in part");
  if (gang.reservation.has_value() != !asked.reserve.empty()) Fail("a gang is granted without its bytes");
  std::set<uint32_t> own;
  for (size_t i = 0; i < gang.permits.size(); ++i) {
    const AcquireResult& permit = gang.permits[i];
    if (permit.nested) Fail("a gang nests");
    const DevicePick pick = asked.members[i].device.pick;
    if (pick != DevicePick::kNone && !permit.device.has_value()) Fail("a gang lacks a device");
    const bool chosen = pick == DevicePick::kAny || pick == DevicePick::kBest;
    if (chosen && !own.insert(permit.device->ordinal).second) Fail("a gang has one device twice");
    auto& [session, acquisitions] = permits_[permit.permit];
    if (!acquisitions.empty()) Fail("a gang's permit was out already");
    session = process.session;
    acquisitions.insert(permit.acquisition);
  }
}

void Simulation::CheckUndone(const Request& request) {
  if (!request.first.has_value() || !request.first->ok()) return;
  const auto* const allocated = std::get_if<AllocateResult>(&**request.first);
  if (allocated == nullptr) return;
  for (const BlockView& block : core_->ListBlocks(Admin())) {
    if (block.handle == allocated->block.handle && block.state == BlockState::kLive) {
      Fail("a forgotten block lives on");
    }
  }
}

// Checks the first answer's effects on the world, whether or not the client receives it.
void Simulation::CheckPlaced(const Request& request, const Response& response) {
  if (const auto* const permit = std::get_if<AcquireResult>(&response)) {
    const bool placed = permit->device.has_value() && !permit->nested;
    if (placed && drained_.contains(permit->device->ordinal)) Fail("a permit names a device that is drained");
    const auto* const asked = std::get_if<AcquireRequest>(&request.payload);
    if (asked != nullptr && !permit->nested && !permit->device.has_value()) {
      const PoolView pool = *core_->GetPool(asked->pool);
      const uint64_t most = pool.config.no_device_cap == 0 ? pool.out : pool.config.no_device_cap;
      if (pool.out_without_device > most) Fail("a permit without a device is granted over the cap of such");
    }
    if (placed && asked->device.min_capability > 0 && permit->device->ordinal == 0) {
      Fail("a permit names a device that is not what was asked");
    }
    const auto is_it = [&](const std::string& name) {
      return name == permit->device->uuid || name == absl::StrCat(permit->device->ordinal);
    };
    if (placed && !asked->device.among.empty() && !absl::c_any_of(asked->device.among, is_it)) {
      Fail("a permit names a device that is not among those that were asked");
    }
  }
  const auto* const wanted = std::get_if<AllocateRequest>(&request.payload);
  const auto* const block = std::get_if<AllocateResult>(&response);
  if (wanted == nullptr || block == nullptr || wanted->constraint.pick == DevicePick::kNone) return;
  ++counts_.picked;
  if (wanted->constraint.min_capability > 0 && block->block.device == 0) {
    Fail("a block is on a device that is not what was asked");
  }
}

void Simulation::CheckMemory(const BlockView& block) {
  const Worker& worker = workers_[{block.device, WorkerKindOf(block.export_kind)}];
  const auto memory = worker.made.find(block.handle.block);
  const bool over =
      WorkerKindOf(block.export_kind) == WorkerKind::kContext && block.handle.generation < worker.generation;
  // The core may have decided before it was notified that the worker, and the memory with it, is lost.
  if (memory == worker.made.end() && over) return;
  if (memory == worker.made.end()) return Fail("memory is given out that is not there");
  if (memory->second.generation != block.handle.generation) Fail("lost memory is given out as if it were there");
}

void Simulation::LearnReleased(SessionId session, AcquisitionId acquisition, const ReleaseResult& released) {
  // Idle cached permits may have been taken back with it, and untaken grants before.
  SettleCached();
  // A dead broker's view has unpersisted withdrawals.
  if (!late_) SettleOffers();
  bool found = false;
  for (auto& [permit, held] : permits_) {
    if (held.second.erase(acquisition) == 0) continue;
    found = true;
    // A dead broker's later step may have taken back the others.
    const bool wrong = !late_ && released.returned != held.second.empty();
    if (wrong) Fail("a permit returns before its last acquisition");
    if (held.first != session) Fail("a session releases another's permit");
  }
  if (!found) Fail("something is released that is not out");
}

void Simulation::Learn(ChannelId channel, Process& process, const Request& request,
                       const absl::StatusOr<Response>& response) {
  if (const auto* acquired = std::get_if<AcquireResult>(&*response)) {
    ++(acquired->nested ? counts_.nested : counts_.grants);
    auto& [session, acquisitions] = permits_[acquired->permit];
    if (acquired->nested != !acquisitions.empty()) Fail("nested is not what it is called");
    if (!acquisitions.empty() && session != process.session) Fail("a permit is shared between sessions");
    session = process.session;
    acquisitions.insert(acquired->acquisition);
  } else if (const auto* gang = std::get_if<GangResult>(&*response)) {
    LearnGang(process, std::get<GangRequest>(request.payload), *gang);
  } else if (const auto* released = std::get_if<ReleaseResult>(&*response)) {
    // The permit slot shows whether it is idle.
    if (std::holds_alternative<ReleaseIfIdleRequest>(request.payload)) return;
    LearnReleased(process.session, std::get<AcquisitionId>(request.payload), *released);
  } else if (std::holds_alternative<KeepPermitsResult>(*response)) {
    process.keeps = true;
  } else if (const auto* allocated = std::get_if<AllocateResult>(&*response)) {
    ++counts_.allocations;
    CheckMemory(allocated->block);
  } else if (const auto* freed = std::get_if<FreeResult>(&*response)) {
    if (freed->state == BlockState::kQuarantined) ++counts_.quarantined;
  } else if (const auto* imported = std::get_if<ImportResult>(&*response)) {
    ++counts_.imports;
    const BlockView& block = imported->block;
    if (imported->read_only != ReadOnly::kNo) process.read_only.insert(imported->import);
    CheckMemory(block);
    const uint64_t generation = workers_[{block.device, WorkerKindOf(block.export_kind)}].generation;
    if (block.handle.generation != generation && !late_) Fail("a stale block is imported");
    const bool by_handle = block.export_kind == ExportKind::kCudaIpc;
    if (by_handle != imported->ipc_handle.has_value()) Fail("a handle is told of another kind");
    if (by_handle && *imported->ipc_handle != HandleFor(block.handle.block)) Fail("a handle is another's");
  } else if (const auto* opened = std::get_if<OpenStreamResult>(&*response)) {
    process.streams.insert(opened->stream.slot);
    uint64_t& queued = queued_[opened->stream];
    queued = std::max(queued, opened->last_value);
    for (const BlockId block : opened->shared) alone_.Unmap(opened->stream.channel, block);
  } else if (std::holds_alternative<CloseStreamResult>(*response)) {
    process.streams.erase(std::get<CloseStreamRequest>(request.payload).slot);
  } else if (const auto* prepared = std::get_if<Prepared>(&*response)) {
    const auto& asked = std::get<PrepareUseRequest>(request.payload);
    process.uses[prepared->use] = asked;
    const std::string wrong =
        alone_.Check({channel, asked.slot}, asked.uses, *prepared,
                     [this](const FenceWait& wait) { return fence_values_[wait.stream].done >= wait.value; });
    if (!wrong.empty()) Fail(wrong);
    counts_.handed_waits = alone_.waited();
    counts_.torn_alone = alone_.notified();
    counts_.waits += prepared->waits.size();
    counts_.torn += prepared->torn.size();
  } else if (const auto* finished = std::get_if<FinishUseResult>(&*response)) {
    ++counts_.finished;
    const auto use = process.uses.find(std::get<FinishUseRequest>(request.payload).use);
    if (use == process.uses.end()) return;
    const std::string wrong = alone_.Finish(channel, use->first, use->second.uses, finished->torn);
    if (!wrong.empty()) Fail(wrong);
    counts_.torn_alone = alone_.notified();
    process.uses.erase(use);
  } else if (std::holds_alternative<AbandonUseResult>(*response)) {
    const UseId use = std::get<AbandonUseRequest>(request.payload).use;
    alone_.Abandon(channel, use);
    process.uses.erase(use);
  } else if (const auto* planned = std::get_if<PlanResult>(&*response)) {
    LearnPlan(process, *planned);
  } else if (std::holds_alternative<ReleasePlanResult>(*response)) {
    ForgetPlan(std::get<PlanId>(request.payload));
  } else if (const auto* module = std::get_if<ObtainModuleResult>(&*response)) {
    // The module of a late answer was lost with the module store.
    if (!late_) LearnModule(channel, process, std::get<ObtainModuleRequest>(request.payload), *module);
  } else if (std::holds_alternative<ReserveResult>(*response)) {
    ++counts_.reservations;
  } else if (const auto* published = std::get_if<PublishResult>(&*response)) {
    ++counts_.published;
    counts_.replaced += published->replaced ? 1 : 0;
    for (const BlockView& block : core_->ListBlocks(Admin())) {
      if (block.handle != published->block.handle) continue;
      for (const ImportView& import : block.imports) {
        if (import.read_only == ReadOnly::kNo) Fail("a block is published that somebody can write to");
      }
    }
  }
}

}  // namespace berth::core
