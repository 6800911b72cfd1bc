// The daemon's own life: one per folder, a clean stop, and the death of any one of its processes.

#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/inspector.h"
#include "client/session.h"
#include "common/block_handle.h"
#include "common/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/actor_handle.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

using ::testing::Contains;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uint64_t kMiB = 1 << 20;

// Its environment when it was started, "NAME=value" each.
std::vector<std::string> StartedWith(pid_t process) {
  std::ifstream file(absl::StrCat("/proc/", process, "/environ"));
  std::vector<std::string> entries;
  for (std::string entry; std::getline(file, entry, '\0');) entries.push_back(entry);
  return entries;
}

// Kills the broker and waits until another one serves.
void KillBroker(TestDaemon& daemon) {
  const pid_t before = daemon.broker();
  ASSERT_EQ(::kill(before, SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] {
    for (const ChildInfo& child : ChildrenOf(daemon.vault_pid())) {
      if (child.name == "berth-broker" && child.pid != before) return true;
    }
    return false;
  }));
}

TEST(LifecycleTest, ASecondDaemonOnTheFolderIsRefusedAndTakesNothing) {
  TestDaemon daemon;
  Actor actor(daemon);
  actor.Do("acquire p");
  Subprocess second =
      Subprocess::Start({.argv = {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1", ProgramPath("daemon/berthd"),
                                  absl::StrCat("--folder=", daemon.folder()), "--backend=host"}});
  EXPECT_EQ(second.Wait(), 1);
  const std::string said = second.ReadAll();
  EXPECT_TRUE(absl::StrContains(said, daemon.folder())) << said;
  EXPECT_TRUE(absl::StrContains(said, absl::StrCat(daemon.vault().pid()))) << said;
  EXPECT_TRUE(Ok(actor.Ask("release p")));
  Actor later(daemon);
  EXPECT_TRUE(Ok(later.Ask("acquire p")));
  actor.Quit();
  later.Quit();
  daemon.ExpectBooksBack();
}

TEST(LifecycleTest, ADaemonStartsOverWhatAKilledOneLeft) {
  TestDaemon daemon;
  const std::string folder = daemon.folder();
  daemon.KillVaultAndBroker();
  EXPECT_EQ(daemon.vault().Wait(), 128 + SIGKILL);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  Subprocess next =
      Subprocess::Start({.argv = {ProgramPath("daemon/berthd"), absl::StrCat("--folder=", folder),
                                  "--backend=host", absl::StrCat("--ready-fd=", ready[1])},
                         .inherited_fd = ready[1]});
  ::close(ready[1]);
  char text[6] = {};
  EXPECT_EQ(::read(ready[0], text, sizeof(text)), 6);
  ::close(ready[0]);
  Actor actor(folder);
  EXPECT_TRUE(Ok(actor.Ask("acquire p")));
  next.Signal(SIGTERM);
  EXPECT_EQ(next.Wait(), 0);
}

TEST(LifecycleTest, NoProcessOutlivesVaultAndBroker) {
  TestDaemon daemon;
  const std::vector<ChildInfo> children = ChildrenOf(daemon.vault_pid());
  EXPECT_EQ(children.size(), 2u);
  daemon.KillVaultAndBroker();
  for (const ChildInfo& child : children) {
    EXPECT_TRUE(Eventually([&] { return !IsAlive(child.pid); })) << child.name;
  }
}

TEST(LifecycleTest, ItStopsWithinASecondWithClientsConnectedAndWaiting) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < 8; ++i) {
    actors.push_back(std::make_unique<Actor>(daemon));
    actors.back()->Do(absl::StrCat("allocate b ", kMiB));
  }
  actors[0]->Do("acquire p");
  for (int i = 1; i < 8; ++i) actors[i]->Do("begin p");
  ASSERT_TRUE(daemon.BooksBecome([](const Books& books) { return books.waiters == 7; }));
  // Expects the second itself, and that nothing is left.
  daemon.Stop();
  for (int i = 1; i < 8; ++i) {
    const absl::Status refused = actors[i]->Ask("join p").status();
    EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  }
  EXPECT_FALSE(Ok(actors[0]->Ask("status")));
  for (const auto& actor : actors) actor->Quit();
}

