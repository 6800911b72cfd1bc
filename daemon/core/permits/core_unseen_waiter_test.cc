// Waiters whose processes the daemon cannot see, because they are in another PID namespace: no look shows which of them
// are stopped.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

using Taking = TakeUpWords::Taking;

constexpr absl::Duration kPatience = absl::Milliseconds(500);

AcquireRequest One(const std::string& key) { return {.pool = "gpu-tests", .holder_key = key}; }

// Its looks take that many processes.
Config ConfigWith(uint64_t processes_per_look) {
  Config config = CoreHarness::DefaultConfig();
  config.pools[0].cap = 1;
  config.limits.processes_per_look = processes_per_look;
  return config;
}

class CoreUnseenWaiterTest : public testing::Test {
 protected:
  // Sends a request with the tag.
  using Request = std::function<void(Core&, CallId, const Caller&, const RequestTag&, Effects*)>;
  struct Waits {
    Peer peer;
    Request request;
    CallId call;
  };

  void Start(uint64_t processes_per_look = 256) {
    h_.emplace(ConfigWith(processes_per_look));
    h_->unseen = true;
  }
  // Opens a process that has its page, and sends its request.
  Waits Send(const Request& request) {
    Peer peer = h_->Open();
    peer.takes_up = true;
    EXPECT_TRUE(h_->StatusOf(h_->KeepPermits(peer)).ok());
    Waits waits{.peer = peer, .request = request};
    waits.peer.Next();
    SendAgain(waits);
    return waits;
  }
  void SendAgain(Waits& waits) {
    waits.call = h_->Ask([&](Core& core, CallId call, Effects* effects) {
      waits.request(core, call, waits.peer.caller(), waits.peer.Again(), effects);
    });
  }
  Request Acquire(const std::string& key) {
    return [this, key](Core& core, CallId call, const Caller& caller, const RequestTag& tag, Effects* effects) {
      core.Acquire(h_->now, call, caller, tag, One(key), effects);
    };
  }
  Request Gang() {
    return [this](Core& core, CallId call, const Caller& caller, const RequestTag& tag, Effects* effects) {
      core.AcquireGang(h_->now, call, caller, tag,
                       {.members = {{.pool = "gpu-tests"}, {.pool = "wide"}}, .holder_key = "gang"}, effects);
    };
  }
  Request Allocate() {
    return [this](Core& core, CallId call, const Caller& caller, const RequestTag& tag, Effects* effects) {
      core.Allocate(h_->now, call, caller, tag, {.bytes = MiB(16), .wait = true}, effects);
    };
  }
  bool Granted(const Waits& waits) const { return h_->Answered(waits.call) && h_->StatusOf(waits.call).ok(); }
  void Pass(absl::Duration time) {
    h_->now += time;
    h_->Tick();
  }
  // Passes time until the request of a process that runs is granted. The process sends its request again when asked to.
  absl::Duration AwaitGrant(Waits& runs, absl::Duration step = absl::Milliseconds(250)) {
    const absl::Time begin = h_->now;
    while (!Granted(runs) && h_->now - begin < absl::Minutes(1)) {
      if (h_->Answered(runs.call)) SendAgain(runs);
      h_->WorkAll();
      if (!h_->Answered(runs.call)) Pass(step);
    }
    EXPECT_TRUE(Granted(runs));
    return h_->now - begin;
  }
  uint64_t CountWithdrawn(const std::vector<Waits>& all) {
    uint64_t count = 0;
    for (const Waits& waits : all) count += h_->take_up_words[waits.peer.channel].IsWithdrawn(waits.peer.sequence);
    return count;
  }

  std::optional<CoreHarness> h_;
};

