// Compares the table with a naive model: random processes use random blocks on streams that run in any order their
// waits allow. The model stores every use forever and checks all pairs.

#include <deque>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "daemon/core/fences/fence_table.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

constexpr int kBlocks = 4;
constexpr int kSteps = 3000;
constexpr uint64_t kMostProcesses = 6;

// A prepared launch, which is or will be on a stream.
struct Launch {
  StreamKey stream;
  std::map<BlockId, Access> blocks;
  std::vector<FenceWait> waits;
  uint64_t value = 0;
  bool ended = false;
};

class Model {
 public:
  explicit Model(uint32_t seed) : random_(seed) {
    for (int i = 0; i < 4; ++i) AddProcess();
  }

  void Step() {
    now_ += absl::Milliseconds(10);
    table_.Expire(step());
    switch (Draw(8)) {
      case 0:
      case 1:
        Prepare();
        break;
      case 2:
      case 3:
        Finish();
        break;
      case 4:
      case 5:
      case 6:
        RunOne();
        break;
      default:
        if (Draw(20) == 0) Kill();
    }
    TakeOutcomes();
    ASSERT_TRUE(table_.CheckInvariants().ok()) << table_.CheckInvariants();
  }

  // Runs all living launches to their end; a failure means that the waits deadlock.
  void Drain() {
    while (!open_.empty()) Finish();
    while (table_.next_deadline() != absl::InfiniteFuture()) {
      now_ = table_.next_deadline();
      table_.Expire(step());
      TakeOutcomes();
      while (!open_.empty()) Finish();
    }
    while (RunOne()) {
    }
    for (const auto& [stream, queue] : streams_) ASSERT_TRUE(queue.empty()) << "a stream waits for ever";
    for (int block = 1; block <= kBlocks; ++block) EXPECT_TRUE(table_.Idle(BlockId(block), read_));
  }

  uint64_t begun() const { return launches_.size(); }

 private:
  FenceStep step() { return FenceStep{.now = now_, .read = read_, .outcomes = &outcomes_}; }
  uint64_t Draw(uint64_t below) { return random_() % below; }

  void AddProcess() {
    const ChannelId channel(++last_channel_);
    for (int i = 0; i < 2; ++i) {
      streams_[*table_.streams().Open(now_, channel, ProcessInfo{}, 0, false, read_)];
    }
  }

  StreamKey AnyStream() { return std::next(streams_.begin(), Draw(streams_.size()))->first; }

  void Prepare() {
    const StreamKey stream = AnyStream();
    std::vector<BlockUse> uses;
    for (uint64_t i = 0; i <= Draw(3); ++i) {
      uses.push_back({BlockId(1 + Draw(kBlocks)), static_cast<Access>(1 + Draw(3))});
    }
    const RequestId request{stream.channel, ++sequence_};
    Launch& launch = asked_[request] = Launch{.stream = stream};
    for (const BlockUse& use : uses) {
      const auto [at, fresh] = launch.blocks.emplace(use.block, use.access);
      if (!fresh) at->second = at->second | use.access;
    }
    const auto prepared = table_.Prepare(step(), request, stream.slot, uses, now_ + absl::Seconds(1));
    if (!prepared.ok()) {
      asked_.erase(request);
    } else if (prepared->has_value()) {
      Begin(request, **prepared);
    }
  }

  void TakeOutcomes() {
    std::vector<PrepareOutcome> outcomes;
    outcomes.swap(outcomes_);
    for (const PrepareOutcome& outcome : outcomes) {
      if (outcome.result.ok()) {
        Begin(outcome.request, *outcome.result);
      } else {
        asked_.erase(outcome.request);
      }
    }
  }

  void Begin(const RequestId& request, const Prepared& prepared) {
    Launch launch = std::move(asked_.at(request));
    asked_.erase(request);
    for (const auto& [other, open] : open_) {
      ASSERT_TRUE(open.stream == launch.stream || !Conflict(open, launch)) << "two conflicting uses are open";
    }
    launch.waits = prepared.waits;
    for (const FenceWait& wait : launch.waits) {
      ASSERT_TRUE(streams_.contains(wait.stream));
      ASSERT_FALSE(wait.stream == launch.stream);
      ASSERT_LE(wait.value, values_[wait.stream]) << "a value was named that is not on its way";
    }
    open_.emplace(prepared.use, std::move(launch));
  }

