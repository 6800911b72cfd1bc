#include <berth/launch_recorder.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <berth/error.h>
#include <berth/stream.h>

#include "client/sdk/fences/fences.h"
#include "client/sdk/fences/stream_backend.h"
#include "client/sdk/fences/testing/launch_recorder_peer.h"
#include "common/os/memfd.h"
#include "gtest/gtest.h"

namespace berth {

namespace {

using internal::Fences;
using internal::MappedPage;
using internal::OpenedStream;
using internal::Recordable;
using internal::RemotePrepared;
using internal::RemoteUse;
using internal::TrackedBlock;
using internal::UseAccess;

// Records the calls it gets.
class FakeDaemon final : public internal::FenceDaemon {
 public:
  explicit FakeDaemon(Fences* fences) : fences_(*fences) {}
  ChannelId channel() const override { return ChannelId(1); }
  bool over() const override { return false; }
  absl::StatusOr<OpenedStream> OpenStream(uint32_t, bool default_stream) override {
    if (fences_.pages.own() == nullptr) {
      EXPECT_TRUE(fences_.pages.SetOwn(*CreateFencePage(ChannelId(1))).ok());
    }
    ++opened;
    return OpenedStream{.slot = opened - 1, .id = default_stream ? 0 : opened};
  }
  void CloseStream(uint32_t) override { ++closed; }
  absl::StatusOr<RemotePrepared> Prepare(uint32_t, absl::Span<const RemoteUse> uses,
                                         absl::Duration) override {
    log += "prepare ";
    prepared.assign(uses.begin(), uses.end());
    return answer;
  }
  absl::StatusOr<std::vector<BlockId>> Finish(UseId use, uint64_t value) override {
    log += absl::StrCat("finish ", use.value(), "=", value, " ");
    return finish;
  }
  void Abandon(UseId use) override { log += absl::StrCat("abandon ", use.value(), " "); }

  uint32_t opened = 0;
  uint32_t closed = 0;
  std::string log;
  std::vector<RemoteUse> prepared;
  absl::StatusOr<RemotePrepared> answer = RemotePrepared{.use = UseId(7)};
  absl::StatusOr<std::vector<BlockId>> finish = std::vector<BlockId>();

 private:
  Fences& fences_;
};

// Executes each command at once, and logs it.
class FakeBackend final : public internal::StreamBackend {
 public:
  explicit FakeBackend(std::string* log, internal::StreamKind kind = internal::StreamKind::kHost)
      : StreamBackend(kind), name_(++backends), log_(*log) {}
  absl::Status CheckSupport() override { return support; }
  absl::StatusOr<std::unique_ptr<internal::StreamEvent>> CreateEvent() override {
    if (!create.ok()) return create;
    return std::make_unique<FakeEvent>(absl::StrCat(name_, ".", ++events_));
  }
  absl::Status Record(internal::StreamEvent& event) override {
    log_ += absl::StrCat("record ", NameOf(event), " ");
    return record;
  }
  absl::Status WaitEvent(internal::StreamEvent& event) override {
    log_ += absl::StrCat("await ", NameOf(event), " ");
    return wait;
  }
  absl::StatusOr<bool> Reached(internal::StreamEvent&) override { return false; }
  absl::Status Publish(internal::StreamEvent& event, MappedPage&, uint32_t slot, uint64_t value) override {
    log_ += absl::StrCat("publish ", NameOf(event), " ", slot, "=", value, " ");
    return absl::OkStatus();
  }
  absl::Status Wait(MappedPage& page, uint32_t slot, uint64_t value) override {
    log_ += absl::StrCat("wait ", page.page().channel().value(), ":", slot, ">=", value, " ");
    return wait;
  }
  absl::Status Write(MappedPage&, uint32_t slot, uint64_t value) override {
    log_ += absl::StrCat("write ", slot, "=", value, " ");
    return write;
  }
  absl::Status Enqueue(std::function<void()>) override { return absl::OkStatus(); }
  absl::Status Synchronize() override { return absl::OkStatus(); }

  // Number of backends so far, which names them.
  static inline int backends = 0;
  absl::Status support;
  absl::Status create;
  absl::Status record;
  absl::Status wait;
  absl::Status write;

 private:
  struct FakeEvent final : internal::StreamEvent {
    explicit FakeEvent(std::string name) : name(std::move(name)) {}
    const std::string name;
  };
  static const std::string& NameOf(internal::StreamEvent& event) {
    return static_cast<FakeEvent&>(event).name;
  }

