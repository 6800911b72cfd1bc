// Fence pages between the broker, the supervisor and the processes that map them, over a real socket to the
// supervisor's end.

#include "daemon/broker/fence_page_manager.h"

#include <sys/resource.h>

#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/fd_passing.h"
#include "common/os/memfd.h"
#include "daemon/supervisor/broker_link.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

constexpr ChannelId kA{7};
constexpr core::StreamKey kStream{kA, 3};

class FencePageManagerTest : public testing::Test {
 protected:
  FencePageManagerTest() { Start(); }

  // Starts a broker, which inherits the fds that the supervisor holds.
  void Start() {
    manager_.reset();
    fd_store_.reset();
    auto sockets = *SocketPair();
    EXPECT_TRUE(SetNonBlocking(sockets.first.get()).ok());
    supervisor_.emplace(std::move(sockets.first));
    supervisor_->Queue(fd_store::Facts{.fd_store_limit = 100});
    supervisor_->QueueGiveAll(in_supervisor_);
    supervisor_->Queue(fd_store::Signal{.kind = fd_store::MessageKind::kGiveEnd});
    supervisor_->Flush(in_supervisor_);
    Inheritance inherited = *SupervisorFdStore::Receive(std::move(sockets.second));
    fd_store_ = std::move(inherited.fd_store);
    manager_.emplace(fd_store_.get());
    inherited_ = std::move(inherited.held);
  }
  // Makes the supervisor handle all requests sent so far.
  void Serve() {
    for (absl::StatusOr<BrokerRequest> request = supervisor_->Read(); request.ok(); request = supervisor_->Read()) {
      if (auto* const put = std::get_if<PutRequest>(&*request)) {
        in_supervisor_.emplace(put->key, std::move(put->fd));
      } else if (const auto* const drop = std::get_if<DropRequest>(&*request)) {
        in_supervisor_.erase(drop->key);
      }
    }
  }
  FencePage Map(bool read_only) {
    const UniqueFd fd = *manager_->Open(kA, read_only);
    return read_only ? *FencePage::MapReadOnly(fd.get()) : *FencePage::MapWritable(fd.get());
  }

  HeldFds in_supervisor_;
  std::optional<BrokerLink> supervisor_;
  std::unique_ptr<SupervisorFdStore> fd_store_;
  std::vector<HeldFd> inherited_;
  std::optional<FencePageManager> manager_;
};

TEST_F(FencePageManagerTest, PageIsOpenForOwnerOthersAndSupervisor) {
  EXPECT_EQ(manager_->Open(kA, true).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(manager_->Read(kStream).done, 0u);
  manager_->Make(kA);
  FencePage own = Map(/*read_only=*/false);
  const FencePage theirs = Map(/*read_only=*/true);
  EXPECT_EQ(own.channel(), kA);
  FenceSlot& slot = own.writable_slot(kStream.slot);
  slot.done.store(4);
  slot.begun.store(6);
  slot.ended.store(5);
  EXPECT_EQ(theirs.slot(kStream.slot).done.load(), 4u);
  const core::FenceValues read = manager_->Read(kStream);
  EXPECT_EQ(read.done, 4u);
  EXPECT_EQ(read.begun, 6u);
  EXPECT_EQ(read.ended, 5u);
  Serve();
  ASSERT_EQ(in_supervisor_.size(), 1u);
  EXPECT_EQ(FencePage::MapReadOnly(in_supervisor_.begin()->second.get())->slot(kStream.slot).done.load(), 4u);
}

TEST_F(FencePageManagerTest, PageForOthersIsReadOnly) {
  manager_->Make(kA);
  const UniqueFd fd = *manager_->Open(kA, /*read_only=*/true);
  EXPECT_FALSE(FencePage::MapWritable(fd.get()).ok());
  EXPECT_TRUE(FencePage::MapReadOnly(fd.get()).ok());
}

TEST_F(FencePageManagerTest, DroppedPageReleasesWaiters) {
  manager_->Make(kA);
  const FencePage theirs = Map(/*read_only=*/true);
  Serve();
  manager_->Drop(kA);
  manager_->Drop(kA);
  for (uint32_t slot = 0; slot < kFenceSlots; ++slot) EXPECT_EQ(theirs.slot(slot).done.load(), kFenceTop);
  EXPECT_FALSE(manager_->Open(kA, true).ok());
  EXPECT_EQ(manager_->Read(kStream).done, 0u);
  Serve();
  EXPECT_TRUE(in_supervisor_.empty());
}

// A caller takes a missing page for that of an ended process.
TEST_F(FencePageManagerTest, PageThatCannotBeOpenedIsNotMissing) {
  manager_->Make(kA);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status opened = manager_->Open(kA, /*read_only=*/true).status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(opened)) << opened;
}

TEST_F(FencePageManagerTest, PageThatCannotBeMappedIsNotAdopted) {
  absl::StatusOr<UniqueFd> other = CreateMemfd("other", 1);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE(manager_->Adopt(kA, *std::move(other)).ok());
}

TEST_F(FencePageManagerTest, PageRejectedBySupervisorIsNotMade) {
  supervisor_.reset();
  manager_->Make(kA);
  EXPECT_EQ(manager_->Open(kA, true).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(FencePageManagerTest, PageWithoutSpaceIsMadeOnLaterRequest) {
  const UniqueFd other = *manager_->OpenOwn(ChannelId(8));
  uint64_t block = 0;
  while (fd_store_->Put(fd_store::KeyOf(fd_store::Kind::kBlock, ++block), other.get(), FdOwner::kClient).ok()) continue;
  manager_->Make(kA);
  EXPECT_EQ(manager_->OpenOwn(kA).status().code(), absl::StatusCode::kNotFound);
  const fd_store::Key gone = fd_store::KeyOf(fd_store::Kind::kBlock, 1);
  fd_store_->Drop(gone);
  supervisor_->Queue(fd_store::KeyMessage{.kind = fd_store::MessageKind::kDropped, .key = gone});
  supervisor_->Flush(in_supervisor_);
  ASSERT_TRUE(fd_store_->ReadNotice().ok());
  const absl::StatusOr<UniqueFd> made = manager_->OpenOwn(kA);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(FencePage::MapWritable(made->get())->channel(), kA);
  Serve();
  EXPECT_TRUE(in_supervisor_.contains(fd_store::KeyOf(fd_store::Kind::kFencePage, kA.value())));
}

TEST_F(FencePageManagerTest, NextBrokerReleasesWaitersOnOldPages) {
  manager_->Make(kA);
  manager_->Make(ChannelId(8));
  const FencePage theirs = Map(/*read_only=*/true);
  Serve();
  Start();
  ASSERT_EQ(inherited_.size(), 2u);
  for (HeldFd& held : inherited_) manager_->LetGo(std::move(held));
  for (uint32_t slot = 0; slot < kFenceSlots; ++slot) EXPECT_EQ(theirs.slot(slot).done.load(), kFenceTop);
  EXPECT_FALSE(manager_->Open(kA, true).ok());
  Serve();
  EXPECT_TRUE(in_supervisor_.empty());
}

}  // namespace
}  // namespace berth