TEST_F(CoreUnseenWaiterTest, HundredStoppedWaitersCostOneLimit) {
  struct Row {
    uint64_t processes_per_look;
    int stopped;
    absl::Duration step;
  };
  // Looks of 16 processes follow one another after 10 ms.
  for (const Row& row : {Row{256, 100, absl::Milliseconds(250)}, Row{16, 40, absl::Milliseconds(10)}}) {
    SCOPED_TRACE(row.processes_per_look);
    Start(row.processes_per_look);
    Peer holder = h_->Open();
    const AcquireResult held = h_->MustAcquire(holder, One("h"));
    std::vector<Waits> stopped;
    for (int i = 0; i < row.stopped; ++i) stopped.push_back(Send(i % 2 == 1 ? Gang() : Acquire("s")));
    Waits runs = Send(Acquire("r"));
    const Waits last = Send(Acquire("l"));
    h_->Release(holder, held.acquisition);
    EXPECT_LE(AwaitGrant(runs, row.step), kPatience + absl::Milliseconds(10));
    EXPECT_EQ(CountWithdrawn(stopped), 1u);
    EXPECT_FALSE(Granted(last)) << "it came later";
    EXPECT_EQ(h_->Pool().out, 1u);
    EXPECT_EQ(h_->take_up_words[runs.peer.channel].Take(runs.peer.sequence), Taking::kTaken);
    // The next unit is for the first one that continues.
    SendAgain(stopped[7]);
    h_->Release(runs.peer, h_->Get<AcquireResult>(runs.call).acquisition);
    EXPECT_TRUE(Granted(stopped[7]));
  }
}

TEST_F(CoreUnseenWaiterTest, StoppedByteWaitersCostOneLimit) {
  Start();
  Peer holder = h_->Open();
  const AllocateResult held = h_->MustAllocate(holder, MiB(16));
  std::vector<Waits> stopped;
  for (int i = 0; i < 40; ++i) stopped.push_back(Send(Allocate()));
  Waits runs = Send(Allocate());
  Pass(absl::Milliseconds(1));
  h_->Free(holder, held.block.handle, {held.import});
  EXPECT_LE(AwaitGrant(runs), kPatience + absl::Milliseconds(10));
  EXPECT_EQ(h_->BytesOf(0).live, MiB(16));
}

TEST_F(CoreUnseenWaiterTest, WaitersAreLeftAloneWhileGrantsAreTakenUp) {
  Start();
  std::vector<Waits> all;
  for (int i = 0; i < 10; ++i) all.push_back(Send(Acquire(absl::StrCat(i))));
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_TRUE(Granted(all[i])) << i;
    // Late, but in time.
    for (int part = 0; part < 2; ++part) Pass(absl::Milliseconds(120));
    EXPECT_EQ(h_->take_up_words[all[i].peer.channel].Take(all[i].peer.sequence), Taking::kTaken);
    Pass(absl::Seconds(1));
    for (size_t later = i + 1; later < all.size(); ++later) ASSERT_FALSE(h_->Answered(all[later].call)) << later;
    h_->Release(all[i].peer, h_->Get<AcquireResult>(all[i].call).acquisition);
  }
}

TEST_F(CoreUnseenWaiterTest, WaiterThatHasSpokenSinceIsLeftAlone) {
  Start();
  const Waits untaken = Send(Acquire("u"));
  ASSERT_TRUE(Granted(untaken));
  Pass(absl::Milliseconds(100));
  const Waits later = Send(Acquire("l"));
  h_->unseen = false;
  const Waits seen = Send(Acquire("s"));
  for (int part = 0; part < 399; ++part) Pass(absl::Milliseconds(1));
  EXPECT_FALSE(h_->Answered(later.call));
  Pass(absl::Milliseconds(1));
  EXPECT_TRUE(Granted(later));
  EXPECT_FALSE(h_->Answered(seen.call));
}

// However long the daemon itself was stopped.
TEST_F(CoreUnseenWaiterTest, DoubtPrecedesWithdrawalOfOverdueGrant) {
  Start();
  Peer holder = h_->Open();
  const AcquireResult held = h_->MustAcquire(holder, One("h"));
  std::vector<Waits> stopped;
  for (int i = 0; i < 10; ++i) stopped.push_back(Send(Acquire("s")));
  Waits runs = Send(Acquire("r"));
  h_->Release(holder, held.acquisition);
  Pass(absl::Seconds(5));
  EXPECT_TRUE(h_->Refused(runs.call, Reason::kProcessStopped));
  AwaitGrant(runs);
  EXPECT_EQ(CountWithdrawn(stopped), 1u);
}

}  // namespace
}  // namespace berth::core
