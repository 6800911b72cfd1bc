// The worker's loop and the broker's channel to it, over a real socket.

#include "daemon/device/worker/worker.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <span>
#include <thread>
#include <variant>

#include <berth/error.h>

#include "common/cuda/driver.h"
#include "common/cuda/testing/fake_driver.h"
#include "common/os/fd_passing.h"
#include "daemon/device/memory/direct_backend.h"
#include "daemon/device/memory/host_backend.h"
#include "daemon/device/worker/worker_channel.h"
#include "daemon/device/worker/worker_wire.h"

namespace berth {
namespace {

// A resource whose driver returns an error once a code is set.
class FaultyResource : public HostBackend {
 public:
  FaultyResource() : HostBackend("HOST-0", MiB(64)) {}
  absl::StatusOr<MemoryBlock> Allocate(Bytes bytes, absl::string_view tag) override {
    const int code = driver_code;
    if (code != 0) return cuda::DriverError("cuMemCreate", code, "CUDA_ERROR");
    return HostBackend::Allocate(bytes, tag);
  }
  absl::Status Deallocate(MemoryBlock& block) override {
    const int code = driver_code;
    if (code != 0) return cuda::DriverError("cuMemRelease", code, "CUDA_ERROR");
    return HostBackend::Deallocate(block);
  }

  std::atomic<int> driver_code = 0;
};

// A worker in a thread of this process.
class WorkerTest : public ::testing::Test {
 protected:
  WorkerTest() {
    auto sockets = SocketPair();
    EXPECT_TRUE(SetNonBlocking(sockets->first.get()).ok());
    channel_.emplace(std::move(sockets->first));
    socket_ = std::move(sockets->second);
  }
  ~WorkerTest() override { End().IgnoreError(); }

  void Serve() { Serve(faulty_); }
  void Serve(MemoryResource& resource, std::optional<Bytes> context = std::nullopt) {
    thread_ = std::thread([this, &resource, context] {
      result_ = ServeWorker(socket_.get(), resource, context);
      socket_.reset();
    });
  }

  // Hangs up. Returns the worker's result.
  absl::Status End() {
    channel_.reset();
    if (thread_.joinable()) thread_.join();
    return result_.status();
  }

