// The fds of blocks on their way between worker, broker and vault, over real sockets.

#include "daemon/broker/block_keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/clock.h"
#include "common/fd_passing.h"
#include "daemon/broker/idle_sink.h"
#include "daemon/broker/recorded_call.h"
#include "daemon/device/worker_wire.h"
#include "daemon/vault/broker_link.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

bool Readable(int fd, absl::Duration patience) {
  pollfd entry = {.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) == 1;
}

// A device's worker as the keeper sees it: it answers when the test says so, and may die.
class FakeWorker {
 public:
  // Returns the broker's end.
  UniqueFd Start() {
    auto sockets = *SocketPair();
    EXPECT_TRUE(SetNonBlocking(sockets.first.get()).ok());
    EXPECT_TRUE(SetNonBlocking(sockets.second.get()).ok());
    socket_ = std::move(sockets.second);
    held_.clear();
    return std::move(sockets.first);
  }

  // The kind of the next message, after doing what it asks but for answering it; nothing if none comes.
  std::optional<worker::Kind> Next() {
    if (!Readable(socket_.get(), kPatience)) return std::nullopt;
    absl::StatusOr<Message> message = ReceiveMessage(socket_.get());
    if (!message.ok()) return std::nullopt;
    worker::Kind kind;
    memcpy(&kind, message->bytes.data(), sizeof(kind));
    if (kind == worker::Kind::kHold) held_.push_back(std::move(message->fds[0]));
    if (kind == worker::Kind::kRelease) held_.clear();
    return kind;
  }
  // Nothing has been sent that Next() has not told.
  bool Silent() const { return !Readable(socket_.get(), absl::ZeroDuration()); }
  void AnswerCreate(BlockId block, int fd) {
    worker::Created created = {.block = block.value()};
    EXPECT_TRUE(SendStruct(socket_.get(), created, std::span(&fd, 1)).ok());
  }
  void AnswerByHandle(BlockId block) {
    worker::Created created = {.by_handle = 1, .block = block.value()};
    created.handle.bytes[0] = std::byte{9};
    EXPECT_TRUE(SendStruct(socket_.get(), created).ok());
  }
  void Begun(Bytes context = Bytes(0)) {
    EXPECT_TRUE(SendStruct(socket_.get(), worker::Begun{.context_bytes = context.count()}).ok());
  }
  void Keeps(BlockId block) {
    const worker::BlockMessage kept = {.kind = worker::Kind::kKept, .block = block.value()};
    EXPECT_TRUE(SendStruct(socket_.get(), kept).ok());
  }
  void AnswerRelease(BlockId block, absl::StatusCode code = absl::StatusCode::kOk) {
    worker::Released released = {.block = block.value()};
    worker::SetStatus(absl::Status(code, "the driver says no"), &released.outcome);
    EXPECT_TRUE(SendStruct(socket_.get(), released).ok());
  }
  void Die() {
    held_.clear();
    socket_.reset();
  }

 private:
  UniqueFd socket_;
  std::vector<UniqueFd> held_;
};

// Has the keeper carry out what is about blocks.
class KeeperSink final : public IdleSink {
 public:
  explicit KeeperSink(std::unique_ptr<BlockKeeper>* keeper) : keeper_(*keeper) {}
  void Carry(const core::CreateBlock& effect) override {
    made = effect.block;
    keeper_->Create(effect);
  }
  void Carry(const core::ReleaseBlock& effect) override { keeper_->Release(effect); }

  BlockId made;

 private:
  std::unique_ptr<BlockKeeper>& keeper_;
};

class BlockKeeperTest : public testing::Test {
 protected:
  void SetUp() override {
    auto sockets = *SocketPair();
    ASSERT_TRUE(SetNonBlocking(sockets.first.get()).ok());
    vault_.emplace(std::move(sockets.first));
    vault_->Queue(custody::Facts{.custody_limit = 100});
    vault_->Queue(custody::Signal{.kind = custody::MessageKind::kGiveEnd});
    vault_->Flush(in_vault_);
    custody_ = std::move(Custody::Receive(std::move(sockets.second))->custody);
    core::Config config = {.node = 1, .incarnation = 1, .warm_blocks_per_size = 0};
    config.devices.push_back({.uuid = "DEVICE-0", .total = MiB(64), .budget = MiB(16)});
    core_ = std::make_unique<core::Core>(
        config, [this] { return ++last_id_; }, [](core::StreamKey) { return core::StreamWords(); });
    broker_ = std::make_unique<Broker>(core_.get(), &sink_);
    loop_ = *EventLoop::Create();
    loop_->SetTimerCallback([] {});
    thread_ = std::thread([this] { loop_->Run(); });
    keeper_ = std::make_unique<BlockKeeper>(loop_.get(), broker_.get(), custody_.get());
    broker_->Step([&](core::Core& core, absl::Time now, core::Effects*) {
      session_ = *core.OpenSession(now, {}, {.uid = 1000}, "test", {});
      channel_ = *core.JoinSession(now, session_, {}, {.uid = 1000}, {});
    });
    StartWorker();
    MakeBlock();
  }

