// Driver readings while the daemon runs: which processes have a device's memory, and whether they are active. A script
// supplies the driver's values.

#include <sys/prctl.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include <berth/bytes.h>
#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/resources.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/node_file.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr Bytes kTotal = MiB(64);
// The pid of no process.
constexpr int kStranger = 2'000'000'000;

// A daemon whose one device reports the values that the test writes.
class ReadingsTest : public ::testing::Test {
 protected:
  ReadingsTest() { Say(kTotal, ""); }

  static std::string Process(int64_t pid, Bytes bytes) {
    return absl::StrCat("{pid = ", pid, ", bytes = \"", bytes.count(), "\"},");
  }
  // Sets the reading. Returns when the daemon has received it.
  void Say(Bytes free, const std::string& processes, int utilisation = 0) {
    node_.Now(absl::StrCat("[now.0]\nfree_bytes = \"", free.count(), "\"\nutilisation = ", utilisation,
                           "\nprocesses = [", processes, "]\n"));
    // A reading in progress gets its time at its end; only the next one surely has the new values.
    for (int i = 0; i < 2; ++i) {
      const absl::Time before = absl::Now();
      ASSERT_TRUE(Eventually([&] { return ReadTime() > before; }));
    }
  }
  absl::Time ReadTime() {
    const v1::Device device = Must(daemon_.inspector().ListDevices()).devices(0);
    if (!device.has_reading()) return absl::InfinitePast();
    return absl::FromUnixSeconds(device.reading().read_time().seconds()) +
           absl::Nanoseconds(device.reading().read_time().nanos());
  }
  absl::Status TryDeclare(Actor& actor, Bytes bytes) const {
    return actor.Ask(absl::StrCat("acquire d key=d device=any declared=", bytes.count(), " try")).status();
  }
  // Whether the daemon grants a permit that declares so much; the permit is released.
  bool Granted(Actor& actor, Bytes bytes) const {
    if (!TryDeclare(actor, bytes).ok()) return false;
    actor.Do("release d");
    return true;
  }
  int Strays() { return Must(daemon_.inspector().ListStrays()).strays_size(); }

  const NodeFile node_{absl::StrCat("[[device]]\nuuid = \"HOST-0\"\nmemory = \"", kTotal.count(), "\"")};
  TestDaemon daemon_{
      {.flags = {node_.flag()}, .config = "[pools.gpu-tests]\ncap = 8\nidle_warning = \"1s\"\n"}};
};

TEST_F(ReadingsTest, ForeignMemoryIsReadContinuously) {
  Actor actor(daemon_);
  EXPECT_TRUE(Granted(actor, MiB(60)));
  Say(MiB(34), Process(kStranger, MiB(30)));
  EXPECT_FALSE(Granted(actor, MiB(60)));
  EXPECT_TRUE(IsRefusal(TryDeclare(actor, MiB(35)), Reason::kNoPermit));
  EXPECT_TRUE(Granted(actor, MiB(34)));
  // A waiter continues when a process outside Berth ends.
  actor.SendLine(absl::StrCat("acquire w device=any declared=", MiB(60).count()));
  ASSERT_TRUE(Eventually([&] { return Must(daemon_.inspector().ListPermits()).waiters_size() == 1; }));
  Say(kTotal, "");
  EXPECT_TRUE(Ok(actor.Answer()));
}

TEST_F(ReadingsTest, ForeignMemoryIsShownApartFromSessionsAndDaemon) {
  Actor actor(daemon_);
  actor.Allocate("b", MiB(16).count());
  // The daemon has the block, and 6 MiB are in use by no listed process.
  Say(MiB(64 - 16 - 7 - 9 - 6), absl::StrCat(Process(kStranger, MiB(7)), Process(actor.pid(), MiB(9)),
                                             Process(daemon_.broker(), MiB(16))));
  const auto others = [&] {
    return Must(daemon_.inspector().ListDevices()).devices(0).reading().others_bytes();
  };
  EXPECT_EQ(others(), MiB(7 + 6).count());
  const std::string table = BerthCommand(daemon_.folder()).Show({"devices", "--hardware"});
  EXPECT_TRUE(absl::StrContains(table, " OTHERS ") && absl::StrContains(table, " 13 MiB ")) << table;
  Say(MiB(48), "");
  EXPECT_EQ(others(), 0u);
}

TEST_F(ReadingsTest, UnlistedMemoryCountsAsForeign) {
  Actor actor(daemon_);
  Say(MiB(40), "");
  EXPECT_FALSE(Granted(actor, MiB(41)));
  EXPECT_TRUE(Granted(actor, MiB(40)));
}

TEST_F(ReadingsTest, SessionIsChargedLargerOfDeclaredAndUsed) {
  Actor taker(daemon_), other(daemon_);
  taker.Do(absl::StrCat("acquire p device=any declared=", MiB(20).count()));
  EXPECT_TRUE(Granted(other, MiB(44)));
  // Less than it declared: no other session gets the difference.
  Say(MiB(54), Process(taker.pid(), MiB(10)));
  EXPECT_FALSE(Granted(other, MiB(45)));
  EXPECT_TRUE(Granted(other, MiB(44)));
  Say(MiB(14), Process(taker.pid(), MiB(50)));
  EXPECT_FALSE(Granted(other, MiB(44)));
  EXPECT_TRUE(Granted(other, MiB(14)));
  // The charge remains after it has released its permit but not the bytes.
  taker.Do("release p");
  EXPECT_FALSE(Granted(other, MiB(15)));
  Say(kTotal, "");
  EXPECT_TRUE(Granted(other, MiB(60)));
}

