// Vault and broker die at once under a service manager that keeps their fds: the next daemon goes on with sessions and
// permits; blocks are lost, and everybody who has one is told. The manager is played (tests/support/service_manager.h);
// tests/systemd tries a real one.
//
// BERTH_FAULT_KILLS sets how often both are killed in a row under load (1, in the soak 5).

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/inspector.h"
#include "common/block_handle.h"
#include "common/error.h"
#include "common/memfd.h"
#include "common/process.h"
#include "common/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/support/actor_handle.h"
#include "tests/support/environment.h"
#include "tests/support/proc.h"
#include "tests/support/service_manager.h"
#include "tests/support/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// How many fds of that kind a process has.
size_t CountFdsOf(pid_t pid, absl::string_view what) {
  size_t count = 0;
  for (const absl::string_view line : absl::StrSplit(DescribeFds(pid), '\n')) {
    size_t here = 0;
    const std::string first(absl::StripAsciiWhitespace(line.substr(0, line.find(" x "))));
    if (absl::StrContains(line, what) && absl::SimpleAtoi(first, &here)) count += here;
  }
  return count;
}

class FdStoreTest : public ::testing::Test {
 protected:
  explicit FdStoreTest(size_t limit = 1024) : manager_(limit), daemon_({.environment = Environment()}) {}

  std::vector<std::string> Environment() const {
    std::vector<std::string> environment = manager_.environment();
    environment.push_back("BERTH_GPU_TEST_CONCURRENCY=1");
    return environment;
  }

  // Waits until the manager has all that the daemon holds for its clients.
  void AwaitKept() {
    EXPECT_TRUE(daemon_.BooksBecome([this](const Books& books) {
      // Who has left is in nobody's hands.
      return manager_.Count("berth-lifeline-") == books.sessions &&
             manager_.Count("berth-channel-") == books.processes &&
             manager_.Count("berth-process-") == books.processes &&
             manager_.Count("berth-page-") == CountFdsOf(daemon_.vault_pid(), "memfd:berth-fence");
    })) << Describe(daemon_.TakeBooks());
  }
  void KillBoth() { daemon_.KillVaultAndBroker(); }
  void StartAgain() { daemon_.StartAgain(manager_.HandOver()); }
  v1::Node Node() { return Must(daemon_.inspector().GetNode()); }

  ServiceManager manager_;
  TestDaemon daemon_;
};

TEST_F(FdStoreTest, SessionsPermitsAndPlacesOutliveVaultAndBroker) {
  Actor holder(daemon_);
  Actor waiter(daemon_);
  holder.Do("acquire p");
  waiter.Do("begin p");
  ASSERT_TRUE(daemon_.BooksBecome([](const Books& books) { return books.waiters == 1; }));
  const v1::Node before = Node();
  // A call that three brokers had just been sent when they died would not be sent again.
  for (int life = 1; life <= 2; ++life) {
    AwaitKept();
    KillBoth();
    StartAgain();
    const v1::Node after = Node();
    EXPECT_EQ(after.incarnation(), before.incarnation());
    EXPECT_GT(after.epoch(), before.epoch());
    EXPECT_TRUE(Ok(holder.Ask("status")));
    EXPECT_TRUE(Ok(waiter.Ask("status")));
    EXPECT_TRUE(daemon_.BooksBecome([](const Books& books) { return books.permits == 1 && books.waiters == 1; }));
    Actor late(daemon_);
    EXPECT_TRUE(Refused(late.Ask("acquire p try"), Reason::kNoPermit));
    late.Quit();
  }
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  EXPECT_TRUE(Ok(waiter.Ask("join p")));
  holder.Quit();
  waiter.Quit();
  daemon_.ExpectBooksBack();
  AwaitKept();
}

