#include "client/sdk/arena/arena_core.h"

#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "client/sdk/arena/testing/arena_fakes.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

constexpr auto kOne = static_cast<ArenaStream>(1);
constexpr auto kTwo = static_cast<ArenaStream>(2);
constexpr auto kThree = static_cast<ArenaStream>(3);

// An arena of 16 MiB chunks over fakes. The arena waits for no stream unless the test says otherwise.
class ArenaCoreTest : public ::testing::Test {
 protected:
  void Make(ArenaOptions options = {}) {
    core_ = nullptr;
    options.chunk_bytes = MiB(16);
    options.progress = progress_;
    options.stream_patience = patience_;
    auto core = ArenaCore::Create(source_, options);
    ASSERT_TRUE(core.ok()) << core.status();
    core_ = *std::move(core);
  }

  void TearDown() override {
    // Lets no arena's destructor wait for stalled streams.
    for (const ArenaStream stream : {kOne, kTwo, kThree}) progress_->SetIdle(stream, true);
  }

  void* Allocate(Bytes bytes, ArenaStream stream = kOne) {
    const absl::StatusOr<void*> pointer = core_->Allocate(bytes, stream);
    EXPECT_TRUE(pointer.ok()) << pointer.status();
    return pointer.ok() ? *pointer : nullptr;
  }
  void Free(void* pointer, ArenaStream stream = kOne) {
    const absl::Status status = core_->Free(pointer, stream);
    EXPECT_TRUE(status.ok()) << status;
  }
  void ExpectRefused(const absl::Status& status, Reason reason,
                     const std::map<std::string, std::string>& named_values = {}) {
    EXPECT_TRUE(IsRefusal(status, reason)) << status;
    const std::optional<ErrorDetails> details = GetErrorDetails(status);
    if (!details.has_value()) return;
    for (const auto& [name, value] : named_values) EXPECT_EQ(details->metadata.at(name), value) << status;
  }
  void ExpectBalanced() {
    const ArenaStats stats = core_->Stats();
    EXPECT_EQ(stats.leased.count(), stats.live.count() + stats.cached.count() + stats.free.count() +
                                        stats.held.count() + stats.in_use.count());
    EXPECT_EQ(stats.leased, source_->leased());
  }

  const std::shared_ptr<FakeArenaSource> source_ = std::make_shared<FakeArenaSource>();
  const std::shared_ptr<FakeProgress> progress_ = std::make_shared<FakeProgress>();
  absl::Duration patience_ = absl::ZeroDuration();
  std::unique_ptr<ArenaCore> core_;
};

TEST_F(ArenaCoreTest, SmallRequestsShareFirstChunk) {
  Make();
  EXPECT_EQ(source_->leased(), MiB(16));
  std::vector<void*> pointers;
  for (int i = 0; i < 1000; ++i) pointers.push_back(Allocate(Bytes(1 + i)));
  EXPECT_EQ(source_->requests(), 1u);
  const ArenaStats stats = core_->Stats();
  EXPECT_EQ(stats.live_count, 1000u);
  EXPECT_EQ(stats.live_requested, Bytes(1000 * 1001 / 2));
  EXPECT_EQ(stats.chunks, 1u);
  ExpectBalanced();
  for (void* const pointer : pointers) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pointer) % 256, 0u);
    Free(pointer);
  }
  EXPECT_EQ(core_->Stats().live, Bytes());
  ExpectBalanced();
}

TEST_F(ArenaCoreTest, FreedMemoryIsReusedOnSameStreamAtOnce) {
  Make();
  void* const pointer = Allocate(MiB(9));
  Free(pointer);
  EXPECT_EQ(Allocate(MiB(9)), pointer);
  EXPECT_EQ(progress_->marked(kOne), 0u) << "a free costs no driver call";
  EXPECT_EQ(source_->requests(), 1u);
}

