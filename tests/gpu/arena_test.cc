// An arena on device memory: memory moves to another stream only after the first stream's work on it is complete. A
// blocked stream shows this, and patterns that an early reuse would overwrite.

#include <berth/arena.h>

#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <berth/error.h>
#include <berth/pmr_resource.h>
#include <berth/session.h>

#include "common/cuda/driver.h"
#include "gtest/gtest.h"
#include "tests/bench/servers.h"
#include "tests/support/testing.h"

namespace berth::gpu {
namespace {

using testing::Must;
using testing::Ok;
using testing::ProgramPath;
using testing::Refused;

constexpr Bytes kLimit = MiB(16);
// More than half of the arena's limit: two never fit at once.
constexpr Bytes kBuffer = MiB(12);

class GpuArenaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<cuda::Driver*> driver = cuda::Driver::Get();
    if (!driver.ok()) {
      ASSERT_EQ(getenv("BERTH_REQUIRE_CUDA"), nullptr) << driver.status();
      GTEST_SKIP() << driver.status();
    }
    driver_ = *driver;
    Must(driver_->SetCurrentContext(Must(driver_->RetainPrimaryContext(0))));
    daemon_ = Must(bench::StartDaemon({.berthd = ProgramPath("daemon/berthd"), .backend = "cuda"},
                                      {"--warm-blocks=0", "--device-budget=1GiB"}));
    session_ = Must(Session::Open({.folder = daemon_->folder(), .label = "test"}));
    for (cuda::Stream& stream : streams_) stream = Must(driver_->CreateStream());
    // A value that the host sets, and for which streams wait.
    gate_ = static_cast<std::atomic<uint64_t>*>(
        ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    device_gate_ = Must(driver_->RegisterHostMemory(gate_, Bytes(4096), /*read_only=*/false));
  }

  void TearDown() override {
    if (driver_ == nullptr) return;
    gate_->store(UINT64_MAX / 2);
    for (const cuda::Stream stream : streams_) {
      Must(driver_->SynchronizeStream(stream));
      if (arena_ != nullptr) arena_->ForgetStream(Name(stream));
      Must(driver_->DestroyStream(stream));
    }
    arena_ = nullptr;
    Must(driver_->UnregisterHostMemory(gate_));
    ::munmap(gate_, 4096);
    session_ = nullptr;
    daemon_ = nullptr;
    Must(driver_->ReleasePrimaryContext(0));
  }

  // Creates an arena in which one buffer fits.
  void Make(absl::Duration patience) {
    arena_ = Must(Arena::Create(
        session_, {.chunk_bytes = MiB(16), .limit = kLimit, .label = "test", .stream_patience = patience}));
    ASSERT_EQ(arena_->kind(), BlockKind::kCudaVmm);
  }

