#include "daemon/device/monitor/context_memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace berth {
namespace {

class FakeNvml : public cuda::Nvml {
 public:
  absl::StatusOr<std::vector<std::string>> Uuids() override { return std::vector<std::string>(); }
  absl::StatusOr<uint32_t> Index(const std::string&) override { return 0; }
  absl::StatusOr<std::string> Name(const std::string&) override { return ""; }
  absl::StatusOr<Memory> GetMemory(const std::string&) override {
    if (silent) return absl::InternalError("no answer");
    return Memory{.used = used};
  }
  absl::StatusOr<uint32_t> Utilization(const std::string&) override { return 0; }
  absl::StatusOr<std::vector<Process>> Processes(const std::string&) override { return processes; }

  bool silent = false;
  Bytes used;
  std::vector<Process> processes;
};

TEST(ContextMemoryTest, ContextIsMemoryOfProcess) {
  FakeNvml nvml;
  nvml.processes = {{.pid = 6, .bytes = GiB(9)}, {.pid = 7, .bytes = MiB(520)}};
  nvml.used = GiB(10);
  EXPECT_EQ(MeasureContext(nvml, "GPU-1", 7, Bytes(0)), MiB(520));
}

TEST(ContextMemoryTest, UnlistedPidUsesPlausibleGrowth) {
  FakeNvml nvml;
  nvml.processes = {{.pid = 7, .bytes = MiB(520)}};
  nvml.used = MiB(3 * 1024 + 520);
  EXPECT_EQ(MeasureContext(nvml, "GPU-1", 1, GiB(3)), MiB(520));
  EXPECT_EQ(MeasureContext(nvml, "GPU-1", 1, GiB(4)), Bytes(0));
  EXPECT_EQ(MeasureContext(nvml, "GPU-1", 1, GiB(1)), Bytes(0)) << "somebody allocated meanwhile";
  EXPECT_EQ(MeasureContext(nvml, "GPU-1", 1, MiB(3 * 1024 + 400)), Bytes(0)) << "or freed";
}

TEST(ContextMemoryTest, SilentNvmlMeasuresNothing) {
  FakeNvml nvml;
  nvml.silent = true;
  EXPECT_EQ(MeasureContext(nvml, "GPU-1", 1, Bytes(0)), Bytes(0));
}

}  // namespace
}  // namespace berth