TEST_F(ArenaCoreTest, OtherStreamGetsMemoryOncePastFree) {
  Make({.limit = MiB(16)});
  void* const pointer = Allocate(MiB(9), kOne);
  Free(pointer, kOne);
  // The stream has not reached the free, so memory is short for this request, and no more can be leased.
  ExpectRefused(core_->Allocate(MiB(9), kTwo).status(), Reason::kOverBudget);
  EXPECT_EQ(core_->Stats().held, MiB(9));
  EXPECT_EQ(progress_->marked(kOne), 1u);
  ExpectRefused(core_->Allocate(MiB(9), kTwo).status(), Reason::kOverBudget);
  progress_->Finish(kOne);
  EXPECT_EQ(Allocate(MiB(9), kTwo), pointer);
  ExpectBalanced();
}

TEST_F(ArenaCoreTest, MarkDoesNotCoverLaterFrees) {
  Make({.limit = MiB(16)});
  void* const first = Allocate(MiB(7), kOne);
  void* const second = Allocate(MiB(9), kOne);
  Free(first, kOne);
  ExpectRefused(core_->Allocate(MiB(7), kTwo).status(), Reason::kOverBudget);
  ASSERT_EQ(progress_->marked(kOne), 1u);
  // Neighbours, one freed before the mark and one after it: the merged extent waits as long as the later one.
  Free(second, kOne);
  progress_->Finish(kOne);
  ExpectRefused(core_->Allocate(MiB(7), kTwo).status(), Reason::kOverBudget);
  EXPECT_EQ(progress_->marked(kOne), 2u);
  progress_->Finish(kOne);
  EXPECT_NE(Allocate(MiB(16), kTwo), nullptr);
}

TEST_F(ArenaCoreTest, StalledStreamHasAtMostTwoMarks) {
  Make({.limit = MiB(16)});
  for (int i = 0; i < 10; ++i) {
    Free(Allocate(MiB(9), kOne), kOne);
    ExpectRefused(core_->Allocate(MiB(9), kTwo).status(), Reason::kOverBudget);
  }
  EXPECT_EQ(progress_->marked(kOne), 2u);
  progress_->Finish(kOne);
  // Frees after the second mark need a third mark.
  ExpectRefused(core_->Allocate(MiB(9), kTwo).status(), Reason::kOverBudget);
  progress_->Finish(kOne);
  Free(Allocate(MiB(9), kTwo), kTwo);
}

TEST_F(ArenaCoreTest, MemoryFreedOnOtherStreamBelongsToIt) {
  Make({.limit = MiB(16)});
  void* const pointer = Allocate(MiB(9), kOne);
  Free(pointer, kTwo);
  ExpectRefused(core_->Allocate(MiB(9), kOne).status(), Reason::kOverBudget);
  EXPECT_EQ(Allocate(MiB(9), kTwo), pointer);
}

TEST_F(ArenaCoreTest, MemoryUsedOnSecondStreamWaitsForBoth) {
  Make({.limit = MiB(16)});
  void* const pointer = Allocate(MiB(9), kOne);
  EXPECT_TRUE(core_->UsedOn(pointer, kTwo).ok());
  EXPECT_TRUE(core_->UsedOn(pointer, kTwo).ok());
  EXPECT_TRUE(core_->UsedOn(pointer, kOne).ok());
  Free(pointer, kOne);
  EXPECT_EQ(core_->Stats().in_use, MiB(9));
  EXPECT_EQ(progress_->marked(kTwo), 1u);
  EXPECT_EQ(progress_->marked(kOne), 0u);
  ExpectBalanced();
  // Even the freeing stream does not get the memory back.
  ExpectRefused(core_->Allocate(MiB(9), kOne).status(), Reason::kOverBudget);
  ExpectRefused(core_->Free(pointer, kOne), Reason::kStale);
  progress_->Finish(kTwo);
  EXPECT_EQ(Allocate(MiB(9), kOne), pointer);
  ExpectBalanced();
}

