// Gangs across processes: all permits or none, whichever process dies.

#include <signal.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <berth/cancellation.h>
#include <berth/error.h>
#include <berth/gang.h>
#include <berth/session.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/permit.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

TestDaemonOptions TwoPools() {
  return {.flags = {"--host-devices=2"}, .config = "[pools.a]\ncap = 2\n[pools.b]\ncap = 3\n"};
}

v1::Pool PoolOf(TestDaemon& daemon, absl::string_view name) {
  const v1::ListPoolsResponse pools = Must(daemon.inspector().ListPools(), "pools");
  for (const v1::Pool& pool : pools.pools()) {
    if (pool.name() == name) return pool;
  }
  Fatal(absl::NotFoundError(name), "pools");
}

TEST(GangsTest, GangIsGrantedEntirelyAndNamesDevices) {
  TestDaemon daemon(TwoPools());
  Actor holder(daemon), requester(daemon);
  holder.Do("acquire p pool=b units=2");
  EXPECT_TRUE(IsRefusal(requester.Ask("gang g a:1:any a:1:any b:2 wait_ms=0").status(), Reason::kNoPermit));
  EXPECT_EQ(PoolOf(daemon, "a").out(), 0u);
  requester.SendLine("gang g a:1:any a:1:any b:2");
  ASSERT_TRUE(Eventually([&] { return PoolOf(daemon, "a").waiters() == 1; }));
  EXPECT_EQ(PoolOf(daemon, "b").waiters(), 1u);
  EXPECT_EQ(PoolOf(daemon, "a").out(), 0u) << "nothing is held while it waits";
  holder.Do("release p");
  const std::vector<std::string> devices = absl::StrSplit(*requester.Answer(), ' ');
  ASSERT_EQ(devices.size(), 3u);
  EXPECT_NE(devices[0], devices[1]);
  EXPECT_EQ(devices[2], "-");
  const v1::ListPermitsResponse permits = Must(daemon.inspector().ListPermits());
  ASSERT_EQ(permits.permits_size(), 3);
  for (const v1::Permit& permit : permits.permits()) EXPECT_EQ(permit.gang(), permits.permits(0).gang());
  // A thread that holds a part of the gang nests in it.
  requester.Do("acquire n pool=b units=2");
  EXPECT_EQ(PoolOf(daemon, "b").out(), 2u);
  requester.Do("release n");
  requester.Do("gang-release g");
  EXPECT_EQ(PoolOf(daemon, "a").out() + PoolOf(daemon, "b").out(), 0u);
}

TEST(GangsTest, ImpossibleGangIsRejectedWithReason) {
  TestDaemon daemon(TwoPools());
  Actor requester(daemon);
  EXPECT_TRUE(IsRefusal(requester.Ask("gang g a:2 a:1").status(), Reason::kOverCap));
  EXPECT_TRUE(IsRefusal(requester.Ask("gang g b:1:any b:1:any b:1:any").status(), Reason::kOverCap));
  EXPECT_TRUE(IsRefusal(requester.Ask("gang g nowhere:1").status(), Reason::kNotFound));
  EXPECT_TRUE(IsRefusal(requester.Ask("gang g").status(), Reason::kInvalidField));
  EXPECT_TRUE(IsRefusal(requester.Ask("gang g a:1 reserve=0:1000000000000000").status(), Reason::kOverBudget));
  requester.Do("acquire p pool=a");
  const absl::Status held = requester.Ask("gang g a:1 b:1").status();
  EXPECT_TRUE(IsRefusal(held, Reason::kAlreadyHeld)) << held;
  requester.Do("gang g a:1 b:1 key=another");
  EXPECT_EQ(PoolOf(daemon, "a").out(), 2u);
}

TEST(GangsTest, CancellationEndsWait) {
  TestDaemon daemon(TwoPools());
  Actor holder(daemon);
  holder.Do("acquire p pool=a");
  const std::shared_ptr<Session> session = Must(Session::Open({.folder = daemon.folder()}), "a session");
  Cancellation cancellation;
  const GangOptions both = {.members = {{.pool = "a", .units = 2}, {.pool = "b"}}, .cancellation = &cancellation};
  std::thread canceller([&] {
    EXPECT_TRUE(Eventually([&] { return PoolOf(daemon, "a").waiters() == 1; }));
    cancellation.Cancel();
  });
  EXPECT_TRUE(absl::IsCancelled(Gang::Acquire(session, both).status()));
  canceller.join();
  EXPECT_TRUE(absl::IsCancelled(Gang::Acquire(session, both).status()));
  EXPECT_TRUE(Eventually([&] { return PoolOf(daemon, "a").waiters() + PoolOf(daemon, "b").waiters() == 0; }));
  EXPECT_EQ(PoolOf(daemon, "b").out(), 0u);
}

TEST(GangsTest, BytesAreReservedAndReleasedWithPermits) {
  TestDaemon daemon(TwoPools());
  {
    Actor requester(daemon);
    requester.Do("gang g a:1 reserve=0:4194304 reserve=1:2097152");
    const v1::ListReservationsResponse reserved = Must(daemon.inspector().ListReservations());
    ASSERT_EQ(reserved.reservations_size(), 1);
    EXPECT_EQ(reserved.reservations(0).claims_size(), 2);
    requester.Do("gang-keep g 0");
    EXPECT_EQ(PoolOf(daemon, "a").out(), 1u);
  }
  daemon.ExpectAccountsBack();
}