  const int name_;
  int events_ = 0;
  std::string& log_;
};

class LaunchRecorderTest : public testing::Test {
 protected:
  LaunchRecorderTest() : fences_(std::make_shared<Fences>()) {
    FakeBackend::backends = 0;
    auto daemon = std::make_unique<FakeDaemon>(fences_.get());
    daemon_ = daemon.get();
    fences_->daemon = std::move(daemon);
    fences_->tracker.SetSender([](const attach::HandedOver&) {});
    x_ = fences_->tracker.Track(BlockId(10), /*shared=*/false);
    y_ = fences_->tracker.Track(BlockId(20), /*shared=*/false);
    shared_ = fences_->tracker.Track(BlockId(30), /*shared=*/true);
    a_ = Open(&backend_a_);
    b_ = Open(&backend_b_);
  }

  std::shared_ptr<Stream> Open(FakeBackend** backend,
                               internal::StreamKind kind = internal::StreamKind::kHost) {
    auto made = std::make_unique<FakeBackend>(&daemon_->log, kind);
    *backend = made.get();
    return *Stream::Open(fences_, std::move(made), {});
  }
  Recordable Of(const std::shared_ptr<TrackedBlock>& block, bool read_only = false) {
    return {.fences = fences_.get(), .block = block.get(), .lease = &lease_, .read_only = read_only};
  }
  void RecordUse(LaunchRecorder& launch, const std::shared_ptr<TrackedBlock>& block, UseAccess access) {
    LaunchRecorderPeer::RecordUse(launch, Of(block), access);
  }
  // Performs a whole launch.
  void Use(const std::shared_ptr<Stream>& stream, const std::shared_ptr<TrackedBlock>& block,
           UseAccess access) {
    LaunchRecorder launch(*stream);
    RecordUse(launch, block, access);
    ASSERT_TRUE(launch.Preflight().ok());
    ASSERT_TRUE(launch.Commit().ok());
  }
  std::string TakeLog() { return std::exchange(daemon_->log, ""); }

