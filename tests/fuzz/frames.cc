// A client's bytes on a gRPC connection: the cost computed from its frames is the same however the bytes are split.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "daemon/service/transport/frame_meter.h"
#include "tests/fuzz/fuzz.h"

namespace berth::fuzz {
namespace {

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kPrefaceBytes = sizeof(kPreface) - 1;
constexpr size_t kHeaderBytes = 9;

// Returns a frame with a header for `size` bytes, of which fewer may follow.
std::string Frame(uint8_t type, uint8_t flags, size_t size, const std::string& payload) {
  const auto byte = [&](int shift) { return static_cast<char>(size >> shift); };
  return std::string{byte(16), byte(8), byte(0), static_cast<char>(type), static_cast<char>(flags), 0, 0, 0, 1} +
         payload;
}

// Computes the meter's result from all bytes at once.
service::FrameCost CostOf(std::span<const uint8_t> bytes) {
  service::FrameCost cost = {.load = bytes.size() / 1024 * service::FrameCost::kKib};
  bool acknowledged = false;
  for (size_t at = kPrefaceBytes; at + kHeaderBytes <= bytes.size();) {
    const uint8_t type = bytes[at + 3];
    acknowledged = acknowledged || (type == 4 && (bytes[at + 4] & 1) != 0);
    cost.load += type == 1 ? service::FrameCost::kCall : service::FrameCost::kFrame;
    cost.resets += type == 3 || type == 4 || type == 6 || (type == 1 && !acknowledged) ? 1 : 0;
    at += kHeaderBytes + (size_t{bytes[at]} << 16 | size_t{bytes[at + 1]} << 8 | bytes[at + 2]);
  }
  return cost;
}

}  // namespace

// The first byte determines how the rest is split.
std::vector<std::string> Seeds() {
  const std::string settings = Frame(4, 0, 0, "");
  const std::string acknowledged = Frame(4, 1, 0, "");
  const std::string call = Frame(1, 4, 5, "abcde") + Frame(0, 1, 3, "xyz");
  return {std::string("\0", 1) + kPreface + settings + call,
          "\1" + (kPreface + settings + acknowledged + call + Frame(3, 0, 4, std::string(4, '\0'))),
          "\7" + (kPreface + acknowledged + Frame(0, 0, 3000, std::string(3000, 'd')) + Frame(6, 0, 8, "pingping")),
          "\200" + (kPreface + Frame(8, 0, 0xffffff, "short")), "\5" + std::string(kPreface).substr(0, 10)};
}

}  // namespace berth::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace berth;
  if (size == 0) return 0;
  const std::span<const uint8_t> bytes(data + 1, size - 1);
  service::FrameMeter meter;
  service::FrameCost cost;
  // No two successive pieces have the same size.
  size_t piece = data[0];
  for (size_t at = 0; at < bytes.size(); at += piece) {
    piece = std::min(bytes.size() - at, piece * 7 % 251 + 1);
    cost += meter.Scan(std::as_bytes(bytes.subspan(at, piece)));
  }
  if (cost != fuzz::CostOf(bytes)) std::abort();
  return 0;
}
