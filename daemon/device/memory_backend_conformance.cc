#include "daemon/device/memory_backend_conformance.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/fd_passing.h"

namespace berth {
namespace {

constexpr char kCreatorFlag[] = "--create-a-block-and-wait";
constexpr int kCreatorFd = 3;
constexpr char kText[] = "written by a process that is gone";

int OpenFds() {
  const auto fds = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<int>(std::distance(begin(fds), end(fds)));
}

bool IsZero(const std::string& bytes) { return bytes.find_first_not_of('\0') == std::string::npos; }

// The part of the process that is killed: makes a block, writes to it, sends its fd, waits.
int CreateAndWait(BackendHarness& harness) {
  const auto backend = harness.Open();
  if (!backend.ok()) return 1;
  const Bytes bytes = (*backend)->granularity();
  const absl::StatusOr<UniqueFd> fd = (*backend)->Create(bytes);
  if (!fd.ok() || !harness.Write(fd->get(), bytes, 4096, kText).ok()) return 1;
  const int sent = fd->get();
  if (!SendStruct(kCreatorFd, bytes, std::span(&sent, 1)).ok()) return 1;
  while (true) ::pause();
}

}  // namespace

void MemoryBackendConformance::SetUp() {
  absl::StatusOr<std::unique_ptr<MemoryBackend>> backend = harness().Open();
  if (IsRefusal(backend.status(), Reason::kUnsupported)) {
    const char* const required = getenv("BERTH_REQUIRE_CUDA");
    ASSERT_TRUE(required == nullptr || strcmp(required, "1") != 0) << backend.status();
    GTEST_SKIP() << backend.status();
  }
  ASSERT_TRUE(backend.ok()) << backend.status();
  backend_ = *std::move(backend);
}

TEST_P(MemoryBackendConformance, GranularityIsAMultipleOfBerths) {
  EXPECT_GT(backend_->granularity(), Bytes(0));
  EXPECT_EQ(backend_->granularity().count() % kBlockGranularity, 0);
}

TEST_P(MemoryBackendConformance, ABlockReadsAsZeroesFromEndToEnd) {
  const Bytes bytes(3 * backend_->granularity().count());
  const absl::StatusOr<UniqueFd> fd = backend_->Create(bytes);
  ASSERT_TRUE(fd.ok()) << fd.status();
  for (const uint64_t offset : {uint64_t{0}, bytes.count() / 2, bytes.count() - 4096}) {
    const absl::StatusOr<std::string> read = harness().Read(fd->get(), bytes, offset, 4096);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(IsZero(*read)) << offset;
  }
}

TEST_P(MemoryBackendConformance, BlocksAreApart) {
  const Bytes bytes = backend_->granularity();
  const absl::StatusOr<UniqueFd> first = backend_->Create(bytes);
  const absl::StatusOr<UniqueFd> second = backend_->Create(bytes);
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE(harness().Write(first->get(), bytes, 0, "one").ok());
  EXPECT_EQ(*harness().Read(first->get(), bytes, 0, 3), "one");
  EXPECT_TRUE(IsZero(*harness().Read(second->get(), bytes, 0, 3)));
}

TEST_P(MemoryBackendConformance, FreshMemoryIsZeroAfterOthersWereWrittenAndFreed) {
  const Bytes bytes = backend_->granularity();
  for (int i = 0; i < 8; ++i) {
    const absl::StatusOr<UniqueFd> fd = backend_->Create(bytes);
    ASSERT_TRUE(fd.ok()) << fd.status();
    EXPECT_TRUE(IsZero(*harness().Read(fd->get(), bytes, 0, 4096)));
    ASSERT_TRUE(harness().Write(fd->get(), bytes, 0, std::string(4096, 'x')).ok());
  }
}

TEST_P(MemoryBackendConformance, ZeroBytesAreRefused) {
  const absl::Status status = backend_->Create(Bytes(0)).status();
  EXPECT_TRUE(IsRefusal(status, Reason::kInvalidField)) << status;
  EXPECT_EQ(GetErrorDetails(status)->metadata.at("value"), "0");
}

TEST_P(MemoryBackendConformance, RoundingIsTheCallers) {
  const uint64_t granularity = backend_->granularity().count();
  for (const uint64_t size : {uint64_t{1}, granularity - 1, granularity + 1, UINT64_MAX}) {
    EXPECT_TRUE(IsRefusal(backend_->Create(Bytes(size)).status(), Reason::kInvalidField)) << size;
  }
}

TEST_P(MemoryBackendConformance, MoreThanTheDeviceHasIsRefusedAndChangesNothing) {
  const uint64_t granularity = backend_->granularity().count();
  const int before = OpenFds();
  for (const uint64_t size : {uint64_t{1} << 50, UINT64_MAX - UINT64_MAX % granularity}) {
    const absl::Status status = backend_->Create(Bytes(size - size % granularity)).status();
    EXPECT_TRUE(IsRefusal(status, Reason::kOutOfMemory)) << size << " " << status;
    const auto figures = GetErrorDetails(status)->metadata;
    EXPECT_EQ(figures.count("device") + figures.count("requested") + figures.count("driver_code"), 3);
  }
  EXPECT_EQ(OpenFds(), before);
  EXPECT_TRUE(backend_->Create(Bytes(granularity)).ok());
}

TEST_P(MemoryBackendConformance, ManyBlocksLeaveNoFdBehind) {
  // The first may open what stays open.
  ASSERT_TRUE(backend_->Create(backend_->granularity()).ok());
  const int before = OpenFds();
  std::vector<UniqueFd> fds;
  for (int i = 0; i < 200; ++i) {
    absl::StatusOr<UniqueFd> fd = backend_->Create(backend_->granularity());
    ASSERT_TRUE(fd.ok()) << fd.status();
    fds.push_back(*std::move(fd));
  }
  EXPECT_EQ(OpenFds(), before + 200);
  fds.clear();
  EXPECT_EQ(OpenFds(), before);
}

TEST_P(MemoryBackendConformance, DataSurvivesTheCreatorsDeathInTheFd) {
  auto sockets = SocketPair();
  ASSERT_TRUE(sockets.ok());
  const pid_t creator = ::fork();
  if (creator == 0) {
    ::dup2(sockets->second.get(), kCreatorFd);
    ::execl("/proc/self/exe", "creator", kCreatorFlag, nullptr);
    ::_exit(1);
  }
  sockets->second.reset();
  const absl::StatusOr<Message> message = ReceiveMessage(sockets->first.get());
  ::kill(creator, SIGKILL);
  ::waitpid(creator, nullptr, 0);
  ASSERT_TRUE(message.ok()) << message.status();
  ASSERT_EQ(message->fds.size(), 1);
  const absl::StatusOr<std::string> read =
      harness().Read(message->fds[0].get(), backend_->granularity(), 4096, sizeof(kText) - 1);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, kText);
}

int RunConformance(int argc, char** argv, BackendHarness& harness) {
  if (argc == 2 && strcmp(argv[1], kCreatorFlag) == 0) return CreateAndWait(harness);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace berth