  void TearDown() override {
    loop_->Stop();
    thread_.join();
  }

  void StartWorker() {
    keeper_->WorkerIsUp(0, Lane::kMain, worker_.Start());
    EXPECT_EQ(worker_.Next(), worker::Kind::kBegin);
  }

  // Has a block made whose memory is a pipe's one end: the other hangs up with its last copy.
  void MakeBlock() {
    RecordedCall call;
    broker_->Submit(broker_->NewCall(), &call,
                    [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                      core.Allocate(now, id, Caller(), {.sequence = 1}, {.bytes = MiB(2)}, effects);
                    });
    ASSERT_EQ(worker_.Next(), worker::Kind::kCreate);
    int fds[2];
    ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    memory_.reset(fds[0]);
    worker_.AnswerCreate(sink_.made, fds[1]);
    ::close(fds[1]);
    const absl::StatusOr<core::Response> made = call.Await();
    ASSERT_TRUE(made.ok()) << made.status();
    absl::StatusOr<BrokerRequest> put = vault_->Read();
    ASSERT_TRUE(put.ok()) << put.status();
    auto& request = std::get<PutRequest>(*put);
    in_vault_[request.key] = std::move(request.fd);
    handle_ = std::get<core::AllocateResult>(*made).block.handle;
    import_ = std::get<core::AllocateResult>(*made).import;
  }

  void FreeBlock() {
    RecordedCall call;
    broker_->Submit(
        broker_->NewCall(), &call, [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
          core.Free(now, id, Caller(), {.sequence = 2}, {.handle = handle_, .let_go = {import_}}, effects);
        });
    ASSERT_TRUE(call.Await().ok());
    broker_->CarryOn();
  }

  // The vault closes what it is asked to close. Returns whether it is asked.
  bool VaultDrops() {
    if (!Readable(vault_->fd(), kPatience)) return false;
    const absl::StatusOr<BrokerRequest> request = vault_->Read();
    if (!request.ok()) return false;
    in_vault_.erase(std::get<DropRequest>(*request).key);
    keeper_->VaultDropped(handle_.block);
    return true;
  }

  bool VaultIsAskedNothing() const { return !Readable(vault_->fd(), absl::ZeroDuration()); }

  core::Caller Caller() const {
    return {.credentials = {.session = session_, .channel = channel_}, .tenant = {.uid = 1000}};
  }
  Bytes Charged() {
    return broker_->Read([](const core::Core& core) { return core.ListDevices()[0].bytes.charged(); });
  }
  Bytes Stuck() {
    return broker_->Read(
        [](const core::Core& core) { return core.ListBudgets({.admin = true}).front().stuck; });
  }
  bool BecomesFree() {
    const absl::Time deadline = absl::Now() + kPatience;
    while (Charged() != Bytes(0) && absl::Now() < deadline) std::this_thread::yield();
    return Charged() == Bytes(0);
  }
  bool MemoryIsHeld() const {
    pollfd entry = {.fd = memory_.get(), .events = POLLIN, .revents = 0};
    ::poll(&entry, 1, 0);
    return (entry.revents & POLLHUP) == 0;
  }

  uint64_t last_id_ = 0;
  std::optional<BrokerLink> vault_;
  HeldFds in_vault_;
  std::unique_ptr<EventLoop> loop_;
  std::thread thread_;
  std::unique_ptr<Custody> custody_;
  std::unique_ptr<BlockKeeper> keeper_;
  KeeperSink sink_{&keeper_};
  std::unique_ptr<core::Core> core_;
  std::unique_ptr<Broker> broker_;
  FakeWorker worker_;
  SessionId session_;
  ChannelId channel_;
  BlockHandle handle_;
  ImportId import_;
  UniqueFd memory_;
};

TEST_F(BlockKeeperTest, ABlockGoesBackInTheOrderThatLeavesTheLastCloseToTheWorker) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(worker_.Silent()) << "the vault still has it";
  EXPECT_TRUE(VaultDrops());
  EXPECT_TRUE(MemoryIsHeld());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  EXPECT_FALSE(MemoryIsHeld()) << "somebody kept a copy";
  EXPECT_EQ(Charged(), MiB(2)) << "the worker has not said so yet";
  worker_.AnswerRelease(handle_.block);
  EXPECT_TRUE(BecomesFree());
}