// Drivers do not list a block for processes that map it (docs/design/0013).
TEST_F(ReadingsTest, MappedBlockIsCountedOnce) {
  Actor owner(daemon_), other(daemon_);
  owner.Allocate("b", MiB(16).count());
  owner.Do("map b");
  Say(MiB(48), "");
  EXPECT_TRUE(Granted(other, MiB(48)));
  EXPECT_FALSE(Granted(other, MiB(49)));
  // Under a driver that did list it, Berth would admit too few, never too many.
  Say(MiB(48), Process(owner.pid(), MiB(16)));
  EXPECT_TRUE(Granted(other, MiB(32)));
  EXPECT_FALSE(Granted(other, MiB(33)));
}

TEST_F(ReadingsTest, ProcessWithoutPermitIsListed) {
  Actor actor(daemon_);
  Say(MiB(40), absl::StrCat(Process(kStranger, MiB(8)), Process(actor.pid(), MiB(8)),
                            Process(daemon_.broker(), MiB(8))));
  ASSERT_EQ(Strays(), 2) << "the daemon's own is none";
  const v1::ListStraysResponse strays = Must(daemon_.inspector().ListStrays());
  EXPECT_EQ(strays.strays(0).process().pid(), actor.pid());
  EXPECT_EQ(SessionId(strays.strays(0).session()), actor.session());
  EXPECT_EQ(strays.strays(0).bytes(), MiB(8).count());
  EXPECT_EQ(strays.strays(1).process().pid(), kStranger);
  EXPECT_EQ(strays.strays(1).session(), 0u);
  Subprocess command = Subprocess::Start(
      {.argv = {ProgramPath("client/cli/berth"), absl::StrCat("--folder=", daemon_.folder()), "--admin", "strays"},
       .environment = {"BERTH_SESSION"}});
  const std::string text = command.ReadAll();
  EXPECT_EQ(command.Wait(), 0);
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 3u) << text;
  EXPECT_TRUE(absl::StrContains(lines[1], absl::StrCat(actor.pid())) &&
              absl::StrContains(lines[1], absl::StrCat(actor.session().value())))
      << text;
  EXPECT_TRUE(absl::StrContains(lines[2], absl::StrCat(kStranger)) && absl::StrContains(lines[2], "none")) << text;
  actor.Do("acquire p");
  EXPECT_EQ(Strays(), 1);
  // A process that the session's process has started counts for the session.
  Actor parent(daemon_);
  parent.Do("acquire p");
  Say(MiB(40), absl::StrCat(Process(parent.pid(), MiB(8)), Process(::getpid(), MiB(8))));
  const v1::ListStraysResponse now = Must(daemon_.inspector().ListStrays());
  ASSERT_EQ(now.strays_size(), 1);
  EXPECT_EQ(now.strays(0).process().pid(), ::getpid()) << "this process is no descendant of it";
}

// A process chooses its name, here this one.
TEST_F(ReadingsTest, UnprintableNameOfProcessIsListedCleaned) {
  char original[16] = {};
  ::prctl(PR_GET_NAME, original);
  for (const auto& [name, listed] : {std::pair("\xff\x1b[2J", "??[2J"), std::pair("abc\u202egnp", "abc?gnp")}) {
    ::prctl(PR_SET_NAME, name);
    Say(MiB(40), Process(::getpid(), MiB(8)));
    const v1::ListStraysResponse strays = Must(daemon_.inspector().ListStrays());
    ASSERT_EQ(strays.strays_size(), 1);
    EXPECT_EQ(strays.strays(0).process().name(), listed);
  }
  ::prctl(PR_SET_NAME, original);
}

TEST_F(ReadingsTest, OldReadingsGrantNoBytesWithExplanation) {
  Actor actor(daemon_);
  Say(MiB(34), Process(kStranger, MiB(30)));
  EXPECT_FALSE(Granted(actor, MiB(60)));
  EXPECT_TRUE(Granted(actor, MiB(1)));
  node_.Remove();
  ASSERT_TRUE(Eventually([&] { return !Granted(actor, MiB(1)); })) << "readings grow old";
  EXPECT_TRUE(Ok(actor.Ask("acquire n device=any key=n try"))) << "no bytes, no named values";
  actor.Do("release n");
  actor.SendLine("acquire w device=any declared=1");
  ASSERT_TRUE(Eventually([&] { return Must(daemon_.inspector().ListPermits()).waiters_size() == 1; }));
  const uint64_t number = Must(daemon_.inspector().ListPermits()).waiters(0).number();
  EXPECT_EQ(Must(daemon_.inspector().ExplainWait(number)).cause(), v1::WaitExplanation::OLD_READING);
  Say(kTotal, "");
  EXPECT_TRUE(Ok(actor.Answer()));
}

TEST_F(ReadingsTest, PermitOnIdleDeviceIsShownAsIdle) {
  Actor actor(daemon_);
  actor.Do("acquire p device=any");
  const auto idle = [&] { return Must(daemon_.inspector().ListPermits()).permits(0).has_idle(); };
  EXPECT_TRUE(Eventually(idle));
  Say(kTotal, "", /*utilisation=*/40);
  EXPECT_FALSE(idle());
  EXPECT_GT(Must(daemon_.inspector().ListPermits()).permits(0).utilisation(), 0u);
  Say(kTotal, "");
  EXPECT_TRUE(Eventually(idle));
  const v1::ListPermitsResponse permits = Must(daemon_.inspector().ListPermits());
  ASSERT_EQ(permits.permits_size(), 1) << "it is not taken away";
  EXPECT_TRUE(permits.permits(0).has_utilisation());
  EXPECT_LT(permits.permits(0).utilisation(), 40u) << "of all the time that it is held";
}

}  // namespace
}  // namespace berth::testing