TEST(GangsTest, KillOrTimeoutLeavesNoPartOfGang) {
  TestDaemon daemon(TwoPools());
  for (int round = 0; round < 4; ++round) {
    std::vector<std::unique_ptr<Actor>> actors;
    for (int i = 0; i < 6; ++i) {
      actors.push_back(std::make_unique<Actor>(daemon));
      actors.back()->SendLine(absl::StrCat("gang-churn 60 ", round * 10 + i));
    }
    // One actor is killed at any point of its churn.
    const uint64_t before = PoolOf(daemon, "a").granted_total();
    ASSERT_TRUE(Eventually([&] { return PoolOf(daemon, "a").granted_total() > before + 20; }));
    actors[round]->Kill();
    uint64_t granted = 0;
    for (int i = 0; i < 6; ++i) {
      if (i == round) continue;
      const absl::StatusOr<std::string> answer = actors[i]->Answer();
      ASSERT_TRUE(Ok(answer));
      uint64_t count = 0;
      ASSERT_TRUE(absl::SimpleAtoi(*answer, &count));
      granted += count;
    }
    EXPECT_GT(granted, 0u);
    // All permits can be acquired at once: none is lost.
    Actor last(daemon);
    EXPECT_TRUE(Ok(last.Ask("gang all a:2 b:3 wait_ms=60000")));
  }
  daemon.ExpectAccountsBack();
}

// One member on each device of the node: in the soak as many of both as the limits allow.
TEST(GangsTest, GangOfAllDevicesIsGrantedEntirelyOrNotAtAll) {
  const uint64_t size = GateOrSoak(8, 64);
  TestDaemon daemon({.flags = {absl::StrCat("--host-devices=", size)},
                     .config = absl::StrCat("[pools.d]\ncap = ", size, "\ndevice_cap = 1\n")});
  std::string all;
  for (uint64_t i = 0; i < size; ++i) absl::StrAppend(&all, " d:1:any");
  Actor single(daemon), first(daemon), second(daemon);
  single.Do("acquire p pool=d device=any");
  EXPECT_TRUE(IsRefusal(first.Ask(absl::StrCat("gang g", all, " wait_ms=0")).status(), Reason::kNoPermit));
  EXPECT_EQ(PoolOf(daemon, "d").out(), 1u) << "nothing of a refused gang is out";
  first.SendLine(absl::StrCat("gang g", all));
  ASSERT_TRUE(Eventually([&] { return PoolOf(daemon, "d").waiters() == 1; }));
  second.SendLine(absl::StrCat("gang g", all));
  ASSERT_TRUE(Eventually([&] { return PoolOf(daemon, "d").waiters() == 2; }));
  EXPECT_EQ(PoolOf(daemon, "d").out(), 1u) << "nothing is held while it waits";
  single.Do("release p");
  for (Actor* const holder : {&first, &second}) {
    const std::vector<std::string> named = absl::StrSplit(Must(holder->Answer(), "the gang"), ' ');
    EXPECT_EQ(std::set<std::string>(named.begin(), named.end()).size(), size);
    EXPECT_EQ(PoolOf(daemon, "d").out(), size);
    holder->Kill();
  }
  EXPECT_TRUE(Eventually([&] { return PoolOf(daemon, "d").out() == 0; }));
}

TEST(GangsTest, WorkerDeathTakesNoPermit) {
  TestDaemon daemon(TwoPools());
  Actor requester(daemon);
  requester.Do("gang g a:1:any b:1:any");
  const std::vector<pid_t> workers = daemon.workers();
  for (const pid_t worker : workers) ::kill(worker, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return daemon.workers().size() == 2 && daemon.workers() != workers; }));
  EXPECT_EQ(PoolOf(daemon, "a").out() + PoolOf(daemon, "b").out(), 2u);
  requester.Do("gang-release g");
  EXPECT_EQ(PoolOf(daemon, "a").out() + PoolOf(daemon, "b").out(), 0u);
}

TEST(GangsTest, DevicePoolHoldsEachToItsCap) {
  TestDaemon daemon({.flags = {"--host-devices=2"}, .config = "[pools.d]\ncap = 8\ndevice_cap = 1\n"});
  Actor requester(daemon);
  const std::string first = requester.Do("acquire p pool=d key=1");
  const std::string second = requester.Do("acquire q pool=d key=2");
  EXPECT_NE(first, "");
  EXPECT_NE(first, second);
  EXPECT_TRUE(IsRefusal(requester.Ask("acquire r pool=d key=3 try").status(), Reason::kNoPermit));
  v1::SetPoolRequest change;
  change.set_pool("d");
  v1::DeviceCap* const cap = change.add_device_caps();
  cap->set_uuid(second);
  cap->set_cap(2);
  EXPECT_EQ(Must(daemon.inspector().SetPool(change)).device_caps_size(), 1);
  EXPECT_EQ(requester.Do("acquire r pool=d key=3 try"), second);
}

}  // namespace
}  // namespace berth::testing
