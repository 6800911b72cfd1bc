// AsStruct: the other end of SendStruct() (common/fd_passing.h), for structs whose first word says what they are.

#ifndef COMMON_STRUCT_MESSAGE_H_
#define COMMON_STRUCT_MESSAGE_H_

#include <string.h>

#include <cstddef>
#include <optional>
#include <type_traits>

#include "common/fd_passing.h"

namespace berth {

// The message as a `T`, if it is one of `kind` with `fds` fds.
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

#endif  // COMMON_STRUCT_MESSAGE_H_