TEST_F(ArenaCoreTest, FailedMarkLeavesAllocationUnchanged) {
  Make();
  void* const pointer = Allocate(MiB(9), kOne);
  EXPECT_TRUE(core_->UsedOn(pointer, kTwo).ok());
  progress_->SetFailure(absl::InternalError("the driver"));
  EXPECT_TRUE(absl::IsInternal(core_->Free(pointer, kOne)));
  EXPECT_EQ(core_->Stats().live_count, 1u);
  progress_->SetFailure(absl::OkStatus());
  Free(pointer, kOne);
  EXPECT_EQ(core_->Stats().in_use, MiB(9));
}

TEST_F(ArenaCoreTest, FailedMarkIsReportedAndRetried) {
  Make({.limit = MiB(16)});
  Free(Allocate(MiB(9), kOne), kOne);
  progress_->SetFailure(absl::InternalError("the driver"));
  EXPECT_TRUE(absl::IsInternal(core_->Allocate(MiB(9), kTwo).status()));
  EXPECT_TRUE(absl::IsInternal(core_->Trim().status()));
  progress_->SetFailure(absl::OkStatus());
  progress_->SetIdle(kOne, true);
  EXPECT_NE(Allocate(MiB(9), kTwo), nullptr);
}

TEST_F(ArenaCoreTest, ForgottenStreamsMemoryServesAnyStream) {
  Make({.limit = MiB(16)});
  void* const shared = Allocate(MiB(4), kTwo);
  EXPECT_TRUE(core_->UsedOn(shared, kOne).ok());
  Free(shared, kTwo);
  Free(Allocate(MiB(9), kOne), kOne);
  Free(Allocate(KiB(4), kOne), kOne);
  core_->ForgetStream(kOne);
  EXPECT_FALSE(progress_->known(kOne));
  EXPECT_NE(Allocate(MiB(11), kThree), nullptr);
  EXPECT_NE(Allocate(MiB(4), kTwo), nullptr);
  core_->ForgetStream(static_cast<ArenaStream>(77));
  ExpectBalanced();
}

TEST_F(ArenaCoreTest, RefusalWaitsForStreamsWithinPatience) {
  patience_ = absl::Seconds(30);
  Make({.limit = MiB(16)});
  void* const pointer = Allocate(MiB(9), kOne);
  Free(pointer, kOne);
  std::thread stream([&] {
    while (progress_->marked(kOne) == 0) std::this_thread::yield();
    progress_->Finish(kOne);
  });
  EXPECT_EQ(Allocate(MiB(9), kTwo), pointer);
  stream.join();
}

TEST_F(ArenaCoreTest, LargeRequestGetsOwnBlockForReuse) {
  Make();
  void* const large = Allocate(MiB(33));
  EXPECT_EQ(source_->leased(), MiB(16 + 36));
  Free(large);
  // Small requests do not cut the large chunk, and a request of its size finds it.
  for (int i = 0; i < 3; ++i) Free(Allocate(MiB(16)));
  EXPECT_EQ(Allocate(MiB(34)), large);
  EXPECT_EQ(source_->leased(), MiB(16 + 36));
  ExpectBalanced();
}

TEST_F(ArenaCoreTest, TrimReleasesEntirelyFreeChunks) {
  Make();
  progress_->SetIdle(kOne, true);
  std::vector<void*> pointers;
  for (int i = 0; i < 8; ++i) pointers.push_back(Allocate(MiB(5)));
  EXPECT_EQ(source_->leased(), MiB(16 * 3));
  for (int i = 0; i < 7; ++i) Free(pointers[i]);
  const absl::StatusOr<Bytes> trimmed = core_->Trim();
  ASSERT_TRUE(trimmed.ok());
  EXPECT_EQ(*trimmed, MiB(16 * 2));
  EXPECT_EQ(source_->leased(), MiB(16));
  ExpectRefused(core_->Free(pointers[0], kOne), Reason::kNotFound, {{"kind", "address"}});
  Free(pointers[7]);
  EXPECT_EQ(*core_->Trim(), MiB(16));
  EXPECT_EQ(source_->leased(), Bytes());
  EXPECT_EQ(*core_->Trim(), Bytes());
  const ArenaStats stats = core_->Stats();
  EXPECT_EQ(stats.leases, 3u);
  EXPECT_EQ(stats.returns, 3u);
  EXPECT_EQ(stats.peak_leased, MiB(48));
  EXPECT_EQ(stats.peak_out, MiB(40));
  // The arena continues to work.
  Free(Allocate(KiB(4)));
}

