// A device's worker as a process: its output on failure, and poison.

#include <poll.h>
#include <string.h>
#include <sys/mman.h>

#include <memory>
#include <string>
#include <variant>

#include <berth/block.h>
#include <berth/session.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/os/fd_passing.h"
#include "common/os/unique_fd.h"
#include "daemon/device/worker/worker_channel.h"
#include "daemon/device/worker/worker_exit.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr Bytes kBlock = MiB(2);
constexpr uint8_t kPoison = 0xDD;

bool IsFull(const void* data, uint8_t value) {
  const auto* const bytes = static_cast<const uint8_t*>(data);
  return bytes[0] == value && ::memcmp(bytes, bytes + 1, kBlock.count() - 1) == 0;
}

std::shared_ptr<Session> Open(const TestDaemon& daemon) {
  return Must(Session::Open({.folder = daemon.folder(), .label = "test", .always_new = true}), "session");
}

// Starts a worker without a supervisor, and captures both of its output streams.
Subprocess StartWorker(int socket, const std::vector<std::string>& environment = {}) {
  return Subprocess::Start(
      {.argv = {"/bin/bash", "-c", absl::StrCat("exec \"$0\" \"$@\" 3<&", socket, " 2>&1"),
                ProgramPath("daemon/berthd"), "--role=worker", "--device=0", "--backend=host",
                "--host-bytes=64MiB"},
       .environment = environment,
       .inherited_fd = socket});
}

// Returns the worker's next answer, which must be a block.
CreatedBlock NextBlock(WorkerChannel& channel) {
  while (true) {
    pollfd entry = {.fd = channel.fd(), .events = POLLIN, .revents = 0};
    ::poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience)));
    absl::StatusOr<WorkerReply> reply = channel.Read();
    if (!reply.ok() && IsWouldBlock(reply.status())) continue;
    return std::get<CreatedBlock>(Must(std::move(reply), "answer"));
  }
}

TEST(WorkerProcessTest, FailedWorkerPrintsItsActions) {
  auto sockets = Must(SocketPair(), "sockets");
  Must(SetNonBlocking(sockets.first.get()));
  Subprocess worker = StartWorker(sockets.second.get());
  sockets.second.reset();
  WorkerChannel channel(std::move(sockets.first));
  Must(channel.SendCreate(BlockId(7), kBlock));
  EXPECT_TRUE(Ok(NextBlock(channel).fd));
  Must(channel.SendCreate(BlockId(8), GiB(1)));
  EXPECT_FALSE(NextBlock(channel).fd.ok());
  Must(SendStruct(channel.fd(), uint32_t{99}), "no message of the protocol's");
  EXPECT_EQ(worker.Wait(), static_cast<int>(WorkerExit::kFailed));
  const std::string said = worker.ReadAll();
  for (const char* const part :
       {"made 1 (1 failed), handed over 1", "allocate 1 of 2097152 bytes (block 7): OK",
        "hand over 1 of 2097152 bytes (block 7): OK", "of 1073741824 bytes (block 8): OUT_OF_MEMORY",
        "worker's protocol"}) {
    EXPECT_TRUE(absl::StrContains(said, part)) << part << "\n" << said;
  }
}

TEST(WorkerProcessTest, UnneededWorkerEndsSilently) {
  auto sockets = Must(SocketPair(), "sockets");
  Subprocess worker = StartWorker(sockets.second.get());
  sockets.second.reset();
  sockets.first.reset();
  EXPECT_EQ(worker.Wait(), static_cast<int>(WorkerExit::kDone));
  EXPECT_EQ(worker.ReadAll(), "");
}

TEST(WorkerProcessTest, UnknownPoisonPreventsServing) {
  auto sockets = Must(SocketPair(), "sockets");
  Subprocess worker = StartWorker(sockets.second.get(), {"BERTH_POISON=stale"});
  EXPECT_EQ(worker.Wait(), static_cast<int>(WorkerExit::kFailed));
  EXPECT_TRUE(absl::StrContains(worker.ReadAll(), "\"stale\""));
}

TEST(WorkerProcessTest, UnpoisonedMemoryIsZero) {
  TestDaemon daemon;
  const auto session = Open(daemon);
  const Block block = Must(Block::Allocate(session, {.bytes = kBlock}), "block");
  EXPECT_TRUE(IsFull(Must(block.Map(), "mapping").data(), 0));
}

TEST(WorkerProcessTest, FreshUnwrittenMemoryShowsPoison) {
  TestDaemon daemon({.environment = {"BERTH_POISON=fresh"}});
  const auto session = Open(daemon);
  const Block block = Must(Block::Allocate(session, {.bytes = kBlock}), "block");
  EXPECT_TRUE(IsFull(Must(block.Map(), "mapping").data(), kPoison));
}

TEST(WorkerProcessTest, FreedMemoryShowsPoisonInOldMapping) {
  TestDaemon daemon({.environment = {"BERTH_POISON=freed"}});
  const auto session = Open(daemon);
  Block block = Must(Block::Allocate(session, {.bytes = kBlock}), "block");
  void* second = nullptr;
  {
    const Mapping mapping = Must(block.Map(), "mapping");
    memset(mapping.data(), 1, mapping.size());
    // A second mapping of the same memory that the library does not know of.
    second = ::mremap(mapping.data(), 0, mapping.size(), MREMAP_MAYMOVE);
    ASSERT_NE(second, MAP_FAILED);
    EXPECT_TRUE(IsFull(second, 1));
  }
  Must(block.Free(), "free");
  EXPECT_TRUE(
      daemon.AccountsBecome([](const Accounts& accounts) { return accounts.blocks == 0 && accounts.retired == 0; }));
  EXPECT_TRUE(IsFull(second, kPoison));
  ::munmap(second, kBlock.count());
}

}  // namespace
}  // namespace berth::testing
