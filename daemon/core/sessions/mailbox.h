// Mailboxes: numbered, ordered deliveries to every channel, with limits on the fds in flight.
//
// Passed fds that no process has read count against the kernel's limit for the whole user. So at most `fds_per_channel`
// and `fds_per_tenant` fds are sent and not acknowledged, and at most kUnacknowledgedPerChannel deliveries of any kind.
// Further deliveries are queued. Channels of one tenant that wait for its window are served in turn. Unacknowledged
// deliveries are persisted, so that a later broker can send them again: each delivery is a ledger record, and so are a
// channel's counters. Pure and thread-compatible.

#ifndef DAEMON_CORE_SESSIONS_MAILBOX_H_
#define DAEMON_CORE_SESSIONS_MAILBOX_H_

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include <berth/ids.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/wire/attach_wire.h"
#include "daemon/base/archive.h"
#include "daemon/base/ledger_record.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/effects.h"
#include "daemon/core/types/journal.h"

namespace berth::core {

class Mailboxes {
 public:
  // Limit of unacknowledged deliveries of any kind per channel. A socket surely accepts that many while its process
  // does not read.
  static constexpr uint64_t kUnacknowledgedPerChannel = 128;

  // `journal` outlives the mailboxes.
  Mailboxes(uint64_t fds_per_channel, uint64_t fds_per_tenant, Journal* journal)
      : fds_per_channel_(fds_per_channel), fds_per_tenant_(fds_per_tenant), journal_(journal) {}

  void Open(ChannelId channel, const Account& tenant);
  // Closes the channel's mailbox; ignored if it has none. Returns the imports whose fd was never sent. `sends` receives
  // the deliveries that other channels may get now.
  std::vector<ImportId> Close(ChannelId channel, std::vector<Deliver>* sends);

  // Numbers and sends `deliver`, or queues it. Ignored if the channel has no mailbox.
  void Post(Deliver deliver, std::vector<Deliver>* sends);
  // Acknowledges all deliveries up to `number`; ignores numbers not yet sent.
  void Acknowledge(ChannelId channel, uint64_t number, std::vector<Deliver>* sends);
  // Withdraws the import's delivery if it is still queued. Returns whether the process cannot have the block's fd. The
  // process may already have received a handle in an answer.
  bool Withdraw(ChannelId channel, ImportId import, std::vector<Deliver>* sends);

  // Drops all deliveries about memory, sent or not, of a channel whose blocks and pages are lost. Returns the imports
  // whose fd was never sent.
  std::vector<ImportId> DropMemory(ChannelId channel, std::vector<Deliver>* sends);
  // Sends the unacknowledged deliveries again, with their numbers.
  void SendAgain(ChannelId channel, std::vector<Deliver>* sends) const;

  // Returns the number of the channel's deliveries not sent yet.
  uint64_t Queued(ChannelId channel) const;
  // Returns the first delivery of that kind that is queued or not acknowledged; null for none.
  const attach::Delivery* Find(ChannelId channel, attach::DeliveryKind what) const;
  bool Owes(ChannelId channel, attach::DeliveryKind what) const { return Find(channel, what) != nullptr; }
  bool Has(ChannelId channel) const { return boxes_.contains(channel); }
  uint64_t size() const { return boxes_.size(); }
  // Returns OK, or the violated invariant.
  absl::Status CheckInvariants() const;

  // ---- Persistence across broker restarts ------------------------------------------------------------------

  // Part of a kDelivery key: the record of part kNumbers holds the channel's counters.
  static constexpr uint64_t kNumbers = 0;
  void ListRecords(std::vector<RecordKey>* keys) const;
  // Returns whether the record exists.
  bool WriteRecord(const RecordKey& key, ArchiveWriter& archive) const;
  // Restores one record. Requires: records come in key order, and the channel's mailbox is open. Fails the archive for
  // impossible content.
  void ReadRecord(const RecordKey& key, ArchiveReader& archive);
  // Ends restoring after the last record. Nothing is sent until Resume(), so that numbers stay in order.
  void FinishRestoring() { waits_ = true; }
  // Visits every delivery that is queued or not acknowledged.
  void ForEach(absl::FunctionRef<void(const Deliver&)> visit) const;
  // Sends the unacknowledged deliveries again, with their numbers, if `still` returns true. The objects that a delivery
  // names may be gone, which only a process that received the delivery can have caused. Then sends the queued
  // deliveries.
  void Resume(absl::FunctionRef<bool(const Deliver&)> still, std::vector<Deliver>* sends);

 private:
  // A delivery with its position among the channel's deliveries, which rises.
  struct Letter {
    uint64_t place = 0;
    Deliver deliver;
  };
  struct Window {
    uint64_t boxes = 0;
    uint64_t fds = 0;
    // Boxes whose next delivery waits only for the tenant's fd limit, by turn.
    std::map<uint64_t, ChannelId> waiting;
  };
  struct Box {
    Account tenant;
    uint64_t last_number = 0;
    uint64_t last_place = 0;
    // Unacknowledged deliveries by number, and how many of them have fds; `queue` holds those without a number yet.
    std::deque<Letter> sent;
    uint64_t fds = 0;
    std::deque<Letter> queue;
    // Position in the window's `waiting`; 0 if not waiting.
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
  // Returns whether the channel's own limits leave no space for `deliver`.
  bool Full(const Box& box, const Deliver& deliver) const {
    return box.sent.size() >= kUnacknowledgedPerChannel || (HasFd(deliver) && box.fds >= fds_per_channel_);
  }
  void Mark(ChannelId channel, uint64_t place) { journal_->Touch(RecordKind::kDelivery, channel.value(), place); }
  // Sends the first delivery of the queue.
  void Send(ChannelId channel, Box& box, Window& window, std::vector<Deliver>* sends);
  // Sends all that the box may send, then updates whether it waits for the tenant's fd limit.
  void Flush(ChannelId channel, Box& box, Window& window, std::vector<Deliver>* sends);
  // Grants the tenant's free fd slots to the waiting boxes.
  void ServeWaiting(Window& window, std::vector<Deliver>* sends);
  void StopWaiting(Box& box, Window& window);

  const uint64_t fds_per_channel_;
  const uint64_t fds_per_tenant_;
  Journal* const journal_;
  // Restoring has finished, and Resume() has not been called yet.
  bool waits_ = false;
  uint64_t last_turn_ = 0;
  std::map<ChannelId, Box> boxes_;
  std::map<Account, Window> tenants_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_SESSIONS_MAILBOX_H_
