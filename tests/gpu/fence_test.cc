// Fences on a GPU: kernels of several processes on shared blocks run in order, whichever process dies inside its
// kernel.

#include <poll.h>
#include <stdlib.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <berth/block_handle.h>
#include <berth/session.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/fence.pb.h"
#include "berth/v1/memory.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/cuda/driver.h"
#include "gtest/gtest.h"
#include "tests/bench/measurement.h"
#include "tests/bench/servers.h"
#include "tests/bench/stopwatch.h"
#include "tests/gpu/fenced_stream.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/testing.h"

namespace berth::gpu {
namespace {

using testing::Actor;
using testing::Must;
using testing::Ok;
using testing::ProgramPath;
using Use = FencedStream::Use;

constexpr Bytes kBlock = MiB(16);
constexpr int kRounds = 64;
constexpr int kDeaths = 100;
// How many of the processes that are to die are prepared in advance.
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
    fenced_ = Must(FencedStream::Open(session_));
    block_ = Must(Block::Allocate(session_, {.bytes = kBlock, .label = "test"}));
    mapping_ = Must(block_->Map());
  }

  void TearDown() override {
    // In order: the work on the block, the block, then the session and the daemon.
    fenced_ = nullptr;
    mapping_ = std::nullopt;
    block_ = std::nullopt;
    session_ = nullptr;
    daemon_ = nullptr;
  }

  Actor Process() const {
    return Actor(daemon_->folder(), {.open = false, .program = "tests/gpu/fence_actor"});
  }
  // Imports the block in `actor`, as "b".
  void Share(Actor& actor) const {
    ASSERT_TRUE(Ok(block_->GrantToSession(actor.session())));
    actor.Do(absl::StrCat("import b ", FormatHandle(block_->handle())));
  }
  // Returns a process with a stream "s" and the block "b".
  Actor Sharer() const {
    Actor actor = Process();
    actor.Do("stream s");
    Share(actor);
    return actor;
  }

  // Queues one use of the block on this process's own stream. Returns whether it was torn.
  bool Check(uint64_t seed) {
    return Must(fenced_->Queue(Use::kRead, *mapping_, [&] { return fenced_->QueueCheck(*mapping_, seed); }));
  }
  bool Fill(uint64_t seed) {
    return Must(fenced_->Queue(Use::kWrite, *mapping_, [&] { return fenced_->QueueFill(*mapping_, seed); }));
  }

  bool TornAtTheDaemon() const {
    const v1::ListBlocksResponse blocks = Must(Inspector(session_).ListBlocks());
    return blocks.blocks_size() == 1 && blocks.blocks(0).torn();
  }

  std::unique_ptr<bench::Server> daemon_;
  std::shared_ptr<Session> session_;
  std::unique_ptr<FencedStream> fenced_;
  std::optional<Block> block_;
  std::optional<Mapping> mapping_;
};

// Counts the fence pages that this process has mapped with these rights. A process maps its own page once for its
// streams and once to take grants up.
size_t FencePages(absl::string_view rights) {
  std::ifstream maps("/proc/self/maps");
  std::set<std::string> inodes;
  for (std::string line; std::getline(maps, line);) {
    // Addresses, rights, offset, device, inode, name.
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    const bool counts = fields.size() > 5 && fields[1] == rights && absl::StrContains(fields[5], "berth-fence");
    if (counts) inodes.insert(fields[4]);
  }
  return inodes.size();
}

TEST_F(GpuFenceTest, ReadersAndWritersAreOrderedByFences) {
  Actor actors[] = {Sharer(), Sharer()};
  // Each round has another writer, and no round waits for the previous one: the streams do.
  for (int round = 1; round <= kRounds; ++round) {
    Actor& writer = actors[round % 2];
    Actor& reader = actors[(round + 1) % 2];
    EXPECT_EQ(writer.Do(absl::StrCat("fill s b ", round)), "");
    EXPECT_EQ(reader.Do(absl::StrCat("check s b ", round)), "");
    EXPECT_FALSE(Check(round));
    EXPECT_FALSE(Must(fenced_->driver().QueryStream(fenced_->stream())));
    writer.Do("open s");
  }
  EXPECT_EQ(Must(fenced_->Sync()), 0u);
  for (Actor& actor : actors) EXPECT_EQ(actor.Do("sync s"), "0");
  // Only its own process and the daemon write a fence value, and CUDA accepts a page that cannot be written.
  EXPECT_EQ(FencePages("rw-s"), 1u);
  EXPECT_EQ(FencePages("r--s"), 2u);
  for (Actor& actor : actors) actor.Quit();
}