TEST_F(ArenaCoreTest, TrimSkipsMemoryStreamsMayUse) {
  Make();
  Free(Allocate(MiB(16)));
  EXPECT_EQ(*core_->Trim(), Bytes());
  progress_->Finish(kOne);
  EXPECT_EQ(*core_->Trim(), MiB(16));
}

TEST_F(ArenaCoreTest, ExactLimitFitsFurtherChunkRejected) {
  Make({.limit = MiB(20), .label = "mine"});
  std::vector<void*> pointers = {Allocate(MiB(16)), Allocate(MiB(4))};
  EXPECT_EQ(source_->leased(), MiB(20));
  const absl::Status refused = core_->Allocate(Bytes(1), kOne).status();
  ExpectRefused(refused, Reason::kOverBudget,
                {{"layer", "arena"},
                 {"arena", "mine"},
                 {"requested", absl::StrCat(MiB(2).count())},
                 {"current", absl::StrCat(MiB(20).count())},
                 {"remaining", "0"},
                 {"limit", absl::StrCat(MiB(20).count())}});
  const ArenaStats stats = core_->Stats();
  EXPECT_EQ(stats.refusals, 1u);
  EXPECT_EQ(stats.peak_leased, MiB(20));
  EXPECT_EQ(stats.live_count, 2u);
  ExpectBalanced();
}

TEST_F(ArenaCoreTest, FreeChunksReleasedBeforeLimitRejects) {
  Make({.limit = MiB(48)});
  progress_->SetIdle(kOne, true);
  void* const large = Allocate(MiB(30));
  Free(large);
  EXPECT_EQ(source_->leased(), MiB(46));
  // The request fits only after the large block and the empty chunk are given back.
  Free(Allocate(MiB(40)));
  EXPECT_EQ(source_->leased(), MiB(40));
  ExpectRefused(core_->Allocate(MiB(50), kOne).status(), Reason::kOverBudget);
}

TEST_F(ArenaCoreTest, FreeChunksReleasedBeforeDaemonRejects) {
  source_->budget = MiB(48);
  Make();
  progress_->SetIdle(kOne, true);
  Free(Allocate(MiB(30)));
  Free(Allocate(MiB(40)));
  EXPECT_EQ(source_->leased(), MiB(40));
}

TEST_F(ArenaCoreTest, RequestSizeServesWhereChunkExceedsBudget) {
  source_->budget = MiB(22);
  Make();
  void* const pointer = Allocate(MiB(16));
  EXPECT_NE(Allocate(MiB(5)), nullptr);
  EXPECT_EQ(source_->leased(), MiB(22));
  ExpectRefused(core_->Allocate(MiB(2), kOne).status(), Reason::kOverBudget, {{"layer", "device"}});
  Free(pointer);
  ExpectBalanced();
}

TEST_F(ArenaCoreTest, BlockRoundedAboveLimitIsReturned) {
  source_->granularity = MiB(32);
  ArenaOptions options = {.chunk_bytes = MiB(16), .limit = MiB(20)};
  ExpectRefused(ArenaCore::Create(source_, options).status(), Reason::kOverBudget, {{"layer", "arena"}});
  EXPECT_EQ(source_->leased(), Bytes());
  // Without a limit, the arena uses all that the source supplies.
  Make();
  EXPECT_NE(Allocate(MiB(16)), nullptr);
  EXPECT_NE(Allocate(MiB(16)), nullptr);
  EXPECT_EQ(source_->leased(), MiB(32));
  ExpectBalanced();
}