TEST_F(BlockKeeperTest, AWorkerKilledBeforeTheVaultLetGoGivesNothingBackAndTheNextOneCloses) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  worker_.Die();
  keeper_->OnWorkerNews({.state = custody::WorkerState::kGone});
  EXPECT_EQ(Charged(), MiB(2));
  EXPECT_TRUE(VaultDrops());
  EXPECT_TRUE(MemoryIsHeld()) << "the vault was the last to close";
  EXPECT_EQ(Charged(), MiB(2));
  StartWorker();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(MemoryIsHeld());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  EXPECT_FALSE(MemoryIsHeld());
  worker_.AnswerRelease(handle_.block);
  EXPECT_TRUE(BecomesFree());
}

TEST_F(BlockKeeperTest, TheNextWorkerMayComeBeforeTheVaultLetsGoWhichIsAskedOnce) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  worker_.Die();
  keeper_->OnWorkerNews({.state = custody::WorkerState::kGone});
  StartWorker();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(worker_.Silent());
  EXPECT_TRUE(VaultDrops());
  EXPECT_TRUE(VaultIsAskedNothing());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  worker_.AnswerRelease(handle_.block);
  EXPECT_TRUE(BecomesFree());
  EXPECT_FALSE(MemoryIsHeld());
}

TEST_F(BlockKeeperTest, WhatTheDriverDidNotTakeStaysChargedAndAReapAsksForItAgain) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(VaultDrops());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  worker_.AnswerRelease(handle_.block, absl::StatusCode::kInternal);
  const absl::Time deadline = absl::Now() + kPatience;
  while (Stuck() != MiB(2) && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(Stuck(), MiB(2));
  EXPECT_EQ(Charged(), MiB(2));
  RecordedCall call;
  core::Caller admin = Caller();
  admin.admin = true;
  broker_->Submit(broker_->NewCall(), &call,
                  [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                    core.Reap(now, id, admin, effects);
                  });
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  worker_.AnswerRelease(handle_.block);
  const absl::StatusOr<core::Response> reaped = call.Await();
  ASSERT_TRUE(reaped.ok()) << reaped.status();
  EXPECT_EQ(std::get<core::ReapResult>(*reaped).back_bytes, MiB(2));
  EXPECT_TRUE(BecomesFree());
}

TEST_F(BlockKeeperTest, AWorkerThatDiesWithTheOnlyCopyHasGivenItBack) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(VaultDrops());
  worker_.Die();
  keeper_->OnWorkerNews({.state = custody::WorkerState::kGone});
  EXPECT_FALSE(MemoryIsHeld());
  EXPECT_TRUE(BecomesFree());
}

TEST_F(BlockKeeperTest, WhatOnlyAnAbandonedWorkerHasComesBackWhenThatIsGone) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(VaultDrops());
  keeper_->OnWorkerNews({.state = custody::WorkerState::kAbandoned});
  EXPECT_EQ(Charged(), MiB(2)) << "the driver has not got it back";
  worker_.Die();
  keeper_->OnWorkerNews({.state = custody::WorkerState::kStopped});
  EXPECT_TRUE(BecomesFree());
}

TEST_F(BlockKeeperTest, WhatAWorkerAnsweredBeforeItsEndHolds) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(VaultDrops());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  worker_.AnswerRelease(handle_.block);
  worker_.Die();
  keeper_->OnWorkerNews({.state = custody::WorkerState::kGone});
  EXPECT_EQ(Charged(), Bytes(0));
}

TEST_F(BlockKeeperTest, WithoutAWorkerABlockStaysWhereItIsUntilThereIsOne) {
  worker_.Die();
  keeper_->OnWorkerNews({.state = custody::WorkerState::kGone});
  FreeBlock();
  EXPECT_TRUE(VaultIsAskedNothing());
  EXPECT_TRUE(MemoryIsHeld());
  StartWorker();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(VaultDrops());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  worker_.AnswerRelease(handle_.block);
  EXPECT_TRUE(BecomesFree());
}

