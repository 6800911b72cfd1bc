#include "tests/support/wire/http2.h"

#include "absl/strings/str_cat.h"

namespace berth::testing::http2 {
namespace {

constexpr uint32_t kCancel = 8;
constexpr uint16_t kInitialWindowSize = 4;
// Indices of HPACK's static table (RFC 7541, appendix A), and the first of the dynamic one.
constexpr uint8_t kAuthority = 1;
constexpr uint8_t kMethodPost = 3;
constexpr uint8_t kPath = 4;
constexpr uint8_t kSchemeHttp = 6;
constexpr uint8_t kContentType = 31;
constexpr uint8_t kDynamic = 62;
// A field that is in a table; a field whose name is in a table, and that is added.
constexpr uint8_t kIndexed = 0x80;
constexpr uint8_t kAdded = 0x40;

std::string BigEndian(uint32_t value, int bytes) {
  std::string text;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) text.push_back(static_cast<char>(value >> shift));
  return text;
}

std::string Byte(uint8_t byte) { return std::string(1, static_cast<char>(byte)); }

// Encodes text shorter than 127 bytes, without Huffman coding.
std::string Text(absl::string_view text) { return absl::StrCat(Byte(static_cast<uint8_t>(text.size())), text); }

}  // namespace

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, absl::string_view payload) {
  return absl::StrCat(BigEndian(static_cast<uint32_t>(payload.size()), 3), Byte(static_cast<uint8_t>(type)),
                      Byte(flags), BigEndian(stream, 4), payload);
}

std::string Preface(uint32_t stream_window) {
  return absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                      Frame(FrameType::kSettings, 0, 0,
                            absl::StrCat(BigEndian(kInitialWindowSize, 2), BigEndian(stream_window, 4))));
}

std::string CallHeaders(absl::string_view path, bool first) {
  const std::string always = absl::StrCat(Byte(kIndexed | kMethodPost), Byte(kIndexed | kSchemeHttp));
  if (!first) {
    std::string block = always;
    for (uint8_t field = 0; field < 4; ++field) block.push_back(static_cast<char>(kIndexed | (kDynamic + field)));
    return block;
  }
  return absl::StrCat(always, Byte(kAdded | kPath), Text(path), Byte(kAdded | kAuthority), Text("node"),
                      Byte(kAdded), Text("te"), Text("trailers"), Byte(kAdded | kContentType),
                      Text("application/grpc"));
}

std::string EmptyMessage() { return std::string(5, '\0'); }

std::string Reset(uint32_t stream) { return Frame(FrameType::kRstStream, 0, stream, BigEndian(kCancel, 4)); }

}  // namespace berth::testing::http2
