#include "daemon/device/memory/device_runtimes.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <latch>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace berth {
namespace {

using Started = absl::StatusOr<std::unique_ptr<DeviceRuntime>>;

Started StartHost(uint32_t ordinal) {
  return DeviceRuntime::Open({.kind = BackendKind::kHost, .ordinal = ordinal, .total = MiB(64)}, {});
}

TEST(DeviceRuntimesTest, FirstGetMakesRuntimeForAll) {
  int starts = 0;
  DeviceRuntimes runtimes([&](uint32_t ordinal) {
    ++starts;
    return StartHost(ordinal);
  });
  EXPECT_EQ(starts, 0) << "nobody has asked";
  DeviceRuntime* const first = *runtimes.Get(0);
  EXPECT_EQ(first->device(), "HOST-0");
  EXPECT_EQ(*runtimes.Get(0), first);
  EXPECT_EQ(starts, 1);
  EXPECT_NE(*runtimes.Get(1), first);
  EXPECT_EQ(starts, 2);
}

TEST(DeviceRuntimesTest, ConcurrentGetsShareRuntime) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> starts = 0;
    DeviceRuntimes runtimes([&](uint32_t ordinal) {
      ++starts;
      return StartHost(ordinal);
    });
    std::latch together(8);
    std::vector<DeviceRuntime*> got(8);
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&, i] {
        together.arrive_and_wait();
        got[i] = *runtimes.Get(3);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(std::set<DeviceRuntime*>(got.begin(), got.end()).size(), 1);
    EXPECT_EQ(starts, 1);
  }
}

TEST(DeviceRuntimesTest, OrdinalBeyondLimitIsRejected) {
  DeviceRuntimes runtimes(StartHost);
  EXPECT_TRUE(runtimes.Get(kMaxDeviceOrdinals - 1).ok());
  for (const uint32_t ordinal : {kMaxDeviceOrdinals, UINT32_MAX}) {
    const absl::Status status = runtimes.Get(ordinal).status();
    EXPECT_TRUE(IsRefusal(status, Reason::kOutOfRange)) << status;
    const std::map<std::string, std::string> named_values = GetErrorDetails(status)->metadata;
    EXPECT_EQ(named_values.at("field"), "device ordinal");
    EXPECT_EQ(named_values.at("value"), std::to_string(ordinal));
    EXPECT_EQ(named_values.at("limit"), "63");
  }
}

TEST(DeviceRuntimesTest, FailedStartIsRetriedAfterBackOff) {
  absl::Time now = absl::UnixEpoch();
  int starts = 0;
  bool sound = false;
  DeviceRuntimes runtimes(
      [&](uint32_t ordinal) -> Started {
        ++starts;
        if (sound) return StartHost(ordinal);
        return Refuse(Reason::kDriver, "no. {call}", {{"call", starts}});
      },
      [&] { return now; });
  EXPECT_EQ(runtimes.Get(0).status().message(), "no. 1");
  // The error is cached for the back-off, without a driver call.
  now += DeviceRuntimes::kFirstBackOff - absl::Nanoseconds(1);
  EXPECT_EQ(runtimes.Get(0).status().message(), "no. 1");
  now += absl::Nanoseconds(1);
  EXPECT_EQ(runtimes.Get(0).status().message(), "no. 2");
  // The back-off has doubled.
  now += 2 * DeviceRuntimes::kFirstBackOff - absl::Nanoseconds(1);
  EXPECT_EQ(runtimes.Get(0).status().message(), "no. 2");
  EXPECT_EQ(starts, 2);
  now += absl::Nanoseconds(1);
  sound = true;
  const absl::StatusOr<DeviceRuntime*> runtime = runtimes.Get(0);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_EQ(*runtimes.Get(0), *runtime);
  EXPECT_EQ(starts, 3);
}

TEST(DeviceRuntimesTest, BackOffIsBounded) {
  absl::Time now = absl::UnixEpoch();
  int starts = 0;
  DeviceRuntimes runtimes(
      [&](uint32_t) -> Started {
        ++starts;
        return absl::UnavailableError("never");
      },
      [&] { return now; });
  for (int i = 1; i <= 20; ++i) {
    EXPECT_FALSE(runtimes.Get(0).ok());
    EXPECT_EQ(starts, i);
    now += DeviceRuntimes::kLongestBackOff;
  }
}