TEST_F(FdStoreTest, NoBlockIsEverKeptAndWhoHasOneIsTold) {
  Actor owner(daemon_);
  Actor importer(daemon_);
  const BlockHandle handle = owner.Allocate("b", 4 * kMiB);
  owner.Do("map b");
  owner.Do("fill b 3");
  owner.Do(absl::StrCat("grant-session b ", importer.session().value()));
  importer.Do(absl::StrCat("import b ", FormatHandle(handle)));
  importer.Do("map b");
  AwaitKept();
  for (const std::string& name : manager_.names()) EXPECT_FALSE(absl::StrContains(name, "block")) << name;
  KillBoth();
  StartAgain();
  for (Actor* const actor : {&owner, &importer}) {
    EXPECT_TRUE(Ok(actor->Ask("status")));
    EXPECT_FALSE(Ok(actor->Ask("access b"))) << "it is of an earlier generation";
    EXPECT_TRUE(Ok(actor->Ask("check b 3"))) << "what is mapped stays its own";
  }
  Actor late(daemon_);
  EXPECT_TRUE(Refused(late.Ask(absl::StrCat("import b ", FormatHandle(handle))), Reason::kDenied));
  late.Quit();
  // Nobody has its memory while somebody may have it mapped.
  EXPECT_EQ(daemon_.TakeBooks().quarantined + daemon_.TakeBooks().retired, 4 * kMiB);
  // Another one is as good as ever.
  EXPECT_TRUE(Ok(owner.Ask(absl::StrCat("allocate c ", kMiB))));
  EXPECT_TRUE(Ok(owner.Ask("map c")));
  EXPECT_TRUE(Ok(owner.Ask("access c")));
  EXPECT_TRUE(Ok(owner.Ask("free c")));
  importer.Quit();
  owner.Quit();
  daemon_.ExpectBooksBack();
}

TEST_F(FdStoreTest, WhoDiesMeanwhileIsCountedByItsPidfd) {
  Actor holder(daemon_);
  Actor waiter(daemon_);
  holder.Do("acquire p");
  waiter.Do("begin p");
  ASSERT_TRUE(daemon_.BooksBecome([](const Books& books) { return books.waiters == 1; }));
  AwaitKept();
  KillBoth();
  holder.Kill();
  StartAgain();
  EXPECT_TRUE(Ok(waiter.Ask("join p")));
  waiter.Quit();
  daemon_.ExpectBooksBack();
  AwaitKept();
}

TEST_F(FdStoreTest, AVaultThatFollowsAnotherGoesOnWithWhatTheManagerHas) {
  Actor early(daemon_);
  early.Do("acquire p");
  Actor goes(daemon_);
  AwaitKept();
  daemon_.KillVault();
  goes.Quit();
  Actor late(daemon_);
  AwaitKept();
  KillBoth();
  StartAgain();
  EXPECT_TRUE(Ok(early.Ask("status")));
  EXPECT_TRUE(Ok(late.Ask("status")));
  EXPECT_TRUE(Refused(late.Ask("acquire p try"), Reason::kNoPermit));
  EXPECT_TRUE(Ok(early.Ask("release p")));
  early.Quit();
  late.Quit();
  daemon_.ExpectBooksBack();
  AwaitKept();
}

TEST_F(FdStoreTest, WhoTheManagerHasNotEndsAndItsPermitIsOutUntilItIsGone) {
  Actor lost(daemon_);
  Actor waiter(daemon_);
  lost.Do("acquire p");
  waiter.Do("begin p");
  ASSERT_TRUE(daemon_.BooksBecome([](const Books& books) { return books.waiters == 1; }));
  AwaitKept();
  KillBoth();
  // All of that session's, and of its process's.
  const std::string session = absl::StrCat("berth-lifeline-", absl::Hex(lost.session().value()));
  const std::string pid = absl::StrCat(lost.pid());
  std::string process;
  for (const std::string& name : manager_.names()) {
    const UniqueFd pidfd = absl::StartsWith(name, "berth-process-") ? manager_.Find(name) : UniqueFd();
    if (pidfd && PidOfPidfd(pidfd.get()) == lost.pid()) process = name.substr(std::string("berth-process-").size());
  }
  ASSERT_FALSE(process.empty());
  manager_.Lose([&](const std::string& name) { return name == session || absl::EndsWith(name, "-" + process); });
  StartAgain();
  EXPECT_TRUE(Eventually([&] { return !lost.Ask("status").ok(); })) << "its session has ended";
  EXPECT_TRUE(daemon_.BooksBecome([](const Books& books) { return books.permits == 1 && books.waiters == 1; }));
  // Also for later brokers.
  daemon_.KillBroker();
  EXPECT_TRUE(daemon_.BooksBecome([](const Books& books) { return books.permits == 1 && books.waiters == 1; }));
  lost.Kill();
  EXPECT_TRUE(Ok(waiter.Ask("join p")));
  waiter.Quit();
  daemon_.ExpectBooksBack();
}

