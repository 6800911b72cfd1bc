#include "daemon/service/transport/frame_meter.h"

#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace berth::service {
namespace {

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr char kData = 0;
constexpr char kHeaders = 1;
constexpr char kReset = 3;
constexpr char kSettings = 4;
constexpr char kPing = 6;

std::string Frame(char type, size_t size) {
  std::string frame(9, '\0');
  frame[0] = static_cast<char>(size >> 16);
  frame[1] = static_cast<char>(size >> 8);
  frame[2] = static_cast<char>(size);
  frame[3] = type;
  // The payload looks like headers of resets.
  return frame + std::string(size, kReset);
}

// The client's acknowledgement of the server's SETTINGS.
std::string Acknowledgement() {
  std::string frame = Frame(kSettings, 0);
  frame[4] = 1;
  return frame;
}

FrameCost Scan(FrameMeter& meter, const std::string& bytes) {
  return meter.Scan(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

TEST(FrameMeterTest, EachFrameCostsByItsType) {
  FrameMeter meter;
  EXPECT_EQ(Scan(meter, kPreface), FrameCost());
  EXPECT_EQ(Scan(meter, Frame(kHeaders, 30)), (FrameCost{.load = FrameCost::kCall, .resets = 1}))
      << "it has not said that it knows how many it may have open";
  Scan(meter, Acknowledgement());
  EXPECT_EQ(Scan(meter, Frame(kHeaders, 30)), (FrameCost{.load = FrameCost::kCall}));
  EXPECT_EQ(Scan(meter, Frame(kData, 5)), (FrameCost{.load = FrameCost::kFrame}));
  for (const char type : {kReset, kSettings, kPing}) {
    EXPECT_EQ(Scan(meter, Frame(type, 8)), (FrameCost{.load = FrameCost::kFrame, .resets = 1})) << int{type};
  }
  EXPECT_EQ(Scan(meter, Frame(77, 0)), (FrameCost{.load = FrameCost::kFrame})) << "a type that there is not";
}

TEST(FrameMeterTest, SplitOfBytesDoesNotChangeCost) {
  std::string all = absl::StrCat(kPreface, Acknowledgement());
  for (int i = 0; i < 50; ++i) absl::StrAppend(&all, Frame(kHeaders, 20), Frame(kData, 300), Frame(kReset, 4));
  FrameMeter at_once;
  const FrameCost whole = Scan(at_once, all);
  EXPECT_EQ(whole.resets, 51u);
  for (size_t step : {1, 2, 7, 8, 9, 10, 24, 25, 1000}) {
    FrameMeter meter;
    FrameCost cost;
    for (size_t at = 0; at < all.size(); at += step) cost += Scan(meter, all.substr(at, step));
    EXPECT_EQ(cost, whole) << step;
  }
}

TEST(FrameMeterTest, BytesCostTheSameInAnyFrames) {
  FrameMeter meter;
  Scan(meter, kPreface);
  EXPECT_EQ(Scan(meter, Frame(kData, 16'384)).load, FrameCost::kFrame + 16 * FrameCost::kKib);
  // Parts of a KiB add up.
  FrameCost cost;
  for (int i = 0; i < 1024; ++i) cost += Scan(meter, Frame(kData, 1));
  EXPECT_EQ(cost.load, 1024 * FrameCost::kFrame + 10 * FrameCost::kKib);
}

TEST(FrameMeterTest, PayloadIsNotParsedAsHeader) {
  FrameMeter meter;
  Scan(meter, kPreface);
  EXPECT_EQ(Scan(meter, Frame(kData, 900)), (FrameCost{.load = FrameCost::kFrame})) << "full of what would be resets";
}

}  // namespace
}  // namespace berth::service