  static ArenaStream Name(cuda::Stream stream) {
    return static_cast<ArenaStream>(reinterpret_cast<uintptr_t>(stream));
  }
  static cuda::DevicePointer Device(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

  // Blocks `stream` until Open().
  void Close(cuda::Stream stream) { Must(driver_->WaitValue64(stream, device_gate_, ++closed_)); }
  void Open() { gate_->store(closed_); }

  bool IsFilledWith(const void* pointer, uint8_t value) {
    std::vector<std::byte> bytes(kBuffer.count());
    Must(driver_->CopyToHost(bytes, Device(pointer)));
    return std::all_of(bytes.begin(), bytes.end(), [&](std::byte byte) { return byte == std::byte{value}; });
  }

  cuda::Driver* driver_ = nullptr;
  std::unique_ptr<bench::Server> daemon_;
  std::shared_ptr<Session> session_;
  std::shared_ptr<Arena> arena_;
  cuda::Stream streams_[2] = {};
  std::atomic<uint64_t>* gate_ = nullptr;
  cuda::DevicePointer device_gate_ = 0;
  uint64_t closed_ = 0;
};

TEST_F(GpuArenaTest, MemoryChangesStreamAfterFirstFinishes) {
  Make(absl::ZeroDuration());
  const auto [one, two] = std::pair(streams_[0], streams_[1]);
  void* const pointer = Must(arena_->Allocate(kBuffer, Name(one)));
  Close(one);
  Must(driver_->FillAsync(Device(pointer), 1, kBuffer, one));
  Must(arena_->Free(pointer, Name(one)));
  EXPECT_TRUE(Refused(arena_->Allocate(kBuffer, Name(two)).status(), Reason::kOverBudget));
  // The buffer's own stream need not wait.
  EXPECT_EQ(Must(arena_->Allocate(kBuffer, Name(one))), pointer);
  Must(arena_->Free(pointer, Name(one)));
  EXPECT_EQ(Must(arena_->Trim()), Bytes()) << "it is in use";
  Open();
  Must(driver_->SynchronizeStream(one));
  EXPECT_EQ(Must(arena_->Allocate(kBuffer, Name(two))), pointer);
  Must(arena_->Free(pointer, Name(two)));
}

TEST_F(GpuArenaTest, UseOnOtherStreamRetainsMemory) {
  Make(absl::ZeroDuration());
  const auto [one, two] = std::pair(streams_[0], streams_[1]);
  void* const pointer = Must(arena_->Allocate(kBuffer, Name(one)));
  Must(arena_->UsedOn(pointer, Name(two)));
  Close(two);
  Must(driver_->FillAsync(Device(pointer), 1, kBuffer, two));
  Must(arena_->Free(pointer, Name(one)));
  EXPECT_TRUE(Refused(arena_->Allocate(kBuffer, Name(one)).status(), Reason::kOverBudget));
  Open();
  Must(driver_->SynchronizeStream(two));
  EXPECT_EQ(Must(arena_->Allocate(kBuffer, Name(one))), pointer);
  Must(arena_->Free(pointer, Name(one)));
}

TEST_F(GpuArenaTest, AlternatingBuffersRetainPatterns) {
  Make(absl::Seconds(30));
  constexpr int kRounds = 64;
  for (int round = 0; round < kRounds; ++round) {
    const cuda::Stream early = streams_[round % 2];
    const cuda::Stream late = streams_[(round + 1) % 2];
    {
      // Freed many times while its stream has yet to fill it.
      auto buffer = Must(ArenaBuffer::Allocate(arena_, kBuffer, Name(early)));
      for (int i = 0; i < 32; ++i) Must(driver_->FillAsync(Device(buffer.data()), 0xEE, kBuffer, early));
    }
    auto buffer = Must(ArenaBuffer::Allocate(arena_, kBuffer, Name(late)));
    const auto value = static_cast<uint8_t>(round);
    Must(driver_->FillAsync(Device(buffer.data()), value, kBuffer, late));
    Must(driver_->SynchronizeStream(late));
    Must(driver_->SynchronizeStream(early));
    ASSERT_TRUE(IsFilledWith(buffer.data(), value)) << "round " << round;
  }
}

TEST_F(GpuArenaTest, TrimmedMemoryReturnsToDaemon) {
  Make(absl::Seconds(30));
  { const auto buffer = Must(ArenaBuffer::Allocate(arena_, kBuffer, Name(streams_[0]))); }
  Must(driver_->SynchronizeStream(streams_[0]));
  EXPECT_EQ(Must(arena_->Trim()), kLimit);
  EXPECT_EQ(arena_->Stats().leased, Bytes());
  const auto buffer = Must(ArenaBuffer::Allocate(arena_, kBuffer, Name(streams_[0])));
  Must(driver_->FillAsync(Device(buffer.data()), 5, kBuffer, streams_[0]));
  Must(driver_->SynchronizeStream(streams_[0]));
  EXPECT_TRUE(IsFilledWith(buffer.data(), 5));
}

TEST_F(GpuArenaTest, ContainersAreRejected) {
  Make(absl::ZeroDuration());
  EXPECT_TRUE(Refused(PmrResource::Create(arena_).status(), Reason::kUnsupported));
}

}  // namespace
}  // namespace berth::gpu