TEST(LifecycleTest, ItStopsWhenItIsAskedTwiceOrByTheTerminal) {
  for (const int signal : {SIGTERM, SIGINT}) {
    TestDaemon daemon;
    daemon.vault().Signal(signal);
    daemon.vault().Signal(signal);
    EXPECT_EQ(daemon.vault().Wait(), 0) << signal;
    daemon.Abandon();
  }
}

TEST(LifecycleTest, AKilledBrokersPlaceIsTakenAndItsListenersGoOn) {
  TestDaemon daemon;
  for (int life = 0; life < 3; ++life) {
    Actor holder(daemon);
    holder.Do("acquire p");
    holder.Do(absl::StrCat("allocate b ", 4 * kMiB));
    holder.Do("map b");
    holder.Do("fill b 3");
    const BlockHandle handle = Must(ParseHandle(holder.Do(absl::StrCat("allocate c ", kMiB))));
    KillBroker(daemon);
    Actor next(daemon);
    EXPECT_TRUE(Ok(next.Ask("acquire p try")));
    EXPECT_TRUE(Refused(next.Ask("acquire q key=q try"), Reason::kNoPermit)) << "the first one has the other";
    EXPECT_TRUE(Refused(next.Ask(absl::StrCat("import c ", FormatHandle(handle))), Reason::kDenied));
    EXPECT_TRUE(Ok(holder.Ask("access b")));
    EXPECT_TRUE(Ok(holder.Ask("check b 3")));
    next.Quit();
    holder.Quit();
    daemon.ExpectBooksBack();
  }
}

TEST(LifecycleTest, OnlyTheBrokerHasAHeapOfLargePagesUnlessAnOperatorSaysOtherwise) {
  constexpr char kOurs[] = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1";
  constexpr char kOperators[] = "GLIBC_TUNABLES=glibc.malloc.arena_max=4";
  TestDaemon daemon;
  EXPECT_THAT(StartedWith(daemon.broker()), Contains(kOurs));
  // One that the broker has had started, and whom that one starts.
  daemon.KillVault();
  EXPECT_THAT(StartedWith(daemon.vault_pid()), Not(Contains(StartsWith("GLIBC_TUNABLES="))));
  KillBroker(daemon);
  EXPECT_THAT(StartedWith(daemon.broker()), Contains(kOurs));
  for (const pid_t worker : daemon.workers()) EXPECT_THAT(StartedWith(worker), Not(Contains(kOurs)));
  TestDaemon other({.environment = {kOperators}});
  EXPECT_THAT(StartedWith(other.broker()), Contains(kOperators));
  EXPECT_THAT(StartedWith(other.broker()), Not(Contains(kOurs)));
}

TEST(LifecycleTest, ASessionThatEndedWithItsIncarnationKeepsNoConnectionToTheNext) {
  TestDaemon daemon;
  const std::string socket = daemon.folder() + "/berthd.sock";
  // Kept: whoever has something of an ended session holds on to that session.
  std::vector<std::shared_ptr<Session>> ended;
  for (int life = 0; life < 5; ++life) {
    const std::shared_ptr<Session> session = Must(Session::Open({.folder = daemon.folder()}));
    Must(Inspector(session).GetNode());
    EXPECT_TRUE(Eventually([&] { return CountConnections(socket) == 1; })) << CountConnections(socket);
    // Somebody calls all the while, and is served by the next broker before the session is known to be over.
    std::thread caller([&session] {
      while (Inspector(session).GetNode().ok()) {
      }
    });
    Must(daemon.inspector().ResetNode().status());
    caller.join();
    EXPECT_TRUE(Eventually([&] { return !session->status().ok(); }));
    ended.push_back(session);
    EXPECT_TRUE(Eventually([&] { return CountConnections(socket) == 0; })) << CountConnections(socket);
  }
  daemon.ExpectBooksBack();
}

TEST(LifecycleTest, AClientWaitsForABrokerThatIsBeingStarted) {
  TestDaemon daemon;
  Actor actor(daemon, {.open = false});
  ASSERT_EQ(::kill(daemon.broker(), SIGKILL), 0);
  // The vault keeps the listening sockets, so that a connection made now is served by the next broker.
  EXPECT_TRUE(Ok(actor.Ask("open")));
  EXPECT_TRUE(Ok(actor.Ask("acquire p try")));
  actor.Quit();
  daemon.ExpectBooksBack();
}