TEST_F(FdStoreTest, WhatIsNobodysIsLetGoOf) {
  Actor actor(daemon_);
  actor.Do("acquire p");
  AwaitKept();
  KillBoth();
  manager_.Keep("berth-block-1", Must(CreateMemfd("strange", 0)));
  manager_.Keep("elsewhere", Must(CreateMemfd("strange", 0)));
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd other(ends[1]);
  // A session that the ledger does not know.
  manager_.Keep("berth-lifeline-77", UniqueFd(ends[0]));
  StartAgain();
  EXPECT_TRUE(Ok(actor.Ask("release p")));
  EXPECT_TRUE(Eventually([&] {
    return manager_.Count("berth-block") == 0 && manager_.Count("elsewhere") == 0 &&
           manager_.Count("berth-lifeline-77") == 0;
  }));
  char byte;
  EXPECT_EQ(::recv(other.get(), &byte, 1, 0), 0) << "its other end hears a hang-up";
  actor.Quit();
  daemon_.ExpectBooksBack();
}

TEST_F(FdStoreTest, WithoutItsRecordNothingIsGoneOnWith) {
  Actor actor(daemon_);
  actor.Do("acquire p");
  AwaitKept();
  const uint64_t incarnation = Node().incarnation();
  KillBoth();
  manager_.Lose([](const std::string& name) { return name == "berth-record-0"; });
  StartAgain();
  EXPECT_TRUE(Eventually([&] { return !actor.Ask("status").ok(); })) << "its session has ended";
  EXPECT_NE(Node().incarnation(), incarnation);
  Actor late(daemon_);
  EXPECT_TRUE(Ok(late.Ask("acquire p")));
  late.Quit();
  actor.Quit();
  AwaitKept();
}

TEST_F(FdStoreTest, OfAnotherDaemonsRecordNothingIsGoneOnWith) {
  Actor actor(daemon_);
  AwaitKept();
  const uint64_t incarnation = Node().incarnation();
  {
    // Its boot's id lies behind three words.
    const UniqueFd record = manager_.Find("berth-record-0");
    ASSERT_EQ(::pwrite(record.get(), "another", 7, 24), 7);
  }
  KillBoth();
  StartAgain();
  EXPECT_NE(Node().incarnation(), incarnation);
  EXPECT_TRUE(Eventually([&] { return !actor.Ask("status").ok(); }));
  actor.Quit();
}

TEST_F(FdStoreTest, ACleanStopEndsEverySessionWhoeverHasItsFds) {
  Actor actor(daemon_);
  actor.Do("acquire p");
  AwaitKept();
  daemon_.Stop();
  EXPECT_TRUE(Eventually([&] { return !actor.Ask("status").ok(); }));
  daemon_.StartAgain(manager_.HandOver());
  Actor late(daemon_);
  EXPECT_TRUE(Ok(late.Ask("acquire p")));
  late.Quit();
  actor.Quit();
}

