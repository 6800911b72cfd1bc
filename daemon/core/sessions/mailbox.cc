#include "daemon/core/sessions/mailbox.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/types/invariant.h"

namespace berth::core {
namespace {

// Returns whether the delivery names a block, a page or a module. Other deliveries are about leases without memory.
bool IsOfMemory(const Deliver& deliver) {
  switch (deliver.delivery.what) {
    case attach::DeliveryKind::kEnded:
    case attach::DeliveryKind::kOverdue:
    case attach::DeliveryKind::kRevoked:
    case attach::DeliveryKind::kPlanStale:
      return false;
    default:
      return true;
  }
}

}  // namespace

void Mailboxes::Open(ChannelId channel, const Account& tenant) {
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
  for (const Letter& letter : box.queue) {
    if (HasBlockFd(letter.deliver)) unsent.push_back(ImportId(letter.deliver.delivery.import));
    Mark(channel, letter.place);
  }
  for (const Letter& letter : box.sent) Mark(channel, letter.place);
  Mark(channel, kNumbers);
  // The fds in the closed socket are closed with it.
  window.fds -= box.fds;
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
  box.queue.push_back({.place = ++box.last_place, .deliver = std::move(deliver)});
  Mark(channel, box.last_place);
  if (box.queue.size() == 1) Flush(channel, box, tenants_.at(box.tenant), sends);
}

void Mailboxes::Acknowledge(ChannelId channel, uint64_t number, std::vector<Deliver>* sends) {
  const auto found = boxes_.find(channel);
  if (found == boxes_.end() || number > found->second.last_number) return;
  Box& box = found->second;
  Window& window = tenants_.at(box.tenant);
  while (!box.sent.empty() && box.sent.front().deliver.delivery.number <= number) {
    if (HasFd(box.sent.front().deliver)) {
      --box.fds;
      --window.fds;
    }
    Mark(channel, box.sent.front().place);
    box.sent.pop_front();
  }
  // Boxes that wait for the tenant's fd limit come before this box's next delivery.
  ServeWaiting(window, sends);
  if (box.turn == 0) Flush(channel, box, window, sends);
}

const attach::Delivery* Mailboxes::Find(ChannelId channel, attach::DeliveryKind what) const {
  const auto found = boxes_.find(channel);
  if (found == boxes_.end()) return nullptr;
  for (const std::deque<Letter>* const letters : {&found->second.sent, &found->second.queue}) {
    for (const Letter& letter : *letters) {
      if (letter.deliver.delivery.what == what) return &letter.deliver.delivery;
    }
  }
  return nullptr;
}

bool Mailboxes::Withdraw(ChannelId channel, ImportId import, std::vector<Deliver>* sends) {
  const auto found = boxes_.find(channel);
  if (found == boxes_.end()) return false;
  Box& box = found->second;
  const auto queued = std::find_if(box.queue.begin(), box.queue.end(), [import](const Letter& letter) {
    return IsBlock(letter.deliver) && letter.deliver.delivery.import == import.value();
  });
  if (queued == box.queue.end()) return false;
  const bool first = queued == box.queue.begin();
  const bool has_fd = HasBlockFd(queued->deliver);
  Mark(channel, queued->place);
  box.queue.erase(queued);
  if (first) {
    Window& window = tenants_.at(box.tenant);
    StopWaiting(box, window);
    Flush(channel, box, window, sends);
  }
  return has_fd;
}

std::vector<ImportId> Mailboxes::DropMemory(ChannelId channel, std::vector<Deliver>* sends) {
  std::vector<ImportId> unsent;
  const auto found = boxes_.find(channel);
  if (found == boxes_.end()) return unsent;
  Box& box = found->second;
  Window& window = tenants_.at(box.tenant);
  StopWaiting(box, window);
  for (const Letter& letter : box.queue) {
    if (HasBlockFd(letter.deliver)) unsent.push_back(ImportId(letter.deliver.delivery.import));
  }
  window.fds -= std::exchange(box.fds, 0);
  for (std::deque<Letter>* const letters : {&box.sent, &box.queue}) {
    std::erase_if(*letters, [&](const Letter& letter) {
      if (!IsOfMemory(letter.deliver)) return false;
      Mark(channel, letter.place);
      return true;
    });
  }
  ServeWaiting(window, sends);
  Flush(channel, box, window, sends);
  return unsent;
}

void Mailboxes::SendAgain(ChannelId channel, std::vector<Deliver>* sends) const {
  const auto found = boxes_.find(channel);
  if (found == boxes_.end()) return;
  for (const Letter& letter : found->second.sent) sends->push_back(letter.deliver);
}

uint64_t Mailboxes::Queued(ChannelId channel) const {
  const auto found = boxes_.find(channel);
  return found == boxes_.end() ? 0 : found->second.queue.size();
}

void Mailboxes::Send(ChannelId channel, Box& box, Window& window, std::vector<Deliver>* sends) {
  Letter& letter = box.sent.emplace_back(std::move(box.queue.front()));
  box.queue.pop_front();
  letter.deliver.delivery.number = ++box.last_number;
  if (HasFd(letter.deliver)) {
    ++box.fds;
    ++window.fds;
  }
  Mark(channel, letter.place);
  Mark(channel, kNumbers);
  sends->push_back(letter.deliver);
}

void Mailboxes::Flush(ChannelId channel, Box& box, Window& window, std::vector<Deliver>* sends) {
  while (!box.queue.empty() && !waits_) {
    const Deliver& next = box.queue.front().deliver;
    if (Full(box, next)) return;
    if (HasFd(next) && window.fds >= fds_per_tenant_) {
      box.turn = ++last_turn_;
      window.waiting.emplace(box.turn, channel);
      return;
    }
    Send(channel, box, window, sends);
  }
}

void Mailboxes::ServeWaiting(Window& window, std::vector<Deliver>* sends) {
  while (!window.waiting.empty() && window.fds < fds_per_tenant_) {
    const ChannelId channel = window.waiting.begin()->second;
    Box& box = boxes_.at(channel);
    StopWaiting(box, window);
    // Sends one fd for each box in turn, together with the following deliveries that need no fd.
    do {
      Send(channel, box, window, sends);
    } while (!box.queue.empty() && !HasFd(box.queue.front().deliver) && !Full(box, box.queue.front().deliver));
    if (!box.queue.empty() && !Full(box, box.queue.front().deliver)) {
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

void Mailboxes::ListRecords(std::vector<RecordKey>* keys) const {
  for (const auto& [channel, box] : boxes_) {
    if (box.last_number > 0) keys->push_back(KeyOf(RecordKind::kDelivery, channel.value(), kNumbers));
    for (const std::deque<Letter>* const letters : {&box.sent, &box.queue}) {
      for (const Letter& letter : *letters) {
        keys->push_back(KeyOf(RecordKind::kDelivery, channel.value(), letter.place));
      }
    }
  }
}

bool Mailboxes::WriteRecord(const RecordKey& key, ArchiveWriter& archive) const {
  const auto found = boxes_.find(ChannelId(key.id));
  if (found == boxes_.end()) return false;
  const Box& box = found->second;
  if (key.part == kNumbers) {
    if (box.last_number == 0) return false;
    archive(box.last_number);
    return true;
  }
  for (const std::deque<Letter>* const letters : {&box.sent, &box.queue}) {
    const auto at = std::lower_bound(letters->begin(), letters->end(), key.part,
                                     [](const Letter& letter, uint64_t place) { return letter.place < place; });
    if (at == letters->end() || at->place != key.part) continue;
    archive(at->deliver);
    return true;
  }
  return false;
}

void Mailboxes::ReadRecord(const RecordKey& key, ArchiveReader& archive) {
  const auto found = boxes_.find(ChannelId(key.id));
  if (found == boxes_.end()) return archive.Fail();
  Box& box = found->second;
  if (key.part == kNumbers) return archive(box.last_number);
  Letter letter = {.place = key.part};
  archive(letter.deliver);
  letter.deliver.channel = found->first;
  box.last_place = key.part;
  const uint64_t number = letter.deliver.delivery.number;
  if (number == 0) return box.queue.push_back(std::move(letter));
  // The numbers in between may belong to dropped deliveries.
  const bool later = box.sent.empty() || number > box.sent.back().deliver.delivery.number;
  if (!later || number > box.last_number || !box.queue.empty()) return archive.Fail();
  if (HasFd(letter.deliver)) {
    ++box.fds;
    ++tenants_.at(box.tenant).fds;
  }
  box.sent.push_back(std::move(letter));
}

void Mailboxes::ForEach(absl::FunctionRef<void(const Deliver&)> visit) const {
  for (const auto& [channel, box] : boxes_) {
    for (const std::deque<Letter>* const letters : {&box.sent, &box.queue}) {
      for (const Letter& letter : *letters) visit(letter.deliver);
    }
  }
}

void Mailboxes::Resume(absl::FunctionRef<bool(const Deliver&)> still, std::vector<Deliver>* sends) {
  waits_ = false;
  for (auto& [channel, box] : boxes_) {
    for (const Letter& letter : box.sent) {
      if (still(letter.deliver)) sends->push_back(letter.deliver);
    }
    Flush(channel, box, tenants_.at(box.tenant), sends);
  }
}

absl::Status Mailboxes::CheckInvariants() const {
  std::map<Account, std::pair<uint64_t, uint64_t>> counted;
  for (const auto& [channel, box] : boxes_) {
    auto& [boxes, fds] = counted[box.tenant];
    ++boxes;
    fds += box.fds;
    const Window& window = tenants_.at(box.tenant);
    if (box.fds > fds_per_channel_) return absl::InternalError("too many fds are in flight on a channel");
    if (box.turn != 0 && (box.queue.empty() || !window.waiting.contains(box.turn))) {
      return absl::InternalError("a mailbox waits without need");
    }
    const bool no_capacity =
        !box.queue.empty() && (Full(box, box.queue.front().deliver) ||
                               (HasFd(box.queue.front().deliver) && window.fds >= fds_per_tenant_));
    if (!box.queue.empty() && !no_capacity && !waits_) {
      return absl::InternalError(absl::StrCat("a queued delivery could be sent, on ", channel.value()));
    }
  }
  if (counted.size() != tenants_.size()) return absl::InternalError("a tenant has a window and no mailbox");
  for (const auto& [tenant, window] : tenants_) {
    if (counted.at(tenant) != std::pair(window.boxes, window.fds))
      return absl::InternalError("a window is miscounted");
    if (window.fds > fds_per_tenant_) return absl::InternalError("too many fds are in flight for a tenant");
  }
  return absl::OkStatus();
}

}  // namespace berth::core
