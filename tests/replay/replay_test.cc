#include "tests/replay/replay.h"

#include <sstream>

#include "daemon/device/memory/host_backend.h"
#include "gtest/gtest.h"

namespace berth::replay {
namespace {

Result MustReplay(const std::string& log, MemoryResource& resource) {
  std::istringstream lines(log);
  const absl::StatusOr<Result> result = Replay(lines, 0, resource);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.value_or(Result());
}

TEST(ReplayTest, ReplayFollowsAllocationsAndReleases) {
  HostBackend backend("HOST-0", GiB(1));
  const Result result = MustReplay(
      R"({"number":"1","action":"ALLOCATE","block_generation":"1","bytes":"2097152"}
{"number":"2","action":"ALLOCATE","block_generation":"2","bytes":"4194304","label":"weights"}
{"number":"3","action":"IMPORT","block_generation":"2","bytes":"4194304"}
{"number":"4","action":"FREE","block_generation":"1","bytes":"2097152"}
{"number":"5","action":"RELEASE","block_generation":"1","bytes":"2097152"}
{"number":"6","action":"ALLOCATE","bytes":"1","error":"OVER_BUDGET"}
{"number":"8","action":"RELEASE","block_generation":"77","bytes":"2097152"}
{"number":"9","action":"ALLOCATE","device":1,"block_generation":"9","bytes":"2097152"}
)",
      backend);
  EXPECT_EQ(result.records, 7u);
  EXPECT_EQ(result.allocations, 2u);
  EXPECT_EQ(result.releases, 1u);
  EXPECT_EQ(result.unknown_releases, 1u);
  EXPECT_EQ(result.missing, 1u);
  EXPECT_EQ(result.peak, MiB(6));
  EXPECT_EQ(result.left, MiB(4));
  EXPECT_EQ(result.allocate_times.size(), 2u);
  EXPECT_EQ(backend.outstanding(), Bytes(0));
}

TEST(ReplayTest, FailedAllocationIsCountedAndItsReleaseIgnored) {
  HostBackend backend("HOST-0", MiB(4));
  const Result result = MustReplay(
      R"({"number":"1","action":"ALLOCATE","block_generation":"1","bytes":"8388608"}
{"number":"2","action":"RELEASE","block_generation":"1","bytes":"8388608"}
)",
      backend);
  EXPECT_EQ(result.failed_allocations, 1u);
  EXPECT_EQ(result.unknown_releases, 0u);
  ASSERT_EQ(result.failures.size(), 1u);
  EXPECT_EQ(result.failures[0].substr(0, 13), "OUT_OF_MEMORY");
}

TEST(ReplayTest, NextIncarnationDiscardsBlocksAndRestartsNumbers) {
  HostBackend backend("HOST-0", GiB(1));
  const Result result = MustReplay(
      R"({"number":"41","incarnation":"1","action":"ALLOCATE","block_generation":"1","bytes":"8388608"}
{"number":"42","incarnation":"1","action":"TORN","block_generation":"1","bytes":"8388608"}
{"number":"1","incarnation":"2","action":"ALLOCATE","block_generation":"1","bytes":"2097152"}
{"number":"2","incarnation":"2","action":"RELEASE","block_generation":"1","bytes":"2097152"}
)",
      backend);
  EXPECT_EQ(result.allocations, 2u);
  EXPECT_EQ(result.releases, 1u);
  EXPECT_EQ(result.missing, 0u);
  EXPECT_EQ(result.peak, MiB(8));
  EXPECT_EQ(result.left, Bytes(0));
}

TEST(ReplayTest, InvalidLineIsNamed) {
  HostBackend backend("HOST-0", MiB(4));
  std::istringstream lines("{\"number\":\"1\"}\nnonsense\n");
  EXPECT_EQ(Replay(lines, 0, backend).status().message(), "line 2 is no record of the log");
}

}  // namespace
}  // namespace berth::replay
