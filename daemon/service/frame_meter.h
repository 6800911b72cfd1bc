// FrameMeter: what the bytes of an HTTP/2 connection cost to serve, told by its frames' headers (RFC 9113, 4.1) alone.
//
// gRPC 1.51 bounds the calls that are open on a connection. Calls that are taken back as soon as they are begun are not
// open, so they are bounded by nothing; and a thread of gRPC's that reads them reads on as long as there are more.

#ifndef DAEMON_SERVICE_FRAME_METER_H_
#define DAEMON_SERVICE_FRAME_METER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace berth::service {

// What some frames cost.
struct FrameCost {
  // In halves of a call's: a call that is begun, any other frame, a KiB.
  static constexpr uint64_t kCall = 2;
  static constexpr uint64_t kFrame = 1;
  static constexpr uint64_t kKib = 2;

  uint64_t load = 0;
  // Frames that take back a call, or want to be answered at once: RST_STREAM, PING and SETTINGS. An honest client has
  // few of them, and each makes gRPC do, or keep, much more than it costs to send. So are calls of a client that has
  // not acknowledged the server's SETTINGS: until then gRPC holds it to no number of them.
  uint64_t resets = 0;

  FrameCost& operator+=(const FrameCost& other) {
    load += other.load;
    resets += other.resets;
    return *this;
  }
  friend bool operator==(const FrameCost&, const FrameCost&) = default;
};

// Thread-compatible. One that is all zeroes is new.
class FrameMeter {
 public:
  // Takes the next bytes that a client has sent, from its preface on. Returns: what they cost.
  FrameCost Scan(std::span<const std::byte> bytes);

 private:
  static constexpr size_t kPrefaceBytes = 24;
  static constexpr size_t kHeaderBytes = 9;

  // Of the frame whose header is whole.
  FrameCost BeginFrame();

  bool preface_seen_ = false;
  // The client has acknowledged how many calls it may have open.
  bool settings_known_ = false;
  // Of the frame's header.
  uint8_t header_size_ = 0;
  std::array<std::byte, kHeaderBytes> header_ = {};
  // Of the frame that is being read, and bytes that have cost nothing yet.
  uint32_t payload_left_ = 0;
  uint32_t uncounted_bytes_ = 0;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_FRAME_METER_H_
