#include "daemon/core/mailbox.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/core/invariant.h"

namespace berth::core {

void Mailboxes::Open(ChannelId channel, const Tenant& tenant) {
  const bool fresh = boxes_.emplace(channel, Box{.tenant = tenant}).second;
  BERTH_INVARIANT(fresh);
  ++tenants_[tenant].boxes;
}

std::vector<ImportId> Mailboxes::Close(ChannelId channel, std::vector<Deliver>* sends) {
  std::vector<ImportId> unsent;
  const auto found = boxes_.find(channel);
  if (found == boxes_.end()) return unsent;
  Box& box = found->second;
  const auto tenant = tenants_.find(box.tenant);
  Window& window = tenant->second;
  StopWaiting(box, window);
  for (const Deliver& deliver : box.queue) {
    if (HasBlockFd(deliver)) unsent.push_back(ImportId(deliver.delivery.import));
  }
  // The fds in the closed socket are gone with it.
  window.fds -= box.fds.size();
  boxes_.erase(found);
  if (--window.boxes == 0) {
    tenants_.erase(tenant);
  } else {
    ServeWaiting(window, sends);
  }
  return unsent;
}

void Mailboxes::Post(Deliver deliver, std::vector<Deliver>* sends) {
  const ChannelId channel = deliver.channel;
  const auto found = boxes_.find(channel);
  if (found == boxes_.end()) return;
  Box& box = found->second;
  box.queue.push_back(std::move(deliver));
  if (box.queue.size() == 1) Flush(channel, box, tenants_.at(box.tenant), sends);
}

void Mailboxes::Acknowledge(ChannelId channel, uint64_t number, std::vector<Deliver>* sends) {
  const auto found = boxes_.find(channel);
  if (found == boxes_.end() || number > found->second.last_number) return;
  Box& box = found->second;
  Window& window = tenants_.at(box.tenant);
  box.acknowledged = std::max(box.acknowledged, number);
  while (!box.fds.empty() && box.fds.front() <= number) {
    box.fds.pop_front();
    --window.fds;
  }
  // Those who wait for the tenant's room came before this one's next.
  ServeWaiting(window, sends);
  if (box.turn == 0) Flush(channel, box, window, sends);
}

bool Mailboxes::Withdraw(ChannelId channel, ImportId import, std::vector<Deliver>* sends) {
  const auto found = boxes_.find(channel);
  if (found == boxes_.end()) return false;
  Box& box = found->second;
  const auto queued = std::find_if(box.queue.begin(), box.queue.end(), [import](const Deliver& deliver) {
    return IsBlock(deliver) && deliver.delivery.import == import.value();
  });
  if (queued == box.queue.end()) return false;
  const bool first = queued == box.queue.begin();
  const bool has_fd = HasBlockFd(*queued);
  box.queue.erase(queued);
  if (first) {
    Window& window = tenants_.at(box.tenant);
    StopWaiting(box, window);
    Flush(channel, box, window, sends);
  }
  return has_fd;
}

uint64_t Mailboxes::Queued(ChannelId channel) const {
  const auto found = boxes_.find(channel);
  return found == boxes_.end() ? 0 : found->second.queue.size();
}

void Mailboxes::Send(Box& box, Window& window, Deliver deliver, std::vector<Deliver>* sends) {
  deliver.delivery.number = ++box.last_number;
  if (HasFd(deliver)) {
    box.fds.push_back(deliver.delivery.number);
    ++window.fds;
  }
  sends->push_back(std::move(deliver));
}

void Mailboxes::Flush(ChannelId channel, Box& box, Window& window, std::vector<Deliver>* sends) {
  while (!box.queue.empty()) {
    if (Full(box, box.queue.front())) return;
    if (HasFd(box.queue.front()) && window.fds >= fds_per_tenant_) {
      box.turn = ++last_turn_;
      window.waiting.emplace(box.turn, channel);
      return;
    }
    Deliver next = std::move(box.queue.front());
    box.queue.pop_front();
    Send(box, window, std::move(next), sends);
  }
}

void Mailboxes::ServeWaiting(Window& window, std::vector<Deliver>* sends) {
  while (!window.waiting.empty() && window.fds < fds_per_tenant_) {
    const ChannelId channel = window.waiting.begin()->second;
    Box& box = boxes_.at(channel);
    StopWaiting(box, window);
    // One fd for each in turn; what needs no room goes along.
    do {
      Deliver next = std::move(box.queue.front());
      box.queue.pop_front();
      Send(box, window, std::move(next), sends);
    } while (!box.queue.empty() && !HasFd(box.queue.front()) && !Full(box, box.queue.front()));
    if (!box.queue.empty() && !Full(box, box.queue.front())) {
      box.turn = ++last_turn_;
      window.waiting.emplace(box.turn, channel);
    }
  }
}

void Mailboxes::StopWaiting(Box& box, Window& window) {
  if (box.turn == 0) return;
  window.waiting.erase(box.turn);
  box.turn = 0;
}

absl::Status Mailboxes::CheckBooks() const {
  std::map<Tenant, std::pair<uint64_t, uint64_t>> counted;
  for (const auto& [channel, box] : boxes_) {
    auto& [boxes, fds] = counted[box.tenant];
    ++boxes;
    fds += box.fds.size();
    const Window& window = tenants_.at(box.tenant);
    if (box.fds.size() > fds_per_channel_)
      return absl::InternalError("too many fds are under way on a channel");
    if (box.turn != 0 && (box.queue.empty() || !window.waiting.contains(box.turn))) {
      return absl::InternalError("a mailbox waits in vain");
    }
    const bool no_room = !box.queue.empty() && (Full(box, box.queue.front()) ||
                                                (HasFd(box.queue.front()) && window.fds >= fds_per_tenant_));
    if (!box.queue.empty() && !no_room) {
      return absl::InternalError(
          absl::StrCat("a delivery is queued that could be sent, on ", channel.value()));
    }
  }
  if (counted.size() != tenants_.size()) return absl::InternalError("a tenant has a window and no mailbox");
  for (const auto& [tenant, window] : tenants_) {
    if (counted.at(tenant) != std::pair(window.boxes, window.fds))
      return absl::InternalError("a window is miscounted");
    if (window.fds > fds_per_tenant_) return absl::InternalError("too many fds are under way for a tenant");
  }
  return absl::OkStatus();
}

}  // namespace berth::core