// A second worker of the device, which exports by handles.
class ContextKeeperTest : public BlockKeeperTest {
 protected:
  void StartContext() {
    keeper_->OnWorkerNews({.lane = Lane::kContext, .generation = 1});
    keeper_->WorkerIsUp(0, Lane::kContext, context_.Start());
    EXPECT_EQ(context_.Next(), worker::Kind::kBegin);
  }
  void Ask(RecordedCall* call) {
    broker_->Submit(broker_->NewCall(), call,
                    [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                      core.Allocate(now, id, Caller(), {.sequence = 5},
                                    {.bytes = MiB(4), .kinds = {.fd = false, .cuda_ipc = true}}, effects);
                    });
  }
  // Frees what Ask() was answered with.
  void Free(const core::AllocateResult& made) {
    RecordedCall call;
    broker_->Submit(broker_->NewCall(), &call,
                    [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                      core.Free(now, id, Caller(), {.sequence = 6},
                                {.handle = made.block.handle, .let_go = {made.import}}, effects);
                    });
    ASSERT_TRUE(call.Await().ok());
    broker_->CarryOn();
  }
  bool Becomes(Bytes charged) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (Charged() != charged && absl::Now() < deadline) std::this_thread::yield();
    return Charged() == charged;
  }

  FakeWorker context_;
};

TEST_F(ContextKeeperTest, AHandleComesAndTheBlockGoesWithoutAnythingInCustody) {
  RecordedCall call;
  Ask(&call);
  StartContext();
  ASSERT_EQ(context_.Next(), worker::Kind::kCreate);
  context_.AnswerByHandle(sink_.made);
  const absl::StatusOr<core::Response> made = call.Await();
  ASSERT_TRUE(made.ok()) << made.status();
  const auto& result = std::get<core::AllocateResult>(*made);
  EXPECT_EQ(result.ipc_handle->bytes[0], std::byte{9});
  EXPECT_TRUE(VaultIsAskedNothing());
  Free(result);
  EXPECT_EQ(context_.Next(), worker::Kind::kRelease);
  EXPECT_TRUE(worker_.Silent()) << "the other one has nothing to do with it";
  context_.AnswerRelease(sink_.made);
  EXPECT_TRUE(Becomes(MiB(2)));
}

TEST_F(ContextKeeperTest, WhatItMadeIsFreeWithItsEndAndTheOtherWorkersBlocksAreThere) {
  RecordedCall call;
  Ask(&call);
  StartContext();
  ASSERT_EQ(context_.Next(), worker::Kind::kCreate);
  context_.AnswerByHandle(sink_.made);
  const absl::StatusOr<core::Response> made = call.Await();
  ASSERT_TRUE(made.ok());
  context_.Die();
  keeper_->OnWorkerNews({.lane = Lane::kContext, .state = custody::WorkerState::kIdle, .generation = 2});
  EXPECT_EQ(Charged(), MiB(6)) << "its owner has it";
  Free(std::get<core::AllocateResult>(*made));
  EXPECT_TRUE(Becomes(MiB(2)));
  EXPECT_TRUE(MemoryIsHeld());
}

TEST_F(ContextKeeperTest, WhatItsContextTakesIsCharged) {
  StartContext();
  context_.Begun(MiB(8));
  EXPECT_TRUE(Becomes(MiB(10)));
  context_.Die();
  keeper_->OnWorkerNews({.lane = Lane::kContext, .state = custody::WorkerState::kIdle, .generation = 2});
  EXPECT_TRUE(Becomes(MiB(2)));
}

TEST_F(ContextKeeperTest, WhatAnEarlierBrokerAskedForIsGivenBackAtOnce) {
  StartContext();
  context_.AnswerByHandle(BlockId(77));
  EXPECT_EQ(context_.Next(), worker::Kind::kRelease);
}

TEST_F(ContextKeeperTest, OfWhatAnEarlierBrokerLeftThereOnlyWhatTheCoreKnowsStays) {
  keeper_->OnWorkerNews({.lane = Lane::kContext, .generation = 1});
  keeper_->Expect(BlockId(5));
  keeper_->WorkerIsUp(0, Lane::kContext, context_.Start(), /*at_work=*/true);
  EXPECT_EQ(context_.Next(), worker::Kind::kBegin);
  // Made for the earlier broker, which the list that follows has as well.
  context_.AnswerByHandle(BlockId(77));
  context_.Keeps(BlockId(5));
  context_.Keeps(BlockId(77));
  RecordedCall call;
  Ask(&call);
  context_.Begun(MiB(1));
  EXPECT_EQ(context_.Next(), worker::Kind::kRelease) << "what nobody knows";
  EXPECT_EQ(context_.Next(), worker::Kind::kCreate) << "and then what was asked meanwhile";
  EXPECT_TRUE(Becomes(MiB(7)));
}

