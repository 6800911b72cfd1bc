// Fingerprint: a 64-bit hash of a request's content, which detects a sequence number that is used again for a different
// request. It protects a client against its own mistakes. A client whose payloads collide only receives its own first
// answer.

#ifndef DAEMON_CORE_REQUESTS_FINGERPRINT_H_
#define DAEMON_CORE_REQUESTS_FINGERPRINT_H_

#include <cstdint>
#include <type_traits>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/base/casts.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/digest.h"
#include "daemon/core/types/request_traits.h"

namespace berth::core {

// FNV-1a over typed fields, identical in every process. Each field has a fixed width or includes its length, so
// adjacent fields cannot run together.
class Fingerprint {
 public:
  // Adds the fields in their order.
  template <typename... Fields>
  Fingerprint& operator()(const Fields&... fields) {
    (Add(fields), ...);
    return *this;
  }

  Fingerprint& Add(uint64_t value);
  Fingerprint& Add(absl::string_view text);
  // A signed number and an enumeration as the number of 64 bits with the same value.
  template <typename T>
    requires(std::is_integral_v<T> || std::is_enum_v<T>)
  Fingerprint& Add(T value) {
    return Add(static_cast<uint64_t>(value));
  }
  template <typename Tag>
  Fingerprint& Add(Id<Tag> id) {
    return Add(id.value());
  }
  Fingerprint& Add(Bytes bytes) { return Add(bytes.count()); }
  Fingerprint& Add(double value) { return Add(absl::bit_cast<uint64_t>(value)); }
  Fingerprint& Add(absl::Duration duration) { return Add(absl::ToInt64Nanoseconds(duration)); }
  Fingerprint& Add(const Digest& digest) { return Add(digest.bytes()); }
  // Adds the elements without their number.
  template <typename T>
  Fingerprint& Add(const std::vector<T>& values) {
    for (const T& value : values) Add(value);
    return *this;
  }
  template <typename T>
    requires requires(Fingerprint& fingerprint, const T& value) { Payload(fingerprint, value); }
  Fingerprint& Add(const T& value) {
    Payload(*this, value);
    return *this;
  }

  uint64_t value() const { return value_; }

 private:
  static constexpr uint64_t kPrime = 0x100000001b3;

  void AddByte(uint8_t byte) { value_ = (value_ ^ byte) * kPrime; }

  uint64_t value_ = 0xcbf29ce484222325;
};

// Fingerprints a request together with its kind.
template <typename Request>
uint64_t FingerprintOf(const Request& request) {
  return Fingerprint()(RequestTraits<Request>::kKind, request).value();
}

}  // namespace berth::core

#endif  // DAEMON_CORE_REQUESTS_FINGERPRINT_H_
