// The check of all books against each other.

#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"

namespace berth::core {
namespace {

absl::Status Broken(const absl::AlphaNum& what) { return absl::InternalError(what.Piece()); }

}  // namespace

absl::Status Core::CheckBooks() const {
  // What has room now, not what had at the last step.
  impl_->UpdatePlacement();
  BERTH_RETURN_IF_ERROR(CheckReferences());
  return CheckSums();
}

absl::Status Core::CheckReferences() const {
  BERTH_RETURN_IF_ERROR(impl_->sessions_.CheckBooks());
  BERTH_RETURN_IF_ERROR(impl_->blocks_.CheckBooks());
  BERTH_RETURN_IF_ERROR(impl_->mailboxes_.CheckBooks());
  for (const Session* const session : impl_->sessions_.List()) {
    if (impl_->IsOver(*session) && !impl_->leaving_.contains(session->id)) {
      return Broken("a session is over and still there");
    }
  }
  BERTH_RETURN_IF_ERROR(impl_->CheckPending());
  BERTH_RETURN_IF_ERROR(impl_->CheckBlocks());
  BERTH_RETURN_IF_ERROR(impl_->CheckFences());
  BERTH_RETURN_IF_ERROR(impl_->modules_.CheckBooks());
  return PlanRun(impl_.get(), nullptr).CheckBooks();
}

absl::Status Core::CheckSums() const {
  PermitRun run(impl_.get(), nullptr);
  for (const auto& [name, pool] : impl_->pools_) BERTH_RETURN_IF_ERROR(pool.CheckBooks(&run));
  BERTH_RETURN_IF_ERROR(impl_->CheckPermits());
  BERTH_RETURN_IF_ERROR(impl_->CheckTenants());
  BERTH_RETURN_IF_ERROR(impl_->CheckDevices());
  BERTH_RETURN_IF_ERROR(impl_->CheckBudgets());
  return impl_->CheckRoom();
}

absl::Status Core::Impl::CheckPermits() const {
  std::map<uint32_t, std::pair<uint64_t, uint64_t>> placed;
  for (const auto& [ordinal, device] : devices_) placed[ordinal];
  for (const auto& [name, pool] : pools_) {
    const auto all = [](SessionId) { return true; };
    std::vector<PermitView> permits;
    pool.AddPermits(PermitId(), UINT64_MAX, all, &permits);
    for (const PermitView& permit : permits) {
      if (sessions_.Find(permit.session) == nullptr)
        return Broken("a permit is held by a session that is over");
      if (!permit.device.has_value()) continue;
      auto& [permits_there, declared_there] = placed[permit.device->ordinal];
      ++permits_there;
      declared_there += permit.declared.count();
    }
    std::vector<WaiterView> waiters;
    pool.AddWaiters(UINT64_MAX, all, &waiters);
    for (const WaiterView& waiter : waiters) {
      const Session* const session = sessions_.Find(waiter.session);
      if (session == nullptr || session->state != SessionState::kActive) {
        return Broken("a session waits that has ended");
      }
    }
  }
  for (const auto& [ordinal, sums] : placed) {
    if (sums.first != placement_.PermitsOn(ordinal) ||
        sums.second != placement_.DeclaredOn(ordinal).count()) {
      return Broken(absl::StrCat("device ", ordinal, ": what permits have declared is miscounted"));
    }
  }
  return absl::OkStatus();
}

absl::Status Core::Impl::CheckPending() const {
  uint64_t remembered = 0;
  uint64_t reachable = 0;
  bool mailboxes = true;
  sessions_.ForEachChannel([&](const Channel& channel) {
    remembered += channel.requests.Pending().size();
    reachable += channel.hung_up ? 0 : 1;
    mailboxes = mailboxes && mailboxes_.Has(channel.id) != channel.hung_up;
  });
  if (!mailboxes || reachable != mailboxes_.size()) return Broken("a mailbox is of no channel that is there");
  if (remembered != pending_.size()) {
    return Broken(absl::StrCat(pending_.size(), " requests are pending, ", remembered, " are remembered so"));
  }
  uint64_t calls = 0;
  for (const auto& [request, pending] : pending_) {
    calls += pending.call ? 1 : 0;
    const Channel* const channel = sessions_.FindChannel(request.channel);
    if (channel == nullptr || channel->hung_up)
      return Broken("a request is pending of a channel that is not there");
    if (std::holds_alternative<std::monostate>(pending.place)) return Broken("a request is pending nowhere");
    if (const auto* const in = std::get_if<InPool>(&pending.place); in != nullptr) {
      const Waiter* const waiter = in->pool->FindWaiter(in->number);
      if (waiter == nullptr || waiter != in->waiter || waiter->request != request ||
          !(pending.call || absent_.contains(request)))
        return Broken("a request waits in no pool, or for no call");
    }
    if (std::holds_alternative<GangTable*>(pending.place) &&
        ((!pending.call && !absent_.contains(request)) || !gangs_.gangs().contains(request))) {
      return Broken("a gang waits nowhere, or for no call");
    }
    if (std::holds_alternative<FenceTable*>(pending.place) && !fences_.Waits(request)) {
      return Broken("a prepare waits for nothing");
    }
    if (const auto* const id = std::get_if<BlockId>(&pending.place); id != nullptr) {
      const Block* const block = blocks_.Find(*id);
      if (block == nullptr || block->phase != BlockPhase::kReserved || block->request != request) {
        return Broken("a request waits for a block that is not being made for it");
      }
    }
    if (!pending.call) continue;
    const auto call = calls_.find(pending.call);
    if (call == calls_.end() || call->second->first != request) return Broken("a call is not known to wait");
  }
  return calls == calls_.size() ? absl::OkStatus() : Broken("a call waits for nothing");
}

absl::Status Core::Impl::CheckTenants() const {
  TenantUse::Uses counted;
  for (const auto& [name, pool] : pools_) {
    for (const auto& [tenant, units] : pool.out_by_tenant()) counted[tenant].units += units;
  }
  for (const auto& [request, pending] : pending_) {
    const bool for_units =
        std::holds_alternative<InPool>(pending.place) || std::holds_alternative<GangTable*>(pending.place);
    const bool for_bytes =
        std::holds_alternative<RoomQueue*>(pending.place) || std::holds_alternative<BlockId>(pending.place);
    if (!for_units && !for_bytes) continue;
    TenantUse::Use& use = counted[pending.session->tenant];
    ++use.waiters;
    use.unit_waiters += pending.for_units ? 1 : 0;
    if (pending.for_units != for_units) return Broken("a request waits for something else than it is counted for");
  }
  return tenant_use_.CheckBooks(counted);
}

absl::Status Core::Impl::CheckBlocks() const {
  absl::Status status = absl::OkStatus();
  blocks_.ForEach([&](const Block& block) {
    const bool needs_owner = block.phase == BlockPhase::kReserved || block.phase == BlockPhase::kLive;
    if (needs_owner && !block.published && sessions_.Find(block.owner) == nullptr)
      status = Broken("a block's owner is over");
    if (block.phase == BlockPhase::kReserved && !pending_.contains(block.request)) {
      status = Broken("a block is being made for no request");
    }
    if (block.phase == BlockPhase::kAbandoned && !block.asked) status = Broken("an abandoned block lingers");
    if (block.stuck && block.phase != BlockPhase::kRetired)
      status = Broken("a block is stuck that is not retired");
    if (block.busy != busy_.contains(block.id)) status = Broken("a freed block's uses are misremembered");
    for (const auto& [id, import] : block.imports) {
      const Channel* const channel = sessions_.FindChannel(import.channel);
      if (channel == nullptr || channel->session != import.session) status = Broken("an importer is gone");
    }
  });
  return status;
}

absl::Status Core::Impl::CheckDevices() const {
  for (const auto& [ordinal, device] : devices_) {
    if (!IsPlaced(device)) return Broken("a device has changed, and who is looked for room there does not know it");
    uint64_t shelved = 0;
    uint64_t releasing = 0;
    uint64_t of_context = 0;
    bool unasked = false;
    std::set<BlockId> retried_later;
    for (const Retry& retry : device.retries) {
      if (retry.after_release > device.releases_ended) retried_later.insert(retry.block);
    }
    blocks_.ForEach([&, ordinal = ordinal, &device = device](const Block& block) {
      if (block.device != ordinal) return;
      shelved += block.phase == BlockPhase::kWarm || block.phase == BlockPhase::kWarming ? 1 : 0;
      releasing += block.phase == BlockPhase::kRetired && block.asked ? 1 : 0;
      of_context += block.lane() == Lane::kContext ? 1 : 0;
      const Worker& worker = device.worker(block.lane());
      const bool retired = block.phase == BlockPhase::kRetired && !block.asked && !block.stuck;
      unasked = unasked || (retired && IsLost(block) && !busy_.contains(block.id));
      if (worker.state != DeviceState::kReady) return;
      unasked = unasked || (retired && !busy_.contains(block.id)) ||
                (block.phase == BlockPhase::kReserved && !block.asked && !retried_later.contains(block.id)) ||
                (block.phase == BlockPhase::kWarming && !block.asked);
    });
    const auto broken = [ordinal = ordinal](absl::string_view what) {
      return Broken(absl::StrCat("device ", ordinal, ": ", what));
    };
    if (shelved != device.warm.All().size()) return broken("a warm block is not on the shelf");
    if (releasing != device.releases_asked - device.releases_ended) return broken("a release is miscounted");
    if (unasked) return broken("a worker was not asked");
    const Worker& context = device.context;
    if (of_context != context.blocks) return broken("the context worker's blocks are miscounted");
    const bool idle = context.state == DeviceState::kReady && of_context == 0;
    if (idle != (context.idle_at != absl::InfiniteFuture())) return broken("a context worker stays in vain");
    if (device.account.warm() > config_.warm_limit) return broken("more is warm than may be");
  }
  return absl::OkStatus();
}

absl::Status Core::Impl::CheckBudgets() const {
  using Key = std::tuple<Layer, uint32_t, Tenant, SessionId>;
  absl::flat_hash_map<Key, ByteBudget> sums;
  const auto charge = [&](const Block& block, const Key& key) {
    ByteBudget& sum = sums[key];
    sum.Add(block.phase, block.bytes);
    if (block.stuck) sum.MarkStuck(block.bytes);
    if (block.busy) sum.MarkBusy(block.bytes);
  };
  blocks_.ForEach([&](const Block& block) {
    charge(block, {Layer::kDevice, block.device, {}, {}});
    if (block.charged_session) charge(block, {Layer::kSession, block.device, {}, block.charged_session});
    for (const Tenant& tenant : block.charged_tenants)
      charge(block, {Layer::kTenant, block.device, tenant, {}});
  });
  const auto claim = [&](SessionId session, const Tenant& tenant, uint32_t device, Bytes bytes) {
    sums[{Layer::kDevice, device, {}, {}}].Claim(bytes);
    sums[{Layer::kTenant, device, tenant, {}}].Claim(bytes);
    sums[{Layer::kSession, device, {}, session}].Claim(bytes);
  };
  for (const auto& [ordinal, device] : devices_) {
    sums[{Layer::kDevice, ordinal, {}, {}}].set_daemon(device.account.counts().daemon);
  }
  reservations_.ForEach([&](const Reservation& reservation) {
    for (const auto& [device, part] : reservation.claims) {
      claim(reservation.session, reservation.tenant, device, part.left);
    }
  });
  for (const Waiting& waiting : room_.entries()) {
    if (!waiting.drawn_from) continue;
    claim(waiting.session, waiting.tenant, waiting.asks.front().device, waiting.asks.front().bytes);
  }
  std::vector<std::pair<Key, const ByteBudget*>> kept;
  for (const auto& [ordinal, device] : devices_) {
    kept.push_back({{Layer::kDevice, ordinal, {}, {}}, &device.account});
    for (const auto& [tenant, account] : tenants_) {
      const auto budget = account.budgets.find(ordinal);
      if (budget != account.budgets.end())
        kept.push_back({{Layer::kTenant, ordinal, tenant, {}}, &budget->second});
    }
    for (const Session* const session : sessions_.List()) {
      const auto budget = session->budgets.find(ordinal);
      if (budget != session->budgets.end()) {
        kept.push_back({{Layer::kSession, ordinal, {}, session->id}, &budget->second});
      }
    }
  }
  for (const auto& [key, budget] : kept) {
    const ByteBudget& sum = sums[key];
    if (sum.counts() != budget->counts() || sum.coming() != budget->coming() ||
        sum.stuck() != budget->stuck() || sum.busy() != budget->busy()) {
      return Broken(absl::StrCat("device ", std::get<uint32_t>(key), ": the ",
                                 LayerName(std::get<Layer>(key)),
                                 "'s account is not the sum of what it is charged"));
    }
  }
  return sums.size() <= kept.size() ? absl::OkStatus() : Broken("somebody is charged who has no account");
}

absl::Status Core::Impl::CheckRoom() const {
  for (const auto& [tenant, account] : tenants_) {
    uint64_t sessions = 0;
    for (const Session* const session : sessions_.List()) sessions += session->tenant == tenant ? 1 : 0;
    if (sessions != account.sessions) return Broken("a tenant's sessions are miscounted");
  }
  for (const Waiting& waiting : room_.entries()) {
    const auto pending = pending_.find(waiting.request);
    if (pending == pending_.end() || !std::holds_alternative<RoomQueue*>(pending->second.place)) {
      return Broken("a request waits for bytes that is not pending so");
    }
    bool coming = false;
    bool fits = true;
    for (const RoomAsk& ask : waiting.asks) {
      const Device& device = devices_.at(ask.device);
      const ByteBudget& account = device.account;
      fits = fits && account.Judge(ask.bytes) == ByteBudget::Verdict::kNow;
      const auto shares = tenants_.at(waiting.tenant).budgets.find(ask.device);
      const auto own = sessions_.Find(waiting.session)->budgets.find(ask.device);
      fits = fits && shares->second.Judge(ask.bytes) == ByteBudget::Verdict::kNow;
      fits = fits && own->second.Judge(ask.bytes) == ByteBudget::Verdict::kNow;
      // Of a device on probation nothing is served, whichever of its workers is there.
      coming = coming || account.coming().count() > 0 || device.main.state == DeviceState::kProbation ||
               device.worker(LaneOf(waiting.kind)).state != DeviceState::kReady;
      if (LaneOf(waiting.kind) == Lane::kContext && device.context.state == DeviceState::kIdle) {
        return Broken("a context worker is waited for that nobody has had started");
      }
    }
    // The first has nobody to wait for.
    const bool first = &waiting == &room_.entries().front();
    if (first && fits && MayServe(waiting)) return Broken("a request waits for bytes that are there");
    if (first && !waiting.patient && !coming && IsAttended(waiting)) {
      return Broken("a request waits for bytes in vain");
    }
  }
  return absl::OkStatus();
}

}  // namespace berth::core
