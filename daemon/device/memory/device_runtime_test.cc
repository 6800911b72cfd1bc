#include "daemon/device/memory/device_runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <latch>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <berth/error.h>

#include "daemon/device/memory/testing/fake_resource.h"
#include "daemon/device/memory/testing/memory_harness.h"

namespace berth {
namespace {

using ::testing::ElementsAre;

std::vector<MemoryAction> ActionsOf(const DeviceRuntime& runtime) {
  std::vector<MemoryAction> actions;
  for (const MemoryRecord& record : runtime.log()) actions.push_back(record.action);
  return actions;
}

class DeviceRuntimeTest : public ::testing::Test {
 protected:
  FakeResource* const backend_ = new FakeResource;
  const std::unique_ptr<DeviceRuntime> runtime_ =
      DeviceRuntime::Compose(std::unique_ptr<MemoryResource>(backend_), {.limit = MiB(16)});
};

TEST_F(DeviceRuntimeTest, BlockLifeIsThreeRecords) {
  MemoryBlock block = *runtime_->Allocate(MiB(16), "all of it");
  ASSERT_TRUE(runtime_->Deallocate(block).ok());
  ASSERT_TRUE(runtime_->Reap().ok());
  EXPECT_THAT(ActionsOf(*runtime_),
              ElementsAre(MemoryAction::kAllocate, MemoryAction::kDeallocate, MemoryAction::kReap));
}

TEST_F(DeviceRuntimeTest, BudgetRefusalSkipsLogStatisticsAndBackend) {
  const MemoryBlock block = *runtime_->Allocate(MiB(10), "");
  backend_->calls.clear();
  const absl::Status status = runtime_->Allocate(MiB(18), "").status();
  EXPECT_TRUE(IsRefusal(status, Reason::kOverBudget)) << status;
  EXPECT_EQ(GetErrorDetails(status)->metadata.at("current"), "10485760");
  EXPECT_EQ(GetErrorDetails(status)->metadata.at("remaining"), "6291456");
  EXPECT_TRUE(backend_->calls.empty());
  EXPECT_THAT(ActionsOf(*runtime_), ElementsAre(MemoryAction::kAllocate));
  EXPECT_EQ(runtime_->statistics().failed_allocations, 0u);
  EXPECT_EQ(runtime_->statistics().peak, MiB(10));
}

TEST_F(DeviceRuntimeTest, BackendFailureIsCountedAndLogged) {
  backend_->allocate_error = absl::InternalError("inside");
  EXPECT_FALSE(runtime_->Allocate(MiB(2), "").ok());
  EXPECT_EQ(runtime_->statistics().failed_allocations, 1u);
  EXPECT_EQ(runtime_->statistics().peak, Bytes(0));
  ASSERT_EQ(runtime_->log().size(), 1);
  EXPECT_EQ(runtime_->log()[0].result, "INTERNAL");
  EXPECT_EQ(runtime_->outstanding(), Bytes(0));
}

TEST_F(DeviceRuntimeTest, LogRetainsLatestRecords) {
  for (size_t i = 0; i < 2 * DeviceRuntime::kLogRecords; ++i) EXPECT_TRUE(runtime_->Reap().ok());
  EXPECT_EQ(runtime_->log().size(), DeviceRuntime::kLogRecords);
}

TEST_F(DeviceRuntimeTest, ConcurrentFreesAndReapsLoseNoByte) {
  backend_->frees_late = true;
  std::atomic<bool> done = false;
  std::thread reaper([&] {
    while (!done) {
      EXPECT_TRUE(runtime_->Reap().ok());
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> workers;
  for (int i = 0; i < 4; ++i) {
    workers.emplace_back([&] {
      for (int n = 0; n < 200; ++n) {
        // At most four blocks exist at once, plus late frees: 16 MiB suffice only if every reap frees all of them.
        absl::StatusOr<MemoryBlock> block = runtime_->Allocate(MiB(2), "");
        ASSERT_TRUE(block.ok()) << block.status();
        ASSERT_TRUE(runtime_->Deallocate(*block).ok());
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  done = true;
  reaper.join();
  EXPECT_TRUE(runtime_->Reap().ok());
  EXPECT_EQ(runtime_->outstanding(), Bytes(0));
  EXPECT_EQ(runtime_->statistics().allocations, 800u);
  EXPECT_EQ(runtime_->statistics().deallocations, 800u);
}

TEST_F(DeviceRuntimeTest, FailedFreeStaysChargedUntilItSucceeds) {
  MemoryBlock block = *runtime_->Allocate(MiB(16), "");
  backend_->deallocate_error = absl::InternalError("inside");
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(runtime_->Deallocate(block).ok());
  EXPECT_TRUE(IsRefusal(runtime_->Allocate(MiB(2), "").status(), Reason::kOverBudget));
  EXPECT_EQ(runtime_->statistics().failed_deallocations, 3u);
  backend_->deallocate_error = absl::OkStatus();
  EXPECT_TRUE(runtime_->Deallocate(block).ok());
  EXPECT_TRUE(runtime_->Allocate(MiB(16), "").ok());
}

// ---- Over every kind of memory --------------------------------------------------------------------------------

class DeviceRuntimeStress : public ::testing::TestWithParam<MemoryHarness*> {};

TEST_P(DeviceRuntimeStress, EightThreadsReadTheirWrites) {
  if (GetParam()->is_fake()) GTEST_SKIP() << "a fake device has one thread";
  absl::StatusOr<std::unique_ptr<MemoryResource>> backend = GetParam()->Open();
  if (IsRefusal(backend.status(), Reason::kUnsupported)) {
    const char* const required = getenv("BERTH_REQUIRE_CUDA");
    ASSERT_TRUE(required == nullptr || strcmp(required, "1") != 0) << backend.status();
    GTEST_SKIP() << backend.status();
  }
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto runtime = DeviceRuntime::Compose(*std::move(backend), {});
  std::latch together(8);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      std::minstd_rand random(thread + 1);
      together.arrive_and_wait();
      for (int i = 0; i < 64; ++i) {
        const Bytes bytes(runtime->granularity().count() * (1 + random() % 2));
        absl::StatusOr<MemoryBlock> block = runtime->Allocate(bytes, "stress");
        ASSERT_TRUE(block.ok()) << block.status();
        std::string pattern(64 + random() % 4033, '\0');
        for (char& c : pattern) c = static_cast<char>(random());
        const uint64_t at = bytes.count() - pattern.size();
        ASSERT_TRUE(GetParam()->Write(*block, at, pattern).ok());
        const absl::StatusOr<std::string> read = GetParam()->Read(*block, at, pattern.size());
        ASSERT_TRUE(read.ok()) << read.status();
        EXPECT_EQ(*read, pattern);
        ASSERT_TRUE(runtime->Deallocate(*block).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(runtime->outstanding(), Bytes(0));
  EXPECT_EQ(runtime->statistics().allocations, 512u);
  EXPECT_EQ(runtime->statistics().failed_allocations, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, DeviceRuntimeStress, ::testing::ValuesIn(MemoryHarness::All()),
                         [](const auto& info) { return info.param->name(); });

}  // namespace
}  // namespace berth
