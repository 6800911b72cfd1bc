// Converts a refusal to attach.sock's message; client/sdk/transport/attach.cc converts it back.

#ifndef DAEMON_SERVICE_CONVERSION_REFUSED_CONVERSION_H_
#define DAEMON_SERVICE_CONVERSION_REFUSED_CONVERSION_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/wire/attach_wire.h"

namespace berth::service {

// Requires: `why` is not OK. Truncates the text to the message's size. `pause` is the time after which the peer may
// retry, if its message was not evaluated.
attach::Refused ToRefused(const absl::Status& why, absl::Duration pause = absl::ZeroDuration());

}  // namespace berth::service

#endif  // DAEMON_SERVICE_CONVERSION_REFUSED_CONVERSION_H_