  std::shared_ptr<Fences> fences_;
  FakeDaemon* daemon_;
  internal::AtomicLease lease_ = internal::Lease::kLive;
  std::shared_ptr<TrackedBlock> x_;
  std::shared_ptr<TrackedBlock> y_;
  std::shared_ptr<TrackedBlock> shared_;
  FakeBackend* backend_a_;
  FakeBackend* backend_b_;
  std::shared_ptr<Stream> a_;
  std::shared_ptr<Stream> b_;
};

TEST_F(LaunchRecorderTest, EmptyLaunchQueuesNothing) {
  for (const RecorderMode mode : {RecorderMode::kStrict, RecorderMode::kPermissive}) {
    LaunchRecorder launch(*a_, mode);
    EXPECT_TRUE(launch.Preflight().ok());
    EXPECT_TRUE(launch.Commit().ok());
  }
  LaunchRecorder unpreflighted(*a_);
  EXPECT_TRUE(unpreflighted.Commit().ok());
  EXPECT_EQ(TakeLog(), "");
}

TEST_F(LaunchRecorderTest, LocalBlockIsOrderedWithoutDaemon) {
  Use(a_, x_, UseAccess::kWrite);
  EXPECT_EQ(TakeLog(), "record 1.1 ");
  Use(b_, x_, UseAccess::kRead);
  EXPECT_EQ(TakeLog(), "await 1.1 record 2.1 ");
  Use(a_, x_, UseAccess::kWrite);
  EXPECT_EQ(TakeLog(), "await 2.1 record 1.2 ");
}

TEST_F(LaunchRecorderTest, StreamOfOtherKindWaitsForFenceValue) {
  FakeBackend* backend;
  const std::shared_ptr<Stream> gpu = Open(&backend, internal::StreamKind::kCuda);
  Use(a_, x_, UseAccess::kWrite);
  TakeLog();
  Use(gpu, x_, UseAccess::kReadWrite);
  EXPECT_EQ(TakeLog(), "publish 1.1 0=1 wait 1:0>=1 record 3.1 ");
  Use(a_, x_, UseAccess::kRead);
  EXPECT_EQ(TakeLog(), "publish 3.1 2=1 wait 1:2>=1 record 1.1 ");
}

TEST_F(LaunchRecorderTest, StrictModeRejectsForeignMemoryPermissiveSkips) {
  LaunchRecorder strict(*a_);
  strict.Untracked();
  RecordUse(strict, x_, UseAccess::kRead);
  const absl::Status refused = strict.Preflight();
  EXPECT_TRUE(IsRefusal(refused, Reason::kStreamMisuse)) << refused;
  EXPECT_EQ(TakeLog(), "");
  LaunchRecorder permissive(*a_, RecorderMode::kPermissive);
  permissive.Untracked();
  RecordUse(permissive, x_, UseAccess::kWrite);
  EXPECT_TRUE(permissive.Preflight().ok());
  EXPECT_TRUE(permissive.Commit().ok());
}

TEST_F(LaunchRecorderTest, BlockNotedTwiceIsUsedOnceWithBothAccesses) {
  LaunchRecorder launch(*a_);
  RecordUse(launch, shared_, UseAccess::kRead);
  RecordUse(launch, shared_, UseAccess::kWrite);
  ASSERT_TRUE(launch.Preflight().ok());
  ASSERT_EQ(daemon_->prepared.size(), 1u);
  EXPECT_EQ(daemon_->prepared[0].access, UseAccess::kReadWrite);
  EXPECT_TRUE(launch.Commit().ok());
}

TEST_F(LaunchRecorderTest, OnlySharedBlocksReachDaemon) {
  LaunchRecorder launch(*a_);
  RecordUse(launch, x_, UseAccess::kWrite);
  RecordUse(launch, shared_, UseAccess::kRead);
  ASSERT_TRUE(launch.Preflight().ok());
  ASSERT_EQ(daemon_->prepared.size(), 1u);
  EXPECT_EQ(daemon_->prepared[0].block, BlockId(30));
  EXPECT_TRUE(launch.Commit().ok());
  EXPECT_EQ(TakeLog(), "prepare record 1.1 write 0=1 finish 7=1 ");
}

TEST_F(LaunchRecorderTest, LaunchWaitsForLivingStreamsOnly) {
  fences_->pages.Put(ChannelId(2), *CreateFencePage(ChannelId(2)));
  fences_->pages.Put(ChannelId(3), UniqueFd());
  daemon_->answer = RemotePrepared{
      .use = UseId(8), .waits = {{ChannelId(2), 5, 50}, {ChannelId(3), 6, 60}, {ChannelId(1), 1, 10}}};
  LaunchRecorder launch(*a_);
  RecordUse(launch, shared_, UseAccess::kRead);
  ASSERT_TRUE(launch.Preflight().ok());
  EXPECT_EQ(TakeLog(), "prepare wait 2:5>=50 wait 1:1>=10 ");
  EXPECT_TRUE(launch.Commit().ok());
}

TEST_F(LaunchRecorderTest, TornBlocksAreReportedAtBothEnds) {
  daemon_->answer->torn = {BlockId(30)};
  LaunchRecorder launch(*a_);
  RecordUse(launch, shared_, UseAccess::kRead);
  ASSERT_TRUE(launch.Preflight().ok());
  EXPECT_EQ(launch.torn(), std::vector<BlockId>({BlockId(30)}));
  daemon_->finish = std::vector<BlockId>();
  ASSERT_TRUE(launch.Commit().ok());
  EXPECT_TRUE(launch.torn().empty());
}

TEST_F(LaunchRecorderTest, CommitNeedsPreflight) {
  LaunchRecorder launch(*a_);
  RecordUse(launch, x_, UseAccess::kWrite);
  EXPECT_TRUE(IsRefusal(launch.Commit(), Reason::kStreamMisuse));
  EXPECT_EQ(TakeLog(), "");
}

TEST_F(LaunchRecorderTest, LateUseIsRejectedAndRestCommitted) {
  LaunchRecorder launch(*a_);
  RecordUse(launch, x_, UseAccess::kWrite);
  ASSERT_TRUE(launch.Preflight().ok());
  RecordUse(launch, y_, UseAccess::kWrite);
  EXPECT_TRUE(IsRefusal(launch.Commit(), Reason::kStreamMisuse));
  EXPECT_EQ(TakeLog(), "record 1.1 ");
  Use(b_, y_, UseAccess::kRead);
  EXPECT_EQ(TakeLog(), "record 2.1 ");
}

TEST_F(LaunchRecorderTest, SecondPreflightRejectedSecondCommitRecordsNothing) {
  LaunchRecorder launch(*a_);
  RecordUse(launch, x_, UseAccess::kWrite);
  ASSERT_TRUE(launch.Preflight().ok());
  EXPECT_TRUE(IsRefusal(launch.Preflight(), Reason::kStreamMisuse));
  launch.Commit().IgnoreError();
  EXPECT_EQ(TakeLog(), "record 1.1 ");
  launch.Commit().IgnoreError();
  EXPECT_EQ(TakeLog(), "");
}

TEST_F(LaunchRecorderTest, UnusableBlockIsRejectedBeforeQueueing) {
  const auto other = std::make_shared<Fences>();
  LaunchRecorder foreign(*a_);
  Recordable theirs = Of(x_);
  theirs.fences = other.get();
  LaunchRecorderPeer::RecordUse(foreign, theirs, UseAccess::kRead);
  EXPECT_TRUE(IsRefusal(foreign.Preflight(), Reason::kStreamMisuse));
  LaunchRecorder protected_(*a_);
  LaunchRecorderPeer::RecordUse(protected_, Of(x_, /*read_only=*/true), UseAccess::kWrite);
  EXPECT_TRUE(IsRefusal(protected_.Preflight(), Reason::kStreamMisuse));
  for (const internal::Lease end : {internal::Lease::kFreed, internal::Lease::kEnded, internal::Lease::kLost}) {
    lease_ = end;
    LaunchRecorder stale(*a_);
    RecordUse(stale, x_, UseAccess::kRead);
    EXPECT_TRUE(IsRefusal(stale.Preflight(), Reason::kStale));
  }
  EXPECT_EQ(TakeLog(), "");
}

TEST_F(LaunchRecorderTest, FailedPreflightLeavesNothingOpen) {
  daemon_->answer = Refuse(Reason::kBlockInUse, "in use");
  {
    LaunchRecorder launch(*a_);
    RecordUse(launch, x_, UseAccess::kWrite);
    RecordUse(launch, shared_, UseAccess::kWrite);
    EXPECT_TRUE(IsRefusal(launch.Preflight(), Reason::kBlockInUse));
  }
  EXPECT_EQ(TakeLog(), "prepare ");
  fences_->pages.Put(ChannelId(2), *CreateFencePage(ChannelId(2)));
  daemon_->answer = RemotePrepared{.use = UseId(9), .waits = {{ChannelId(2), 0, 1}}};
  backend_a_->wait = absl::InternalError("driver");
  {
    LaunchRecorder launch(*a_);
    RecordUse(launch, x_, UseAccess::kWrite);
    RecordUse(launch, shared_, UseAccess::kWrite);
    EXPECT_EQ(launch.Preflight().code(), absl::StatusCode::kInternal);
  }
  EXPECT_EQ(TakeLog(), "prepare wait 2:0>=1 abandon 9 ");
  Use(b_, x_, UseAccess::kWrite);
  EXPECT_EQ(TakeLog(), "record 2.1 ");
}

TEST_F(LaunchRecorderTest, UncommittedLaunchIsAbandoned) {
  {
    LaunchRecorder launch(*a_);
    RecordUse(launch, x_, UseAccess::kWrite);
    RecordUse(launch, shared_, UseAccess::kWrite);
    ASSERT_TRUE(launch.Preflight().ok());
  }
  EXPECT_EQ(TakeLog(), "prepare abandon 7 ");
  Use(b_, x_, UseAccess::kRead);
  EXPECT_EQ(TakeLog(), "record 2.1 ");
}

TEST_F(LaunchRecorderTest, UseWithUnknownEndBlocksOtherStreams) {
  const auto stays_open = [this](absl::Status FakeBackend::*failing) {
    const std::shared_ptr<TrackedBlock> block = fences_->tracker.Track(BlockId(40), /*shared=*/false);
    backend_a_->*failing = absl::InternalError("driver");
    {
      LaunchRecorder launch(*a_);
      RecordUse(launch, block, UseAccess::kWrite);
      ASSERT_TRUE(launch.Preflight().ok());
      EXPECT_EQ(launch.Commit().code(), absl::StatusCode::kInternal);
    }
    backend_a_->*failing = absl::OkStatus();
    LaunchRecorder next(*b_);
    RecordUse(next, block, UseAccess::kRead);
    EXPECT_TRUE(IsRefusal(next.Preflight(absl::ZeroDuration()), Reason::kBlockInUse));
  };
  stays_open(&FakeBackend::create);
  stays_open(&FakeBackend::record);
}

TEST_F(LaunchRecorderTest, FailedValueWriteLeavesUseOpenAtDaemon) {
  backend_a_->write = absl::InternalError("driver");
  {
    LaunchRecorder launch(*a_);
    RecordUse(launch, x_, UseAccess::kWrite);
    RecordUse(launch, shared_, UseAccess::kWrite);
    ASSERT_TRUE(launch.Preflight().ok());
    EXPECT_EQ(launch.Commit().code(), absl::StatusCode::kInternal);
  }
  EXPECT_EQ(TakeLog(), "prepare record 1.1 write 0=1 ");
  Use(b_, x_, UseAccess::kRead);
  EXPECT_EQ(TakeLog(), "await 1.1 record 2.1 ");
}

TEST_F(LaunchRecorderTest, UnsupportedStreamIsNotOpened) {
  auto backend = std::make_unique<FakeBackend>(&daemon_->log);
  backend->support = Refuse(Reason::kUnsupported, "cannot");
  EXPECT_TRUE(IsRefusal(Stream::Open(fences_, std::move(backend), {}).status(), Reason::kUnsupported));
  EXPECT_EQ(daemon_->opened, 2u);
  b_.reset();
  EXPECT_EQ(daemon_->closed, 1u);
}

}  // namespace
}  // namespace berth
