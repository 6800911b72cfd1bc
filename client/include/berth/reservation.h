// Reservation: bytes reserved for future blocks, on one or several devices, all or nothing. No other lease can take
// reserved bytes. A job that needs four blocks gets all four, or fails before it allocates the first.
//
//   absl::StatusOr<berth::Reservation> reservation = berth::Reservation::Make(
//       session, {.items = {{.bytes = berth::GiB(8)}, {.bytes = berth::GiB(8), .device = 1}}});
//   absl::StatusOr<berth::Block> weights = reservation->Allocate({.bytes = berth::GiB(6)});

#ifndef BERTH_RESERVATION_H_
#define BERTH_RESERVATION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <berth/block.h>
#include <berth/bytes.h>
#include <berth/ids.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace berth {

struct ReservationItem {
  // At least 1; rounded up to the device's granularity.
  Bytes bytes;
  // The device's ordinal; ignored where `device_uuid` is set.
  uint32_t device = 0;
  std::string device_uuid;
};

struct ReservationOptions {
  // 1 to 64 items; items of one device are added up.
  std::vector<ReservationItem> items;
  // Free text for display. Non-printable bytes and invalid UTF-8 become "?"; text past 128 bytes is cut off.
  std::string label;
  // How long undrawn bytes stay reserved.
  absl::Duration ttl = absl::InfiniteDuration();
};

// Move-only. Thread-compatible. The destructor releases undrawn bytes; blocks drawn from the reservation stay.
class Reservation {
 public:
  // Errors: OVER_BUDGET, LIMIT; INVALID_FIELD, OUT_OF_RANGE, NOT_FOUND (device), DEVICE_STOPPED; otherwise as
  // Block::Allocate().
  static absl::StatusOr<Reservation> Make(const std::shared_ptr<Session>& session,
                                          const ReservationOptions& options);

  Reservation(Reservation&& other) noexcept = default;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();

  ReservationId id() const { return id_; }
  explicit operator bool() const { return core_ != nullptr; }

  // Draws exactly the block's rounded size. A failed draw leaves the reservation unchanged.
  // Errors: OVER_BUDGET of the layer "reservation"; NOT_FOUND after the reservation expired; otherwise as
  // Block::Allocate().
  absl::StatusOr<Block> Allocate(const BlockOptions& options) const;

  // Releases the undrawn bytes. Idempotent. Errors: those of the daemon or the transport; without an answer the SDK
  // releases them in the background.
  absl::Status Release();

 private:
  friend class Gang;
  Reservation(std::shared_ptr<internal::SessionCore> core, ReservationId id)
      : core_(std::move(core)), id_(id) {}

  std::shared_ptr<internal::SessionCore> core_;
  ReservationId id_;
};

}  // namespace berth

#endif  // BERTH_RESERVATION_H_
