// A typical GPU test of a large project: it uses the GPU exclusively for a while. It counts how many such tests run at
// the same time, in a file that all of them map ($BERTH_DEMO_COUNTER), and fails when that is more than
// $BERTH_DEMO_CAP.

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>

#include "gtest/gtest.h"

namespace {

struct Counter {
  std::atomic<int32_t> running;
  std::atomic<int32_t> most;
  std::atomic<int32_t> done;
};

Counter* MapCounter() {
  const char* const path = getenv("BERTH_DEMO_COUNTER");
  const int fd = path == nullptr ? -1 : open(path, O_RDWR | O_CREAT, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(Counter)) != 0) return nullptr;
  void* const at = mmap(nullptr, sizeof(Counter), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return at == MAP_FAILED ? nullptr : static_cast<Counter*>(at);
}

// Stands for the work on the GPU: long enough that tests overlap where nothing limits them.
void Compute(std::chrono::milliseconds time) {
  volatile uint64_t state = 88172645463325252;
  for (const auto end = std::chrono::steady_clock::now() + time; std::chrono::steady_clock::now() < end;) {
    state = state ^ (state << 13);
    state = state ^ (state >> 7);
  }
}

TEST(GpuSlotTest, GpuUsersNeverExceedCap) {
  Counter* const counter = MapCounter();
  ASSERT_NE(counter, nullptr) << "BERTH_DEMO_COUNTER names no file that can be written";
  const char* const cap = getenv("BERTH_DEMO_CAP");
  ASSERT_NE(cap, nullptr);

  const int32_t running = ++counter->running;
  int32_t most = counter->most;
  while (most < running && !counter->most.compare_exchange_weak(most, running)) {
  }
  Compute(std::chrono::milliseconds(100));
  --counter->running;
  const int32_t done = ++counter->done;
  printf("  test process %d: %d running at once, %d done\n", getpid(), running, done);
  EXPECT_LE(running, atoi(cap));
}

}  // namespace
