// Mailboxes: what every channel is told, in order and numbered, and how many fds may be under way.
//
// A passed fd that nobody has read costs the kernel's patience with the whole user, so at most
// `fds_per_channel` and `fds_per_tenant` are sent and not acknowledged, and at most kUnacknowledgedPerChannel
// deliveries of any kind; what comes after waits its turn.
// Channels of a tenant that wait for its window are served in turn. What is not acknowledged is kept, for a broker that
// follows to send again: each delivery is a row, and so is where a channel's numbers stand. Pure and thread-compatible.

#ifndef DAEMON_CORE_MAILBOX_H_
#define DAEMON_CORE_MAILBOX_H_

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/archive.h"
#include "common/attach_wire.h"
#include "common/ids.h"
#include "common/row.h"
#include "daemon/core/caller.h"
#include "daemon/core/effects.h"
#include "daemon/core/journal.h"

namespace berth::core {

class Mailboxes {
 public:
  // Deliveries of any kind that a channel has not acknowledged: what a socket surely takes of a process that does not
  // read just then.
  static constexpr uint64_t kUnacknowledgedPerChannel = 128;

  // `journal` outlives the mailboxes.
  Mailboxes(uint64_t fds_per_channel, uint64_t fds_per_tenant, Journal* journal)
      : fds_per_channel_(fds_per_channel), fds_per_tenant_(fds_per_tenant), journal_(journal) {}

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

  // ---- What outlives the broker ---------------------------------------------------------------------------

  // Of kDelivery; part kNumbers is where the channel's numbers stand.
  static constexpr uint64_t kNumbers = 0;
  void ListRows(std::vector<RowKey>* keys) const;
  // Returns whether there is such a row.
  bool WriteRow(const RowKey& key, ArchiveWriter& archive) const;
  // In the order of keys; of a channel whose mailbox is open. Fails the archive for what cannot be.
  void ReadRow(const RowKey& key, ArchiveReader& archive);
  // After the last row: nothing is sent until Resume(), so that numbers come in their order.
  void FinishRestoring() { waits_ = true; }
  // Every delivery that is queued or not acknowledged.
  void ForEach(absl::FunctionRef<void(const Deliver&)> visit) const;
  // Sends what was sent before and was not acknowledged, with its numbers, where `still` says so: what it names may be
  // gone, which only who has had it can have brought about. Then all else.
  void Resume(absl::FunctionRef<bool(const Deliver&)> still, std::vector<Deliver>* sends);

 private:
  // A delivery and its place among the channel's, which rises.
  struct Letter {
    uint64_t place = 0;
    Deliver deliver;
  };
  struct Window {
    uint64_t boxes = 0;
    uint64_t fds = 0;
    // Boxes whose next delivery only lacks the tenant's room, by turn.
    std::map<uint64_t, ChannelId> waiting;
  };
  struct Box {
    Tenant tenant;
    uint64_t last_number = 0;
    uint64_t last_place = 0;
    // Not acknowledged, by number, and how many of them have fds; and those without a number yet.
    std::deque<Letter> sent;
    uint64_t fds = 0;
    std::deque<Letter> queue;
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
    return box.sent.size() >= kUnacknowledgedPerChannel || (HasFd(deliver) && box.fds >= fds_per_channel_);
  }
  void Note(ChannelId channel, uint64_t place) { journal_->Touch(RowKind::kDelivery, channel.value(), place); }
  // The next of the queue.
  void Send(ChannelId channel, Box& box, Window& window, std::vector<Deliver>* sends);
  // Sends what may be sent of one box, then sees whether it waits for the tenant's room.
  void Flush(ChannelId channel, Box& box, Window& window, std::vector<Deliver>* sends);
  // Gives the tenant's room to the boxes that wait for it.
  void ServeWaiting(Window& window, std::vector<Deliver>* sends);
  void StopWaiting(Box& box, Window& window);

  const uint64_t fds_per_channel_;
  const uint64_t fds_per_tenant_;
  Journal* const journal_;
  // Resume() is still to come.
  bool waits_ = false;
  uint64_t last_turn_ = 0;
  std::map<ChannelId, Box> boxes_;
  std::map<Tenant, Window> tenants_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_MAILBOX_H_
