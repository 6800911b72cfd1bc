// Reservations: bytes reserved all or nothing, drawn down exactly, and returned at their release, their expiry, or the
// end of their session.

#ifndef DAEMON_CORE_MEMORY_RESERVATIONS_H_
#define DAEMON_CORE_MEMORY_RESERVATIONS_H_

#include <cstdint>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/archive.h"
#include "daemon/core/memory/block_table.h"
#include "daemon/core/memory/byte_wait_queue.h"
#include "daemon/core/memory/reservation_table.h"
#include "daemon/core/types/budget_types.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/log_record.h"
#include "daemon/core/types/page.h"
#include "daemon/core/types/step_context.h"

namespace berth::core {

struct Managers;

// Thread-compatible; part of the core.
class Reservations {
 public:
  // `core` outlives the manager.
  explicit Reservations(Managers& core);

  // ---- Events and queries (core.h) ---------------------------------------------------------------------------

  Page<ReservationView> ListReservations(const Caller& caller, const PageRequest& page) const;
  void Reserve(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
               const ReserveRequest& request);
  void ReleaseReservation(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                          ReservationId reservation);

  // ---- For the other managers -------------------------------------------------------------------------------

  ReservationView ReserveForGang(StepContext& step, const Waiting& waiting);
  absl::StatusOr<std::vector<ByteRequest>> MeasureAll(const ReserveRequest& request);
  // Errors: LIMIT.
  absl::Status MayReserve(SessionId session) const;
  void MakeReservation(StepContext& step, const Waiting& waiting);
  void Unclaim(StepContext& step, SessionId session, const Account& account, uint32_t device, Bytes bytes);
  // Frees what is left of the reservation and erases it.
  void DropReservation(StepContext& step, Reservation& reservation, LogCause cause);
  // Takes `bytes` out of the session's reservation; they stay charged. Errors: NOT_FOUND; OVER_BUDGET.
  absl::Status Draw(SessionId session, ReservationId id, uint32_t device, Bytes bytes);
  // Returns a gone block's drawn bytes to its reservation, if the reservation still exists.
  void ReturnToReservation(const Block& block);
  // Returns the reservation's bytes on a device: those left, and those drawn into live blocks.
  Bytes HeldIn(const Reservation& reservation, uint32_t device);
  void ReadReservation(ReservationId id, ArchiveReader& archive);

  const ReservationTable& table() const { return reservations_; }
  // As the table's methods of that name. The found reservation is marked as changed.
  Reservation* Find(ReservationId id) { return reservations_.Find(id); }
  void Erase(const Reservation& reservation) { reservations_.Erase(reservation); }
  void RestoreLastNumber(uint64_t number) { reservations_.RestoreLastNumber(number); }
  // Drops the reservations of an ending session, and those that have expired.
  void DropAllOf(StepContext& step, SessionId session);
  void DropExpired(StepContext& step);
  // Returns the drawn bytes of a request that leaves without its block.
  void ReturnDrawn(StepContext& step, const Waiting& waiting);

 private:
  Reservation& AddReservation(StepContext& step, const Waiting& waiting);
  // Claim() reserves bytes in every layer of the reservation; Unclaim() frees them.
  void Claim(const Reservation& reservation, uint32_t device, Bytes bytes);
  ReservationView ViewReservation(const Reservation& reservation) const;

  Managers& core_;
  ReservationTable reservations_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_MEMORY_RESERVATIONS_H_
