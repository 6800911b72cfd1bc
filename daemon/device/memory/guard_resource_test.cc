#include "daemon/device/memory/guard_resource.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include <berth/error.h>

#include "daemon/device/memory/testing/fake_resource.h"

namespace berth {
namespace {

using ::testing::ElementsAre;

// Returns the first bytes of a block.
std::string Start(int fd) {
  std::string text(16, '?');
  EXPECT_EQ(::pread(fd, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  return text;
}

const std::string kZeroes(16, '\0');
const std::string kPoisoned(16, '\xDD');

class GuardResourceTest : public ::testing::Test {
 protected:
  void Guard(Poison poison) {
    guard_ = std::make_unique<GuardResource>(std::unique_ptr<MemoryResource>(inner_), poison);
  }
  MemoryBlock MakeAt(uint64_t address, Bytes bytes) {
    inner_->next_address = address;
    absl::StatusOr<MemoryBlock> block = guard_->Allocate(bytes, "");
    EXPECT_TRUE(block.ok()) << block.status();
    return block.ok() ? *std::move(block) : MemoryBlock{};
  }
  absl::Status TryAt(uint64_t address, Bytes bytes) {
    inner_->next_address = address;
    return guard_->Allocate(bytes, "").status();
  }

  FakeResource* inner_ = new FakeResource;
  std::unique_ptr<GuardResource> guard_;
};

TEST_F(GuardResourceTest, NothingIsWrittenWithoutPoison) {
  Guard({});
  MemoryBlock block = MakeAt(0, MiB(2));
  EXPECT_EQ(Start(block.fd.get()), kZeroes);
  EXPECT_TRUE(guard_->Deallocate(block).ok());
  EXPECT_THAT(inner_->calls, ElementsAre("Allocate", "Deallocate"));
}

TEST_F(GuardResourceTest, FreshMemoryIsPoisonedBeforeUse) {
  Guard({.fresh = true});
  const MemoryBlock block = MakeAt(0, MiB(2));
  EXPECT_EQ(Start(block.fd.get()), kPoisoned);
}

TEST_F(GuardResourceTest, FreedMemoryIsPoisoned) {
  Guard({.freed = true});
  MemoryBlock block = MakeAt(0, MiB(2));
  const absl::StatusOr<UniqueFd> copy = DuplicateFd(block.fd.get());
  EXPECT_EQ(Start(copy->get()), kZeroes);
  EXPECT_TRUE(guard_->Deallocate(block).ok());
  EXPECT_EQ(Start(copy->get()), kPoisoned);
}

TEST_F(GuardResourceTest, AdoptedBlockIsPoisonedWhenFreed) {
  Guard({.freed = true});
  MemoryBlock block = MakeAt(0, MiB(2));
  const absl::StatusOr<UniqueFd> copy = DuplicateFd(block.fd.get());
  MemoryBlock back = *guard_->Adopt(*guard_->HandOver(block), "");
  EXPECT_EQ(Start(copy->get()), kZeroes);
  EXPECT_TRUE(guard_->Deallocate(back).ok());
  EXPECT_EQ(Start(copy->get()), kPoisoned);
}

TEST_F(GuardResourceTest, UnreachableMemoryIsServedUnpoisoned) {
  Guard({.fresh = true, .freed = true});
  inner_->fill_error = RefuseCapability("HOST-0", "way in");
  MemoryBlock block = MakeAt(0, MiB(2));
  EXPECT_EQ(Start(block.fd.get()), kZeroes);
  EXPECT_TRUE(guard_->Deallocate(block).ok());
}

TEST_F(GuardResourceTest, ForeignBlockIsNotWrittenTo) {
  Guard({.freed = true});
  MemoryBlock block = MakeAt(0, MiB(2));
  // `freed` has the block's identity, but the fd of a living block.
  const MemoryBlock living = MakeAt(0, MiB(2));
  MemoryBlock freed = {.generation = block.generation, .device = block.device};
  ASSERT_TRUE(guard_->Deallocate(block).ok());
  freed.fd = *DuplicateFd(living.fd.get());
  EXPECT_TRUE(IsRefusal(guard_->Deallocate(freed), Reason::kStale));
  EXPECT_EQ(Start(living.fd.get()), kZeroes);
}

TEST_F(GuardResourceTest, UnpoisonableFreshBlockIsNotServed) {
  Guard({.fresh = true});
  inner_->fill_error = absl::InternalError("inside");
  EXPECT_TRUE(absl::IsInternal(TryAt(0, MiB(2))));
  EXPECT_EQ(guard_->outstanding(), Bytes(0));
}

TEST_F(GuardResourceTest, UnpoisonableFreedBlockStaysWithCaller) {
  Guard({.freed = true});
  MemoryBlock block = MakeAt(0, MiB(2));
  inner_->fill_error = absl::InternalError("inside");
  EXPECT_TRUE(absl::IsInternal(guard_->Deallocate(block)));
  EXPECT_EQ(guard_->outstanding(), MiB(2));
  inner_->fill_error = absl::OkStatus();
  EXPECT_TRUE(guard_->Deallocate(block).ok());
}

TEST_F(GuardResourceTest, OverlappingMemoryIsNeitherServedNorFreed) {
  Guard({});
  MemoryBlock block = MakeAt(MiB(100).count(), MiB(4));
  inner_->calls.clear();
  const uint64_t kOverlapping[] = {MiB(98).count(), MiB(100).count(), MiB(102).count()};
  for (const uint64_t address : kOverlapping) {
    const absl::Status status = TryAt(address, MiB(4));
    EXPECT_TRUE(absl::IsInternal(status)) << address << " " << status;
  }
  EXPECT_TRUE(absl::IsInternal(TryAt(MiB(98).count(), MiB(16)))) << "all around it";
  EXPECT_THAT(inner_->calls, ::testing::Each("Allocate"));
  EXPECT_EQ(guard_->outstanding(), MiB(4 + 12 + 16)) << "it stays charged";
  // Adjacent memory up to the edges is accepted.
  MakeAt(MiB(96).count(), MiB(4));
  MakeAt(MiB(104).count(), MiB(4));
  EXPECT_TRUE(guard_->Deallocate(block).ok());
}

TEST_F(GuardResourceTest, AddressIsReusableAfterItsBlockEnds) {
  Guard({});
  for (int i = 0; i < 3; ++i) {
    MemoryBlock block = MakeAt(MiB(100).count(), MiB(4));
    EXPECT_TRUE(guard_->Deallocate(block).ok());
  }
  MemoryBlock left = MakeAt(MiB(100).count(), MiB(4));
  EXPECT_TRUE(guard_->HandOver(left).ok());
  MakeAt(MiB(100).count(), MiB(4));
}

TEST_F(GuardResourceTest, FailedFreeRetainsAddress) {
  Guard({});
  MemoryBlock block = MakeAt(MiB(100).count(), MiB(4));
  inner_->deallocate_error = absl::InternalError("inside");
  EXPECT_FALSE(guard_->Deallocate(block).ok());
  EXPECT_TRUE(absl::IsInternal(TryAt(MiB(100).count(), MiB(4))));
}

TEST(ParsePoisonTest, BothPoisonNamesParseAndUnknownIsNamed) {
  EXPECT_FALSE(ParsePoison("")->fresh || ParsePoison("")->freed);
  EXPECT_TRUE(ParsePoison("fresh")->fresh);
  EXPECT_FALSE(ParsePoison("fresh")->freed);
  EXPECT_TRUE(ParsePoison("freed,fresh")->fresh && ParsePoison("freed,fresh")->freed);
  const absl::Status status = ParsePoison("fresh,stale").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_NE(status.message().find("\"stale\""), std::string::npos);
}

}  // namespace
}  // namespace berth
