// Test fixture: a block manager between a core, a supervisor and workers that the test controls, over real sockets.

#ifndef DAEMON_BROKER_TESTING_BLOCK_MANAGER_HARNESS_H_
#define DAEMON_BROKER_TESTING_BLOCK_MANAGER_HARNESS_H_

#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/clock.h"
#include "common/os/fd_passing.h"
#include "daemon/base/struct_message.h"
#include "daemon/broker/block_manager.h"
#include "daemon/broker/testing/idle_sink.h"
#include "daemon/broker/testing/recorded_call.h"
#include "daemon/device/worker/worker_wire.h"
#include "daemon/supervisor/broker_link.h"
#include "gtest/gtest.h"

namespace berth {

inline constexpr absl::Duration kPatience = absl::Seconds(60);
// Epochs of the manager's broker and of an earlier one.
inline constexpr uint64_t kEpoch = 3;
inline constexpr uint64_t kEarlierEpoch = 2;

inline bool Readable(int fd, absl::Duration patience) {
  pollfd entry = {.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) == 1;
}

// A device's worker as the manager sees it: it answers when the test says so, and may die.
class FakeWorker {
 public:
  // Returns the broker's end of the socket.
  UniqueFd Start() {
    auto sockets = *SocketPair();
    EXPECT_TRUE(SetNonBlocking(sockets.first.get()).ok());
    EXPECT_TRUE(SetNonBlocking(sockets.second.get()).ok());
    socket_ = std::move(sockets.second);
    held_.clear();
    return std::move(sockets.first);
  }

  // Executes the next message without answering it, and returns its kind; nullopt if none arrives.
  std::optional<worker::Kind> Next() {
    if (!Readable(socket_.get(), kPatience)) return std::nullopt;
    absl::StatusOr<Message> message = ReceiveMessage(socket_.get());
    if (!message.ok()) return std::nullopt;
    worker::Kind kind;
    memcpy(&kind, message->bytes.data(), sizeof(kind));
    if (const auto begin = AsStruct<worker::Begin>(*message, worker::Kind::kBegin, 0)) epoch_ = begin->epoch;
    if (kind == worker::Kind::kHold) held_.push_back(std::move(message->fds[0]));
    if (kind == worker::Kind::kRelease) held_.clear();
    return kind;
  }
  // Returns whether no message is waiting for Next().
  bool Silent() const { return !Readable(socket_.get(), absl::ZeroDuration()); }
  // Returns whether the manager has read every answer.
  bool IsHeard() const {
    const absl::Time deadline = absl::Now() + kPatience;
    int unread = 1;
    while (::ioctl(socket_.get(), SIOCOUTQ, &unread) == 0 && unread > 0 && absl::Now() < deadline) {
      std::this_thread::yield();
    }
    return unread == 0;
  }
  void AnswerCreate(BlockId block, int fd) {
    worker::Created created = {.block = block.value()};
    EXPECT_TRUE(SendStruct(socket_.get(), created, std::span(&fd, 1)).ok());
  }
  void AnswerByHandle(BlockId block) {
    worker::Created created = {.by_handle = 1, .block = block.value()};
    created.handle.bytes[0] = std::byte{9};
    EXPECT_TRUE(SendStruct(socket_.get(), created).ok());
  }
  // Answers the Begin that Next() returned last.
  void Begun(Bytes context = Bytes(0)) { BegunOf(epoch_, context); }
  void BegunOf(uint64_t epoch, Bytes context = Bytes(0)) {
    const worker::Begun begun = {.epoch = epoch, .context_bytes = context.count()};
    EXPECT_TRUE(SendStruct(socket_.get(), begun).ok());
  }
  // Returns whether the broker has closed its end.
  bool IsHungUp() const { return Readable(socket_.get(), kPatience) && !ReceiveMessage(socket_.get()).ok(); }
  void Retains(BlockId block) {
    const worker::BlockMessage retained = {.kind = worker::Kind::kRetained, .block = block.value()};
    EXPECT_TRUE(SendStruct(socket_.get(), retained).ok());
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
  uint64_t epoch_ = 0;
  std::vector<UniqueFd> held_;
};

// Passes the effects on blocks to the manager.
class ManagerSink final : public IdleSink {
 public:
  explicit ManagerSink(std::unique_ptr<BlockManager>* manager) : manager_(*manager) {}
  void Apply(const core::CreateBlock& effect) override {
    made = effect.block;
    manager_->Create(effect);
  }
  void Apply(const core::ReleaseBlock& effect) override { manager_->Release(effect); }

