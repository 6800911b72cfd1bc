// ByteWaitQueue: byte requests that wait, in order of arrival. They wait for a worker, for the return of freed bytes,
// or, if requested, for capacity that other clients hold.
//
// A request that waits for capacity of others is parked on one budget that lacks it (byte_wait_lines.h). A parked
// request costs nothing until that budget changes; all other requests are awake and are judged again after any change.
// Meanwhile other requests may be granted bytes of that budget. After enough of these grants the queue reserves the
// missing capacity for the parked request, but only for a limited time. So neither a large request nor the requests
// behind it starve forever. The core decides on each request; the queue maintains order, deadlines and counts. Pure and
// thread-compatible.

#ifndef DAEMON_CORE_MEMORY_BYTE_WAIT_QUEUE_H_
#define DAEMON_CORE_MEMORY_BYTE_WAIT_QUEUE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/base/worker_kind.h"
#include "daemon/core/memory/byte_budget.h"
#include "daemon/core/memory/byte_wait_lines.h"
#include "daemon/core/requests/request_memory.h"
#include "daemon/core/types/block_types.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/journal.h"
#include "daemon/core/types/shared_count.h"

namespace berth::core {

struct ByteRequest {
  uint32_t device = 0;
  Bytes bytes;
};

template <typename Archive>
void Fields(Archive& archive, ByteRequest& value) {
  archive(value.device, value.bytes);
}

struct Waiting {
  // Rises with each request that starts to wait.
  uint64_t number = 0;
  RequestId request;
  SessionId session;
  Tenant tenant;
  // Bytes by device, each device once. An allocation has one entry, and so has every patient request.
  std::vector<ByteRequest> asks;
  std::string label;
  // For an allocation: the kind of the block.
  ExportKind kind = ExportKind::kFd;
  // The reservation that an allocation draws from; its bytes have already moved to the request.
  ReservationId drawn_from;
  // Set for a reservation request; empty for a block.
  std::optional<absl::Duration> reserve_for;
  // The request waits until `deadline` for capacity that other clients hold.
  bool patient = false;
  absl::Time deadline = absl::InfiniteFuture();
  // Number of passes before it was parked, and start of the capacity reservation for it; empty for none.
  uint64_t passes = 0;
  std::optional<absl::Time> reserved_since;
  // The request comes from an operator's session. Not persisted: a later broker treats it as the user's.
  bool of_operator = false;
  // Time of the invitation to call again, which is not persisted; empty for none.
  std::optional<absl::Time> invited_since;

  Claimant claimant() const { return {.user = UserOf(tenant), .of_operator = of_operator}; }
};
// Excludes the number, of_operator and invited_since.
template <typename Archive>
void Fields(Archive& archive, Waiting& value) {
  archive(value.request, value.session, value.tenant, value.asks, value.label, value.kind, value.drawn_from,
          value.reserve_for, value.patient, value.deadline, value.passes, value.reserved_since);
}

class ByteWaitQueue {
 public:
  struct Options {
    // Passes after which the queue reserves capacity for a waiter, and the longest such reservation.
    uint64_t passes_before_reserve = 0;
    absl::Duration reserve_time;
    // Longest time for which capacity stays reserved for an invited request.
    absl::Duration invitation_time;
    // Limits of the waiters for one device: all users together, and operators.
    uint64_t places_per_device = SharedCount::kUnlimited;
    uint64_t operator_places_per_device = SharedCount::kUnlimited;
  };
  // Records entries and counters in the journal.
  ByteWaitQueue(Journal* journal, const Options& options)
      : journal_(*journal), options_(options), lines_(options.passes_before_reserve) {}

  // Adds an entry. Its address is stable until it is taken. Requires: the request does not wait yet; one for a block
  // asks one device.
  Waiting& Push(Waiting waiting);
  // Removes and returns the entry. Requires: the request waits.
  Waiting Take(const RequestId& request);
  // Returns null if it does not wait.
  Waiting* Find(const RequestId& request);
  // Returns null for an unknown number.
  const Waiting* FindNumber(uint64_t number) const;
  // Visits the entries in their order.
  void ForEach(absl::FunctionRef<void(const Waiting&)> visit) const;
  uint64_t size() const { return entries_.size(); }

  // Sets the deadline of a patient waiter; ignores other waiters.
  void SetDeadline(const RequestId& request, absl::Time deadline);
  // Removes and returns the entries whose deadline has passed, earliest deadline first.
  std::vector<Waiting> TakeExpired(absl::Time now);
  // Returns the next due time of TakeExpired(), EndReserves() or EndInvitations(); InfiniteFuture for none.
  absl::Time next_deadline() const;

  // ---- Requests to judge ------------------------------------------------------------------------------------

  // The budgets' changes, which Wake() processes.
  BudgetChanges* changes() { return &changes_; }
  // Wakes the requests whose budget has changed in a way that may change their verdict.
  void Wake();
  // Returns the next awake request with a number above `after`, or null.
  Waiting* NextAwake(uint64_t after);
  // Parks the request on `on`, the budget among its layers that lacks capacity. Requires: it is awake and patient, and
  // no capacity is reserved for it.
  void Park(const Waiting& waiting, ByteBudget* on, std::vector<ByteBudget*> layers);
  // Returns whether the budget's free capacity is reserved for another request.
  bool IsReservedFrom(const Waiting& waiting, const ByteBudget& budget) const {
    return lines_.IsReserved(budget, waiting.number);
  }

