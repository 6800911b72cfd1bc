// Supervisor and broker die at once under a service manager that stores their fds. The next daemon continues with
// sessions and permits; blocks are lost, and every holder is notified. The test plays the manager
// (tests/support/daemon/service_manager.h); tests/systemd uses a real one.
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

#include <berth/block_handle.h>
#include <berth/error.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "berth/v1/device.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/os/memfd.h"
#include "common/os/process.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/service_manager.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/proc.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// Returns how many fds of that kind a process has.
size_t CountFdsOf(pid_t pid, absl::string_view what) {
  size_t count = 0;
  for (const absl::string_view line : absl::StrSplit(DescribeFds(pid), '\n')) {
    size_t here = 0;
    const std::string first(absl::StripAsciiWhitespace(line.substr(0, line.find(" x "))));
    if (absl::StrContains(line, what) && absl::SimpleAtoi(first, &here)) count += here;
  }
  return count;
}

class ServiceManagerFdStoreTest : public ::testing::Test {
 protected:
  explicit ServiceManagerFdStoreTest(size_t limit = 1024) : manager_(limit), daemon_({.environment = Environment()}) {}

  std::vector<std::string> Environment() const {
    std::vector<std::string> environment = manager_.environment();
    environment.push_back("BERTH_GPU_TEST_CONCURRENCY=1");
    return environment;
  }

  // Waits until the manager stores everything that the daemon holds for its clients.
  void AwaitCached() {
    EXPECT_TRUE(daemon_.AccountsBecome([this](const Accounts& accounts) {
      // A session that has ended has no lifeline.
      return manager_.Count("berth-lifeline-") == accounts.sessions &&
             manager_.Count("berth-channel-") == accounts.processes &&
             manager_.Count("berth-process-") == accounts.processes &&
             manager_.Count("berth-page-") == CountFdsOf(daemon_.supervisor_pid(), "memfd:berth-fence");
    })) << Describe(daemon_.TakeAccounts());
  }
  void KillBoth() { daemon_.KillSupervisorAndBroker(); }
  void StartAgain() { daemon_.StartAgain(manager_.HandOver()); }

  ServiceManager manager_;
  TestDaemon daemon_;
};

TEST_F(ServiceManagerFdStoreTest, SessionsPermitsAndPlacesSurviveDaemonDeath) {
  Actor holder(daemon_);
  Actor waiter(daemon_);
  holder.Do("acquire p");
  waiter.Do("begin p");
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  const v1::Node before = daemon_.GetNode();
  // The SDK would not send a call again that three brokers had received when they died.
  for (int life = 1; life <= 2; ++life) {
    AwaitCached();
    KillBoth();
    StartAgain();
    const v1::Node after = daemon_.GetNode();
    EXPECT_EQ(after.incarnation(), before.incarnation());
    EXPECT_GT(after.epoch(), before.epoch());
    EXPECT_TRUE(Ok(holder.Ask("status")));
    EXPECT_TRUE(Ok(waiter.Ask("status")));
    EXPECT_TRUE(daemon_.AccountsBecome(
        [](const Accounts& accounts) { return accounts.permits == 1 && accounts.waiters == 1; }));
    Actor late(daemon_);
    EXPECT_TRUE(Refused(late.Ask("acquire p try"), Reason::kNoPermit));
    late.Quit();
  }
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  EXPECT_TRUE(Ok(waiter.Ask("join p")));
  holder.Quit();
  waiter.Quit();
  daemon_.ExpectAccountsBack();
  AwaitCached();
}

