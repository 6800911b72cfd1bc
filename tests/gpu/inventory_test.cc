// The inventory of real devices, compared with nvidia-smi and the driver; the cost of reading it; and the process that
// NVML charges for a mapped block.

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <berth/block.h>
#include <berth/bytes.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "berth/v1/inventory.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/cuda/driver.h"
#include "gtest/gtest.h"
#include "tests/gpu/gpu_job.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::gpu {
namespace {

using testing::Eventually;
using testing::Must;
using testing::Subprocess;

// Returns a shell command's output.
std::string Shell(const std::string& command) {
  Subprocess shell = Subprocess::Start({.argv = {"/bin/sh", "-c", command}});
  std::string said = shell.ReadAll();
  EXPECT_EQ(shell.Wait(), 0) << command;
  return said;
}

// Returns the cells of each line of nvidia-smi's csv, by the first cell.
std::map<std::string, std::vector<std::string>> Smi(const std::string& fields) {
  std::map<std::string, std::vector<std::string>> rows;
  const std::string said =
      Shell(absl::StrCat("nvidia-smi --query-gpu=uuid,", fields, " --format=csv,noheader,nounits"));
  for (const absl::string_view line : absl::StrSplit(said, '\n', absl::SkipEmpty())) {
    std::vector<std::string> cells;
    for (const absl::string_view cell : absl::StrSplit(line, ',')) {
      cells.emplace_back(absl::StripAsciiWhitespace(cell));
    }
    rows[cells[0]] = cells;
  }
  return rows;
}

// Expects Berth to have a number exactly where nvidia-smi has one, within `slack` of it.
void ExpectNear(const v1::Figure& measurement, const std::string& smi, double scale, double slack,
                const std::string& what) {
  double expected = 0;
  if (!absl::SimpleAtod(smi, &expected)) {
    EXPECT_FALSE(measurement.absent().empty()) << what << ": nvidia-smi says " << smi;
    return;
  }
  ASSERT_EQ(measurement.known_case(), v1::Figure::kValue) << what << ": " << measurement.absent();
  EXPECT_NEAR(static_cast<double>(measurement.value()) / scale, expected, slack) << what;
}

class GpuInventoryTest : public GpuJob {
 protected:
  explicit GpuInventoryTest(size_t devices = 1) : GpuJob(devices) {}
  void SetUp() override {
    GpuJob::SetUp();
    if (!IsSkipped() && !cuda()) GTEST_SKIP() << "there is no nvidia-smi for host memory";
  }

  v1::ListInventoryResponse Read() const {
    v1::ListInventoryResponse inventory;
    EXPECT_TRUE(Eventually([&] {
      inventory = Must(Inspector(session_).ListInventory());
      return std::all_of(inventory.devices().begin(), inventory.devices().end(),
                         [](const auto& device) { return device.condition().has_read_time(); });
    }));
    return inventory;
  }

