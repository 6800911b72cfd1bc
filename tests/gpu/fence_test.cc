// Fences on a GPU: kernels of several processes on blocks that they share, in order, whoever dies inside its kernel.

#include <poll.h>
#include <stdlib.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/inspector.h"
#include "client/session.h"
#include "common/block_handle.h"
#include "common/cuda/driver.h"
#include "gtest/gtest.h"
#include "tests/bench/figure.h"
#include "tests/bench/servers.h"
#include "tests/bench/stopwatch.h"
#include "tests/gpu/fence_lane.h"
#include "tests/support/actor_handle.h"
#include "tests/support/testing.h"

namespace berth::gpu {
namespace {

using testing::Actor;
using testing::Must;
using testing::Ok;
using testing::ProgramPath;
using Use = FenceLane::Use;

constexpr Bytes kBlock = MiB(16);
constexpr int kRounds = 64;
constexpr int kDeaths = 100;
// How many of those about to die are made ready ahead.
constexpr int kAhead = 8;
constexpr double kDeathBoundMilliseconds = 5;

class GpuFenceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<cuda::Driver*> driver = cuda::Driver::Get();
    if (!driver.ok()) {
      ASSERT_EQ(getenv("BERTH_REQUIRE_CUDA"), nullptr) << driver.status();
      GTEST_SKIP() << driver.status();
    }
    daemon_ = Must(bench::StartDaemon({.berthd = ProgramPath("daemon/berthd"), .backend = "cuda"},
                                      {"--warm-blocks=0", "--device-budget=1GiB"}));
    session_ = Must(Session::Open({.folder = daemon_->folder(), .label = "test"}));
    lane_ = Must(FenceLane::Open(session_));
    block_ = Must(Block::Allocate(session_, {.bytes = kBlock, .label = "test"}));
    mapping_ = Must(block_->Map());
  }

  void TearDown() override {
    // Work on the block first, then the block, then those who know of both.
    lane_ = nullptr;
    mapping_ = std::nullopt;
    block_ = std::nullopt;
    session_ = nullptr;
    daemon_ = nullptr;
  }

  Actor Process() const {
    return Actor(daemon_->folder(), {.open = false, .program = "tests/gpu/fence_actor"});
  }
  // Lets it have the block, as "b".
  void Share(Actor& actor) const {
    ASSERT_TRUE(Ok(block_->GrantToSession(actor.session())));
    actor.Do(absl::StrCat("import b ", FormatHandle(block_->handle())));
  }
  // A process with a stream "s" and the block "b".
  Actor Sharer() const {
    Actor actor = Process();
    actor.Do("stream s");
    Share(actor);
    return actor;
  }

  // One use of the block on this process's own stream. Returns whether it was torn.
  bool Check(uint64_t seed) {
    return Must(lane_->Queue(Use::kRead, *mapping_, [&] { return lane_->QueueCheck(*mapping_, seed); }));
  }
  bool Fill(uint64_t seed) {
    return Must(lane_->Queue(Use::kWrite, *mapping_, [&] { return lane_->QueueFill(*mapping_, seed); }));
  }

  bool TornAtTheDaemon() const {
    const v1::ListBlocksResponse blocks = Must(Inspector(session_).ListBlocks());
    return blocks.blocks_size() == 1 && blocks.blocks(0).torn();
  }

  std::unique_ptr<bench::Server> daemon_;
  std::shared_ptr<Session> session_;
  std::unique_ptr<FenceLane> lane_;
  std::optional<Block> block_;
  std::optional<Mapping> mapping_;
};

// How many fence pages this process has mapped with these rights.
int FencePages(absl::string_view rights) {
  std::ifstream maps("/proc/self/maps");
  int found = 0;
  for (std::string line; std::getline(maps, line);) {
    found +=
        absl::StrContains(line, "berth-fence") && absl::StrContains(line, absl::StrCat(" ", rights, " "));
  }
  return found;
}

TEST_F(GpuFenceTest, EveryReaderSeesWhatTheWriterBeforeItWroteAndNoWriterOvertakesAReader) {
  Actor actors[] = {Sharer(), Sharer()};
  // Each round has another writer, and no round waits for the one before: the streams do.
  for (int round = 1; round <= kRounds; ++round) {
    Actor& writer = actors[round % 2];
    Actor& reader = actors[(round + 1) % 2];
    EXPECT_EQ(writer.Do(absl::StrCat("fill s b ", round)), "");
    EXPECT_EQ(reader.Do(absl::StrCat("check s b ", round)), "");
    EXPECT_FALSE(Check(round));
    EXPECT_FALSE(Must(lane_->driver().QueryStream(lane_->stream())));
    writer.Do("open s");
  }
  EXPECT_EQ(Must(lane_->Sync()), 0u);
  for (Actor& actor : actors) EXPECT_EQ(actor.Do("sync s"), "0");
  // A word is written by its own process and the daemon alone, and CUDA takes a page that cannot be written.
  EXPECT_EQ(FencePages("rw-s"), 1);
  EXPECT_EQ(FencePages("r--s"), 2);
  for (Actor& actor : actors) actor.Quit();
}