TEST_F(ServiceManagerFdStoreTest, BlockIsNeverStoredAndItsUsersAreNotified) {
  Actor owner(daemon_);
  Actor importer(daemon_);
  const BlockHandle handle = owner.Allocate("b", 4 * kMiB);
  owner.Do("map b");
  owner.Do("fill b 3");
  owner.Do(absl::StrCat("grant-session b ", importer.session().value()));
  importer.Do(absl::StrCat("import b ", FormatHandle(handle)));
  importer.Do("map b");
  AwaitCached();
  for (const std::string& name : manager_.names()) EXPECT_FALSE(absl::StrContains(name, "block")) << name;
  KillBoth();
  StartAgain();
  for (Actor* const actor : {&owner, &importer}) {
    EXPECT_TRUE(Ok(actor->Ask("status")));
    absl::Status lost;
    // Until the notice arrives, the access is refused because the device has new memory.
    EXPECT_TRUE(Eventually([&] {
      lost = actor->Ask("access b").status();
      EXPECT_FALSE(lost.ok());
      return absl::StrContains(lost.message(), "block lost");
    })) << lost;
    EXPECT_TRUE(Ok(actor->Ask("check b 3"))) << "what is mapped stays its own";
  }
  Actor late(daemon_);
  EXPECT_TRUE(Refused(late.Ask(absl::StrCat("import b ", FormatHandle(handle))), Reason::kDenied));
  late.Quit();
  // The memory is not reused while a process may have it mapped.
  EXPECT_EQ(daemon_.TakeAccounts().quarantined + daemon_.TakeAccounts().retired, 4 * kMiB);
  // A new allocation works.
  EXPECT_TRUE(Ok(owner.Ask(absl::StrCat("allocate c ", kMiB))));
  EXPECT_TRUE(Ok(owner.Ask("map c")));
  EXPECT_TRUE(Ok(owner.Ask("access c")));
  EXPECT_TRUE(Ok(owner.Ask("free c")));
  importer.Quit();
  owner.Quit();
  daemon_.ExpectAccountsBack();
}

TEST_F(ServiceManagerFdStoreTest, DeathWithoutDaemonIsCountedByPidfd) {
  Actor holder(daemon_);
  Actor waiter(daemon_);
  holder.Do("acquire p");
  waiter.Do("begin p");
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  AwaitCached();
  KillBoth();
  holder.Kill();
  StartAgain();
  EXPECT_TRUE(Ok(waiter.Ask("join p")));
  waiter.Quit();
  daemon_.ExpectAccountsBack();
  AwaitCached();
}

TEST_F(ServiceManagerFdStoreTest, NextSupervisorContinuesWithStoredFds) {
  Actor early(daemon_);
  early.Do("acquire p");
  Actor goes(daemon_);
  AwaitCached();
  daemon_.KillSupervisor();
  goes.Quit();
  Actor late(daemon_);
  AwaitCached();
  KillBoth();
  StartAgain();
  EXPECT_TRUE(Ok(early.Ask("status")));
  EXPECT_TRUE(Ok(late.Ask("status")));
  EXPECT_TRUE(Refused(late.Ask("acquire p try"), Reason::kNoPermit));
  EXPECT_TRUE(Ok(early.Ask("release p")));
  early.Quit();
  late.Quit();
  daemon_.ExpectAccountsBack();
  AwaitCached();
}

TEST_F(ServiceManagerFdStoreTest, SessionMissingAtManagerIsResumed) {
  Actor lost(daemon_);
  Actor waiter(daemon_);
  lost.Do("acquire p");
  waiter.Do("begin p");
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  AwaitCached();
  KillBoth();
  // The fds of that session and of its process.
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
  EXPECT_TRUE(Ok(lost.Ask("acquire nested"))) << "its session goes on";
  EXPECT_TRUE(Ok(lost.Ask("release nested")));
  EXPECT_TRUE(
      daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 1 && accounts.waiters == 1; }));
  // The loss persists for later brokers.
  daemon_.KillBroker();
  EXPECT_TRUE(
      daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 1 && accounts.waiters == 1; }));
  lost.Kill();
  EXPECT_TRUE(Ok(waiter.Ask("join p")));
  waiter.Quit();
  daemon_.ExpectAccountsBack();
}

TEST_F(ServiceManagerFdStoreTest, UnknownStoredFdsAreRemoved) {
  Actor actor(daemon_);
  actor.Do("acquire p");
  AwaitCached();
  KillBoth();
  manager_.Store("berth-block-1", Must(CreateMemfd("strange", 0)));
  manager_.Store("elsewhere", Must(CreateMemfd("strange", 0)));
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd other(ends[1]);
  // A session that is not in the ledger.
  manager_.Store("berth-lifeline-77", UniqueFd(ends[0]));
  StartAgain();
  EXPECT_TRUE(Ok(actor.Ask("release p")));
  EXPECT_TRUE(Eventually([&] {
    return manager_.Count("berth-block") == 0 && manager_.Count("elsewhere") == 0 &&
           manager_.Count("berth-lifeline-77") == 0;
  }));
  char byte;
  EXPECT_EQ(::recv(other.get(), &byte, 1, 0), 0) << "its other end hears a hang-up";
  actor.Quit();
  daemon_.ExpectAccountsBack();
}

