// The check of all books against each other.

#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"

namespace berth::core {
namespace {

absl::Status Broken(const absl::AlphaNum& what) { return absl::InternalError(what.Piece()); }

}  // namespace

absl::Status Core::CheckBooks() const {
  BERTH_RETURN_IF_ERROR(impl_->sessions_.CheckBooks());
  BERTH_RETURN_IF_ERROR(impl_->blocks_.CheckBooks());
  BERTH_RETURN_IF_ERROR(impl_->mailboxes_.CheckBooks());
  for (const Session* const session : impl_->sessions_.List()) {
    if (impl_->IsOver(*session)) return Broken("a session is over and still there");
  }
  for (const auto& [name, pool] : impl_->pools_) BERTH_RETURN_IF_ERROR(pool.CheckBooks());
  BERTH_RETURN_IF_ERROR(impl_->CheckPermits());
  BERTH_RETURN_IF_ERROR(impl_->CheckPending());
  BERTH_RETURN_IF_ERROR(impl_->CheckBlocks());
  BERTH_RETURN_IF_ERROR(impl_->CheckFences());
  return impl_->CheckDevices();
}

absl::Status Core::Impl::CheckPermits() const {
  for (const auto& [name, pool] : pools_) {
    const auto all = [](SessionId) { return true; };
    std::vector<PermitView> permits;
    pool.AddPermits(PermitId(), UINT64_MAX, all, &permits);
    for (const PermitView& permit : permits) {
      if (sessions_.Find(permit.session) == nullptr)
        return Broken("a permit is held by a session that is over");
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
    if (const auto* const pool = std::get_if<PermitPool*>(&pending.place); pool != nullptr) {
      if (!(*pool)->Waits(request) || !pending.call)
        return Broken("a request waits in no pool, or for no call");
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
    if (call == calls_.end() || call->second != request) return Broken("a call is not known to wait");
  }
  return calls == calls_.size() ? absl::OkStatus() : Broken("a call waits for nothing");
}

absl::Status Core::Impl::CheckBlocks() const {
  absl::Status status = absl::OkStatus();
  blocks_.ForEach([&](const Block& block) {
    const bool needs_owner = block.phase == BlockPhase::kReserved || block.phase == BlockPhase::kLive;
    if (needs_owner && sessions_.Find(block.owner) == nullptr) status = Broken("a block's owner is over");
    if (block.phase == BlockPhase::kReserved && !pending_.contains(block.request)) {
      status = Broken("a block is being made for no request");
    }
    if (block.phase == BlockPhase::kAbandoned && !block.asked) status = Broken("an abandoned block lingers");
    if (block.stuck && block.phase != BlockPhase::kRetired)
      status = Broken("a block is stuck that is not retired");
    for (const auto& [id, import] : block.imports) {
      const Channel* const channel = sessions_.FindChannel(import.channel);
      if (channel == nullptr || channel->session != import.session) status = Broken("an importer is gone");
    }
  });
  return status;
}

absl::Status Core::Impl::CheckDevices() const {
  for (const auto& [ordinal, device] : devices_) {
    DeviceAccount account(device.account.budget());
    uint64_t shelved = 0;
    uint64_t releasing = 0;
    bool unasked = false;
    std::set<BlockId> retried_later;
    for (const Retry& retry : device.retries) {
      if (retry.after_release > device.releases_ended) retried_later.insert(retry.block);
    }
    blocks_.ForEach([&, ordinal = ordinal](const Block& block) {
      if (block.device != ordinal) return;
      account.Add(block.phase, block.bytes);
      if (block.stuck) account.MarkStuck(block.bytes);
      shelved += block.phase == BlockPhase::kWarm || block.phase == BlockPhase::kWarming ? 1 : 0;
      releasing += block.phase == BlockPhase::kRetired && block.asked ? 1 : 0;
      unasked = unasked ||
                (block.phase == BlockPhase::kRetired && !block.asked && !block.stuck &&
                 !busy_.contains(block.id)) ||
                (block.phase == BlockPhase::kReserved && !block.asked && !retried_later.contains(block.id)) ||
                (block.phase == BlockPhase::kWarming && !block.asked);
    });
    const auto broken = [ordinal = ordinal](absl::string_view what) {
      return Broken(absl::StrCat("device ", ordinal, ": ", what));
    };
    if (account.counts() != device.account.counts() || account.coming() != device.account.coming()) {
      return broken("the account is not the sum of the blocks");
    }
    if (shelved != device.warm.All().size()) return broken("a warm block is not on the shelf");
    if (releasing != device.releases_asked - device.releases_ended) return broken("a release is miscounted");
    if (device.state == DeviceState::kReady && unasked) return broken("the worker was not asked");
    if (device.account.warm() > config_.warm_limit) return broken("more is warm than may be");
    if (device.state != DeviceState::kReady || device.queue.empty()) continue;
    if (device.account.Judge(device.queue.front().bytes) != DeviceAccount::Verdict::kAfterReclaim ||
        device.account.coming().count() == 0) {
      return broken("an allocation waits in vain");
    }
  }
  return absl::OkStatus();
}

}  // namespace berth::core
