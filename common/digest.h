// Digest: a SHA-256 as a value. common/sha256.h computes it.

#ifndef COMMON_DIGEST_H_
#define COMMON_DIGEST_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

namespace berth {

struct Digest {
  static constexpr size_t kBytes = 32;
  std::array<uint8_t, kBytes> bits = {};

  // All zeroes means no digest.
  bool empty() const { return *this == Digest(); }
  // The 32 bytes, as messages carry them.
  absl::string_view bytes() const { return {reinterpret_cast<const char*>(bits.data()), bits.size()}; }

  friend auto operator<=>(const Digest&, const Digest&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const Digest& digest) {
    return H::combine(std::move(state), digest.bits);
  }
};
template <typename Archive>
void Fields(Archive& archive, Digest& value) {
  archive(value.bits);
}

// Returns 64 hexadecimal digits.
inline std::string ToHex(const Digest& digest) { return absl::BytesToHexString(digest.bytes()); }

}  // namespace berth

#endif  // COMMON_DIGEST_H_
