#include "daemon/broker/broker.h"

#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "daemon/broker/testing/recorded_call.h"
#include "daemon/core/types/record_kind.h"
#include "daemon/ledger/ledger.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

// Records the effects, and checks that no two threads execute effects at once.
class RecordingSink final : public EffectSink {
 public:
  void Apply(const core::CreateBlock& effect) override {
    Record("create", effect.block.value());
    if (on_create) on_create();
  }
  void Apply(const core::ReleaseBlock& effect) override { Record("release", effect.block.value()); }
  void Apply(const core::MakeFencePage& effect) override { Record("make page", effect.channel.value()); }
  void Apply(const core::DropFencePage& effect) override { Record("drop page", effect.channel.value()); }
  void Apply(const core::Deliver& effect) override { Record("deliver", effect.delivery.number); }
  void Apply(const core::CloseChannel& effect) override { Record("close channel", effect.channel.value()); }
  void Apply(const core::DropChannel& effect) override { Record("drop channel", effect.channel.value()); }
  void Apply(const core::DropSession& effect) override { Record("drop session", effect.session.value()); }
  void Apply(const core::SendWorkerCommand& effect) override { Record("order", effect.device); }
  void Apply(const core::DevicesChanged&) override { Record("devices changed", 0); }
  void Apply(const core::LogRecord&) override { ++records; }
  void Apply(const core::LeaseRecord&) override { ++leases; }
  void Apply(const core::ModuleWork&) override {}
  void Apply(const core::LookAtProcesses&) override {}
  void ArmTimer(absl::Time when) override {
    armed = when;
    ++arms;
  }
  void Wake() override { ++wakes; }

  std::vector<std::string> applied;
  std::function<void()> on_create;
  int records = 0;
  std::atomic<int> leases{0};
  absl::Time armed = absl::InfiniteFuture();
  int arms = 0;
  std::atomic<int> wakes{0};

 private:
  void Record(const char* what, uint64_t) {
    EXPECT_EQ(busy_.fetch_add(1), 0) << "two threads carry effects out at once";
    applied.push_back(what);
    busy_.fetch_sub(1);
  }
  std::atomic<int> busy_{0};
};

class BrokerTest : public testing::Test {
 protected:
  void SetUp() override {
    core::Config config = {.node = 1, .incarnation = 1, .pools = {{.name = "gpu-tests", .cap = 1}}};
    core_ = std::make_unique<core::Core>(
        config, [this] { return ++last_id_; }, [](core::StreamKey) { return core::FenceValues(); });
    broker_ = std::make_unique<Broker>(core_.get(), &sink_, ledger_.get());
    broker_->Step([&](core::Core& core, absl::Time now, core::Effects*) {
      session_ = *core.OpenSession(now, secret_, tenant_, "test", {});
      channel_ = *core.JoinSession(now, session_, secret_, tenant_, {});
    });
  }

  core::Caller Caller() const {
    return {.credentials = {.session = session_, .channel = channel_, .secret = secret_}, .tenant = tenant_};
  }
  CallId Acquire(uint64_t sequence, const std::string& key, Call* call,
                 absl::Time deadline = absl::InfiniteFuture()) {
    const CallId id = broker_->NewCall();
    broker_->Submit(id, call, [&](core::Core& core, absl::Time now, CallId call_id, core::Effects* effects) {
      core.Acquire(now, call_id, Caller(), {.sequence = sequence},
                   {.pool = "gpu-tests", .holder_key = key, .deadline = deadline}, effects);
    });
    return id;
  }

  uint64_t last_id_ = 0;
  const core::Tenant tenant_ = {.uid = 1000};
  const Secret secret_ = {};
  RecordingSink sink_;
  // For tests that persist the core's changes.
  std::unique_ptr<Ledger> ledger_;
  std::unique_ptr<core::Core> core_;
  std::unique_ptr<Broker> broker_;
  SessionId session_;
  ChannelId channel_;
};

TEST_F(BrokerTest, ImmediateAnswerIsSentAtOnce) {
  RecordedCall call;
  Acquire(1, "a", &call);
  EXPECT_EQ(call.answers(), 1);
  EXPECT_TRUE(call.Await().ok()) << call.Await().status();
}

TEST_F(BrokerTest, EffectsAfterOwnAnswerRunInLoop) {
  RecordedCall recalled;
  broker_->Submit(broker_->NewCall(), &recalled,
                  [&](core::Core&, absl::Time, CallId id, core::Effects* effects) {
                    effects->push_back({.what = core::CreateBlock()});
                    effects->push_back({.what = core::Reply{.call = id, .response = core::ReleaseResult()}});
                    effects->push_back({.what = core::LogRecord()});
                    effects->push_back({.what = core::ReleaseBlock()});
                    effects->push_back({.what = core::DevicesChanged()});
                  });
  EXPECT_EQ(recalled.answers(), 1);
  EXPECT_EQ(sink_.applied, std::vector<std::string>{"create"});
  EXPECT_EQ(sink_.wakes, 1);
  broker_->Continue();
  EXPECT_EQ(sink_.applied, (std::vector<std::string>{"create", "release", "devices changed"}));
  broker_->Continue();
  EXPECT_EQ(sink_.applied.size(), 3u);
}

