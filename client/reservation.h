// Reservation: bytes set aside for blocks to come, on one or several devices, all or nothing: what was reserved nobody
// else can take, so a job that needs four blocks gets four or is told so before it makes the first.
//
//   absl::StatusOr<berth::Reservation> reservation = berth::Reservation::Make(
//       session, {.items = {{.bytes = berth::GiB(8)}, {.bytes = berth::GiB(8), .device = 1}}});
//   absl::StatusOr<berth::Block> weights = reservation->Allocate({.bytes = berth::GiB(6)});

#ifndef CLIENT_RESERVATION_H_
#define CLIENT_RESERVATION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/block.h"
#include "client/session.h"
#include "common/bytes.h"
#include "common/ids.h"

namespace berth {

struct ReservationItem {
  // At least 1; rounded up to the device's granularity.
  Bytes bytes;
  // The device's ordinal; ignored where `device_uuid` is set.
  uint32_t device = 0;
  std::string device_uuid;
};

struct ReservationOptions {
  // 1 to 64; several of one device are added up.
  std::vector<ReservationItem> items;
  // Free text for those who look, at most 128 bytes, printable.
  std::string label;
  // How long what is not drawn stays set aside.
  absl::Duration ttl = absl::InfiniteDuration();
};

// Move-only. Thread-compatible. What was not drawn is given up when it goes; blocks drawn from it stay.
class Reservation {
 public:
  // Errors: OVER_BUDGET, LIMIT; INVALID_FIELD, OUT_OF_RANGE, NOT_FOUND (device), DEVICE_STOPPED; as Block::Allocate()
  // else.
  static absl::StatusOr<Reservation> Make(const std::shared_ptr<Session>& session,
                                          const ReservationOptions& options);

  Reservation(Reservation&& other) noexcept = default;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();

  ReservationId id() const { return id_; }
  explicit operator bool() const { return core_ != nullptr; }

  // Draws exactly the block's rounded size. A draw that fails leaves the reservation as it was.
  // Errors: OVER_BUDGET of the layer "reservation"; NOT_FOUND once it expired; as Block::Allocate() else.
  absl::StatusOr<Block> Allocate(const BlockOptions& options) const;

  // Gives up what was not drawn. Idempotent. Errors: what the daemon or the transport said; without an answer it is
  // given up in the background all the same.
  absl::Status Release();

 private:
  friend class Gang;
  Reservation(std::shared_ptr<internal::SessionCore> core, ReservationId id)
      : core_(std::move(core)), id_(id) {}

  std::shared_ptr<internal::SessionCore> core_;
  ReservationId id_;
};

}  // namespace berth

#endif  // CLIENT_RESERVATION_H_
