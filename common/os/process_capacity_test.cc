#include "common/os/process_capacity.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/os/stack_limit.h"
#include "common/os/testing/free_fds.h"
#include "common/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

using ::testing::HasSubstr;

// A limit of memory: its name, its column in /proc/self/statm, and the command that raises it.
struct MemoryLimit {
  __rlimit_resource resource;
  int column;
  const char* way_out;
};
constexpr MemoryLimit kMemoryLimits[] = {{RLIMIT_AS, 0, "ulimit -v"}, {RLIMIT_DATA, 5, "ulimit -d"}};

// While it lives, the memory that `limit` counts may grow by at most `more`.
class FreeMemory {
 public:
  FreeMemory(const MemoryLimit& limit, Bytes more) : resource_(limit.resource) {
    uint64_t pages = 0;
    std::ifstream statm("/proc/self/statm");
    for (int i = 0; i <= limit.column; ++i) statm >> pages;
    if (::getrlimit(resource_, &before_) < 0) ::abort();
    const rlimit lower = {.rlim_cur = pages * 4096 + more.count(), .rlim_max = before_.rlim_max};
    if (::setrlimit(resource_, &lower) < 0) ::abort();
  }
  FreeMemory(const FreeMemory&) = delete;
  FreeMemory& operator=(const FreeMemory&) = delete;
  ~FreeMemory() {
    if (::setrlimit(resource_, &before_) < 0) ::abort();
  }

 private:
  const __rlimit_resource resource_;
  rlimit before_;
};

TEST(ProcessCapacityTest, TooSmallStacksAreAnErrorNamingLimit) {
  pthread_attr_t before, smaller;
  ASSERT_EQ(::pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(::pthread_attr_init(&smaller), 0);
  for (const size_t bytes : {kMinStackBytes, kMinStackBytes - 4096}) {
    ASSERT_EQ(::pthread_attr_setstacksize(&smaller, bytes), 0);
    ASSERT_EQ(::pthread_setattr_default_np(&smaller), 0);
    const absl::Status status = CheckCapacity("it", {});
    EXPECT_EQ(status.ok(), bytes == kMinStackBytes);
    if (status.ok()) continue;
    EXPECT_TRUE(absl::IsResourceExhausted(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("RLIMIT_STACK: ulimit -s"));
  }
  EXPECT_EQ(::pthread_setattr_default_np(&before), 0);
}

TEST(ProcessCapacityTest, TooLargeStacksAreAnErrorNamingLimit) {
  pthread_attr_t before, larger;
  ASSERT_EQ(::pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(::pthread_attr_init(&larger), 0);
  // The whole address space.
  ASSERT_EQ(::pthread_attr_setstacksize(&larger, size_t{1} << 47), 0);
  ASSERT_EQ(::pthread_setattr_default_np(&larger), 0);
  const absl::Status status = CheckCapacity("it", {.threads = 1});
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("by RLIMIT_STACK: ulimit -s 8192 lowers it"));
  BoundStacks();
  EXPECT_EQ(StackBytes(), kMaxStackBytes);
  EXPECT_TRUE(CheckCapacity("it", {.threads = 1}).ok());
  EXPECT_EQ(::pthread_setattr_default_np(&before), 0);
}

TEST(ProcessCapacityTest, TooFewFdsAreAnErrorNamingLimit) {
  absl::Status enough;
  absl::Status lacking;
  absl::Status none;
  {
    const FreeFds free(3);
    enough = CheckCapacity("it", {.fds = 3});
    lacking = CheckCapacity("it", {.fds = 4});
  }
  {
    const FreeFds free(0);
    none = CheckCapacity("it", {.fds = 1});
  }
  EXPECT_TRUE(enough.ok()) << enough;
  for (const absl::Status& status : {lacking, none}) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("file descriptors for it"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(": ulimit -n raises it"));
  }
}

TEST(ProcessCapacityTest, ThreadWithoutMemoryFailsWithLimit) {
#ifdef BERTH_SANITIZED
  GTEST_SKIP() << "a sanitizer has mapped what it needs";
#endif
  for (const MemoryLimit& limit : kMemoryLimits) {
    absl::Status started;
    absl::Status checked;
    absl::Status memory;
    {
      const FreeMemory free(limit, MiB(4));
      started = Thread::Start("it", [] {}).status();
      checked = CheckCapacity("it", {.threads = 1});
      memory = CheckCapacity("it", {.memory = MiB(64)});
    }
    for (const absl::Status& status : {started, checked, memory}) {
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("for it"));
      EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(": ", limit.way_out, " raises it")));
    }
  }
}

TEST(ProcessCapacityTest, CapacityCheckReleasesResources) {
  for (int i = 0; i < 3; ++i) {
    const absl::Status status = CheckCapacity("it", {.threads = GrpcThreads(), .memory = MiB(16), .fds = 12});
    EXPECT_TRUE(status.ok()) << status;
  }
  absl::StatusOr<Thread> thread = Thread::Start("it", [] {});
  ASSERT_TRUE(thread.ok()) << thread.status();
  thread->join();
}

}  // namespace
}  // namespace berth