TEST_F(BrokerTest, RecordsPrecedeAnswerOfTheirStep) {
  struct Witness final : Call {
    explicit Witness(const RecordingSink* sink) : sink(*sink) {}
    void Answer(absl::StatusOr<core::Response>) override { seen = {sink.records, sink.leases}; }
    const RecordingSink& sink;
    std::pair<int, int> seen;
  };
  Witness call(&sink_);
  broker_->Submit(broker_->NewCall(), &call, [&](core::Core&, absl::Time, CallId id, core::Effects* effects) {
    effects->push_back({.what = core::Reply{.call = id, .response = core::ReleaseResult()}});
    effects->push_back({.what = core::LogRecord()});
    effects->push_back({.what = core::LeaseRecord()});
  });
  EXPECT_EQ(call.seen, std::pair(1, 1));
}

TEST_F(BrokerTest, RecordIsWrittenBeforeStepReturns) {
  // While another thread executes a different step's effects.
  sink_.on_create = [&] {
    std::thread other([&] {
      broker_->Step([](core::Core&, absl::Time, core::Effects* effects) {
        effects->push_back({.what = core::ReleaseBlock()});
        effects->push_back({.what = core::LogRecord()});
      });
      EXPECT_EQ(sink_.records, 1);
    });
    other.join();
  };
  broker_->Step([](core::Core&, absl::Time, core::Effects* effects) {
    effects->push_back({.what = core::CreateBlock()});
  });
  EXPECT_EQ(sink_.applied, (std::vector<std::string>{"create", "release"}));
}

TEST_F(BrokerTest, LeftEffectsRunBeforeLaterStep) {
  RecordedCall call;
  broker_->Submit(broker_->NewCall(), &call, [&](core::Core&, absl::Time, CallId id, core::Effects* effects) {
    effects->push_back({.what = core::Reply{.call = id, .response = core::ReleaseResult()}});
    effects->push_back({.what = core::ReleaseBlock()});
  });
  EXPECT_TRUE(sink_.applied.empty());
  broker_->Step([](core::Core&, absl::Time, core::Effects* effects) {
    effects->push_back({.what = core::CreateBlock()});
  });
  EXPECT_EQ(sink_.applied, (std::vector<std::string>{"release", "create"}));
}

TEST_F(BrokerTest, CallDeliversAnswersThatItCauses) {
  RecordedCall waiter;
  const CallId waiting = broker_->NewCall();
  broker_->Submit(waiting, &waiter, [](core::Core&, absl::Time, CallId, core::Effects*) {});
  RecordedCall call;
  broker_->Submit(broker_->NewCall(), &call, [&](core::Core&, absl::Time, CallId id, core::Effects* effects) {
    effects->push_back({.what = core::Reply{.call = id, .response = core::ReleaseResult()}});
    effects->push_back({.what = core::Reply{.call = waiting, .response = core::ReleaseResult()}});
  });
  EXPECT_EQ(waiter.answers(), 1);
  EXPECT_EQ(sink_.wakes, 0);
}

TEST_F(BrokerTest, WaiterIsAnsweredInItsTurn) {
  RecordedCall first;
  RecordedCall second;
  Acquire(1, "a", &first);
  Acquire(2, "b", &second);
  EXPECT_EQ(second.answers(), 0);
  RecordedCall release;
  broker_->Submit(broker_->NewCall(), &release,
                  [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                    core.Release(now, id, Caller(), {.sequence = 3},
                                 std::get<core::AcquireResult>(*first.Await()).acquisition, effects);
                  });
  EXPECT_EQ(release.answers(), 1);
  EXPECT_EQ(second.answers(), 1);
  EXPECT_TRUE(second.Await().ok());
}

