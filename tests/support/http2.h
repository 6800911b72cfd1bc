// HTTP/2 in bytes (RFC 9113), for clients that mean harm: frames that no gRPC client would send, or not so many of.

#ifndef TESTS_SUPPORT_HTTP2_H_
#define TESTS_SUPPORT_HTTP2_H_

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

// A frame's bytes. Requires: payload.size() < 2^24.
std::string Frame(FrameType type, uint8_t flags, uint32_t stream, absl::string_view payload);

// What a client says first: the preface, and SETTINGS with the window that it gives each stream.
std::string Preface(uint32_t stream_window = 65'535);

// A call's headers, compressed for the first call of a connection, which leaves them in the table of both, or in
// six bytes for a later one of the same `path`.
std::string CallHeaders(absl::string_view path, bool first);

// The message of a call without fields, in gRPC's five bytes.
std::string EmptyMessage();

// RST_STREAM with CANCEL.
std::string Reset(uint32_t stream);

}  // namespace berth::testing::http2

#endif  // TESTS_SUPPORT_HTTP2_H_
