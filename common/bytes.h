// Bytes: an amount of memory that cannot be mixed with other numbers and whose sums are checked.

#ifndef COMMON_BYTES_H_
#define COMMON_BYTES_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace berth {

// Bytes is a number of bytes from 0 to 2^64 - 1.
class Bytes {
 public:
  constexpr Bytes() = default;
  constexpr explicit Bytes(uint64_t count) : count_(count) {}
  constexpr uint64_t count() const { return count_; }
  friend constexpr auto operator<=>(Bytes, Bytes) = default;

  // Sum, or nothing where it would pass 2^64 - 1.
  friend constexpr std::optional<Bytes> CheckedAdd(Bytes a, Bytes b) {
    if (a.count_ > UINT64_MAX - b.count_) return std::nullopt;
    return Bytes(a.count_ + b.count_);
  }
  // Difference, or 0 where it would be negative.
  friend constexpr Bytes SaturatingSub(Bytes a, Bytes b) {
    return Bytes(a.count_ > b.count_ ? a.count_ - b.count_ : 0);
  }
  // This rounded up to a multiple of `granularity` (> 0), or nothing where that would pass 2^64 - 1.
  constexpr std::optional<Bytes> RoundUp(Bytes granularity) const {
    const uint64_t rest = count_ % granularity.count_;
    return rest == 0 ? std::optional<Bytes>(*this) : CheckedAdd(*this, Bytes(granularity.count_ - rest));
  }

 private:
  uint64_t count_ = 0;
};

inline constexpr Bytes KiB(uint64_t n) { return Bytes(n << 10); }
inline constexpr Bytes MiB(uint64_t n) { return Bytes(n << 20); }
inline constexpr Bytes GiB(uint64_t n) { return Bytes(n << 30); }

// Reads "4096", "64KiB", "256MiB", "1.5GiB", "2TiB"; a bare number is bytes.
// Errors: kInvalidArgument naming the text.
absl::StatusOr<Bytes> ParseBytes(absl::string_view text);

// For people: "256 MiB" where that is exact, else "1.5 GiB" to a tenth, or "4,097 B" below a MiB.
std::string FormatBytes(Bytes bytes);

}  // namespace berth

#endif  // COMMON_BYTES_H_
