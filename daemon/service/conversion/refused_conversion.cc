#include "daemon/service/conversion/refused_conversion.h"

#include <string.h>

#include <optional>

#include <berth/error.h>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace berth::service {

attach::Refused ToRefused(const absl::Status& why, absl::Duration pause) {
  attach::Refused refused = {.code = static_cast<int32_t>(why.code()),
                             .retry_after = static_cast<uint32_t>(absl::ToInt64Milliseconds(pause))};
  if (const std::optional<ErrorDetails> details = GetErrorDetails(why)) {
    refused.reason = static_cast<int32_t>(details->reason);
  }
  const absl::string_view text = why.message().substr(0, sizeof(refused.text) - 1);
  memcpy(refused.text, text.data(), text.size());
  return refused;
}

}  // namespace berth::service
