#include "daemon/core/requests/fingerprint.h"

#include <array>
#include <cstddef>

namespace berth::core {

// Adds the lowest byte first.
Fingerprint& Fingerprint::Add(uint64_t value) {
  static constexpr std::array<uint64_t, sizeof(value) + 1> kPowers = [] {
    std::array<uint64_t, sizeof(value) + 1> powers = {1};
    for (size_t i = 1; i < powers.size(); ++i) powers[i] = powers[i - 1] * kPrime;
    return powers;
  }();
  size_t left = sizeof(value);
  for (; value != 0; value >>= 8, --left) AddByte(static_cast<uint8_t>(value));
  // A zero byte only multiplies.
  value_ *= kPowers[left];
  return *this;
}

Fingerprint& Fingerprint::Add(absl::string_view text) {
  Add(static_cast<uint64_t>(text.size()));
  for (const char c : text) AddByte(static_cast<uint8_t>(c));
  return *this;
}

}  // namespace berth::core