  // Compares every pair with CUDA's and nvidia-smi's values.
  void CheckTopology() {
    Read();
    const v1::Topology topology = Must(Inspector(session_).GetTopology());
    cuda::Driver* const driver = Must(cuda::Driver::Get());
    // In nvidia-smi's own order, which is CUDA's where CUDA_DEVICE_ORDER=PCI_BUS_ID; rows are found by their bus.
    std::vector<std::string> smi_uuids;
    for (const absl::string_view line : absl::StrSplit(
             Shell("nvidia-smi --query-gpu=uuid --format=csv,noheader"), '\n', absl::SkipEmpty())) {
      smi_uuids.emplace_back(absl::StripAsciiWhitespace(line));
    }
    std::vector<std::vector<std::string>> matrix(smi_uuids.size());
    const std::string said = Shell("nvidia-smi topo -m");
    for (const absl::string_view line : absl::StrSplit(said, '\n')) {
      std::vector<std::string> cells = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
      size_t row = 0;
      const absl::string_view head = cells.empty() ? absl::string_view() : absl::string_view(cells[0]);
      if (cells.size() <= smi_uuids.size() || !absl::StartsWith(head, "GPU") ||
          !absl::SimpleAtoi(head.substr(3), &row) || row >= matrix.size() || cells[1] == "GPU1") {
        continue;
      }
      matrix[row].assign(cells.begin() + 1, cells.begin() + 1 + smi_uuids.size());
    }
    const auto index = [&](const std::string& uuid) {
      return std::find(smi_uuids.begin(), smi_uuids.end(), uuid) - smi_uuids.begin();
    };
    std::string islands;
    for (const v1::Topology::Row& row : topology.rows()) {
      absl::StrAppend(&islands, islands.empty() ? "" : ", ", row.device(), " in ", row.island());
      for (int i = 0; i < topology.rows_size(); ++i) {
        const v1::Topology::Row& other = topology.rows(i);
        const auto reach = row.reaches(i);
        if (other.device() == row.device()) {
          EXPECT_EQ(reach, v1::Topology::SELF);
          continue;
        }
        const bool peer =
            Must(driver->CanAccessPeer(static_cast<int>(row.device()), static_cast<int>(other.device())));
        const bool nvlink = reach == v1::Topology::NVLINK;
        EXPECT_EQ(nvlink || reach == v1::Topology::PCIE, peer) << row.device() << " to " << other.device();
        const std::string& cell = matrix.at(index(row.uuid())).at(index(other.uuid()));
        EXPECT_EQ(nvlink, absl::StartsWith(cell, "NV")) << cell;
        if (nvlink) {
          EXPECT_EQ(cell, absl::StrCat("NV", row.nvlinks().value())) << "all its links lead to one switch";
          EXPECT_EQ(row.island(), other.island());
        }
      }
    }
    std::cout << "islands of " << topology.rows_size() << " GPUs | " << islands << std::endl;
  }
};

class TwoGpusInventoryTest : public GpuInventoryTest {
 protected:
  TwoGpusInventoryTest() : GpuInventoryTest(2) {}
};

class FourGpusInventoryTest : public GpuInventoryTest {
 protected:
  FourGpusInventoryTest() : GpuInventoryTest(4) {}
};

TEST_F(GpuInventoryTest, DeviceHardwareMatchesNvidiaSmi) {
  const auto smi =
      Smi("name,pci.bus_id,compute_cap,memory.total,ecc.mode.current,mig.mode.current,clocks.max.sm");
  const v1::ListInventoryResponse inventory = Read();
  for (const v1::DeviceInventory& device : inventory.devices()) {
    const auto row = smi.find(device.device().uuid());
    ASSERT_NE(row, smi.end()) << device.device().uuid();
    const std::vector<std::string>& said = row->second;
    EXPECT_EQ(device.device().name(), said[1]);
    EXPECT_EQ(absl::AsciiStrToLower(device.hardware().pci_id()), absl::AsciiStrToLower(said[2]));
    EXPECT_EQ(absl::StrCat(device.hardware().compute_capability() / 10, ".",
                           device.hardware().compute_capability() % 10),
              said[3]);
    EXPECT_GT(device.hardware().multiprocessors(), 0u);
    EXPECT_GT(device.hardware().threads_per_multiprocessor(), 0u);
    EXPECT_GT(device.hardware().shared_bytes_per_block(), 0u);
    EXPECT_GT(device.hardware().l2_bytes(), 0u);
    const v1::Condition& condition = device.condition();
    // Only one of the two totals includes the driver's reserved memory.
    ExpectNear(condition.total_bytes(), said[4], MiB(1).count(), 1'500, "memory.total");
    EXPECT_EQ(condition.ecc_mode().value(), said[5] == "Enabled" ? 1u : 0u) << said[5];
    EXPECT_EQ(condition.mig_mode().value(), said[6] == "Enabled" ? 1u : 0u) << said[6];
    ExpectNear(condition.max_clock(), said[7], 1, 0, "clocks.max.sm");
    EXPECT_EQ(condition.health(), v1::Condition::ANSWERS) << condition.trouble();
  }
}

TEST_F(GpuInventoryTest, DeviceHealthMatchesNvidiaSmi) {
  // The two readings are not simultaneous.
  const v1::ListInventoryResponse inventory = Read();
  const auto smi =
      Smi("temperature.gpu,power.draw,enforced.power.limit,clocks.mem,ecc.errors.uncorrected.volatile.total");
  for (const v1::DeviceInventory& device : inventory.devices()) {
    const std::vector<std::string>& said = smi.at(device.device().uuid());
    const v1::Condition& condition = device.condition();
    ExpectNear(condition.temperature(), said[1], 1, 5, "temperature.gpu");
    ExpectNear(condition.power(), said[2], 1000, 80, "power.draw");
    ExpectNear(condition.power_limit(), said[3], 1000, 1, "enforced.power.limit");
    ExpectNear(condition.memory_clock(), said[4], 1, 100, "clocks.mem");
    ExpectNear(condition.uncorrected_errors(), said[5], 1, 0, "ecc.errors.uncorrected");
    EXPECT_GT(condition.slowdown_temperature().value() + condition.slowdown_temperature().absent().size(),
              0u);
  }
}

TEST_F(GpuInventoryTest, InventoryTakesNoDeviceMemoryOrContext) {
  Read();
  EXPECT_EQ(DeviceProcesses(), processes_before_) << "nobody of the daemon's has a context";
  const Bytes with = DeviceUsed();
  ASSERT_EQ(KillDaemons("berth-monitor"), 1);
  // Another monitor follows, which uses as little.
  const Bytes without = DeviceUsed();
  // Free memory varies by less than a context takes.
  EXPECT_LE(SaturatingSub(with, without), MiB(4));
  std::cout << "device memory of the monitor | " << SaturatingSub(with, without).count() << " bytes"
            << std::endl;
}

TEST_F(GpuInventoryTest, DeviceHoldsMappedBlockOnce) {
  cuda::Driver* const driver = Must(cuda::Driver::Get());
  const int ordinal = Must(cuda::FindDevice(*driver, uuids_[0]));
  const cuda::Context context = Must(driver->RetainPrimaryContext(ordinal));
  Must(driver->SetCurrentContext(context));
  const auto charged = [&] {
    for (const cuda::Nvml::Process& process : Must(nvml_->Processes(uuids_[0]))) {
      if (process.pid == static_cast<uint32_t>(::getpid())) return process.bytes;
    }
    return Bytes();
  };
  const Bytes before = charged();
  const uint64_t used_before = DeviceUsed().count();
  {
    const Block block = Must(Block::Allocate(session_, {.bytes = kBlock, .device_uuid = uuids_[0]}));
    const Bytes leased = charged();
    Mapping mapping = Must(block.Map());
    const Bytes mapped = charged();
    const uint64_t grown = DeviceUsed().count() - used_before;
    EXPECT_GE(grown, kBlock.count());
    EXPECT_LT(grown, 2 * kBlock.count()) << "the device has it once";
    std::cout << "NVML's bytes of a process that maps a block of " << InMiB(kBlock) << " MiB | context "
              << InMiB(before) << ", leased " << InMiB(leased) << ", mapped " << InMiB(mapped)
              << " MiB: " << (mapped > leased ? "an importer is charged" : "an importer is not charged")
              << std::endl;
  }
  Must(driver->ReleasePrimaryContext(ordinal));
}

TEST_F(TwoGpusInventoryTest, TopologyMatchesCudaAndNvidiaSmi) { CheckTopology(); }

TEST_F(FourGpusInventoryTest, TopologyMatchesCudaAndNvidiaSmi) { CheckTopology(); }

}  // namespace
}  // namespace berth::gpu
