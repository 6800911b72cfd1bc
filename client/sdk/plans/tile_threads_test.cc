#include "client/sdk/plans/tile_threads.h"

#include <set>
#include <stdexcept>
#include <thread>

#include "absl/synchronization/barrier.h"
#include "common/mutex.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

TEST(TileThreadsTest, EachTileRunsItsStepsInOrderOnOwnThread) {
  Mutex mu;
  std::set<std::thread::id> threads;
  std::vector<std::string> steps(8);
  // All tiles run at the same time: the first waits for the last.
  absl::Barrier* const barrier = new absl::Barrier(8);
  const auto step = [&](const char* name) {
    return [&, name](size_t tile) {
      steps[tile] += name;
      return absl::OkStatus();
    };
  };
  TileStop stop(nullptr);
  const TileOutcomes outcomes = RunTileThreads(8,
                                               {.enter = step("e"),
                                                .run =
                                                    [&](size_t tile) {
                                                      steps[tile] += "r";
                                                      {
                                                        MutexLock lock(&mu);
                                                        threads.insert(std::this_thread::get_id());
                                                      }
                                                      if (barrier->Block()) delete barrier;
                                                      return absl::OkStatus();
                                                    },
                                                .leave = step("l"),
                                                .check = step("c")},
                                               true, &stop);
  EXPECT_EQ(threads.size(), 8);
  EXPECT_FALSE(threads.contains(std::this_thread::get_id()));
  for (const std::string& done : steps) EXPECT_EQ(done, "erlc");
  EXPECT_EQ(FirstFailure(outcomes.tiles), 8);
  EXPECT_TRUE(outcomes.begun);
}

TEST(TileThreadsTest, ErrorsAndExceptionsStayWithTheirTile) {
  std::atomic<int> ended = 0;
  TileStop stop(nullptr);
  const TileOutcomes outcomes = RunTileThreads(5, {.run = [&](size_t tile) -> absl::Status {
                                                 if (tile == 1) throw std::runtime_error("boom");
                                                 if (tile == 2) throw 7;
                                                 if (tile == 3) return absl::DataLossError("lost");
                                                 ++ended;
                                                 return absl::OkStatus();
                                               }},
                                               false, &stop);
  EXPECT_EQ(ended, 2);
  EXPECT_TRUE(outcomes.tiles[0].ok());
  EXPECT_EQ(outcomes.tiles[1], absl::InternalError("threw an exception: boom"));
  EXPECT_TRUE(absl::IsInternal(outcomes.tiles[2]));
  EXPECT_EQ(outcomes.tiles[3], absl::DataLossError("lost"));
  EXPECT_TRUE(outcomes.tiles[4].ok());
  EXPECT_EQ(FirstFailure(outcomes.tiles), 1);
  EXPECT_FALSE(stop.stopped());
}

TEST(TileThreadsTest, FailedStepIsNamedAndEnteredTileIsLeft) {
  for (const std::string failing : {"enter", "run", "leave", "check"}) {
    int left = 0, ran = 0;
    const auto step = [&](const char* name) {
      return [&, name](size_t) { return failing == name ? absl::AbortedError(name) : absl::OkStatus(); };
    };
    TileStop stop(nullptr);
    const TileOutcomes outcomes =
        RunTileThreads(1,
                       {.enter = step("enter"),
                        .run =
                            [&](size_t) {
                              ++ran;
                              return failing == "run" ? absl::AbortedError("run") : absl::OkStatus();
                            },
                        .leave =
                            [&](size_t) {
                              ++left;
                              return failing == "leave" ? absl::AbortedError("leave") : absl::OkStatus();
                            },
                        .check = step("check")},
                       true, &stop);
    EXPECT_EQ(outcomes.tiles[0], absl::AbortedError(failing));
    EXPECT_EQ(outcomes.begun, failing != "enter");
    EXPECT_EQ(ran, failing == "enter" ? 0 : 1);
    EXPECT_EQ(left, failing == "enter" ? 0 : 1);
    EXPECT_TRUE(stop.stopped());
  }
}

TEST(TileThreadsTest, FirstErrorStopsOtherTiles) {
  TileStop stop(nullptr);
  const TileOutcomes outcomes = RunTileThreads(3, {.run = [&](size_t tile) -> absl::Status {
                                                 if (tile == 2) return absl::DataLossError("lost");
                                                 while (!stop.stopped()) std::this_thread::yield();
                                                 return absl::CancelledError("stopped");
                                               }},
                                               true, &stop);
  EXPECT_EQ(FirstFailure(outcomes.tiles), 2) << "the others only stopped";
}

TEST(TileThreadsTest, CancelledTileDoesNotBegin) {
  Cancellation cancellation;
  cancellation.Cancel();
  TileStop stop(&cancellation);
  int ran = 0;
  const TileOutcomes outcomes = RunTileThreads(2,
                                               {.run =
                                                    [&](size_t) {
                                                      ++ran;
                                                      return absl::OkStatus();
                                                    }},
                                               true, &stop);
  EXPECT_EQ(ran, 0);
  EXPECT_FALSE(outcomes.begun);
  EXPECT_TRUE(absl::IsCancelled(outcomes.tiles[0]));
  EXPECT_EQ(FirstFailure(outcomes.tiles), 0);
}

TEST(TileThreadsTest, NoTilesMeanNoWork) {
  TileStop stop(nullptr);
  EXPECT_TRUE(RunTileThreads(0, {}, true, &stop).tiles.empty());
  EXPECT_EQ(FirstFailure({}), 0);
}

}  // namespace
}  // namespace berth::internal