TEST_F(GpuFenceTest, ReadersWithoutFencesSeeOldData) {
  Actor writer = Sharer();
  int stale = 0;
  for (int round = 1; round <= kRounds; ++round) {
    writer.Do(absl::StrCat("fill s b ", round, " raw"));
    Must(fenced_->QueueCheck(*mapping_, round));
    stale += Must(fenced_->Sync()) != 0 ? 1 : 0;
    writer.Do("open s");
    writer.Do("sync s");
  }
  EXPECT_EQ(stale, kRounds);
  writer.Quit();
}

TEST_F(GpuFenceTest, StreamsOfSameProcessAreOrderedLocally) {
  const std::unique_ptr<FencedStream> other = Must(FencedStream::Open(session_));
  for (int round = 1; round <= kRounds; ++round) {
    FencedStream& writer = round % 2 == 0 ? *fenced_ : *other;
    FencedStream& reader = round % 2 == 0 ? *other : *fenced_;
    Must(writer.Queue(Use::kWrite, *mapping_, [&]() -> absl::Status {
      absl::Status status = writer.QueueGate();
      return status.ok() ? writer.QueueFill(*mapping_, round) : status;
    }));
    Must(reader.Queue(Use::kRead, *mapping_, [&] { return reader.QueueCheck(*mapping_, round); }));
    writer.OpenGate();
  }
  EXPECT_EQ(Must(fenced_->Sync()), 0u);
  EXPECT_EQ(Must(other->Sync()), 0u);
  const v1::ListStreamsResponse streams = Must(Inspector(session_).ListStreams());
  ASSERT_EQ(streams.streams_size(), 2);
  for (const v1::FenceStream& stream : streams.streams()) EXPECT_EQ(stream.last_value(), 0u);
}

TEST_F(GpuFenceTest, LocalUseIsHandedOverAtSecondImport) {
  Must(fenced_->Queue(Use::kWrite, *mapping_, [&]() -> absl::Status {
    absl::Status status = fenced_->QueueSpin();
    return status.ok() ? fenced_->QueueFill(*mapping_, 3) : status;
  }));
  Actor reader = Sharer();
  reader.Do("check s b 3");
  EXPECT_FALSE(Must(fenced_->driver().QueryStream(fenced_->stream())));
  fenced_->OpenGate();
  EXPECT_EQ(reader.Do("sync s"), "0");
  reader.Quit();
}