TEST(DeviceRuntimesTest, FailedRuntimeLeavesOthersUsable) {
  DeviceRuntimes runtimes([](uint32_t ordinal) -> Started {
    if (ordinal == 0) return absl::UnavailableError("sick");
    return StartHost(ordinal);
  });
  EXPECT_FALSE(runtimes.Get(0).ok());
  EXPECT_TRUE(runtimes.Get(1).ok());
}

TEST(DeviceRuntimesTest, SlowStartDelaysOnlyItsCallers) {
  std::latch started(1);
  std::latch may_end(1);
  DeviceRuntimes runtimes([&](uint32_t ordinal) {
    if (ordinal == 0) {
      started.count_down();
      may_end.wait();
    }
    return StartHost(ordinal);
  });
  std::thread slow([&] { EXPECT_TRUE(runtimes.Get(0).ok()); });
  started.wait();
  EXPECT_TRUE(runtimes.Get(1).ok());
  may_end.count_down();
  slow.join();
}

TEST(DeviceRuntimesTest, MissingDriverIsReported) {
  DeviceRuntimes runtimes([](uint32_t ordinal) {
    return DeviceRuntime::Open({.kind = BackendKind::kCudaVmm, .ordinal = ordinal}, {});
  });
  const absl::StatusOr<DeviceRuntime*> runtime = runtimes.Get(0);
  if (runtime.ok()) GTEST_SKIP() << "this machine has CUDA";
  EXPECT_TRUE(IsRefusal(runtime.status(), Reason::kUnsupported)) << runtime.status();
}

// ---- Processes that start and exit -----------------------------------------------------------------------------

constexpr char kComeAndGo[] = "--come-and-go=";
constexpr int kNoDevice = 77;

// The child process: makes a runtime and two blocks, frees one, and ends as main() does.
int ComeAndGo(absl::string_view kind) {
  DeviceRuntimes runtimes([&](uint32_t ordinal) {
    return DeviceRuntime::Open({.kind = kind == "vmm"      ? BackendKind::kCudaVmm
                                        : kind == "direct" ? BackendKind::kCudaDirect
                                                           : BackendKind::kHost,
                                .ordinal = ordinal,
                                .total = MiB(64)},
                               {});
  });
  const absl::StatusOr<DeviceRuntime*> runtime = runtimes.Get(0);
  if (IsRefusal(runtime.status(), Reason::kUnsupported)) return kNoDevice;
  if (!runtime.ok()) return 1;
  absl::StatusOr<MemoryBlock> used = (*runtime)->Allocate((*runtime)->granularity(), "kept");
  absl::StatusOr<MemoryBlock> freed = (*runtime)->Allocate((*runtime)->granularity(), "freed");
  if (!used.ok() || !freed.ok() || !(*runtime)->Deallocate(*freed).ok()) return 2;
  return 0;
}

class DeviceRuntimesExit : public ::testing::TestWithParam<std::string> {};

TEST_P(DeviceRuntimesExit, HundredProcessesStartAndEndCleanly) {
  constexpr int kProcesses = 100;
  constexpr int kAtOnce = 8;
  int started = 0;
  for (int ended = 0; ended < kProcesses; ++ended) {
    while (started < kProcesses && started < ended + kAtOnce) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::execl("/proc/self/exe", "runtime", absl::StrCat(kComeAndGo, GetParam()).c_str(), nullptr);
        ::_exit(3);
      }
      ASSERT_GT(pid, 0);
      ++started;
    }
    int status = 0;
    ASSERT_GT(::wait(&status), 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNoDevice) {
      while (::wait(nullptr) > 0) {
      }
      const char* const required = getenv("BERTH_REQUIRE_CUDA");
      ASSERT_TRUE(required == nullptr || strcmp(required, "1") != 0);
      GTEST_SKIP() << "no device";
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeviceRuntimesExit, ::testing::Values("host", "vmm", "direct"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace berth

int main(int argc, char** argv) {
  absl::string_view flag = argc == 2 ? argv[1] : "";
  if (absl::ConsumePrefix(&flag, berth::kComeAndGo)) return berth::ComeAndGo(flag);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
