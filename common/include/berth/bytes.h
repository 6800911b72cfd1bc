// Bytes: an amount of memory, as a type that does not mix with other numbers and has checked sums.

#ifndef BERTH_BYTES_H_
#define BERTH_BYTES_H_

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

  // Returns the sum, or nothing if it exceeds 2^64 - 1.
  friend constexpr std::optional<Bytes> CheckedAdd(Bytes a, Bytes b) {
    if (a.count_ > UINT64_MAX - b.count_) return std::nullopt;
    return Bytes(a.count_ + b.count_);
  }
  // Returns the difference, or 0 if it is negative.
  friend constexpr Bytes SaturatingSub(Bytes a, Bytes b) {
    return Bytes(a.count_ > b.count_ ? a.count_ - b.count_ : 0);
  }
  // Returns the amount rounded up to a multiple of `granularity` (> 0), or nothing if that exceeds 2^64 - 1.
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

// Parses "4096", "64KiB", "256MiB", "1.5GiB", "2TiB", in any case; a bare number is bytes. "20G" is 20 GiB, "10GB" is
// 10^10 bytes. Errors: kInvalidArgument naming the text.
absl::StatusOr<Bytes> ParseBytes(absl::string_view text);

// Formats for display: "256 MiB" if exact, else "1.5 GiB" to a tenth, or "4,097 B" below a MiB.
std::string FormatBytes(Bytes bytes);

}  // namespace berth

#endif  // BERTH_BYTES_H_
