// WaitWeight(): the bytes that a waiting request counts with (docs/concepts/limits.md). It approximates the memory that
// the request takes in the broker.

#ifndef DAEMON_CORE_REQUESTS_WAIT_WEIGHT_H_
#define DAEMON_CORE_REQUESTS_WAIT_WEIGHT_H_

#include <cstdint>
#include <string>

#include "daemon/base/archive.h"

namespace berth::core {

// Weight of an entry in a queue, of a gang or of a plan's draft in addition to its content.
inline constexpr uint64_t kWaitEntryWeight = 512;

// Returns the weight of an entry with that content. Text counts twice: an index of the queue has a copy.
template <typename... Content>
uint64_t WaitWeight(const Content&... content) {
  std::string archived;
  archived.reserve(kWaitEntryWeight);
  ArchiveWriter write(&archived);
  write(content...);
  return kWaitEntryWeight + 2 * archived.size();
}

}  // namespace berth::core

#endif  // DAEMON_CORE_REQUESTS_WAIT_WEIGHT_H_
