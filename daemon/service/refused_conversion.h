// Conversion of a refusal to what attach.sock carries of it; client/internal/attach.cc has the way back.

#ifndef DAEMON_SERVICE_REFUSED_CONVERSION_H_
#define DAEMON_SERVICE_REFUSED_CONVERSION_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/attach_wire.h"

namespace berth::service {

// Requires: `why` is not OK. Of its text as much as there is room for. Who was not looked at is to come again after
// `pause`.
attach::Refused ToRefused(const absl::Status& why, absl::Duration pause = absl::ZeroDuration());

}  // namespace berth::service

#endif  // DAEMON_SERVICE_REFUSED_CONVERSION_H_
