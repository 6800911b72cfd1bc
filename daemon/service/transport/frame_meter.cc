#include "daemon/service/transport/frame_meter.h"

#include <algorithm>

namespace berth::service {
namespace {

constexpr std::byte kHeaders{1};
constexpr std::byte kRstStream{3};
constexpr std::byte kSettings{4};
constexpr std::byte kPing{6};
// The ACK flag of SETTINGS.
constexpr std::byte kAck{1};
constexpr uint32_t kKib = 1024;

}  // namespace

FrameCost FrameMeter::BeginFrame() {
  payload_left_ = std::to_integer<uint32_t>(header_[0]) << 16 | std::to_integer<uint32_t>(header_[1]) << 8 |
                  std::to_integer<uint32_t>(header_[2]);
  header_size_ = 0;
  const std::byte type = header_[3];
  if (type == kSettings && (header_[4] & kAck) != std::byte{0}) settings_known_ = true;
  const bool reset = type == kRstStream || type == kSettings || type == kPing || (type == kHeaders && !settings_known_);
  return {.load = type == kHeaders ? FrameCost::kCall : FrameCost::kFrame, .resets = reset ? uint64_t{1} : uint64_t{0}};
}

FrameCost FrameMeter::Scan(std::span<const std::byte> bytes) {
  if (!preface_seen_) {
    preface_seen_ = true;
    payload_left_ = kPrefaceBytes;
  }
  uncounted_bytes_ += static_cast<uint32_t>(std::min<size_t>(bytes.size(), uint32_t{1} << 30));
  FrameCost cost = {.load = uncounted_bytes_ / kKib * FrameCost::kKib};
  uncounted_bytes_ %= kKib;
  while (!bytes.empty()) {
    if (payload_left_ > 0) {
      const size_t skipped = std::min<size_t>(payload_left_, bytes.size());
      payload_left_ -= static_cast<uint32_t>(skipped);
      bytes = bytes.subspan(skipped);
      continue;
    }
    header_[header_size_++] = bytes.front();
    bytes = bytes.subspan(1);
    if (header_size_ == kHeaderBytes) cost += BeginFrame();
  }
  return cost;
}

}  // namespace berth::service