TEST_F(FdStoreTest, AManagerThatHearsNothingHoldsNobodyUp) {
  manager_.Pause();
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < 6; ++i) {
    actors.push_back(std::make_unique<Actor>(daemon_));
    EXPECT_TRUE(Ok(actors.back()->Ask(absl::StrCat("allocate b ", kMiB))));
  }
  actors[0]->Do("acquire p");
  actors[0]->Do("release p");
  for (size_t i = 3; i < actors.size(); ++i) actors[i]->Quit();
  actors.resize(3);
  manager_.Resume();
  AwaitKept();
  KillBoth();
  StartAgain();
  for (const auto& actor : actors) EXPECT_TRUE(Ok(actor->Ask("acquire p")) && Ok(actor->Ask("release p")));
  for (const auto& actor : actors) actor->Quit();
  daemon_.ExpectBooksBack();
}

TEST_F(FdStoreTest, BothDieAgainAndAgainAndTheQueueGoesOn) {
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < 4; ++i) actors.push_back(std::make_unique<Actor>(daemon_));
  const uint64_t kills = FromEnvironment("BERTH_FAULT_KILLS", ByLane(1, 5));
  for (uint64_t round = 0; round < kills && !HasFailure(); ++round) {
    actors[0]->Do("acquire p");
    for (size_t i = 1; i < actors.size(); ++i) {
      actors[i]->Do("begin p");
      ASSERT_TRUE(daemon_.BooksBecome([&](const Books& books) { return books.waiters == i; }));
    }
    AwaitKept();
    KillBoth();
    StartAgain();
    EXPECT_TRUE(Ok(actors[0]->Ask("release p"))) << round;
    for (size_t i = 1; i < actors.size(); ++i) actors[i]->Tell("join p");
    // In whatever order they are back.
    std::set<size_t> waiting = {1, 2, 3};
    while (!waiting.empty() && !HasFailure()) {
      size_t served = 0;
      EXPECT_TRUE(Eventually([&] {
        for (const size_t i : waiting) {
          pollfd entry = {.fd = actors[i]->process().output_fd(), .events = POLLIN, .revents = 0};
          if (actors[i]->process().has_line() || ::poll(&entry, 1, 0) == 1) served = i;
        }
        return served != 0;
      })) << round;
      if (served == 0) break;
      waiting.erase(served);
      EXPECT_TRUE(Ok(actors[served]->Answer())) << round;
      EXPECT_TRUE(Ok(actors[served]->Ask("release p"))) << round;
    }
  }
  for (const auto& actor : actors) actor->Quit();
  daemon_.ExpectBooksBack();
  AwaitKept();
}

// A store that has room for the daemon's own, and little more.
class SmallStoreTest : public FdStoreTest {
 protected:
  SmallStoreTest() : FdStoreTest(12) {}
};

TEST_F(SmallStoreTest, WhoFoundNoRoomEndsAndHoldsUntilItIsGone) {
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < 6; ++i) actors.push_back(std::make_unique<Actor>(daemon_));
  Actor& holder = *actors.back();
  holder.Do("acquire p");
  ASSERT_TRUE(Eventually([&] { return manager_.names().size() == 12; }));
  KillBoth();
  StartAgain();
  Actor late(daemon_);
  late.Do("begin p");
  ASSERT_TRUE(daemon_.BooksBecome([](const Books& books) { return books.waiters == 1 && books.permits == 1; }));
  for (const auto& actor : actors) actor->Kill();
  EXPECT_TRUE(Ok(late.Ask("join p")));
  late.Quit();
  EXPECT_TRUE(daemon_.BooksBecome([](const Books& books) { return books.permits == 0; }));
}

TEST(FdStoreOfNobodyTest, WhatWasHandedToAnotherProcessIsNotTaken) {
  TestDaemon daemon({.environment = {"LISTEN_PID=1", "LISTEN_FDS=4", "LISTEN_FDNAMES=berth-record-0:a:b:c"}});
  Actor actor(daemon);
  EXPECT_TRUE(Ok(actor.Ask("acquire p")));
  actor.Quit();
  daemon.ExpectBooksBack();
}

}  // namespace
}  // namespace berth::testing