  void Finish() {
    if (open_.empty()) return;
    const auto at = std::next(open_.begin(), Draw(open_.size()));
    const UseId use = at->first;
    Launch launch = std::move(at->second);
    open_.erase(at);
    if (Draw(10) == 0) {
      ASSERT_TRUE(table_.Abandon(step(), launch.stream.channel, use).ok());
    } else {
      launch.value = ++values_[launch.stream];
      ASSERT_TRUE(table_.Finish(step(), launch.stream.channel, use, launch.value).ok());
      launches_.push_back(launch);
      streams_.at(launch.stream).push_back(launches_.size() - 1);
    }
    TakeOutcomes();
  }

  static bool Conflict(const Launch& a, const Launch& b) {
    for (const auto& [block, access] : a.blocks) {
      const auto other = b.blocks.find(block);
      if (other != b.blocks.end() && (Writes(access) || Writes(other->second))) return true;
    }
    return false;
  }

  // Runs the head of a random stream that need not wait. Returns whether there was one.
  bool RunOne() {
    std::vector<size_t> ready;
    for (const auto& [stream, queue] : streams_) {
      if (queue.empty()) continue;
      bool waits = false;
      for (const FenceWait& wait : launches_[queue.front()].waits) {
        // The fence values of a dead process are at the maximum.
        waits = waits || (streams_.contains(wait.stream) && fence_values_[wait.stream].done < wait.value);
      }
      if (!waits) ready.push_back(queue.front());
    }
    if (ready.empty()) return false;
    const size_t index = ready[Draw(ready.size())];
    Launch& launch = launches_[index];
    // In the order of finishes, every conflicting pair has run one after the other.
    for (size_t before = 0; before < index; ++before) {
      const Launch& other = launches_[before];
      EXPECT_TRUE(other.ended || !Conflict(other, launch)) << "a use ran while one before it had not ended";
    }
    launch.ended = true;
    fence_values_[launch.stream].done = launch.value;
    streams_.at(launch.stream).pop_front();
    return true;
  }

  void Kill() {
    const ChannelId channel = AnyStream().channel;
    std::set<BlockId> torn;
    for (const auto& [use, launch] : open_) {
      if (launch.stream.channel != channel) continue;
      for (const auto& [block, access] : launch.blocks) {
        if (Writes(access)) torn.insert(block);
      }
    }
    // The latest write of a block decides: a dead process's unfinished write tears the block.
    std::map<BlockId, const Launch*> last;
    for (const Launch& launch : launches_) {
      for (const auto& [block, access] : launch.blocks) {
        if (Writes(access)) last[block] = &launch;
      }
    }
    for (const auto& [block, launch] : last) {
      if (launch->stream.channel == channel && !launch->ended) torn.insert(block);
    }
    table_.ProcessGone(step(), channel, {});
    for (const BlockId block : torn) EXPECT_TRUE(table_.Torn(block));
    std::erase_if(open_, [channel](const auto& entry) { return entry.second.stream.channel == channel; });
    std::erase_if(asked_, [channel](const auto& entry) { return entry.first.channel == channel; });
    std::erase_if(streams_, [channel](const auto& entry) { return entry.first.channel == channel; });
    // Launches queued on its streams will not run.
    for (Launch& launch : launches_) {
      if (launch.stream.channel == channel) launch.ended = true;
    }
    if (last_channel_ < 1000 && streams_.size() < 2 * kMostProcesses) AddProcess();
  }

  std::mt19937_64 random_;
  Journal journal_;
  FenceTable table_{&journal_, FenceLimits{}};
  absl::Time now_ = absl::UnixEpoch();
  uint64_t last_channel_ = 0;
  uint64_t sequence_ = 0;
  std::map<StreamKey, FenceValues> fence_values_;
  std::map<StreamKey, uint64_t> values_;
  ReadFenceValues read_ = [this](StreamKey stream) { return fence_values_[stream]; };
  std::vector<PrepareOutcome> outcomes_;
  // Living streams, with their launches that have not run.
  std::map<StreamKey, std::deque<size_t>> streams_;
  std::map<RequestId, Launch> asked_;
  std::map<UseId, Launch> open_;
  // Every launch ever finished, in the order of finishes.
  std::vector<Launch> launches_;
};

class FenceTableOrderTest : public testing::TestWithParam<uint32_t> {};

TEST_P(FenceTableOrderTest, ConflictingUsesRunInTurnWithoutEndlessWait) {
  std::cout << "seed " << GetParam() << "\n";
  Model model(GetParam());
  for (int i = 0; i < kSteps && !HasFailure(); ++i) model.Step();
  if (!HasFailure()) model.Drain();
  EXPECT_GT(model.begun(), 200u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, FenceTableOrderTest, testing::Range(1u, 21u));

}  // namespace
}  // namespace berth::core