TEST_F(GpuFenceTest, ReaderNeverOvertakesLocalWriteAtImport) {
  const std::unique_ptr<FencedStream> other = Must(FencedStream::Open(session_));
  Actor reader = Process();
  reader.Do("stream s");
  // Each round has a new block: a shared block stays shared.
  for (int round = 1; round <= kRounds; ++round) {
    const Block block = Must(Block::Allocate(session_, {.bytes = MiB(2), .label = "test"}));
    const Mapping mapping = Must(block.Map());
    ASSERT_TRUE(Ok(block.GrantToSession(reader.session())));
    FencedStream& writer = round % 2 == 0 ? *fenced_ : *other;
    FencedStream& checker = round % 2 == 0 ? *other : *fenced_;
    Must(writer.Queue(Use::kWrite, mapping, [&]() -> absl::Status {
      absl::Status status = writer.QueueGate();
      return status.ok() ? writer.QueueFill(mapping, round) : status;
    }));
    Must(checker.Queue(Use::kRead, mapping, [&] { return checker.QueueCheck(mapping, round); }));
    reader.Do(absl::StrCat("import b ", FormatHandle(block.handle())));
    EXPECT_EQ(reader.Do(absl::StrCat("check s b ", round)), "");
    // By the daemon's order, the next write is behind the reader's check.
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

TEST_F(GpuFenceTest, LaterContextContinuesStreamsOfEarlier) {
  Actor other = Sharer();
  EXPECT_FALSE(Fill(1));
  other.Do("check s b 1");
  EXPECT_EQ(Must(fenced_->Sync()), 0u);
  fenced_ = nullptr;
  fenced_ = Must(FencedStream::Open(session_));
  EXPECT_FALSE(Fill(2));
  EXPECT_EQ(other.Do("check s b 2"), "");
  EXPECT_FALSE(Check(2));
  EXPECT_EQ(Must(fenced_->Sync()), 0u);
  EXPECT_EQ(other.Do("sync s"), "0");
  other.Quit();
}

TEST_F(GpuFenceTest, ReadOnlyImportTakesPartInFences) {
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

TEST_F(GpuFenceTest, PoisonedContextLeavesOthersUnaffected) {
  Actor poisoned = Sharer();
  Actor other = Sharer();
  Fill(1);
  poisoned.Do("fault s b");
  EXPECT_FALSE(poisoned.Ask("sync s").ok());
  // No other process is affected: memory can be leased, kernels run.
  const std::string handle = other.Do("allocate more 2097152");
  other.Do("check s b 1 raw");
  EXPECT_TRUE(Ok(other.Ask("sync s")));
  EXPECT_TRUE(Ok(Inspector(session_).GetNode()));
  // The poisoned process's use ends only with the process; then the waiter continues and gets the report.
  Check(1);
  EXPECT_FALSE(Must(fenced_->driver().QueryStream(fenced_->stream())));
  poisoned.Kill();
  EXPECT_TRUE(Ok(fenced_->Sync()));
  EXPECT_TRUE(Fill(2));
  EXPECT_EQ(other.Do("check s b 2"), "");
  EXPECT_EQ(other.Do("sync s"), "0");
  Actor late = Sharer();
  EXPECT_EQ(late.Do("check s b 2"), "");
  EXPECT_EQ(late.Do("sync s"), "0");
  late.Quit();
  other.Quit();
}

// Returns the milliseconds from the process's end, by its pidfd, to the end of the stream's work.
double Lateness(const testing::Subprocess& process, const FencedStream& fenced) {
  std::optional<int64_t> gone, ended;
  const int64_t start = bench::MonotonicNanoseconds();
  while (!gone.has_value() || !ended.has_value()) {
    pollfd poll = {.fd = process.pidfd(), .events = POLLIN};
    if (!gone.has_value() && ::poll(&poll, 1, 0) == 1) gone = bench::MonotonicNanoseconds();
    if (!ended.has_value() && Must(fenced.driver().QueryStream(fenced.stream()))) {
      ended = bench::MonotonicNanoseconds();
    }
    if (bench::MonotonicNanoseconds() - start > 20'000'000'000) return 20'000;
  }
  return std::max<int64_t>(*ended - *gone, 0) * 1e-6;
}

TEST_F(GpuFenceTest, WaiterOfKilledProcessAlwaysContinues) {
  std::deque<Actor> ready;
  std::vector<double> late;
  for (int death = 0; death < kDeaths; ++death) {
    while (static_cast<int>(ready.size()) < std::min(kAhead, kDeaths - death)) {
      ready.push_back(Process());
      ready.back().SendLine("stream s");
    }
    Actor victim = std::move(ready.front());
    ready.pop_front();
    ASSERT_TRUE(Ok(victim.Answer()));
    Share(victim);
    EXPECT_FALSE(Fill(death));
    EXPECT_EQ(victim.Do("spin s b"), "");
    EXPECT_FALSE(Check(death));
    EXPECT_FALSE(Must(fenced_->driver().QueryStream(fenced_->stream())));
    victim.process().Kill();
    late.push_back(Lateness(victim.process(), *fenced_));
    victim.process().Wait();
    // The context works, and the block is reported as torn until it is overwritten.
    EXPECT_EQ(Must(fenced_->Sync()), 0u);
    EXPECT_TRUE(TornAtTheDaemon());
    EXPECT_TRUE(Fill(death + 1)) << "death " << death;
  }
  const double worst = *std::max_element(late.begin(), late.end());
  EXPECT_LE(worst, kDeathBoundMilliseconds);
  std::cout << FormatMeasurement({.name = "killed inside its kernel to its waiter's stream going on, median",
                                  .value = bench::Median(late),
                                  .unit = "ms"},
                                 bench::Format::kTable)
            << "\n"
            << FormatMeasurement({.name = absl::StrCat("the same, the latest of ", kDeaths),
                                  .value = {worst, worst, worst},
                                  .unit = "ms",
                                  .bound = kDeathBoundMilliseconds},
                                 bench::Format::kTable)
            << std::endl;
}

}  // namespace
}  // namespace berth::gpu