TEST(LifecycleTest, AKilledWorkersPlaceIsTakenAndBlocksKeepTheirData) {
  TestDaemon daemon;
  Actor owner(daemon);
  Actor importer(daemon);
  const BlockHandle handle = owner.Allocate("b", 4 * kMiB);
  owner.Do("map b");
  owner.Do("fill b 6");
  owner.Do("unmap b");
  owner.Do(absl::StrCat("grant-session b ", importer.session().value()));
  const pid_t before = daemon.workers().at(0);
  ASSERT_EQ(::kill(before, SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] {
    const std::vector<pid_t> workers = daemon.workers();
    return !workers.empty() && workers[0] != before;
  }));
  EXPECT_TRUE(Ok(importer.Ask(absl::StrCat("import b ", FormatHandle(handle)))));
  EXPECT_TRUE(Ok(importer.Ask("map b")));
  EXPECT_TRUE(Ok(importer.Ask("check b 6")));
  EXPECT_TRUE(Ok(importer.Ask("access b")));
  EXPECT_TRUE(Ok(owner.Ask(absl::StrCat("allocate c ", kMiB))));
  EXPECT_TRUE(Ok(owner.Ask("free b")));
  owner.Quit();
  importer.Quit();
  daemon.ExpectBooksBack();
}

TEST(LifecycleTest, AnAllocationDuringAWorkersDeathIsCarriedOut) {
  TestDaemon daemon;
  Actor actor(daemon);
  const pid_t worker = daemon.workers().at(0);
  // A stopped worker takes nothing in, so that the request is certainly under way when it dies.
  ASSERT_EQ(::kill(worker, SIGSTOP), 0);
  actor.Tell(absl::StrCat("allocate b ", kMiB));
  ASSERT_TRUE(daemon.BooksBecome([](const Books& books) { return books.reserved == 2 * kMiB; }));
  ASSERT_EQ(::kill(worker, SIGKILL), 0);
  EXPECT_TRUE(Ok(actor.Answer()));
  EXPECT_TRUE(Ok(actor.Ask("map b")));
  actor.Quit();
  daemon.ExpectBooksBack();
}

TEST(LifecycleTest, AWorkerThatDiesAgainAndAgainStopsItsDeviceAndNoOther) {
  TestDaemon daemon({.flags = {"--host-devices=2"}});
  Actor actor(daemon);
  const auto state = [&](int device) {
    return Must(daemon.inspector().ListDevices(), "devices").devices(device).state();
  };
  const auto worker = [&]() -> pid_t {
    for (const ChildInfo& child : ChildrenOf(daemon.vault_pid())) {
      if (child.name == "berth-worker1") return child.pid;
    }
    return 0;
  };
  // 3 restarts in a minute, then no more.
  for (int death = 0; death < 4; ++death) {
    const pid_t now = worker();
    ASSERT_NE(now, 0) << death;
    ASSERT_EQ(::kill(now, SIGKILL), 0);
    ASSERT_TRUE(Eventually([&] {
      const pid_t next = worker();
      return death == 3 ? next == 0 : next != 0 && next != now;
    }));
  }
  EXPECT_TRUE(Eventually([&] { return state(1) == v1::Device::STOPPED; }));
  EXPECT_EQ(state(0), v1::Device::READY);
  EXPECT_TRUE(Refused(actor.Ask("allocate b 1 device=1"), Reason::kDeviceStopped, {{"device", "1"}}));
  EXPECT_TRUE(Ok(actor.Ask("allocate c 1 device=0")));
  actor.Quit();
}

TEST(LifecycleTest, AFloodOfSessionsLeavesNothing) {
  TestDaemon daemon;
  for (int round = 0; round < 5; ++round) {
    std::vector<std::unique_ptr<Actor>> actors;
    for (int i = 0; i < 10; ++i) actors.push_back(std::make_unique<Actor>(daemon));
    for (const auto& actor : actors) actor->Tell(absl::StrCat("allocate b ", kMiB));
    for (const auto& actor : actors) EXPECT_TRUE(Ok(actor->Answer()));
    // Half of them in good order, half not.
    for (size_t i = 0; i < actors.size(); i += 2) actors[i]->Quit();
  }
  daemon.ExpectBooksBack();
}

}  // namespace
}  // namespace berth::testing
