#include "daemon/server/memory_scrub_checks.h"

#include <string.h>

#include <vector>

#include "daemon/device/monitor/device_record.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

DeviceRecord Record(const char* name, uint32_t context_mib, BackendKind backend = BackendKind::kCudaVmm) {
  DeviceRecord record = {.backend = backend, .context_mib = context_mib};
  strncpy(record.name, name, sizeof(record.name) - 1);
  return record;
}

TEST(MemoryScrubChecksTest, UntestedDeviceTakesContextOfItsModel) {
  std::vector<DeviceRecord> records = {Record("H200", 0), Record("A100", 0), Record("H200", 518),
                                       Record("H200", 530), Record("H200", 0, BackendKind::kHost)};
  TakeContextsOfTheirModel(&records);
  EXPECT_EQ(records[0].context_mib, 518);
  EXPECT_EQ(records[1].context_mib, 0) << "of its model nobody knows";
  EXPECT_EQ(records[2].context_mib, 518);
  EXPECT_EQ(records[3].context_mib, 530) << "its own";
  EXPECT_EQ(records[4].context_mib, 0) << "no GPU";
}

}  // namespace
}  // namespace berth
