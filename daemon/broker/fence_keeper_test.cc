// Fence pages between the broker, the vault and those who map them, over a real socket to the vault's end.

#include "daemon/broker/fence_keeper.h"

#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "common/fd_passing.h"
#include "daemon/vault/broker_link.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

constexpr ChannelId kA{7};
constexpr core::StreamKey kStream{kA, 3};

class FenceKeeperTest : public testing::Test {
 protected:
  FenceKeeperTest() { Start(); }

  // A broker starts, and inherits what the vault holds.
  void Start() {
    keeper_.reset();
    custody_.reset();
    auto sockets = *SocketPair();
    EXPECT_TRUE(SetNonBlocking(sockets.first.get()).ok());
    vault_.emplace(std::move(sockets.first));
    vault_->Queue(custody::Facts{.custody_limit = 100});
    vault_->QueueGiveAll(in_vault_);
    vault_->Queue(custody::Signal{.kind = custody::MessageKind::kGiveEnd});
    vault_->Flush(in_vault_);
    Inheritance inherited = *Custody::Receive(std::move(sockets.second));
    custody_ = std::move(inherited.custody);
    keeper_.emplace(custody_.get());
    inherited_ = std::move(inherited.held);
  }
  // What the vault has been told so far is done.
  void Serve() {
    for (absl::StatusOr<BrokerRequest> request = vault_->Read(); request.ok(); request = vault_->Read()) {
      if (auto* const put = std::get_if<PutRequest>(&*request)) {
        in_vault_.emplace(put->key, std::move(put->fd));
      } else if (const auto* const drop = std::get_if<DropRequest>(&*request)) {
        in_vault_.erase(drop->key);
      }
    }
  }
  FencePage Map(bool read_only) {
    const UniqueFd fd = *keeper_->Open(kA, read_only);
    return read_only ? *FencePage::MapReadOnly(fd.get()) : *FencePage::MapWritable(fd.get());
  }

  HeldFds in_vault_;
  std::optional<BrokerLink> vault_;
  std::unique_ptr<Custody> custody_;
  std::vector<HeldFd> inherited_;
  std::optional<FenceKeeper> keeper_;
};

TEST_F(FenceKeeperTest, APageIsThereForItsOwnerForOthersAndForTheVault) {
  EXPECT_EQ(keeper_->Open(kA, true).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(keeper_->Read(kStream).done, 0u);
  keeper_->Make(kA);
  FencePage own = Map(/*read_only=*/false);
  const FencePage theirs = Map(/*read_only=*/true);
  EXPECT_EQ(own.channel(), kA);
  FenceSlot& words = own.writable_slot(kStream.slot);
  words.done.store(4);
  words.begun.store(6);
  words.ended.store(5);
  EXPECT_EQ(theirs.slot(kStream.slot).done.load(), 4u);
  const core::StreamWords read = keeper_->Read(kStream);
  EXPECT_EQ(read.done, 4u);
  EXPECT_EQ(read.begun, 6u);
  EXPECT_EQ(read.ended, 5u);
  Serve();
  ASSERT_EQ(in_vault_.size(), 1u);
  EXPECT_EQ(FencePage::MapReadOnly(in_vault_.begin()->second.get())->slot(kStream.slot).done.load(), 4u);
}

TEST_F(FenceKeeperTest, WhatIsForOthersCannotBeWritten) {
  keeper_->Make(kA);
  const UniqueFd fd = *keeper_->Open(kA, /*read_only=*/true);
  EXPECT_FALSE(FencePage::MapWritable(fd.get()).ok());
  EXPECT_TRUE(FencePage::MapReadOnly(fd.get()).ok());
}

TEST_F(FenceKeeperTest, ADroppedPageLetsEverybodyOnAndIsGone) {
  keeper_->Make(kA);
  const FencePage theirs = Map(/*read_only=*/true);
  Serve();
  keeper_->Drop(kA);
  keeper_->Drop(kA);
  for (uint32_t slot = 0; slot < kFenceSlots; ++slot) EXPECT_EQ(theirs.slot(slot).done.load(), kFenceTop);
  EXPECT_FALSE(keeper_->Open(kA, true).ok());
  EXPECT_EQ(keeper_->Read(kStream).done, 0u);
  Serve();
  EXPECT_TRUE(in_vault_.empty());
}

TEST_F(FenceKeeperTest, APageThatTheVaultDoesNotTakeIsNotMade) {
  vault_.reset();
  keeper_->Make(kA);
  EXPECT_EQ(keeper_->Open(kA, true).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(FenceKeeperTest, APageThatThereWasNoRoomForIsMadeWhenItsProcessAsksForItLater) {
  const UniqueFd other = *keeper_->OpenOwn(ChannelId(8));
  uint64_t block = 0;
  while (custody_->Put(custody::KeyOf(custody::Kind::kBlock, ++block), other.get(), FdOwner::kClient).ok()) continue;
  keeper_->Make(kA);
  EXPECT_EQ(keeper_->OpenOwn(kA).status().code(), absl::StatusCode::kNotFound);
  const custody::Key gone = custody::KeyOf(custody::Kind::kBlock, 1);
  custody_->Drop(gone);
  vault_->Queue(custody::KeyMessage{.kind = custody::MessageKind::kDropped, .key = gone});
  vault_->Flush(in_vault_);
  ASSERT_TRUE(custody_->ReadNotice().ok());
  const absl::StatusOr<UniqueFd> made = keeper_->OpenOwn(kA);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(FencePage::MapWritable(made->get())->channel(), kA);
  Serve();
  EXPECT_TRUE(in_vault_.contains(custody::KeyOf(custody::Kind::kFencePage, kA.value())));
}

TEST_F(FenceKeeperTest, TheNextBrokerLetsEverybodyOnWhoWaitsForAPageOfTheLast) {
  keeper_->Make(kA);
  keeper_->Make(ChannelId(8));
  const FencePage theirs = Map(/*read_only=*/true);
  Serve();
  Start();
  ASSERT_EQ(inherited_.size(), 2u);
  for (HeldFd& held : inherited_) keeper_->LetGo(std::move(held));
  for (uint32_t slot = 0; slot < kFenceSlots; ++slot) EXPECT_EQ(theirs.slot(slot).done.load(), kFenceTop);
  EXPECT_FALSE(keeper_->Open(kA, true).ok());
  Serve();
  EXPECT_TRUE(in_vault_.empty());
}

}  // namespace
}  // namespace berth
