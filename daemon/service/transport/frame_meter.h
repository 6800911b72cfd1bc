// FrameMeter: computes the serving cost of an HTTP/2 connection's bytes from the frame headers (RFC 9113, 4.1) alone.
//
// gRPC 1.51 limits the open calls of a connection. Calls that are reset right after they start are not open, so no
// limit applies to them. A gRPC thread that reads such calls continues as long as there are more.

#ifndef DAEMON_SERVICE_TRANSPORT_FRAME_METER_H_
#define DAEMON_SERVICE_TRANSPORT_FRAME_METER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace berth::service {

// Cost of a number of frames.
struct FrameCost {
  // Units: half the cost of a call. Cost of a started call, of any other frame, of a KiB.
  static constexpr uint64_t kCall = 2;
  static constexpr uint64_t kFrame = 1;
  static constexpr uint64_t kKib = 2;

  uint64_t load = 0;
  // Frames that reset a call or require an immediate answer: RST_STREAM, PING and SETTINGS. An honest client sends few.
  // Each makes gRPC do or store much more than it costs to send. Calls of a client that has not acknowledged the
  // server's SETTINGS count as well: until then gRPC does not limit their number.
  uint64_t resets = 0;

  FrameCost& operator+=(const FrameCost& other) {
    load += other.load;
    resets += other.resets;
    return *this;
  }
  friend bool operator==(const FrameCost&, const FrameCost&) = default;
};

// Thread-compatible. All zeroes is a new meter.
class FrameMeter {
 public:
  // Processes the next bytes that a client has sent, from its preface on. Returns: their cost.
  FrameCost Scan(std::span<const std::byte> bytes);

 private:
  static constexpr size_t kPrefaceBytes = 24;
  static constexpr size_t kHeaderBytes = 9;

  // Returns the cost of the frame whose header is complete.
  FrameCost BeginFrame();

  bool preface_seen_ = false;
  // The client has acknowledged its limit of open calls.
  bool settings_known_ = false;
  // Bytes of the frame header received so far.
  uint8_t header_size_ = 0;
  std::array<std::byte, kHeaderBytes> header_ = {};
  // Bytes left of the current frame's payload, and bytes whose cost is not counted yet.
  uint32_t payload_left_ = 0;
  uint32_t uncounted_bytes_ = 0;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_TRANSPORT_FRAME_METER_H_