TEST_F(ArenaCoreTest, InvalidCallsAreNamedAndChangeNothing) {
  Make({.label = "mine"});
  ExpectRefused(core_->Allocate(Bytes(), kOne).status(), Reason::kInvalidField, {{"field", "bytes"}});
  ExpectRefused(core_->Allocate(GiB(1 << 20), kOne).status(), Reason::kOutOfRange, {{"field", "bytes"}});
  char* const pointer = static_cast<char*>(Allocate(KiB(4)));
  ExpectRefused(core_->Free(nullptr, kOne), Reason::kNotFound, {{"id", "0x0"}});
  ExpectRefused(core_->Free(this, kOne), Reason::kNotFound);
  for (const int off : {1, 8, 255, 256, 4096})
    ExpectRefused(core_->Free(pointer + off, kOne), Reason::kStale);
  ExpectRefused(core_->UsedOn(pointer + 256, kOne), Reason::kStale);
  ExpectRefused(core_->UsedOn(nullptr, kOne), Reason::kNotFound);
  EXPECT_EQ(core_->Stats().live_count, 1u);
  Free(pointer);
  ExpectRefused(core_->Free(pointer, kOne), Reason::kStale,
                {{"block", absl::StrCat("0x", absl::Hex(pointer))}});
  ExpectRefused(core_->UsedOn(pointer, kTwo), Reason::kStale);
  // The free is also rejected after the extent has merged with its neighbours.
  ASSERT_TRUE(core_->Trim().ok());
  ExpectRefused(core_->Free(pointer, kOne), Reason::kStale);
  EXPECT_EQ(core_->Stats().frees, 1u);
  void* const large = Allocate(MiB(40));
  ExpectRefused(core_->Free(static_cast<char*>(large) + MiB(1).count(), kOne), Reason::kStale);
  ExpectBalanced();
}

TEST_F(ArenaCoreTest, OptionOutOfBoundsIsNamed) {
  const auto create = [&](ArenaOptions options) { return ArenaCore::Create(source_, options).status(); };
  for (const Bytes bytes : {Bytes(), MiB(8), MiB(100), GiB(128)}) {
    ExpectRefused(create({.chunk_bytes = bytes}), Reason::kInvalidField, {{"field", "chunk_bytes"}});
  }
  for (const Bytes bytes : {Bytes(), Bytes(128), Bytes(300), KiB(8)}) {
    ExpectRefused(create({.alignment = bytes}), Reason::kInvalidField, {{"field", "alignment"}});
  }
  ExpectRefused(create({.limit = MiB(1)}), Reason::kInvalidField, {{"field", "limit"}});
  EXPECT_EQ(source_->requests(), 0u);
}

TEST_F(ArenaCoreTest, StaleMemoryIsNotHandedOut) {
  Make();
  progress_->SetIdle(kOne, true);
  void* const pointer = Allocate(KiB(4));
  Free(Allocate(KiB(4)));
  source_->stale = true;
  ExpectRefused(core_->Allocate(KiB(4), kOne).status(), Reason::kStale, {{"why", "context rebuilt"}});
  ExpectRefused(core_->Allocate(MiB(1), kOne).status(), Reason::kStale);
  EXPECT_EQ(core_->Stats().live_count, 1u);
  // Recovery: free everything, trim, start anew.
  Free(pointer);
  EXPECT_EQ(*core_->Trim(), MiB(16));
  source_->stale = false;
  Free(Allocate(KiB(4)));
  ExpectBalanced();
}

TEST_F(ArenaCoreTest, DestructionReturnsFreeChunks) {
  Make();
  progress_->SetIdle(kOne, true);
  Free(Allocate(MiB(16)));
  Free(Allocate(MiB(40)));
  core_ = nullptr;
  EXPECT_EQ(source_->leased(), Bytes());
}