  BlockId made;

 private:
  std::unique_ptr<BlockManager>& manager_;
};

class BlockManagerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto sockets = *SocketPair();
    ASSERT_TRUE(SetNonBlocking(sockets.first.get()).ok());
    supervisor_.emplace(std::move(sockets.first));
    supervisor_->Queue(fd_store::Facts{.fd_store_limit = 100});
    supervisor_->Queue(fd_store::Signal{.kind = fd_store::MessageKind::kGiveEnd});
    supervisor_->Flush(in_supervisor_);
    fd_store_ = std::move(SupervisorFdStore::Receive(std::move(sockets.second))->fd_store);
    core::Config config = {.node = 1, .incarnation = 1, .warm_blocks_per_size = 0};
    config.devices.push_back({.uuid = "DEVICE-0", .total = MiB(64), .budget = MiB(16)});
    core_ = std::make_unique<core::Core>(
        config, [this] { return ++last_id_; }, [](core::StreamKey) { return core::FenceValues(); });
    broker_ = std::make_unique<Broker>(core_.get(), &sink_);
    loop_ = *EventLoop::Create();
    loop_->SetTimerCallback([] {});
    thread_ = std::thread([this] { loop_->Run(); });
    manager_ = std::make_unique<BlockManager>(loop_.get(), broker_.get(), fd_store_.get(), kEpoch);
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
    manager_->WorkerIsUp(0, WorkerKind::kMain, worker_.Start());
    EXPECT_EQ(worker_.Next(), worker::Kind::kBegin);
  }

  // Creates a block whose memory is one end of a pipe: the other end hangs up when the last copy is closed.
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
    absl::StatusOr<BrokerRequest> put = supervisor_->Read();
    ASSERT_TRUE(put.ok()) << put.status();
    auto& request = std::get<PutRequest>(*put);
    in_supervisor_[request.key] = std::move(request.fd);
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
    broker_->Continue();
  }

  // Lets the supervisor close the fd of one drop request. Returns whether there was one.
  bool SupervisorDrops() {
    if (!Readable(supervisor_->fd(), kPatience)) return false;
    const absl::StatusOr<BrokerRequest> request = supervisor_->Read();
    if (!request.ok()) return false;
    in_supervisor_.erase(std::get<DropRequest>(*request).key);
    manager_->SupervisorDropped(handle_.block);
    return true;
  }

  bool SupervisorIsAskedNothing() const { return !Readable(supervisor_->fd(), absl::ZeroDuration()); }

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
  std::optional<BrokerLink> supervisor_;
  HeldFds in_supervisor_;
  std::unique_ptr<EventLoop> loop_;
  std::thread thread_;
  std::unique_ptr<SupervisorFdStore> fd_store_;
  std::unique_ptr<BlockManager> manager_;
  ManagerSink sink_{&manager_};
  std::unique_ptr<core::Core> core_;
  std::unique_ptr<Broker> broker_;
  FakeWorker worker_;
  SessionId session_;
  ChannelId channel_;
  BlockHandle handle_;
  ImportId import_;
  UniqueFd memory_;
};

}  // namespace berth

#endif  // DAEMON_BROKER_TESTING_BLOCK_MANAGER_HARNESS_H_
