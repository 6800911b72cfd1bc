// Property test: the arena against a model, with random seeds and any sequence of calls. Live allocations do not
// overlap. Memory that a stream may still use goes to no other stream. The accounting balances, and freed memory merges
// again.

#include <array>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/sdk/arena/arena_core.h"
#include "client/sdk/arena/arena_size_classes.h"
#include "client/sdk/arena/testing/arena_fakes.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

constexpr int kStreams = 4;
constexpr Bytes kChunk = MiB(16);

ArenaStream Stream(uint64_t number) { return static_cast<ArenaStream>(number); }

// Picks sizes of every order of magnitude with equal probability, up to 32 MiB, twice a chunk.
uint64_t RandomSize(std::mt19937_64& random) {
  const uint64_t most = uint64_t{1} << random() % 26;
  return most + random() % most;
}

// Models each piece of memory: the streams that may use it, and until when. Each simulated stream has a clock of queued
// work and a clock of finished work.
class Model {
 public:
  explicit Model(FakeProgress* progress) : progress_(progress) {}

  struct Live {
    uint64_t bytes;
    // Further streams, added by UsedOn().
    std::vector<uint64_t> used_on;
  };

  // Checks that `stream` may have [address, address + bytes), and records the allocation.
  void Allocate(uintptr_t address, uint64_t bytes, uint64_t stream) {
    const uintptr_t end = address + bytes;
    auto after = live_.lower_bound(address);
    if (after != live_.end()) {
      ASSERT_LE(end, after->first) << "runs into the next";
    }
    if (after != live_.begin()) {
      const auto before = std::prev(after);
      ASSERT_LE(before->first + before->second.bytes, address) << "lies in the one before";
    }
    std::vector<Freed> still;
    for (const Freed& freed : freed_) {
      const uintptr_t freed_end = freed.address + freed.bytes;
      if (freed_end <= address || end <= freed.address) {
        if (!IsOver(freed)) still.push_back(freed);
        continue;
      }
      ASSERT_TRUE(freed.stream == stream || done_[freed.stream] >= freed.at)
          << "stream " << freed.stream << " may still use what stream " << stream << " got";
      for (const auto& [user, at] : freed.others) {
        ASSERT_GE(done_[user], at) << "stream " << user << " may still use what was freed under it";
      }
      // From here on the allocation represents the memory that it covers: its stream comes after.
      if (freed.address < address) still.push_back(Part(freed, freed.address, address));
      if (end < freed_end) still.push_back(Part(freed, end, freed_end));
    }
    freed_ = std::move(still);
    live_[address] = {.bytes = bytes};
  }

  void Free(uintptr_t address, uint64_t stream) {
    const Live live = live_.at(address);
    live_.erase(address);
    // Work that is queued now may still use the memory.
    Freed freed = {.address = address, .bytes = live.bytes, .stream = stream, .at = ++queued_[stream]};
    for (const uint64_t user : live.used_on) {
      if (user != stream) freed.others.push_back({user, ++queued_[user]});
    }
    freed_.push_back(std::move(freed));
  }

  // Finishes all work that is queued on the stream.
  void Finish(uint64_t stream) {
    done_[stream] = queued_[stream];
    progress_->Finish(Stream(stream));
  }

  std::map<uintptr_t, Live>& live() { return live_; }
  uint64_t live_count() const { return live_.size(); }
  uint64_t live_bytes() const {
    uint64_t sum = 0;
    for (const auto& [address, live] : live_) sum += live.bytes;
    return sum;
  }

 private:
  struct Freed {
    uintptr_t address;
    uint64_t bytes;
    // Stream of the free, and its queue clock at the free.
    uint64_t stream;
    uint64_t at;
    // The same for the streams of UsedOn().
    std::vector<std::pair<uint64_t, uint64_t>> others;
  };

  bool IsOver(const Freed& freed) {
    bool over = done_[freed.stream] >= freed.at;
    for (const auto& [user, at] : freed.others) over &= done_[user] >= at;
    return over;
  }
  static Freed Part(Freed freed, uintptr_t begin, uintptr_t end) {
    freed.address = begin;
    freed.bytes = end - begin;
    return freed;
  }

  FakeProgress* const progress_;
  std::map<uintptr_t, Live> live_;
  std::vector<Freed> freed_;
  std::map<uint64_t, uint64_t> queued_;
  std::map<uint64_t, uint64_t> done_;
};

void ExpectBalanced(const ArenaCore& core, const FakeArenaSource& source, const Model& model) {
  const ArenaStats stats = core.Stats();
  ASSERT_EQ(stats.leased.count(), stats.live.count() + stats.cached.count() + stats.free.count() +
                                      stats.held.count() + stats.in_use.count());
  ASSERT_EQ(stats.leased, source.leased());
  ASSERT_EQ(stats.live.count(), model.live_bytes());
  ASSERT_EQ(stats.live_count, model.live_count());
  ASSERT_GE(stats.peak_out, stats.live);
  ASSERT_GE(stats.peak_leased, stats.leased);
}