  // Records a grant of the budget's bytes. Returns the entry for which capacity is reserved from now on, or null.
  Waiting* RecordGrant(const ByteBudget& budget, absl::Time now);
  bool Reserves(const Waiting& waiting) const { return waiting.reserved_since.has_value(); }
  void ForEachReserved(absl::FunctionRef<void(const Waiting&)> visit) const;
  void ForEachInvited(absl::FunctionRef<void(const Waiting&)> visit) const;
  // Ends capacity reservations that have lasted their full time. Returns whether there were any.
  bool EndReserves(absl::Time now);

  // ---- Requests of processes that may be stopped ------------------------------------------------------------

  // Ends what the queue reserves for the request, which is awake afterwards. Requires: the request waits.
  void Skip(const RequestId& request);
  // The request is served as soon as its process calls again. Requires: it is awake, and was not invited.
  void Invite(Waiting& waiting, absl::Time now);
  // Ends the request's invitation, if there is one. Requires: the request waits.
  void EndInvitation(const RequestId& request);
  // Calls Skip() for the requests whose invitation has lasted its full time.
  void EndInvitations(absl::Time now);

  // ---- Counts -----------------------------------------------------------------------------------------------

  // Returns the number of requests for bytes of the device.
  uint64_t CountOf(uint32_t device) const;
  // Returns the numbers of the requests for one worker (`worker_kind`) of the device.
  const std::set<uint64_t>& Of(uint32_t device, WorkerKind worker_kind) const;
  // Checks that the claimant may wait for the device. Errors: LIMIT.
  absl::Status CheckPlace(uint32_t device, const Claimant& claimant) const;
  // Counts of the requests for a block: of all accounts, and of one account.
  const SharedCount& blocks() const { return blocks_; }
  uint64_t CountBlocksFor(const Account& account) const;
  // Adds the requests for a block of that worker.
  void CountCreates(uint32_t device, WorkerKind worker_kind, SharedCount* creates) const;
  // Returns the number of the session's reservation requests.
  uint64_t CountReservationsFor(SessionId session) const;

  // Restores an earlier queue's state: its last number, and entries in their order. Restore() returns whether the entry
  // is consistent.
  uint64_t last_number() const { return last_number_; }
  void RestoreLastNumber(uint64_t number) { last_number_ = number; }
  bool Restore(Waiting waiting);

  // Returns OK if counts, deadlines and lines match the entries.
  absl::Status CheckInvariants() const;

 private:
  struct Entry {
    Waiting waiting;
    // The budget on which the request is parked, null while it is awake; and all budgets that its bytes count in.
    ByteBudget* parked_on = nullptr;
    std::vector<ByteBudget*> layers;
    // The budget whose line reserves capacity for the request; null for none.
    ByteBudget* reserves = nullptr;
  };
  // Budget number, bytes, and entry number.
  using Sizes = std::set<std::tuple<uint64_t, Bytes, uint64_t>>;
  // Counts derived from the entries.
  struct Counts {
    std::map<uint32_t, SharedCount> places;
    std::map<std::pair<uint32_t, WorkerKind>, std::set<uint64_t>> by_worker_kind;
    // Requests for a block, by worker.
    std::map<std::pair<uint32_t, WorkerKind>, SharedCount> creates;
    absl::flat_hash_map<Account, uint64_t> blocks_of;
    absl::flat_hash_map<SessionId, uint64_t> reservations_of;
    std::set<std::pair<absl::Time, uint64_t>> deadlines;
    std::set<std::pair<absl::Time, uint64_t>> reserves;
    std::set<std::pair<absl::Time, uint64_t>> invitations;
    friend bool operator==(const Counts& a, const Counts& b) = default;
  };

  SharedCount NewPlaces(uint32_t device) const;
  static SharedCount NewCreates() { return {"creates", SharedCount::kUnlimited, SharedCount::kUnlimited}; }
  // Requires: the request is for a block.
  static std::pair<uint32_t, WorkerKind> WorkerOf(const Waiting& waiting) {
    return {waiting.asks.front().device, WorkerKindOf(waiting.kind)};
  }
  Waiting& Insert(Waiting waiting);
  // Adds the entry to the counts; Discount() removes it.
  void Count(const Waiting& waiting, Counts* counts, SharedCount* blocks) const;
  void Discount(const Waiting& waiting);
  Entry& At(const Waiting& waiting) { return entries_.at(waiting.number); }
  void Unpark(Entry& entry);
  void EndReserve(Entry& entry);
  void EndInvitation(Waiting& waiting);
  Waiting Remove(uint64_t number);
  absl::Status CheckParked(const Entry& entry) const;
  void Mark(const Waiting& waiting) { journal_.Touch(RecordKind::kByteWaiter, waiting.number); }

  Journal& journal_;
  const Options options_;
  uint64_t last_number_ = 0;
  std::map<uint64_t, Entry> entries_;
  absl::flat_hash_map<RequestId, uint64_t> by_request_;
  Counts counts_;
  SharedCount blocks_{"blocks", SharedCount::kUnlimited, SharedCount::kUnlimited};
  BudgetChanges changes_;
  ByteWaitLines lines_;
  std::set<uint64_t> awake_;
  // The parked entries, once for each of their layers.
  Sizes sizes_;
  const std::set<uint64_t> none_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_MEMORY_BYTE_WAIT_QUEUE_H_
