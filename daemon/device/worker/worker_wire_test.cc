#include "daemon/device/worker/worker_wire.h"

#include <gtest/gtest.h>

#include <string>

#include <berth/error.h>

namespace berth::worker {
namespace {

absl::Status OverTheWire(const absl::Status& status) {
  Outcome outcome;
  SetStatus(status, &outcome);
  return GetStatus(outcome);
}

TEST(WorkerWireTest, OkArrivesOverWireAsOk) { EXPECT_TRUE(OverTheWire(absl::OkStatus()).ok()); }

TEST(WorkerWireTest, RefusalArrivesWithReasonAndMetadata) {
  const absl::Status sent =
      Refuse(Reason::kOutOfMemory, "device {device}: {requested} ({driver_code}){empty}",
             {{"device", "GPU-1"}, {"requested", 4096}, {"driver_code", 2}, {"empty", ""}});
  const absl::Status got = OverTheWire(sent);
  EXPECT_EQ(got, sent);
  EXPECT_EQ(GetErrorDetails(got)->metadata, GetErrorDetails(sent)->metadata);
}

TEST(WorkerWireTest, OtherErrorArrivesWithCodeAndText) {
  const absl::Status got = OverTheWire(absl::DataLossError("lost"));
  EXPECT_EQ(got, absl::DataLossError("lost"));
}

TEST(WorkerWireTest, UnknownReasonIsDropped) {
  Outcome outcome;
  SetStatus(Refuse(Reason::kDriver, "text"), &outcome);
  for (const int32_t reason : {-1, 0, 1'000, INT32_MIN, INT32_MAX}) {
    outcome.reason = reason;
    const absl::Status got = GetStatus(outcome);
    EXPECT_EQ(got.message(), "text");
    EXPECT_FALSE(GetErrorDetails(got).has_value()) << reason;
  }
}

TEST(WorkerWireTest, OverlongMetadataIsDroppedOthersArrive) {
  const absl::Status sent = Refuse(Reason::kDriver, "{call} {log}",
                                   {{"call", "cuInit"}, {"log", std::string(2000, 'x')}, {"z", "last"}});
  const absl::Status got = OverTheWire(sent);
  EXPECT_EQ(got.message(), sent.message().substr(0, sizeof(Outcome::text) - 1));
  const auto named_values = GetErrorDetails(got)->metadata;
  EXPECT_EQ(named_values.at("call"), "cuInit");
  EXPECT_EQ(named_values.at("z"), "last");
  EXPECT_EQ(named_values.count("log"), 0);
}

TEST(WorkerWireTest, MetadataFillingItsSpaceArrives) {
  Outcome outcome;
  for (size_t size = sizeof(outcome.named_values) - 8; size <= sizeof(outcome.named_values); ++size) {
    const absl::Status sent = Refuse(Reason::kDriver, "text", {{"a", std::string(size, 'x')}});
    const auto named_values = GetErrorDetails(OverTheWire(sent))->metadata;
    if (named_values.empty()) continue;
    EXPECT_EQ(named_values.at("a").size(), size);
  }
}

}  // namespace
}  // namespace berth::worker