struct Setting {
  ArenaPolicy policy;
  Bytes alignment;
  std::optional<Bytes> limit;
};

void PlayAgainstModel(uint64_t seed, const Setting& setting) {
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  const auto source = std::make_shared<FakeArenaSource>();
  const auto progress = std::make_shared<FakeProgress>();
  auto core = ArenaCore::Create(source, {.chunk_bytes = kChunk,
                                         .limit = setting.limit,
                                         .policy = setting.policy,
                                         .alignment = setting.alignment,
                                         .stream_patience = absl::ZeroDuration(),
                                         .progress = progress});
  ASSERT_TRUE(core.ok()) << core.status();
  Model model(progress.get());
  const ArenaSizeClasses classes(setting.policy);
  const auto any = [&] { return std::next(model.live().begin(), random() % model.live().size()); };
  for (int step = 0; step < 3000; ++step) {
    const uint64_t stream = random() % kStreams;
    const uint64_t what = random() % 100;
    if (what < 50) {
      const uint64_t bytes = RandomSize(random);
      const absl::StatusOr<void*> pointer = (*core)->Allocate(Bytes(bytes), Stream(stream));
      if (!pointer.ok()) {
        ASSERT_TRUE(setting.limit.has_value()) << pointer.status();
        ASSERT_TRUE(absl::IsResourceExhausted(pointer.status())) << pointer.status();
        continue;
      }
      const auto address = reinterpret_cast<uintptr_t>(*pointer);
      ASSERT_EQ(address % setting.alignment.count(), 0u);
      // The allocation owns the whole rounded size, including bytes beyond the request.
      const uint64_t granule = setting.alignment.count();
      const uint64_t rounded = classes.Granules(classes.Ceil((bytes - 1) / granule + 1)) * granule;
      ASSERT_NO_FATAL_FAILURE(model.Allocate(address, rounded, stream));
    } else if (what < 90 && !model.live().empty()) {
      const uintptr_t address = any()->first;
      ASSERT_TRUE((*core)->Free(reinterpret_cast<void*>(address), Stream(stream)).ok());
      model.Free(address, stream);
      ASSERT_FALSE((*core)->Free(reinterpret_cast<void*>(address), Stream(stream)).ok());
    } else if (what < 93 && !model.live().empty()) {
      const auto it = any();
      ASSERT_TRUE((*core)->UsedOn(reinterpret_cast<void*>(it->first), Stream(stream)).ok());
      it->second.used_on.push_back(stream);
    } else if (what < 98) {
      model.Finish(stream);
    } else {
      ASSERT_TRUE((*core)->Trim().ok());
    }
    if (step % 50 == 0) {
      ASSERT_NO_FATAL_FAILURE(ExpectBalanced(**core, *source, model));
    }
  }
  // With everything freed and done, the arena merges to whole chunks and can give all of them back.
  while (!model.live().empty()) {
    const uintptr_t address = any()->first;
    ASSERT_TRUE((*core)->Free(reinterpret_cast<void*>(address), Stream(0)).ok());
    model.Free(address, 0);
  }
  for (uint64_t stream = 0; stream < kStreams; ++stream) progress->SetIdle(Stream(stream), true);
  const Bytes leased = source->leased();
  // Twice: extents that waited for other streams reach their own stream's bins first.
  Bytes trimmed = *(*core)->Trim();
  trimmed = *CheckedAdd(trimmed, *(*core)->Trim());
  EXPECT_EQ(trimmed, leased);
  EXPECT_EQ(source->leased(), Bytes());
  EXPECT_EQ((*core)->Stats().live, Bytes());
}

TEST(ArenaPropertyTest, SizeClassesMatchModel) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    PlayAgainstModel(seed, {.policy = ArenaPolicy::kSizeClasses, .alignment = Bytes(256)});
    if (HasFatalFailure()) return;
  }
}

TEST(ArenaPropertyTest, PowersOfTwoMatchModel) {
  for (uint64_t seed = 101; seed <= 105; ++seed) {
    PlayAgainstModel(seed, {.policy = ArenaPolicy::kPowerOfTwo, .alignment = KiB(4)});
    if (HasFatalFailure()) return;
  }
}

TEST(ArenaPropertyTest, LimitedArenaMatchesModel) {
  for (uint64_t seed = 201; seed <= 210; ++seed) {
    PlayAgainstModel(seed, {.policy = ArenaPolicy::kSizeClasses, .alignment = Bytes(256), .limit = MiB(100)});
    if (HasFatalFailure()) return;
  }
}