TEST_F(ServiceManagerFdStoreTest, LedgerIsResumedWithoutManagersRecord) {
  Actor actor(daemon_);
  actor.Do("acquire p");
  AwaitCached();
  const uint64_t incarnation = daemon_.GetNode().incarnation();
  KillBoth();
  manager_.Lose([](const std::string& name) { return name == "berth-record-0"; });
  StartAgain();
  EXPECT_EQ(daemon_.GetNode().incarnation(), incarnation);
  EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 1; }));
  EXPECT_TRUE(Ok(actor.Ask("release p")));
  actor.Quit();
  AwaitCached();
}

TEST_F(ServiceManagerFdStoreTest, ForeignRecordIsIgnoredAndLedgerResumed) {
  Actor actor(daemon_);
  AwaitCached();
  const uint64_t incarnation = daemon_.GetNode().incarnation();
  {
    // The id of its boot follows three words.
    const UniqueFd record = manager_.Find("berth-record-0");
    ASSERT_EQ(::pwrite(record.get(), "another", 7, 24), 7);
  }
  KillBoth();
  StartAgain();
  EXPECT_EQ(daemon_.GetNode().incarnation(), incarnation);
  EXPECT_TRUE(Ok(actor.Ask("acquire p")));
  actor.Quit();
}

TEST_F(ServiceManagerFdStoreTest, CleanStopSuspendsSessionsWithStoredFds) {
  Actor actor(daemon_);
  actor.Do("acquire p");
  AwaitCached();
  daemon_.Stop();
  daemon_.StartAgain(manager_.HandOver());
  EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 1; }));
  EXPECT_TRUE(Ok(actor.Ask("release p")));
  actor.Quit();
}

TEST_F(ServiceManagerFdStoreTest, UnresponsiveManagerDelaysNoOthers) {
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
  AwaitCached();
  KillBoth();
  StartAgain();
  for (const auto& actor : actors) EXPECT_TRUE(Ok(actor->Ask("acquire p")) && Ok(actor->Ask("release p")));
  for (const auto& actor : actors) actor->Quit();
  daemon_.ExpectAccountsBack();
}

TEST_F(ServiceManagerFdStoreTest, RepeatedDoubleDeathsPreserveQueue) {
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < 4; ++i) actors.push_back(std::make_unique<Actor>(daemon_));
  const uint64_t kills = FromEnvironment("BERTH_FAULT_KILLS", GateOrSoak(1, 5));
  for (uint64_t round = 0; round < kills && !HasFailure(); ++round) {
    actors[0]->Do("acquire p");
    for (size_t i = 1; i < actors.size(); ++i) {
      actors[i]->Do("begin p");
      ASSERT_TRUE(daemon_.AccountsBecome([&](const Accounts& accounts) { return accounts.waiters == i; }));
    }
    AwaitCached();
    KillBoth();
    StartAgain();
    EXPECT_TRUE(Ok(actors[0]->Ask("release p"))) << round;
    for (size_t i = 1; i < actors.size(); ++i) actors[i]->SendLine("join p");
    // The waiters return in any order.
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
  daemon_.ExpectAccountsBack();
  AwaitCached();
}

// A store whose capacity is only slightly more than the daemon's own fds.
class SmallStoreTest : public ServiceManagerFdStoreTest {
 protected:
  SmallStoreTest() : ServiceManagerFdStoreTest(12) {}
};

TEST_F(SmallStoreTest, SessionWithoutStorePlaceHoldsUntilProcessEnds) {
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < 6; ++i) actors.push_back(std::make_unique<Actor>(daemon_));
  Actor& holder = *actors.back();
  holder.Do("acquire p");
  ASSERT_TRUE(Eventually([&] { return manager_.names().size() == 12; }));
  KillBoth();
  StartAgain();
  Actor late(daemon_);
  late.Do("begin p");
  ASSERT_TRUE(
      daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1 && accounts.permits == 1; }));
  for (const auto& actor : actors) actor->Kill();
  EXPECT_TRUE(Ok(late.Ask("join p")));
  late.Quit();
  EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 0; }));
}

TEST(ServiceManagerFdStoreOfNobodyTest, FdsPassedToAnotherProcessAreIgnored) {
  TestDaemon daemon({.environment = {"LISTEN_PID=1", "LISTEN_FDS=4", "LISTEN_FDNAMES=berth-record-0:a:b:c"}});
  Actor actor(daemon);
  EXPECT_TRUE(Ok(actor.Ask("acquire p")));
  actor.Quit();
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
