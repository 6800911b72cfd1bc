// Requirements of every MemoryResource, as tests, over every backend and over the whole stack around it (tests/gpu runs
// them on machines with a GPU). Also serves as the process that one of the tests kills.

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <berth/bytes.h>
#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/os/fd_passing.h"
#include "common/status_macros.h"
#include "daemon/device/memory/memory_resource.h"
#include "daemon/device/memory/testing/memory_harness.h"

namespace berth {
namespace {

constexpr char kCreatorFlag[] = "--create-a-block-and-wait=";
constexpr int kCreatorFd = 3;
constexpr char kText[] = "written by a process that is gone";
constexpr size_t kPage = 4096;

class MemoryResourceConformance : public ::testing::TestWithParam<MemoryHarness*> {
 protected:
  void SetUp() override;
  MemoryHarness& harness() { return *GetParam(); }

  MemoryBlock Allocate(uint64_t granules = 1);
  std::string Read(const MemoryBlock& block, uint64_t offset, size_t size);
  // Returns whether the first and the last bytes of the block, and some between, are `value`.
  bool IsFull(const MemoryBlock& block, char value);

  std::unique_ptr<MemoryResource> resource_;
};

int OpenFds() {
  const auto fds = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<int>(std::distance(begin(fds), end(fds)));
}

// Message of the process that is killed about its block; the fd is attached.
struct BlockMessage {
  uint64_t bytes = 0;
  bool has_handle = false;
  IpcHandle handle;
};

// Role of the process that is killed: makes a block, writes to it, sends it, waits.
int CreateAndWait(MemoryHarness& harness) {
  const auto resource = harness.Open();
  if (!resource.ok()) return 1;
  absl::StatusOr<MemoryBlock> block = (*resource)->Allocate((*resource)->granularity(), "creator");
  if (!block.ok() || !harness.Write(*block, kPage, kText).ok()) return 1;
  const BlockMessage message = {.bytes = block->bytes.count(),
                                .has_handle = block->handle.has_value(),
                                .handle = block->handle.value_or(IpcHandle())};
  const int sent = block->fd.get();
  const std::span<const int> fds(&sent, message.has_handle ? 0 : 1);
  if (!SendStruct(kCreatorFd, message, fds).ok()) return 1;
  while (true) ::pause();
}

// Returns a copy of `block`'s identity, for methods that only see these fields.
MemoryBlock Lookalike(const MemoryBlock& block) {
  return {.generation = block.generation,
          .device = block.device,
          .bytes = block.bytes,
          .address = block.address,
          .handle = block.handle};
}

void MemoryResourceConformance::SetUp() {
  absl::StatusOr<std::unique_ptr<MemoryResource>> resource = harness().Open();
  if (IsRefusal(resource.status(), Reason::kUnsupported)) {
    const char* const required = getenv("BERTH_REQUIRE_CUDA");
    ASSERT_TRUE(required == nullptr || strcmp(required, "1") != 0) << resource.status();
    GTEST_SKIP() << resource.status();
  }
  ASSERT_TRUE(resource.ok()) << resource.status();
  resource_ = *std::move(resource);
}

MemoryBlock MemoryResourceConformance::Allocate(uint64_t granules) {
  absl::StatusOr<MemoryBlock> block =
      resource_->Allocate(Bytes(granules * resource_->granularity().count()), "conformance");
  EXPECT_TRUE(block.ok()) << block.status();
  return block.ok() ? *std::move(block) : MemoryBlock{};
}

std::string MemoryResourceConformance::Read(const MemoryBlock& block, uint64_t offset, size_t size) {
  const absl::StatusOr<std::string> read = harness().Read(block, offset, size);
  EXPECT_TRUE(read.ok()) << read.status();
  return read.value_or("");
}

bool MemoryResourceConformance::IsFull(const MemoryBlock& block, char value) {
  const std::string page(kPage, value);
  return Read(block, 0, kPage) == page && Read(block, block.bytes.count() / 2, kPage) == page &&
         Read(block, block.bytes.count() - kPage, kPage) == page;
}

TEST_P(MemoryResourceConformance, GranularityIsMultipleOfBerths) {
  EXPECT_GT(resource_->granularity(), Bytes(0));
  EXPECT_EQ(resource_->granularity().count() % kBlockGranularity, 0);
}

TEST_P(MemoryResourceConformance, BlockDescribesItself) {
  const MemoryBlock block = Allocate(3);
  EXPECT_GT(block.generation, 0u);
  EXPECT_EQ(block.device, resource_->device());
  EXPECT_EQ(block.bytes.count(), 3 * resource_->granularity().count());
  EXPECT_EQ(block.tag, "conformance");
  EXPECT_NE(static_cast<bool>(block.fd), block.handle.has_value()) << "one of them leaves the process";
  EXPECT_EQ(block.address % kBlockGranularity, 0u);
}

TEST_P(MemoryResourceConformance, FreshBlockReadsAsZeroes) { EXPECT_TRUE(IsFull(Allocate(3), '\0')); }

TEST_P(MemoryResourceConformance, BlocksDoNotOverlap) {
  const MemoryBlock first = Allocate();
  const MemoryBlock second = Allocate();
  ASSERT_TRUE(harness().Write(first, 0, "one").ok());
  EXPECT_EQ(Read(first, 0, 3), "one");
  EXPECT_EQ(Read(second, 0, 3), std::string(3, '\0'));
}

TEST_P(MemoryResourceConformance, FreshMemoryIsZeroAfterWrittenBlocksAreFreed) {
  for (int i = 0; i < 8; ++i) {
    MemoryBlock block = Allocate();
    EXPECT_TRUE(IsFull(block, '\0')) << i;
    ASSERT_TRUE(harness().Write(block, 0, std::string(kPage, 'x')).ok());
    ASSERT_TRUE(resource_->Deallocate(block).ok());
  }
}

TEST_P(MemoryResourceConformance, ZeroBytesAreRejected) {
  const absl::Status status = resource_->Allocate(Bytes(0), "").status();
  EXPECT_TRUE(IsRefusal(status, Reason::kInvalidField)) << status;
  EXPECT_EQ(GetErrorDetails(status)->metadata.at("value"), "0");
  EXPECT_EQ(resource_->outstanding(), Bytes(0));
}

TEST_P(MemoryResourceConformance, UnroundedSizeIsRejected) {
  const uint64_t granularity = resource_->granularity().count();
  for (const uint64_t size : {uint64_t{1}, granularity - 1, granularity + 1, UINT64_MAX}) {
    const absl::Status status = resource_->Allocate(Bytes(size), "").status();
    EXPECT_TRUE(IsRefusal(status, Reason::kInvalidField) || IsRefusal(status, Reason::kOverBudget)) << size;
  }
}

TEST_P(MemoryResourceConformance, RequestAboveDeviceMemoryIsRejected) {
  const uint64_t granularity = resource_->granularity().count();
  const int before = OpenFds();
  for (const uint64_t size : {uint64_t{1} << 50, UINT64_MAX - UINT64_MAX % granularity}) {
    const absl::Status status = resource_->Allocate(Bytes(size - size % granularity), "").status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << size << " " << status;
    const auto named_values = GetErrorDetails(status)->metadata;
    EXPECT_EQ(named_values.count("device") + named_values.count("requested"), 2);
  }
  EXPECT_EQ(resource_->outstanding(), Bytes(0));
  EXPECT_EQ(OpenFds(), before);
  Allocate();
}

TEST_P(MemoryResourceConformance, OutstandingIsExactToTheByte) {
  const uint64_t granularity = resource_->granularity().count();
  MemoryBlock first = Allocate(1);
  MemoryBlock second = Allocate(2);
  EXPECT_EQ(resource_->outstanding().count(), 3 * granularity);
  EXPECT_TRUE(resource_->Deallocate(first).ok());
  EXPECT_EQ(resource_->outstanding().count(), 2 * granularity);
  EXPECT_TRUE(resource_->Deallocate(second).ok());
  EXPECT_EQ(resource_->outstanding(), Bytes(0));
}

TEST_P(MemoryResourceConformance, ResourceUsesItsOwnByteCount) {
  MemoryBlock block = Allocate(2);
  block.bytes = Bytes(1);
  EXPECT_TRUE(resource_->Deallocate(block).ok());
  EXPECT_EQ(resource_->outstanding(), Bytes(0));
}

TEST_P(MemoryResourceConformance, GenerationsRiseAndAreUnique) {
  const auto other = harness().Open();
  ASSERT_TRUE(other.ok());
  uint64_t last = 0;
  for (int i = 0; i < 20; ++i) {
    MemoryResource& resource = i % 2 == 0 ? *resource_ : **other;
    absl::StatusOr<MemoryBlock> block = resource.Allocate(resource.granularity(), "");
    ASSERT_TRUE(block.ok()) << block.status();
    EXPECT_GT(block->generation, last);
    last = block->generation;
    if (i % 3 == 0) {
      EXPECT_TRUE(resource.Deallocate(*block).ok());
    }
  }
}

TEST_P(MemoryResourceConformance, DeallocatedBlockIsStaleForEveryMethod) {
  MemoryBlock freed = Allocate();
  const MemoryBlock live = Allocate();
  MemoryBlock lookalike = Lookalike(freed);
  ASSERT_TRUE(resource_->Deallocate(freed).ok());
  EXPECT_FALSE(freed.fd);
  EXPECT_FALSE(freed.handle.has_value());
  // Another block may use its memory by now.
  const MemoryBlock later = Allocate();
  for (MemoryBlock* const block : {&freed, &lookalike}) {
    EXPECT_TRUE(IsRefusal(resource_->Deallocate(*block), Reason::kStale));
    EXPECT_TRUE(IsRefusal(resource_->HandOver(*block).status(), Reason::kStale));
    EXPECT_TRUE(IsRefusal(resource_->Fill(*block, 1), Reason::kStale));
  }
  EXPECT_EQ(resource_->outstanding().count(), 2 * resource_->granularity().count());
  EXPECT_TRUE(IsFull(live, '\0'));
  EXPECT_TRUE(IsFull(later, '\0'));
}

TEST_P(MemoryResourceConformance, UnknownBlockIsNotFound) {
  MemoryBlock none = {.device = resource_->device()};
  MemoryBlock future = {.generation = UINT64_MAX, .device = resource_->device()};
  for (MemoryBlock* const block : {&none, &future}) {
    const absl::Status status = resource_->Deallocate(*block);
    EXPECT_TRUE(IsRefusal(status, Reason::kNotFound)) << status;
    EXPECT_EQ(GetErrorDetails(status)->metadata.at("id"), std::to_string(block->generation));
  }
}

TEST_P(MemoryResourceConformance, BlockOfOtherDeviceIsRejected) {
  MemoryBlock block = Allocate();
  MemoryBlock foreign = Lookalike(block);
  foreign.device = "GPU-elsewhere";
  const absl::Status status = resource_->Deallocate(foreign);
  EXPECT_TRUE(IsRefusal(status, Reason::kInvalidField)) << status;
  EXPECT_EQ(GetErrorDetails(status)->metadata.at("value"), "GPU-elsewhere");
  EXPECT_EQ(resource_->outstanding(), block.bytes);
  EXPECT_TRUE(resource_->Deallocate(block).ok());
}

TEST_P(MemoryResourceConformance, HandedOverBlockLivesInItsFdAlone) {
  MemoryBlock block = Allocate();
  if (block.handle.has_value()) {
    EXPECT_TRUE(IsRefusal(resource_->HandOver(block).status(), Reason::kUnsupported));
    EXPECT_EQ(resource_->outstanding(), block.bytes);
    EXPECT_TRUE(resource_->Deallocate(block).ok());
    return;
  }
  ASSERT_TRUE(harness().Write(block, kPage, "kept").ok());
  MemoryBlock alone = {.bytes = block.bytes};
  absl::StatusOr<UniqueFd> fd = resource_->HandOver(block);
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_EQ(resource_->outstanding(), Bytes(0));
  EXPECT_TRUE(IsRefusal(resource_->Deallocate(block), Reason::kStale));
  EXPECT_TRUE(IsRefusal(resource_->HandOver(block).status(), Reason::kStale));
  resource_.reset();
  alone.fd = *std::move(fd);
  EXPECT_EQ(Read(alone, kPage, 4), "kept");
}

TEST_P(MemoryResourceConformance, DeallocateClosesAdoptedFd) {
  MemoryBlock block = Allocate();
  const int before = OpenFds();
  if (block.handle.has_value()) {
    EXPECT_TRUE(IsRefusal(resource_->Adopt(UniqueFd(), "").status(), Reason::kUnsupported));
    return;
  }
  const uint64_t generation = block.generation;
  absl::StatusOr<MemoryBlock> adopted = resource_->Adopt(*resource_->HandOver(block), "back");
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  EXPECT_GT(adopted->generation, generation);
  EXPECT_EQ(adopted->tag, "back");
  EXPECT_EQ(resource_->outstanding(), Bytes(0));
  EXPECT_EQ(OpenFds(), before);
  EXPECT_TRUE(resource_->Deallocate(*adopted).ok());
  EXPECT_EQ(OpenFds(), before - 1);
  EXPECT_TRUE(IsRefusal(resource_->Deallocate(*adopted), Reason::kStale));
}

TEST_P(MemoryResourceConformance, FillWritesEveryByteOrIsUnsupported) {
  const MemoryBlock block = Allocate(2);
  const MemoryBlock other = Allocate();
  const absl::Status filled = resource_->Fill(block, 0x5A);
  if (IsRefusal(filled, Reason::kUnsupported)) {
    EXPECT_TRUE(IsFull(block, '\0'));
    return;
  }
  ASSERT_TRUE(filled.ok()) << filled;
  EXPECT_TRUE(IsFull(block, 0x5A));
  EXPECT_TRUE(IsFull(other, '\0'));
}

TEST_P(MemoryResourceConformance, ReapWithoutFailureDoesNothing) {
  const MemoryBlock block = Allocate();
  EXPECT_TRUE(resource_->Reap().ok());
  EXPECT_EQ(resource_->outstanding(), block.bytes);
}

TEST_P(MemoryResourceConformance, ManyBlocksLeaveNoFd) {
  // The first block may open fds that stay open.
  MemoryBlock first = Allocate();
  ASSERT_TRUE(resource_->Deallocate(first).ok());
  const int before = OpenFds();
  std::vector<MemoryBlock> blocks;
  for (int i = 0; i < 200; ++i) blocks.push_back(Allocate());
  const bool has_fd = blocks[0].fd || resource_->kind() == BackendKind::kHostNamed;
  EXPECT_EQ(OpenFds(), before + (has_fd ? 200 : 0));
  for (MemoryBlock& block : blocks) EXPECT_TRUE(resource_->Deallocate(block).ok());
  EXPECT_EQ(OpenFds(), before);
  EXPECT_EQ(resource_->outstanding(), Bytes(0));
}

TEST_P(MemoryResourceConformance, PatternsSurviveAllocationChurn) {
  struct Patterned {
    MemoryBlock block;
    std::string pattern;
  };
  std::minstd_rand random(7);
  std::vector<Patterned> live;
  for (int i = 0; i < 64; ++i) {
    MemoryBlock block = Allocate(1 + random() % 3);
    std::string pattern(64 + random() % 4032, static_cast<char>('a' + i % 26));
    ASSERT_TRUE(harness().Write(block, block.bytes.count() - pattern.size(), pattern).ok());
    live.push_back({std::move(block), std::move(pattern)});
    if (live.size() < 8) continue;
    std::swap(live[random() % live.size()], live.back());
    Patterned& last = live.back();
    EXPECT_EQ(Read(last.block, last.block.bytes.count() - last.pattern.size(), last.pattern.size()),
              last.pattern);
    EXPECT_TRUE(resource_->Deallocate(last.block).ok());
    live.pop_back();
  }
  for (Patterned& patterned : live) EXPECT_TRUE(resource_->Deallocate(patterned.block).ok());
  EXPECT_EQ(resource_->outstanding(), Bytes(0));
}

TEST_P(MemoryResourceConformance, OtherProcessReadsDataAndFdSurvivesCreator) {
  if (harness().is_fake()) GTEST_SKIP() << "a fake device";
  auto sockets = SocketPair();
  ASSERT_TRUE(sockets.ok());
  const pid_t creator = ::fork();
  if (creator == 0) {
    ::dup2(sockets->second.get(), kCreatorFd);
    ::execl("/proc/self/exe", "creator", absl::StrCat(kCreatorFlag, harness().name()).c_str(), nullptr);
    ::_exit(1);
  }
  sockets->second.reset();
  absl::StatusOr<Message> message = ReceiveMessage(sockets->first.get());
  BlockMessage said;
  MemoryBlock block;
  if (message.ok() && message->bytes.size() == sizeof(said)) {
    memcpy(&said, message->bytes.data(), sizeof(said));
    block.bytes = Bytes(said.bytes);
    if (said.has_handle) block.handle = said.handle;
    if (!message->fds.empty()) block.fd = std::move(message->fds[0]);
    EXPECT_EQ(Read(block, kPage, sizeof(kText) - 1), kText);
  }
  ::kill(creator, SIGKILL);
  ::waitpid(creator, nullptr, 0);
  ASSERT_TRUE(message.ok()) << message.status();
  if (!said.has_handle) {
    EXPECT_EQ(Read(block, kPage, sizeof(kText) - 1), kText);
  }
}

INSTANTIATE_TEST_SUITE_P(All, MemoryResourceConformance, ::testing::ValuesIn(MemoryHarness::All()),
                         [](const auto& info) { return info.param->name(); });

}  // namespace
}  // namespace berth

int main(int argc, char** argv) {
  absl::string_view flag = argc == 2 ? argv[1] : "";
  if (absl::ConsumePrefix(&flag, berth::kCreatorFlag)) {
    for (berth::MemoryHarness* const harness : berth::MemoryHarness::All()) {
      if (harness->name() == flag) return berth::CreateAndWait(*harness);
    }
    return 2;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