// Threads allocate and free at random, while one thread trims and reads statistics. Allocations are recorded while they
// are held.
TEST(ArenaPropertyTest, EightThreadsNeverShareMemory) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 3000;
  constexpr uint64_t kGranule = 4096;
  const auto source = std::make_shared<FakeArenaSource>();
  const Bytes limit = MiB(256);
  auto core = ArenaCore::Create(source, {.chunk_bytes = kChunk,
                                         .limit = limit,
                                         .alignment = Bytes(kGranule),
                                         .progress = std::make_shared<ImmediateProgress>()});
  ASSERT_TRUE(core.ok()) << core.status();
  // Held allocations: address to bytes.
  std::mutex mu;
  std::map<uintptr_t, uint64_t> held;
  std::atomic<bool> stop = false;
  std::thread trimmer([&] {
    while (!stop.load()) {
      EXPECT_TRUE((*core)->Trim().ok());
      EXPECT_LE((*core)->Stats().leased, limit);
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (int number = 0; number < kThreads; ++number) {
    threads.emplace_back([&, number] {
      std::mt19937_64 random(number);
      std::vector<std::pair<uintptr_t, uint64_t>> mine;
      const auto free_one = [&] {
        const size_t index = random() % mine.size();
        const auto [address, bytes] = mine[index];
        mine[index] = mine.back();
        mine.pop_back();
        {
          std::lock_guard lock(mu);
          ASSERT_EQ(held.erase(address), 1u);
        }
        // Some frees run on another stream than the thread's own, which other threads use.
        ASSERT_TRUE((*core)->Free(reinterpret_cast<void*>(address), Stream(random() % kThreads)).ok());
      };
      for (int round = 0; round < kRounds; ++round) {
        if (!mine.empty() && random() % 2 == 0) {
          ASSERT_NO_FATAL_FAILURE(free_one());
          continue;
        }
        const uint64_t bytes = RandomSize(random) % MiB(4).count() + 1;
        const absl::StatusOr<void*> pointer = (*core)->Allocate(Bytes(bytes), Stream(number));
        if (!pointer.ok()) {
          ASSERT_TRUE(absl::IsResourceExhausted(pointer.status())) << pointer.status();
          continue;
        }
        const auto address = reinterpret_cast<uintptr_t>(*pointer);
        if (random() % 8 == 0) {
          ASSERT_TRUE((*core)->UsedOn(*pointer, Stream(random() % kThreads)).ok());
        }
        {
          std::lock_guard lock(mu);
          const auto [it, fresh] = held.emplace(address, bytes);
          ASSERT_TRUE(fresh);
          if (it != held.begin()) {
            ASSERT_LE(std::prev(it)->first + std::prev(it)->second, address);
          }
          if (std::next(it) != held.end()) {
            ASSERT_LE(address + bytes, std::next(it)->first);
          }
        }
        mine.push_back({address, bytes});
      }
      while (!mine.empty()) ASSERT_NO_FATAL_FAILURE(free_one());
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop.store(true);
  trimmer.join();
  ASSERT_TRUE((*core)->Trim().ok());
  ASSERT_TRUE((*core)->Trim().ok());
  EXPECT_EQ(source->leased(), Bytes());
  const ArenaStats stats = (*core)->Stats();
  EXPECT_EQ(stats.live_count, 0u);
  EXPECT_EQ(stats.live, Bytes());
  EXPECT_EQ(stats.leases, stats.returns);
}

// One thread allocates, another frees: memory circulates through the heap and does not grow without bound.
TEST(ArenaPropertyTest, MemoryFreedByOtherThreadIsReused) {
  const auto source = std::make_shared<FakeArenaSource>();
  auto core = ArenaCore::Create(
      source, {.chunk_bytes = kChunk, .limit = MiB(64), .progress = std::make_shared<ImmediateProgress>()});
  ASSERT_TRUE(core.ok()) << core.status();
  // A ring, so that a busy machine need not switch threads for each allocation.
  constexpr int kCount = 20'000;
  std::array<std::atomic<void*>, 64> handed = {};
  std::thread consumer([&] {
    for (int i = 0; i < kCount; ++i) {
      std::atomic<void*>& slot = handed[i % handed.size()];
      void* pointer;
      while ((pointer = slot.exchange(nullptr)) == nullptr) std::this_thread::yield();
      ASSERT_TRUE((*core)->Free(pointer, Stream(1)).ok());
    }
  });
  std::mt19937_64 random(5);
  for (int i = 0; i < kCount; ++i) {
    const absl::StatusOr<void*> pointer = (*core)->Allocate(Bytes(random() % KiB(64).count() + 1), Stream(1));
    ASSERT_TRUE(pointer.ok()) << pointer.status();
    std::atomic<void*>& slot = handed[i % handed.size()];
    while (slot.load() != nullptr) std::this_thread::yield();
    slot.store(*pointer);
  }
  consumer.join();
  EXPECT_EQ((*core)->Stats().live_count, 0u);
}

}  // namespace
}  // namespace berth::internal