  WorkerReply Read() {
    while (true) {
      pollfd entry = {.fd = channel_->fd(), .events = POLLIN, .revents = 0};
      EXPECT_EQ(::poll(&entry, 1, 20'000), 1);
      absl::StatusOr<WorkerReply> reply = channel_->Read();
      if (reply.ok()) return *std::move(reply);
      EXPECT_TRUE(IsWouldBlock(reply.status())) << reply.status();
      if (!IsWouldBlock(reply.status())) return ReleasedBlock{};
    }
  }
  CreatedBlock ReadCreated() { return std::get<CreatedBlock>(Read()); }

  FaultyResource faulty_;
  UniqueFd socket_;
  std::optional<WorkerChannel> channel_;
  std::thread thread_;
  absl::StatusOr<WorkerEnd> result_ = WorkerEnd{};
};

// Returns whether the pipe's other end is closed in every process.
bool IsClosed(int pipe_end) {
  pollfd entry = {.fd = pipe_end, .events = 0, .revents = 0};
  return ::poll(&entry, 1, 0) == 1 && (entry.revents & POLLHUP) != 0;
}

TEST_F(WorkerTest, BlocksAreMadeInRequestedOrder) {
  Serve();
  ASSERT_TRUE(channel_->SendCreate(BlockId(1), MiB(2)).ok());
  ASSERT_TRUE(channel_->SendCreate(BlockId(2), MiB(4)).ok());
  for (const uint64_t id : {1, 2}) {
    const CreatedBlock created = ReadCreated();
    EXPECT_EQ(created.block, BlockId(id));
    ASSERT_TRUE(created.fd.ok());
    struct stat info;
    ASSERT_EQ(::fstat(created.fd->get(), &info), 0);
    EXPECT_EQ(info.st_size, static_cast<off_t>(id << 21));
  }
  EXPECT_TRUE(End().ok());
}

TEST_F(WorkerTest, ContextWorkerExportsHandlesAndHoldsUntilRelease) {
  cuda::FakeDriver driver;
  const auto direct = *DirectBackend::Open(driver, 0);
  Serve(*direct, MiB(520));
  ASSERT_TRUE(channel_->SendBegin(/*epoch=*/3).ok());
  EXPECT_EQ(std::get<BegunWorker>(Read()).context, MiB(520));
  ASSERT_TRUE(channel_->SendCreate(BlockId(1), MiB(2)).ok());
  const CreatedBlock created = ReadCreated();
  ASSERT_TRUE(created.fd.ok()) << created.fd.status();
  EXPECT_FALSE(*created.fd);
  ASSERT_TRUE(created.handle.has_value());
  EXPECT_EQ(direct->outstanding(), MiB(2));
  ASSERT_TRUE(channel_->SendRelease(BlockId(1)).ok());
  EXPECT_EQ(std::get<ReleasedBlock>(Read()).block, BlockId(1));
  EXPECT_EQ(direct->outstanding(), Bytes(0));
  // The release of an unknown block succeeds.
  ASSERT_TRUE(channel_->SendRelease(BlockId(1)).ok());
  EXPECT_EQ(std::get<ReleasedBlock>(Read()).block, BlockId(1));
  EXPECT_TRUE(End().ok());
}

TEST_F(WorkerTest, ContextWorkerListsItsBlocksToNextBroker) {
  cuda::FakeDriver driver;
  const auto direct = *DirectBackend::Open(driver, 0);
  Serve(*direct, MiB(520));
  IpcHandle first;
  for (const uint64_t id : {2, 1}) {
    ASSERT_TRUE(channel_->SendCreate(BlockId(id), MiB(2)).ok());
    const CreatedBlock created = ReadCreated();
    ASSERT_TRUE(created.handle.has_value());
    first = *created.handle;
  }
  ASSERT_TRUE(channel_->SendBegin(/*epoch=*/3).ok());
  EXPECT_EQ(std::get<RetainedBlock>(Read()).block, BlockId(1));
  EXPECT_EQ(std::get<RetainedBlock>(Read()).block, BlockId(2));
  EXPECT_EQ(std::get<BegunWorker>(Read()).context, MiB(520));
  ASSERT_TRUE(channel_->SendCreate(BlockId(1), MiB(2)).ok());
  EXPECT_EQ(ReadCreated().handle, first);
  EXPECT_EQ(direct->outstanding(), MiB(4)) << "there is one of each";
  ASSERT_TRUE(channel_->SendRelease(BlockId(1)).ok());
  EXPECT_TRUE(std::get<ReleasedBlock>(Read()).status.ok());
  EXPECT_EQ(direct->outstanding(), MiB(2));
}

TEST_F(WorkerTest, PoisonedContextIsAnsweredAndEndsWorker) {
  cuda::FakeDriver driver;
  const auto direct = *DirectBackend::Open(driver, 0);
  driver.failing = "Allocate";
  driver.failing_code = 700;
  Serve(*direct, Bytes(0));
  ASSERT_TRUE(channel_->SendCreate(BlockId(1), MiB(2)).ok());
  EXPECT_TRUE(IsRefusal(ReadCreated().fd.status(), Reason::kDriver));
  EXPECT_TRUE(IsEndOfStream([&] {
    while (true) {
      const absl::Status status = channel_->Read().status();
      if (!IsWouldBlock(status)) return status;
      pollfd entry = {.fd = channel_->fd(), .events = POLLIN, .revents = 0};
      ::poll(&entry, 1, 20'000);
    }
  }()));
  EXPECT_TRUE(End().ok());
  EXPECT_EQ(result_->exit, WorkerExit::kPoisoned);
}

TEST_F(WorkerTest, RefusalArrivesWithMetadata) {
  Serve();
  ASSERT_TRUE(channel_->SendCreate(BlockId(1), GiB(1)).ok());
  ASSERT_TRUE(channel_->SendCreate(BlockId(2), Bytes(0)).ok());
  const CreatedBlock large = ReadCreated();
  EXPECT_TRUE(IsRefusal(large.fd.status(), Reason::kOutOfMemory)) << large.fd.status();
  EXPECT_EQ(GetErrorDetails(large.fd.status())->metadata.at("requested"), "1073741824");
  EXPECT_TRUE(IsRefusal(ReadCreated().fd.status(), Reason::kInvalidField));
}

TEST_F(WorkerTest, NonStickyDriverErrorIsAnsweredAndWorkerContinues) {
  Serve();
  for (const int code : {1, 2, 801}) {
    faulty_.driver_code = code;
    ASSERT_TRUE(channel_->SendCreate(BlockId(1), MiB(2)).ok());
    EXPECT_FALSE(ReadCreated().fd.ok());
  }
  faulty_.driver_code = 0;
  ASSERT_TRUE(channel_->SendCreate(BlockId(2), MiB(2)).ok());
  EXPECT_TRUE(ReadCreated().fd.ok());
  EXPECT_TRUE(End().ok());
  EXPECT_EQ(result_->exit, WorkerExit::kDone);
}

TEST_F(WorkerTest, StickyFaultIsAnsweredAndEndsWorker) {
  faulty_.driver_code = 700;
  Serve();
  ASSERT_TRUE(channel_->SendCreate(BlockId(1), MiB(2)).ok());
  const CreatedBlock refused = ReadCreated();
  EXPECT_TRUE(IsRefusal(refused.fd.status(), Reason::kDriver)) << refused.fd.status();
  EXPECT_EQ(GetErrorDetails(refused.fd.status())->metadata.at("driver_code"), "700");
  // The worker ends by itself, without a hang-up.
  thread_.join();
  ASSERT_TRUE(result_.ok());
  EXPECT_EQ(result_->exit, WorkerExit::kPoisoned);
  EXPECT_EQ(result_->fault.message(), refused.fd.status().message());
}

TEST_F(WorkerTest, LostDeviceEndsWorkerWithOwnCode) {
  faulty_.driver_code = 214;
  Serve();
  ASSERT_TRUE(channel_->SendCreate(BlockId(1), MiB(2)).ok());
  EXPECT_FALSE(ReadCreated().fd.ok());
  thread_.join();
  ASSERT_TRUE(result_.ok());
  EXPECT_EQ(result_->exit, WorkerExit::kDeviceLost);
}

TEST_F(WorkerTest, HeldFdIsClosedOnRelease) {
  Serve();
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd watched(ends[0]);
  UniqueFd held(ends[1]);
  ASSERT_TRUE(channel_->SendHold(BlockId(5), held.get()).ok());
  held.reset();
  ASSERT_TRUE(channel_->SendCreate(BlockId(6), MiB(2)).ok());
  EXPECT_TRUE(ReadCreated().fd.ok());
  EXPECT_FALSE(IsClosed(watched.get()));
  ASSERT_TRUE(channel_->SendRelease(BlockId(5)).ok());
  EXPECT_EQ(std::get<ReleasedBlock>(Read()).block, BlockId(5));
  EXPECT_TRUE(IsClosed(watched.get()));
}

TEST_F(WorkerTest, UnreleasedBlockIsHeldUntilReleaseSucceeds) {
  Serve();
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd watched(ends[0]);
  UniqueFd held(ends[1]);
  ASSERT_TRUE(channel_->SendHold(BlockId(5), held.get()).ok());
  held.reset();
  faulty_.driver_code = 1;
  ASSERT_TRUE(channel_->SendRelease(BlockId(5)).ok());
  const WorkerReply refused = Read();
  EXPECT_EQ(std::get<ReleasedBlock>(refused).block, BlockId(5));
  // With the driver's own error.
  EXPECT_TRUE(IsRefusal(std::get<ReleasedBlock>(refused).status, Reason::kDriver));
  EXPECT_EQ(GetErrorDetails(std::get<ReleasedBlock>(refused).status)->metadata.at("driver_code"), "1");
  EXPECT_FALSE(IsClosed(watched.get()));
  faulty_.driver_code = 0;
  ASSERT_TRUE(channel_->SendRelease(BlockId(5)).ok());
  EXPECT_TRUE(std::get<ReleasedBlock>(Read()).status.ok());
  EXPECT_TRUE(IsClosed(watched.get()));
}

TEST_F(WorkerTest, RepeatedHoldAndReleaseAreAnswered) {
  Serve();
  const UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(channel_->SendHold(BlockId(5), fd.get()).ok());
  ASSERT_TRUE(channel_->SendHold(BlockId(5), fd.get()).ok());
  ASSERT_TRUE(channel_->SendRelease(BlockId(5)).ok());
  ASSERT_TRUE(channel_->SendRelease(BlockId(5)).ok());
  EXPECT_EQ(std::get<ReleasedBlock>(Read()).block, BlockId(5));
  EXPECT_EQ(std::get<ReleasedBlock>(Read()).block, BlockId(5));
}

TEST_F(WorkerTest, NextBrokerMakesWorkerCloseOldFds) {
  Serve();
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd watched(ends[0]);
  UniqueFd held(ends[1]);
  ASSERT_TRUE(channel_->SendHold(BlockId(5), held.get()).ok());
  held.reset();
  // The earlier broker died before the answer.
  ASSERT_TRUE(channel_->SendCreate(BlockId(6), MiB(2)).ok());
  ASSERT_TRUE(channel_->SendBegin(/*epoch=*/3).ok());
  ASSERT_TRUE(channel_->SendCreate(BlockId(7), MiB(2)).ok());
  EXPECT_EQ(ReadCreated().block, BlockId(6));
  EXPECT_EQ(std::get<ReleasedBlock>(Read()).block, BlockId(5));
  EXPECT_TRUE(IsClosed(watched.get()));
  EXPECT_EQ(std::get<BegunWorker>(Read()).context, Bytes(0));
  EXPECT_EQ(ReadCreated().block, BlockId(7));
}

TEST_F(WorkerTest, WorkerEndsCleanlyAfterHangUp) {
  Serve();
  EXPECT_TRUE(End().ok());
}

TEST_F(WorkerTest, UnsendableAnswerEndsWorker) {
  // Otherwise the requester would wait until a driver call exceeds its time limit.
  ASSERT_EQ(::shutdown(channel_->fd(), SHUT_RD), 0);
  Serve();
  ASSERT_TRUE(channel_->SendCreate(BlockId(1), MiB(2)).ok());
  EXPECT_FALSE(End().ok());
}

TEST_F(WorkerTest, InvalidMessageEndsWorker) {
  Serve();
  ASSERT_TRUE(SendStruct(channel_->fd(), uint32_t{99}).ok());
  EXPECT_TRUE(absl::IsInternal(End()));
}

TEST_F(WorkerTest, UnexpectedFdEndsWorker) {
  Serve();
  const int fd = STDERR_FILENO;
  ASSERT_TRUE(
      SendStruct(channel_->fd(), worker::Create{.block = 1, .bytes = 2 << 20}, std::span(&fd, 1)).ok());
  EXPECT_TRUE(absl::IsInternal(End()));
}

TEST_F(WorkerTest, HoldWithoutFdEndsWorker) {
  Serve();
  ASSERT_TRUE(SendStruct(channel_->fd(), worker::BlockMessage{.kind = worker::Kind::kHold, .block = 1}).ok());
  EXPECT_TRUE(absl::IsInternal(End()));
}

TEST_F(WorkerTest, ChannelNeverBlocksNorLosesMessages) {
  // No worker serves yet: the socket fills up, and further messages wait in the outbox.
  uint64_t sent = 0;
  while (!channel_->wants_write()) {
    ASSERT_TRUE(channel_->SendCreate(BlockId(++sent), MiB(2)).ok());
    ASSERT_LT(sent, 100'000u);
  }
  // The core bounds the creates, not the outbox.
  for (int i = 0; i < 2'000; ++i) ASSERT_TRUE(channel_->SendCreate(BlockId(++sent), MiB(2)).ok());
  const UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(channel_->SendHold(BlockId(1), fd.get()).ok());
  EXPECT_TRUE(channel_->SendRelease(BlockId(1)).ok());
  Serve();
  for (uint64_t id = 1; id <= sent; ++id) {
    ASSERT_EQ(ReadCreated().block, BlockId(id));
    ASSERT_TRUE(channel_->Flush().ok());
  }
  EXPECT_EQ(std::get<ReleasedBlock>(Read()).block, BlockId(1));
  EXPECT_FALSE(channel_->wants_write());
}

TEST_F(WorkerTest, EndedWorkerIsUnavailableAndEndOfStream) {
  socket_.reset();
  EXPECT_TRUE(absl::IsUnavailable(channel_->SendCreate(BlockId(1), MiB(2))));
  EXPECT_TRUE(IsEndOfStream(channel_->Read().status()));
}

TEST_F(WorkerTest, InvalidAnswerIsAnError) {
  ASSERT_TRUE(SendStruct(socket_.get(), uint64_t{7}).ok());
  EXPECT_TRUE(absl::IsInternal(channel_->Read().status()));
  // A created block without its fd.
  ASSERT_TRUE(SendStruct(socket_.get(), worker::Created{.block = 1}).ok());
  EXPECT_TRUE(absl::IsInternal(channel_->Read().status()));
}

}  // namespace
}  // namespace berth