TEST_F(GpuFenceTest, WithoutFencesReadersSeeWhatWasThereBefore) {
  Actor writer = Sharer();
  int stale = 0;
  for (int round = 1; round <= kRounds; ++round) {
    writer.Do(absl::StrCat("fill s b ", round, " raw"));
    Must(lane_->QueueCheck(*mapping_, round));
    stale += Must(lane_->Sync()) != 0 ? 1 : 0;
    writer.Do("open s");
    writer.Do("sync s");
  }
  EXPECT_EQ(stale, kRounds);
  writer.Quit();
}

TEST_F(GpuFenceTest, StreamsOfOneProcessAreOrderedWithoutTheDaemon) {
  const std::unique_ptr<FenceLane> other = Must(FenceLane::Open(session_));
  for (int round = 1; round <= kRounds; ++round) {
    FenceLane& writer = round % 2 == 0 ? *lane_ : *other;
    FenceLane& reader = round % 2 == 0 ? *other : *lane_;
    Must(writer.Queue(Use::kWrite, *mapping_, [&]() -> absl::Status {
      absl::Status status = writer.QueueGate();
      return status.ok() ? writer.QueueFill(*mapping_, round) : status;
    }));
    Must(reader.Queue(Use::kRead, *mapping_, [&] { return reader.QueueCheck(*mapping_, round); }));
    writer.OpenGate();
  }
  EXPECT_EQ(Must(lane_->Sync()), 0u);
  EXPECT_EQ(Must(other->Sync()), 0u);
  const v1::ListStreamsResponse streams = Must(Inspector(session_).ListStreams());
  ASSERT_EQ(streams.streams_size(), 2);
  for (const v1::FenceStream& stream : streams.streams()) EXPECT_EQ(stream.last_value(), 0u);
}

TEST_F(GpuFenceTest, WhatOneProcessTrackedAloneIsHandedOverAtTheSecondImport) {
  Must(lane_->Queue(Use::kWrite, *mapping_, [&]() -> absl::Status {
    absl::Status status = lane_->QueueSpin();
    return status.ok() ? lane_->QueueFill(*mapping_, 3) : status;
  }));
  Actor reader = Sharer();
  reader.Do("check s b 3");
  EXPECT_FALSE(Must(lane_->driver().QueryStream(lane_->stream())));
  lane_->OpenGate();
  EXPECT_EQ(reader.Do("sync s"), "0");
  reader.Quit();
}

TEST_F(GpuFenceTest, NoReaderOvertakesAWriteThatWasAloneWhenItsBlockIsImported) {
  const std::unique_ptr<FenceLane> other = Must(FenceLane::Open(session_));
  Actor reader = Process();
  reader.Do("stream s");
  // Each round has a block of its own: once shared, it stays so.
  for (int round = 1; round <= kRounds; ++round) {
    const Block block = Must(Block::Allocate(session_, {.bytes = MiB(2), .label = "test"}));
    const Mapping mapping = Must(block.Map());
    ASSERT_TRUE(Ok(block.GrantToSession(reader.session())));
    FenceLane& writer = round % 2 == 0 ? *lane_ : *other;
    FenceLane& checker = round % 2 == 0 ? *other : *lane_;
    Must(writer.Queue(Use::kWrite, mapping, [&]() -> absl::Status {
      absl::Status status = writer.QueueGate();
      return status.ok() ? writer.QueueFill(mapping, round) : status;
    }));
    Must(checker.Queue(Use::kRead, mapping, [&] { return checker.QueueCheck(mapping, round); }));
    reader.Do(absl::StrCat("import b ", FormatHandle(block.handle())));
    EXPECT_EQ(reader.Do(absl::StrCat("check s b ", round)), "");
    // The next write is behind the reader's check, by the daemon's word.
    Must(checker.Queue(Use::kWrite, mapping, [&] { return checker.QueueFill(mapping, round + 1); }));
    EXPECT_FALSE(Must(writer.driver().QueryStream(writer.stream())));
    writer.OpenGate();
    EXPECT_EQ(reader.Do("sync s"), "0") << "round " << round;
    EXPECT_EQ(Must(checker.Sync()), 0u) << "round " << round;
    EXPECT_EQ(Must(writer.Sync()), 0u) << "round " << round;
    reader.Do("drop b");
  }
  reader.Quit();
}

TEST_F(GpuFenceTest, StreamsOfALaterContextGoOnFromThoseOfAnEarlierOne) {
  Actor other = Sharer();
  EXPECT_FALSE(Fill(1));
  other.Do("check s b 1");
  EXPECT_EQ(Must(lane_->Sync()), 0u);
  lane_ = nullptr;
  lane_ = Must(FenceLane::Open(session_));
  EXPECT_FALSE(Fill(2));
  EXPECT_EQ(other.Do("check s b 2"), "");
  EXPECT_FALSE(Check(2));
  EXPECT_EQ(Must(lane_->Sync()), 0u);
  EXPECT_EQ(other.Do("sync s"), "0");
  other.Quit();
}

