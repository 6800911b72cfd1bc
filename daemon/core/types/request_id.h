// RequestId: names a request by its channel and its sequence there. A plain value.

#ifndef DAEMON_CORE_TYPES_REQUEST_ID_H_
#define DAEMON_CORE_TYPES_REQUEST_ID_H_

#include <compare>
#include <cstdint>
#include <utility>

#include <berth/ids.h>

namespace berth::core {

// A request's 128-bit id.
struct RequestId {
  ChannelId channel;
  uint64_t sequence = 0;

  friend auto operator<=>(const RequestId&, const RequestId&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const RequestId& id) {
    return H::combine(std::move(state), id.channel, id.sequence);
  }
};
template <typename Archive>
void Fields(Archive& archive, RequestId& value) {
  archive(value.channel, value.sequence);
}

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_REQUEST_ID_H_