// A worker that has been at work for an earlier broker.
class EarlierWorkerTest : public BlockKeeperTest {
 protected:
  // An fd whose other end hangs up with its last copy, which is answered for that block.
  UniqueFd AnswerMade(BlockId block) {
    int fds[2];
    EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    UniqueFd watched(fds[0]);
    worker_.AnswerCreate(block, fds[1]);
    ::close(fds[1]);
    return watched;
  }
  void Replace() {
    worker_.Die();
    keeper_->OnWorkerNews({.state = custody::WorkerState::kGone});
    keeper_->WorkerIsUp(0, Lane::kMain, worker_.Start(), /*at_work=*/true);
    EXPECT_EQ(worker_.Next(), worker::Kind::kBegin);
  }
  void Ask(RecordedCall* call) {
    broker_->Submit(broker_->NewCall(), call,
                    [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                      core.Allocate(now, id, Caller(), {.sequence = 7}, {.bytes = MiB(4)}, effects);
                    });
  }
};

TEST_F(EarlierWorkerTest, IsAskedNothingUntilItHasAnsweredTheEarlierBroker) {
  Replace();
  RecordedCall call;
  Ask(&call);
  EXPECT_TRUE(worker_.Silent());
  worker_.Begun();
  EXPECT_EQ(worker_.Next(), worker::Kind::kCreate);
}

TEST_F(EarlierWorkerTest, ABlockThatItMadeAndNobodyHeardOfIsTheAnswerWhenTheCoreAsksAgain) {
  // The core draws its ids one after the other.
  const BlockId next(last_id_ + 1);
  keeper_->Expect(next);
  Replace();
  RecordedCall call;
  Ask(&call);
  const UniqueFd made = AnswerMade(next);
  worker_.Begun();
  const absl::StatusOr<core::Response> answer = call.Await();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(std::get<core::AllocateResult>(*answer).block.handle.block, next);
  EXPECT_TRUE(worker_.Silent()) << "it is there already";
  const absl::StatusOr<BrokerRequest> put = vault_->Read();
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(std::get<PutRequest>(*put).key.id, next.value());
}

TEST_F(EarlierWorkerTest, ABlockThatItMadeForNobodyGoesBack) {
  Replace();
  const UniqueFd made = AnswerMade(BlockId(99));
  worker_.Begun();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
}

TEST_F(EarlierWorkerTest, WhatTheVaultHasStillIsNotGoneWithTheWorkersCopy) {
  // The earlier broker had it hold the fd, and the vault has not dropped it.
  Replace();
  worker_.AnswerRelease(handle_.block);
  FreeBlock();
  EXPECT_EQ(Charged(), MiB(2));
  worker_.Begun();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(VaultDrops());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  worker_.AnswerRelease(handle_.block);
  EXPECT_TRUE(BecomesFree());
}

TEST_F(EarlierWorkerTest, WhatItCouldNotReleaseIsAskedOfItOnceMore) {
  // Another broker's core, to which the block is being freed; only the worker has its fd.
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(VaultDrops());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  keeper_ = std::make_unique<BlockKeeper>(loop_.get(), broker_.get(), custody_.get());
  broker_->Step([](core::Core& core, absl::Time now, core::Effects* effects) {
    core.WorkerDown(now, 0, Lane::kMain, core::DeviceState::kRebuilding, effects);
  });
  keeper_->WorkerIsUp(0, Lane::kMain, worker_.Start(), /*at_work=*/true);
  EXPECT_EQ(worker_.Next(), worker::Kind::kBegin);
  worker_.AnswerRelease(handle_.block, absl::StatusCode::kInternal);
  worker_.Begun();
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  EXPECT_EQ(Charged(), MiB(2));
  worker_.AnswerRelease(handle_.block);
  EXPECT_TRUE(BecomesFree());
}

TEST_F(EarlierWorkerTest, WhatOnlyItHadAndHasClosedIsReleased) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(VaultDrops());
  keeper_ = std::make_unique<BlockKeeper>(loop_.get(), broker_.get(), custody_.get());
  broker_->Step([](core::Core& core, absl::Time now, core::Effects* effects) {
    core.WorkerDown(now, 0, Lane::kMain, core::DeviceState::kRebuilding, effects);
  });
  keeper_->WorkerIsUp(0, Lane::kMain, worker_.Start(), /*at_work=*/true);
  EXPECT_EQ(worker_.Next(), worker::Kind::kBegin);
  worker_.AnswerRelease(handle_.block);
  EXPECT_EQ(Charged(), MiB(2)) << "it may have been only one of several copies";
  worker_.Begun();
  EXPECT_TRUE(BecomesFree());
}

}  // namespace
}  // namespace berth