TEST_F(BrokerTest, CancelledWaiterIsAnsweredOnceAndLeaves) {
  RecordedCall first;
  RecordedCall second;
  Acquire(1, "a", &first);
  const CallId id = Acquire(2, "b", &second);
  broker_->Cancel(id);
  broker_->Cancel(id);
  EXPECT_EQ(second.answers(), 1);
  EXPECT_EQ(second.Await().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(broker_->Read([](const core::Core& core) { return core.ListPools()[0].waiters; }), 0u);
}

TEST_F(BrokerTest, TimerIsArmedForDeadlineAndAgainAfterEarlyFire) {
  RecordedCall first;
  RecordedCall second;
  Acquire(1, "a", &first);
  EXPECT_EQ(sink_.armed, absl::InfiniteFuture());
  const absl::Time deadline = absl::Now() + absl::Hours(1);
  Acquire(2, "b", &second, deadline);
  EXPECT_EQ(sink_.armed, deadline);
  sink_.armed = absl::InfiniteFuture();
  broker_->TimerFired();
  EXPECT_EQ(sink_.armed, deadline);
  EXPECT_EQ(second.answers(), 0);
}

TEST_F(BrokerTest, PostponedDeadlineIsArmedWhenTimerFires) {
  RecordedCall first;
  RecordedCall second;
  RecordedCall third;
  Acquire(1, "a", &first);
  const absl::Time deadline = absl::Now() + absl::Hours(1);
  const CallId waiting = Acquire(2, "b", &second, deadline);
  Acquire(3, "c", &third, deadline + absl::Hours(1));
  EXPECT_EQ(sink_.arms, 1);
  broker_->Cancel(waiting);
  EXPECT_EQ(sink_.arms, 1);
  EXPECT_EQ(sink_.armed, deadline);
  broker_->TimerFired();
  EXPECT_EQ(sink_.armed, deadline + absl::Hours(1));
}

TEST_F(BrokerTest, NonServingBrokerRejectsRequestsButHandlesEvents) {
  RecordedCall before;
  Acquire(1, "a", &before);
  broker_->RefuseRequests(Refuse(Reason::kLedgerUnreadable, "no"));
  RecordedCall refused;
  Acquire(2, "b", &refused);
  EXPECT_TRUE(IsRefusal(refused.Await().status(), Reason::kLedgerUnreadable)) << refused.Await().status();
  EXPECT_TRUE(IsRefusal(broker_->CheckServes(), Reason::kLedgerUnreadable));
  EXPECT_TRUE(IsRefusal(broker_->CheckLedger(), Reason::kLedgerUnreadable));
  RecordedCall stop;
  const auto drain = [](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
    core.DrainToStop(now, id, core::Caller(), now, effects);
  };
  broker_->Submit(broker_->NewCall(), &stop, drain, /*always=*/true);
  EXPECT_TRUE(IsRefusal(stop.Await().status(), Reason::kBadCredentials)) << "the core's answer";
  const auto out = [&] { return broker_->Read([](const core::Core& core) { return core.ListPools()[0].out; }); };
  EXPECT_EQ(out(), 1u);
  broker_->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.LifelineHungUp(now, session_, effects);
    core.ProcessGone(now, channel_, effects);
  });
  EXPECT_EQ(out(), 0u);
}

// Calls a function when it is answered.
class HearingCall final : public Call {
 public:
  explicit HearingCall(std::function<void()> hear) : hear_(std::move(hear)) {}
  void Answer(absl::StatusOr<core::Response> response) override {
    EXPECT_TRUE(response.ok()) << response.status();
    hear_();
    ++answers;
  }
  int answers = 0;

 private:
  const std::function<void()> hear_;
};

class LedgerBrokerTest : public BrokerTest {
 protected:
  void SetUp() override {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    const LedgerIdentity identity = {.schema = core::kRecordSchema, .node = 1, .incarnation = 1};
    ledger_ = *Ledger::Create(folder_, identity);
    BrokerTest::SetUp();
  }
  ~LedgerBrokerTest() override {
    ::unlink((folder_ + "/ledger").c_str());
    ::rmdir(folder_.c_str());
  }
  void ExpectCommitted() {
    EXPECT_EQ(ledger_->AllRecords(), broker_->Read([](const core::Core& core) { return core.AllRecords(); }));
  }

  std::string folder_ = testing::TempDir() + "/broker_XXXXXX";
};

TEST_F(LedgerBrokerTest, AnswerIsSentAfterStateIsPersisted) {
  ExpectCommitted();
  HearingCall first([this] { ExpectCommitted(); });
  HearingCall second([this] { ExpectCommitted(); });
  Acquire(1, "a", &first);
  Acquire(2, "b", &second);
  EXPECT_EQ(first.answers, 1);
  ExpectCommitted();
  broker_->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.RevokePermit(now, core.ListPermits(Caller(), "")[0].id, effects).IgnoreError();
  });
  EXPECT_EQ(second.answers, 1);
  ExpectCommitted();
  broker_->TimerFired();
  ExpectCommitted();
}

TEST_F(BrokerTest, ConcurrentCallsAreEachAnsweredOnce) {
  constexpr int kThreads = 4;
  constexpr int kCalls = 200;
  std::atomic<int> granted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < kCalls; ++i) {
        // All threads nest in one permit, so each call is answered before some thread's Submit() returns.
        RecordedCall call;
        const CallId id = Acquire(1 + i * kThreads + static_cast<uint64_t>(t), "shared", &call);
        while (call.answers() == 0) std::this_thread::yield();
        broker_->Cancel(id);
        granted += call.Await().ok();
        EXPECT_EQ(call.answers(), 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(granted, kThreads * kCalls);
}

}  // namespace
}  // namespace berth
