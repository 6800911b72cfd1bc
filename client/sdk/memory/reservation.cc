#include <berth/reservation.h>

#include <utility>

#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/transport/duration.h"
#include "client/sdk/transport/live_object_counts.h"
#include "client/sdk/transport/session_core.h"
#include "common/label.h"
#include "common/status_macros.h"

namespace berth {

using internal::Attempt;
using internal::OpenRequest;
using internal::SessionCore;

absl::StatusOr<Reservation> Reservation::Make(const std::shared_ptr<Session>& session,
                                              const ReservationOptions& options) {
  const std::shared_ptr<SessionCore>& core = session->core();
  BERTH_RETURN_IF_ERROR(internal::CheckNotNegative("ttl", options.ttl));
  v1::ReserveBytesRequest request;
  for (const ReservationItem& item : options.items) {
    v1::ReserveBytesRequest::Item* const to = request.add_items();
    to->set_device(item.device);
    to->set_device_uuid(item.device_uuid);
    to->set_bytes(item.bytes.count());
  }
  request.set_label(ToLabel(options.label));
  if (options.ttl != absl::InfiniteDuration()) internal::ToProto(options.ttl, request.mutable_ttl());
  BERTH_ASSIGN_OR_RETURN(OpenRequest open, core->Begin());
  open.Fill(request.mutable_request());
  request.mutable_request()->set_takes_up(true);
  v1::Reservation response;
  const absl::Status status = core->Call(core->DefaultLimits(), [&](grpc::ClientContext* context) {
    return core->stubs().Of<v1::MemoryService>().ReserveBytes(context, request, &response);
  });
  open.Resolve(status);
  BERTH_RETURN_IF_ERROR(status);
  internal::live_object_counts.reservations.fetch_add(1, std::memory_order_relaxed);
  return Reservation(core, ReservationId(response.id()));
}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  Release().IgnoreError();
  core_ = std::move(other.core_);
  id_ = other.id_;
  return *this;
}

Reservation::~Reservation() { Release().IgnoreError(); }

absl::StatusOr<Block> Reservation::Allocate(const BlockOptions& options) const {
  if (core_ == nullptr) return absl::FailedPreconditionError("the reservation was released by this process");
  return Block::Allocate(core_, options, id_);
}

absl::Status Reservation::Release() {
  const std::shared_ptr<SessionCore> core = std::move(core_);
  if (core == nullptr) return absl::OkStatus();
  internal::live_object_counts.reservations.fetch_sub(1, std::memory_order_relaxed);
  const absl::Status status = core->GiveBack([&](const OpenRequest& open) -> Attempt {
    v1::ReleaseReservationRequest request;
    open.Fill(request.mutable_request());
    request.set_reservation(id_.value());
    return [raw = core.get(), request](grpc::ClientContext* context) {
      v1::ReleaseReservationResponse response;
      return raw->stubs().Of<v1::MemoryService>().ReleaseReservation(context, request, &response);
    };
  });
  // An expired reservation is already released.
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

}  // namespace berth
