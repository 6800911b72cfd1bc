// HTTP/2 in bytes (RFC 9113), for malicious clients: frames, or numbers of frames, that no gRPC client would send.

#ifndef TESTS_SUPPORT_WIRE_HTTP2_H_
#define TESTS_SUPPORT_WIRE_HTTP2_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace berth::testing::http2 {

enum class FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kRstStream = 3,
  kSettings = 4,
  kPing = 6,
  kWindowUpdate = 8,
  kContinuation = 9,
};

inline constexpr uint8_t kEndStream = 1;
inline constexpr uint8_t kEndHeaders = 4;

// Returns a frame's bytes. Requires: payload.size() < 2^24.
std::string Frame(FrameType type, uint8_t flags, uint32_t stream, absl::string_view payload);

// Returns a client's first bytes: the preface, and SETTINGS with the window of each stream.
std::string Preface(uint32_t stream_window = 65'535);

// Returns a call's headers. The first call of a connection adds them to the header tables of both sides; a later call
// of the same `path` takes six bytes.
std::string CallHeaders(absl::string_view path, bool first);

// Returns the message of a call without fields: gRPC's five-byte prefix.
std::string EmptyMessage();

// Returns RST_STREAM with CANCEL.
std::string Reset(uint32_t stream);

}  // namespace berth::testing::http2

#endif  // TESTS_SUPPORT_WIRE_HTTP2_H_
