// Secret: 128 random bits that authenticate a session, compared in constant time and never printed.

#ifndef COMMON_SECRET_H_
#define COMMON_SECRET_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace berth {

// Secret is a value. The type deliberately has no formatting.
struct Secret {
  std::array<uint8_t, 16> bits = {};

  // Takes constant time, wherever the two differ.
  friend bool operator==(const Secret& a, const Secret& b) {
    uint8_t difference = 0;
    for (std::size_t i = 0; i < a.bits.size(); ++i) difference |= a.bits[i] ^ b.bits[i];
    return difference == 0;
  }
};

// Returns 64 bits from the kernel's random generator, never 0.
uint64_t RandomId();

Secret RandomSecret();

}  // namespace berth

#endif  // COMMON_SECRET_H_
