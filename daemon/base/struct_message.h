// AsStruct: the receiving counterpart of SendStruct() (common/os/fd_passing.h). A struct's first 32-bit value is its
// kind.

#ifndef DAEMON_BASE_STRUCT_MESSAGE_H_
#define DAEMON_BASE_STRUCT_MESSAGE_H_

#include <string.h>

#include <cstddef>
#include <optional>
#include <type_traits>

#include "common/os/fd_passing.h"

namespace berth {

// Returns the message as a `T` if it has `kind` and `fds` fds, or nothing.
template <typename T>
std::optional<T> AsStruct(const Message& message, decltype(T::kind) kind, size_t fds) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  if (message.bytes.size() != sizeof(T) || message.fds.size() != fds) return std::nullopt;
  memcpy(&value, message.bytes.data(), sizeof(T));
  if (value.kind != kind) return std::nullopt;
  return value;
}

}  // namespace berth

#endif  // DAEMON_BASE_STRUCT_MESSAGE_H_
