#include "daemon/device/monitor/inventory.h"

#include <stdlib.h>
#include <unistd.h>

#include <set>
#include <string>

#include <berth/ids.h>

#include "common/cuda/driver.h"
#include "common/os/memfd.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(InventoryTest, HostDevicesHaveRequestedCountAndSize) {
  const auto records =
      TakeInventory({.backend = BackendChoice::kHost, .host_devices = 3, .host_bytes = MiB(65)});
  ASSERT_TRUE(records.ok());
  ASSERT_EQ(records->size(), 3);
  for (uint32_t i = 0; i < 3; ++i) {
    const DeviceRecord& record = (*records)[i];
    EXPECT_EQ(record.ordinal, i);
    EXPECT_EQ(record.backend, BackendKind::kHost);
    EXPECT_EQ(std::string(record.uuid), "HOST-" + std::to_string(i));
    EXPECT_EQ(record.total_bytes, MiB(64).count()) << "whole blocks";
    EXPECT_EQ(record.free_bytes, record.total_bytes);
    EXPECT_EQ(record.granularity, kBlockGranularity);
    EXPECT_EQ(record.scrub.outcome, ScrubOutcome::kNotTried);
    EXPECT_STREQ(record.scrub.detail, "not tried: the kernel clears memory");
  }
}

TEST(InventoryTest, HostDeviceDefaultsToAtMost8GiB) {
  const auto records = TakeInventory({.backend = BackendChoice::kHost});
  ASSERT_TRUE(records.ok());
  EXPECT_GT((*records)[0].total_bytes, 0u);
  EXPECT_LE((*records)[0].total_bytes, GiB(8).count());
}

TEST(InventoryTest, OrdinalsStopAtLimit) {
  const auto records =
      TakeInventory({.backend = BackendChoice::kHost, .host_devices = 1000, .host_bytes = MiB(2)});
  EXPECT_EQ(records->size(), kMaxDeviceOrdinals);
}

TEST(InventoryTest, AutoWithoutLibraryMeansHostCudaWaitsForDriver) {
  const absl::StatusOr<cuda::Driver*> driver = cuda::Driver::Get();
  if (!cuda::IsNotInstalled(driver.status())) GTEST_SKIP() << "this machine has CUDA's library";
  EXPECT_EQ(getenv("BERTH_REQUIRE_CUDA"), nullptr) << driver.status();
  const auto cuda = TakeInventory({.backend = BackendChoice::kCuda});
  ASSERT_TRUE(cuda.ok()) << cuda.status();
  ASSERT_EQ(cuda->size(), 1u);
  EXPECT_EQ((*cuda)[0].fault, DeviceFault::kNoDriver);
  EXPECT_STREQ((*cuda)[0].uuid, "unknown-0");
  EXPECT_TRUE(std::string((*cuda)[0].scrub.detail).starts_with("no CUDA: libcuda.so.1")) << (*cuda)[0].scrub.detail;
  ::testing::internal::CaptureStderr();
  const auto records = TakeInventory({.backend = BackendChoice::kAuto});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "berthd: this node has no GPU (" + std::string(driver.status().message()) +
                "): its devices are host memory, as with --backend=host\n");
  ASSERT_TRUE(records.ok());
  EXPECT_EQ((*records)[0].backend, BackendKind::kHost);
  EXPECT_EQ((*records)[0].fault, DeviceFault::kNone);
}

TEST(InventoryTest, CudaDevicesHaveUniqueUuidsAndValues) {
  const auto records = TakeInventory({.backend = BackendChoice::kCuda});
  ASSERT_TRUE(records.ok()) << records.status();
  if ((*records)[0].fault == DeviceFault::kNoDriver) GTEST_SKIP() << (*records)[0].scrub.detail;
  std::set<std::string> uuids;
  for (const DeviceRecord& record : *records) {
    EXPECT_EQ(record.backend, BackendKind::kCudaVmm);
    EXPECT_EQ(std::string(record.uuid).substr(0, 4), "GPU-");
    EXPECT_TRUE(uuids.insert(record.uuid).second);
    EXPECT_NE(std::string(record.name), "");
    EXPECT_LE(record.free_bytes, record.total_bytes);
    EXPECT_EQ(record.granularity % kBlockGranularity, 0);
    EXPECT_GE(record.compute_capability, 60u);
    EXPECT_GT(record.multiprocessors, 0u);
  }
}

TEST(InventoryTest, RecordsAreWrittenInSequence) {
  const auto records =
      TakeInventory({.backend = BackendChoice::kHost, .host_devices = 2, .host_bytes = MiB(2)});
  const absl::StatusOr<UniqueFd> fd = CreateMemfd("test", 0);
  ASSERT_TRUE(fd.ok());
  ASSERT_TRUE(WriteInventory(fd->get(), *records).ok());
  DeviceRecord read[3];
  EXPECT_EQ(::pread(fd->get(), read, sizeof(read), 0), static_cast<ssize_t>(2 * sizeof(DeviceRecord)));
  EXPECT_EQ(std::string(read[1].uuid), "HOST-1");
  EXPECT_FALSE(WriteInventory(-1, *records).ok());
}

}  // namespace
}  // namespace berth