TEST_F(ArenaCoreTest, DestructionLeavesUsedChunksLeased) {
  // Case: an allocation that was never freed.
  Make();
  progress_->SetIdle(kOne, true);
  Allocate(MiB(9));
  Free(Allocate(MiB(9)));
  EXPECT_EQ(source_->leased(), MiB(32));
  core_ = nullptr;
  EXPECT_EQ(source_->leased(), MiB(16));
  // Case: a stream that never finishes.
  Make();
  Free(Allocate(MiB(9), kTwo), kTwo);
  core_ = nullptr;
  EXPECT_EQ(source_->leased(), MiB(32));
}

TEST_F(ArenaCoreTest, ForkedChildIsRejected) {
  const ForkGuard guard{UniqueFd(), UniqueFd()};
  Make();
  void* const pointer = Allocate(KiB(4));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = absl::IsFailedPrecondition(core_->Allocate(KiB(4), kOne).status()) &&
                         absl::IsFailedPrecondition(core_->Free(pointer, kOne)) &&
                         absl::IsFailedPrecondition(core_->UsedOn(pointer, kOne)) &&
                         absl::IsFailedPrecondition(core_->Trim().status());
    core_->ForgetStream(kOne);
    core_ = nullptr;
    // The child gave nothing back on the parent's behalf.
    ::_exit(refused && source_->leased() == MiB(16) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  Free(pointer);
}

TEST_F(ArenaCoreTest, StatisticsSeparateStreams) {
  Make({.limit = MiB(16)});
  void* const one = Allocate(MiB(1), kOne);
  void* const two = Allocate(MiB(2), kTwo);
  Free(one, kOne);
  Free(two, kTwo);
  Free(Allocate(MiB(1), kOne), kOne);
  ArenaStats stats = core_->Stats();
  ASSERT_EQ(stats.streams.size(), 2u);
  EXPECT_EQ(stats.streams[0].stream, kOne);
  EXPECT_EQ(stats.streams[0].allocations, 2u);
  EXPECT_EQ(stats.streams[0].frees, 2u);
  EXPECT_EQ(stats.streams[0].cached, MiB(1));
  EXPECT_EQ(stats.streams[1].cached, MiB(2));
  EXPECT_EQ(stats.misses, 2u);
  EXPECT_EQ(stats.fragmentation(), 0);
  ExpectRefused(core_->Allocate(MiB(16), kThree).status(), Reason::kOverBudget);
  stats = core_->Stats();
  EXPECT_EQ(stats.streams[0].held, MiB(1));
  EXPECT_EQ(stats.streams[1].held, MiB(2));
  EXPECT_EQ(stats.held, MiB(3));
  EXPECT_EQ(stats.free, MiB(13));
}

TEST_F(ArenaCoreTest, FragmentationCountsFreeBytesOutsideLargestPiece) {
  Make();
  progress_->SetIdle(kOne, true);
  std::vector<void*> pointers;
  for (int i = 0; i < 4; ++i) pointers.push_back(Allocate(MiB(4)));
  Free(pointers[0]);
  Free(pointers[2]);
  ASSERT_TRUE(core_->Trim().ok());
  const ArenaStats stats = core_->Stats();
  EXPECT_EQ(stats.free, MiB(8));
  EXPECT_EQ(stats.largest_free, MiB(4));
  EXPECT_EQ(stats.fragmentation(), 0.5);
}

TEST_F(ArenaCoreTest, PowersOfTwoAreInterchangeable) {
  Make({.policy = ArenaPolicy::kPowerOfTwo});
  void* const pointer = Allocate(KiB(513));
  EXPECT_EQ(core_->Stats().live, MiB(1));
  Free(pointer);
  EXPECT_EQ(Allocate(KiB(1000)), pointer);
}

}  // namespace
}  // namespace berth::internal
