// Clients and the broker's death: a pause for them.

#include <signal.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <berth/block_handle.h>
#include <berth/cancellation.h>
#include <berth/error.h>
#include <berth/permit.h>
#include <berth/session.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/notification.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class ResumeTest : public ::testing::Test {
 protected:
  ResumeTest() : daemon_({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}}) {}
  void TearDown() override { daemon_.ExpectAccountsBack(); }

  // Starts `berth run` of a command that prints "in" and runs until its input ends.
  Subprocess Run() {
    return Subprocess::Start({.argv = {ProgramPath("client/cli/berth"), "run", "--", "/bin/sh", "-c",
                                       "echo in; read line"},
                              .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION"}});
  }
  bool WaitersBecome(uint64_t count) {
    return daemon_.AccountsBecome([count](const Accounts& accounts) { return accounts.waiters == count; });
  }

  TestDaemon daemon_;
};

TEST_F(ResumeTest, WaitingRunsKeepPlacesAndHolderItsPermit) {
  Subprocess holder = Run();
  ASSERT_EQ(Must(holder.ReadLine()), "in");
  Subprocess first = Run();
  ASSERT_TRUE(WaitersBecome(1));
  Subprocess second = Run();
  ASSERT_TRUE(WaitersBecome(2));
  daemon_.KillBroker();
  EXPECT_TRUE(WaitersBecome(2));
  holder.CloseInput();
  EXPECT_EQ(holder.Wait(), 1);
  EXPECT_EQ(Must(first.ReadLine()), "in");
  EXPECT_TRUE(WaitersBecome(1));
  daemon_.KillBroker();
  first.CloseInput();
  EXPECT_EQ(first.Wait(), 1);
  EXPECT_EQ(Must(second.ReadLine()), "in");
  second.CloseInput();
  EXPECT_EQ(second.Wait(), 1);
}

TEST_F(ResumeTest, SessionsOpenDespiteBrokerDeaths) {
  std::atomic<bool> stop = false;
  std::atomic<int> opened = 0;
  std::thread opener([&] {
    while (!stop) {
      const auto session = Session::Open({.folder = daemon_.folder(), .always_new = true});
      EXPECT_TRUE(Ok(session));
      if (!session.ok()) return;
      EXPECT_TRUE(Ok(Inspector(*session).GetNode()));
      ++opened;
    }
  });
  for (int life = 0; life < 10; ++life) {
    const int before = opened;
    daemon_.KillBroker();
    EXPECT_TRUE(Eventually([&] { return opened > before + 2; }));
  }
  stop = true;
  opener.join();
}

TEST_F(ResumeTest, WatcherReceivesStateAgainThenChanges) {
  const auto session = Must(Session::Open({.folder = daemon_.folder(), .always_new = true}));
  Cancellation cancellation;
  std::atomic<int> notified = 0;
  std::atomic<bool> draining = false;
  absl::Status end;
  std::thread watcher([&] {
    end = Inspector(session, &cancellation).WatchDevices([&](const v1::WatchDevicesResponse& answer) {
      ++notified;
      draining = !answer.devices(0).drain_reason().empty();
      return true;
    });
  });
  ASSERT_TRUE(Eventually([&] { return notified > 0; }));
  for (int life = 0; life < 3; ++life) {
    const int before = notified;
    daemon_.KillBroker();
    EXPECT_TRUE(Eventually([&] { return notified > before; }));
  }
  Must(daemon_.inspector().DrainDevice(0, "for the test"));
  EXPECT_TRUE(Eventually([&] { return draining.load(); }));
  Must(daemon_.inspector().UndrainDevice(0));
  EXPECT_TRUE(Eventually([&] { return !draining; }));
  cancellation.Cancel();
  watcher.join();
  EXPECT_TRUE(absl::IsCancelled(end)) << end;
}

TEST_F(ResumeTest, CachedPermitSurvivesBrokerDeaths) {
  Actor cacher(daemon_, {.open = false});
  cacher.Do("open cache");
  cacher.Do("acquire p");
  cacher.Do("release p");
  for (int life = 0; life < 3; ++life) {
    daemon_.KillBroker();
    EXPECT_TRUE(Ok(cacher.Ask("acquire p")));
    EXPECT_TRUE(Ok(cacher.Ask("release p")));
  }
  // Any other client can get the permit.
  Actor other(daemon_);
  EXPECT_TRUE(Ok(other.Ask("acquire p")));
  EXPECT_TRUE(Ok(other.Ask("release p")));
  cacher.Quit();
  other.Quit();
}

TEST_F(ResumeTest, SharedUsesContinueInOrder) {
  Actor owner(daemon_);
  Actor importer(daemon_);
  const BlockHandle handle = owner.Allocate("b", kMiB);
  owner.Do(absl::StrCat("grant-session b ", importer.session().value()));
  owner.Do("map b");
  importer.Do(absl::StrCat("import b ", FormatHandle(handle)));
  importer.Do("map b");
  const auto number = [](const std::string& text) {
    uint64_t number = 0;
    EXPECT_TRUE(absl::SimpleAtoi(text, &number)) << text;
    return number;
  };
  // More uses than fit into the test.
  for (Actor* const actor : {&owner, &importer}) {
    actor->Do("stream s");
    actor->Do("use-churn b 1000000000 s");
  }
  owner.Do("stream reads");
  for (int life = 0; life < 5 && !HasFailure(); ++life) {
    daemon_.KillBroker();
    // The use that an actor had open at the death ends before the next death: a request that three brokers in a row do
    // not survive is refused.
    for (Actor* const actor : {&owner, &importer}) {
      const uint64_t before = number(actor->Do("churned b"));
      EXPECT_TRUE(Eventually([&] { return HasFailure() || number(actor->Do("churned b")) > before; })) << life;
    }
    // A reading use excludes the others, too. Only in a use does the block hold a single number.
    EXPECT_GT(number(owner.Do("count b reads")), 0u);
  }
  uint64_t uses = 0;
  for (Actor* const actor : {&owner, &importer}) uses += number(actor->Do("stop-churn b"));
  EXPECT_EQ(number(owner.Do("count b")), uses);
  owner.Quit();
  importer.Quit();
}

TEST_F(ResumeTest, ImportsReleasedDuringBrokerDeathsEnd) {
  Actor owner(daemon_);
  const BlockHandle handle = owner.Allocate("b", kMiB);
  std::vector<std::unique_ptr<Actor>> importers;
  for (int i = 0; i < 3; ++i) {
    importers.push_back(std::make_unique<Actor>(daemon_));
    owner.Do(absl::StrCat("grant-session b ", importers.back()->session().value()));
  }
  const uint64_t before = daemon_.TakeAccounts().imports;
  for (int life = 0; life < 10; ++life) {
    for (const auto& importer : importers) {
      for (int i = 0; i < 20; ++i) {
        importer->SendLine(absl::StrCat("import c ", FormatHandle(handle)));
        importer->SendLine("drop c");
      }
    }
    daemon_.KillBroker();
    for (const auto& importer : importers) {
      for (int i = 0; i < 40; ++i) EXPECT_TRUE(Ok(importer->Answer())) << life << " " << i;
    }
  }
  EXPECT_TRUE(daemon_.AccountsBecome([before](const Accounts& accounts) { return accounts.imports == before; }));
  for (const auto& importer : importers) importer->Quit();
  owner.Quit();
}

TEST_F(ResumeTest, ReleaseWithoutBrokerReachesNext) {
  Actor holder(daemon_);
  Actor next(daemon_);
  for (int life = 0; life < 10; ++life) {
    holder.Do("acquire p");
    // The release reaches a stopped broker, or none.
    daemon_.StopBroker();
    holder.SendLine("release p");
    daemon_.KillBroker();
    EXPECT_TRUE(Ok(holder.Answer()));
    EXPECT_TRUE(Ok(next.Ask("acquire p try"))) << life;
    next.Do("release p");
  }
  holder.Quit();
  next.Quit();
}

TEST_F(ResumeTest, WaitWithoutBrokerCanBeCancelled) {
  const auto session = Must(Session::Open({.folder = daemon_.folder(), .always_new = true}));
  Actor holder(daemon_);
  holder.Do("acquire p");
  Cancellation cancellation;
  absl::Status waited;
  std::thread waiter([&] { waited = Permit::Acquire(session, {.cancellation = &cancellation}).status(); });
  absl::Status async;
  Notification async_done;
  Permit::AcquireAsync(session, {.cancellation = &cancellation}, [&](const absl::StatusOr<Permit>& permit) {
    async = permit.status();
    async_done.Notify();
  });
  ASSERT_TRUE(WaitersBecome(2));
  // A stopped supervisor starts no broker.
  daemon_.supervisor().Signal(SIGSTOP);
  ASSERT_EQ(::kill(daemon_.broker(), SIGKILL), 0);
  cancellation.Cancel();
  waiter.join();
  async_done.WaitForNotification();
  EXPECT_TRUE(absl::IsCancelled(waited)) << waited;
  EXPECT_TRUE(absl::IsCancelled(async)) << async;
  daemon_.supervisor().Signal(SIGCONT);
  EXPECT_TRUE(WaitersBecome(0));
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  holder.Quit();
}

TEST_F(ResumeTest, RequestFailsAfterThreeBrokerDeaths) {
  const auto session = Must(Session::Open({.folder = daemon_.folder(), .always_new = true}));
  Actor holder(daemon_);
  holder.Do("acquire p");
  absl::Status came_to;
  // The request seems to be what ends brokers: each dies once it has the request. A death may come so late on a busy
  // machine that the request is not suspected any more; then another request is tried.
  EXPECT_TRUE(Eventually([&] {
    Cancellation cancellation;
    std::atomic<bool> done = false;
    std::thread waiter([&] {
      came_to = Permit::Acquire(session, {.cancellation = &cancellation}).status();
      done = true;
    });
    const auto waits_or_is_done = [&] {
      return daemon_.AccountsBecome([&](const Accounts& accounts) { return done || accounts.waiters == 1; });
    };
    // A broker that dies before the process has called again is not counted.
    for (int deaths = 0; deaths < 12 && waits_or_is_done() && !done; ++deaths) daemon_.KillBroker();
    cancellation.Cancel();
    waiter.join();
    return absl::IsUnavailable(came_to);
  })) << came_to;
  EXPECT_TRUE(absl::StrContains(came_to.message(), "ended 3 times")) << came_to;
  EXPECT_TRUE(WaitersBecome(0));
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  EXPECT_TRUE(Ok(Permit::Acquire(session, {}).status()));
  holder.Quit();
}

}  // namespace
}  // namespace berth::testing