TEST_F(GpuFenceTest, AReadOnlyImportWaitsAndIsWaitedForToo) {
  Actor reader = Process();
  reader.Do("stream s");
  ASSERT_TRUE(Ok(block_->GrantToSession(reader.session())));
  reader.Do(absl::StrCat("import b ", FormatHandle(block_->handle()), " ro"));
  for (int round = 1; round <= kRounds; ++round) {
    EXPECT_FALSE(Fill(round));
    reader.Do(absl::StrCat("check s b ", round));
  }
  EXPECT_EQ(reader.Do("sync s"), "0");
  EXPECT_FALSE(reader.Ask("fill s b 1").ok());
  reader.Quit();
}

TEST_F(GpuFenceTest, APoisonedContextLeavesTheOthersAndTheDaemonWell) {
  Actor poisoned = Sharer();
  Actor other = Sharer();
  Fill(1);
  poisoned.Do("fault s b");
  EXPECT_FALSE(poisoned.Ask("sync s").ok());
  // Nobody else has lost anything: memory is leased, kernels run.
  const std::string handle = other.Do("allocate more 2097152");
  other.Do("check s b 1 raw");
  EXPECT_TRUE(Ok(other.Ask("sync s")));
  EXPECT_TRUE(Ok(Inspector(session_).GetNode()));
  // Its use does not end before it does; then whoever waits goes on, and is told.
  Check(1);
  EXPECT_FALSE(Must(lane_->driver().QueryStream(lane_->stream())));
  poisoned.Kill();
  EXPECT_TRUE(Ok(lane_->Sync()));
  EXPECT_TRUE(Fill(2));
  EXPECT_EQ(other.Do("check s b 2"), "");
  EXPECT_EQ(other.Do("sync s"), "0");
  Actor late = Sharer();
  EXPECT_EQ(late.Do("check s b 2"), "");
  EXPECT_EQ(late.Do("sync s"), "0");
  late.Quit();
  other.Quit();
}

// Milliseconds from the process being gone, by its pidfd, to the stream having come to its end.
double Lateness(const testing::Subprocess& process, const FenceLane& lane) {
  std::optional<int64_t> gone, ended;
  const int64_t start = bench::MonotonicNanoseconds();
  while (!gone.has_value() || !ended.has_value()) {
    pollfd poll = {.fd = process.pidfd(), .events = POLLIN};
    if (!gone.has_value() && ::poll(&poll, 1, 0) == 1) gone = bench::MonotonicNanoseconds();
    if (!ended.has_value() && Must(lane.driver().QueryStream(lane.stream()))) {
      ended = bench::MonotonicNanoseconds();
    }
    if (bench::MonotonicNanoseconds() - start > 20'000'000'000) return 20'000;
  }
  return std::max<int64_t>(*ended - *gone, 0) * 1e-6;
}

TEST_F(GpuFenceTest, WhoWaitsForAProcessKilledInsideItsKernelGoesOnAHundredTimesOfAHundred) {
  std::deque<Actor> ready;
  std::vector<double> late;
  for (int death = 0; death < kDeaths; ++death) {
    while (static_cast<int>(ready.size()) < std::min(kAhead, kDeaths - death)) {
      ready.push_back(Process());
      ready.back().Tell("stream s");
    }
    Actor victim = std::move(ready.front());
    ready.pop_front();
    ASSERT_TRUE(Ok(victim.Answer()));
    Share(victim);
    EXPECT_FALSE(Fill(death));
    EXPECT_EQ(victim.Do("spin s b"), "");
    EXPECT_FALSE(Check(death));
    EXPECT_FALSE(Must(lane_->driver().QueryStream(lane_->stream())));
    victim.process().Kill();
    late.push_back(Lateness(victim.process(), *lane_));
    victim.process().Wait();
    // The context is well, and the block is said to be torn until it is written over.
    EXPECT_EQ(Must(lane_->Sync()), 0u);
    EXPECT_TRUE(TornAtTheDaemon());
    EXPECT_TRUE(Fill(death + 1)) << "death " << death;
  }
  const double worst = *std::max_element(late.begin(), late.end());
  EXPECT_LE(worst, kDeathBoundMilliseconds);
  std::cout << FormatFigure({.name = "killed inside its kernel to its waiter's stream going on, median",
                             .value = bench::Median(late),
                             .unit = "ms"},
                            bench::Format::kTable)
            << "\n"
            << FormatFigure({.name = absl::StrCat("the same, the latest of ", kDeaths),
                             .value = {worst, worst, worst},
                             .unit = "ms",
                             .bound = kDeathBoundMilliseconds},
                            bench::Format::kTable)
            << std::endl;
}

}  // namespace
}  // namespace berth::gpu
