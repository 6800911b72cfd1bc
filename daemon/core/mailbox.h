// Mailboxes: what every channel is told, in order and numbered, and how many fds may be under way.
//
// A passed fd that nobody has read costs the kernel's patience with the whole user, so at most
// `fds_per_channel` and `fds_per_tenant` are sent and not acknowledged, and at most kUnacknowledgedPerChannel
// deliveries of any kind; what comes after waits its turn.
// Channels of a tenant that wait for its window are served in turn. Pure and thread-compatible.

#ifndef DAEMON_CORE_MAILBOX_H_
#define DAEMON_CORE_MAILBOX_H_

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "common/attach_wire.h"
#include "common/ids.h"
#include "daemon/core/caller.h"
#include "daemon/core/effects.h"

namespace berth::core {

class Mailboxes {
 public:
  // Deliveries of any kind that a channel has not acknowledged: what a socket surely takes of a process that does not
  // read just then.
  static constexpr uint64_t kUnacknowledgedPerChannel = 128;

  Mailboxes(uint64_t fds_per_channel, uint64_t fds_per_tenant)
      : fds_per_channel_(fds_per_channel), fds_per_tenant_(fds_per_tenant) {}

  void Open(ChannelId channel, const Tenant& tenant);
  // Ends the channel's mailbox; ignored if it has none. Returns the imports whose fd was never sent. What
  // others may be sent now comes out in `sends`.
  std::vector<ImportId> Close(ChannelId channel, std::vector<Deliver>* sends);

  // Numbers and sends `deliver`, or queues it. To a channel without a mailbox: nothing.
  void Post(Deliver deliver, std::vector<Deliver>* sends);
  // The channel has everything up to `number`; numbers not yet sent are ignored.
  void Acknowledge(ChannelId channel, uint64_t number, std::vector<Deliver>* sends);
  // Takes the delivery of the import back if it is still queued. Returns whether the process cannot have the block's
  // fd: a handle it may have had in an answer already.
  bool Withdraw(ChannelId channel, ImportId import, std::vector<Deliver>* sends);

  // Deliveries of the channel not sent yet.
  uint64_t Queued(ChannelId channel) const;
  bool Has(ChannelId channel) const { return boxes_.contains(channel); }
  uint64_t size() const { return boxes_.size(); }
  // OK, or what is broken.
  absl::Status CheckBooks() const;

 private:
  struct Window {
    uint64_t boxes = 0;
    uint64_t fds = 0;
    // Boxes whose next delivery only lacks the tenant's room, by turn.
    std::map<uint64_t, ChannelId> waiting;
  };
  struct Box {
    Tenant tenant;
    uint64_t last_number = 0;
    uint64_t acknowledged = 0;
    // Numbers of the fds under way.
    std::deque<uint64_t> fds;
    std::deque<Deliver> queue;
    // Its turn in the window's `waiting`; 0 for none.
    uint64_t turn = 0;
  };

  static bool HasBlockFd(const Deliver& deliver) {
    return deliver.delivery.what == attach::DeliveryKind::kBlock;
  }
  static bool IsBlock(const Deliver& deliver) {
    return HasBlockFd(deliver) || deliver.delivery.what == attach::DeliveryKind::kHandleBlock;
  }
  static bool HasFd(const Deliver& deliver) {
    return HasBlockFd(deliver) || deliver.delivery.what == attach::DeliveryKind::kOwnPage ||
           deliver.delivery.what == attach::DeliveryKind::kForeignPage ||
           deliver.delivery.what == attach::DeliveryKind::kModule ||
           deliver.delivery.what == attach::DeliveryKind::kModulePlace;
  }
  // Whether the channel itself has no room for `deliver`.
  bool Full(const Box& box, const Deliver& deliver) const {
    return box.last_number - box.acknowledged >= kUnacknowledgedPerChannel ||
           (HasFd(deliver) && box.fds.size() >= fds_per_channel_);
  }
  void Send(Box& box, Window& window, Deliver deliver, std::vector<Deliver>* sends);
  // Sends what may be sent of one box, then sees whether it waits for the tenant's room.
  void Flush(ChannelId channel, Box& box, Window& window, std::vector<Deliver>* sends);
  // Gives the tenant's room to the boxes that wait for it.
  void ServeWaiting(Window& window, std::vector<Deliver>* sends);
  void StopWaiting(Box& box, Window& window);

  const uint64_t fds_per_channel_;
  const uint64_t fds_per_tenant_;
  uint64_t last_turn_ = 0;
  std::map<ChannelId, Box> boxes_;
  std::map<Tenant, Window> tenants_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_MAILBOX_H_
