// The history: holder, lease, time and duration, over the deaths of brokers and daemons; its visibility; and its
// behaviour on a full disk.

#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <berth/error.h>
#include <berth/session.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/history.pb.h"
#include "berth/v1/permit.pb.h"
#include "client/sdk/admin/history.h"
#include "client/sdk/admin/inspector.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

using Lease = v1::HistoryLease;

// The mounts of these tests end with them, also where a test aborts.
const bool kOwnMounts = EnterOwnMounts();

constexpr uint64_t kMiB = 1 << 20;
constexpr uid_t kOther = 1001;

std::vector<Lease> Leases(TestDaemon& daemon, const v1::ListHistoryRequest& request = {}) {
  const v1::ListHistoryResponse answer = Must(ListHistory(daemon.admin_session(), request, 1'000'000), "history");
  // In the order of events.
  return {answer.leases().rbegin(), answer.leases().rend()};
}

// Returns the history's report about itself.
v1::ListHistoryResponse Missing(TestDaemon& daemon) { return Must(ListHistory(daemon.admin_session(), {}, 1)); }

std::vector<Lease> Of(TestDaemon& daemon, Lease::Kind kind) {
  v1::ListHistoryRequest request;
  request.set_kind(kind);
  return Leases(daemon, request);
}

// A state folder that outlives a daemon.
class HistoryTest : public ::testing::Test {
 protected:
  HistoryTest() {
    std::string name = "/tmp/berth-history-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    state_ = name;
  }
  ~HistoryTest() override { std::filesystem::remove_all(state_); }

  TestDaemonOptions Options(const std::string& config = "") const {
    return {.flags = {absl::StrCat("--state=", state_)}, .config = config};
  }
  // Returns the output of `berth history` with these words, with its errors, and its exit code. `zone`: as in TZ.
  static std::pair<std::string, int> Run(const TestDaemon& daemon, const std::string& words,
                                         const std::string& zone = "UTC") {
    Subprocess command = Subprocess::Start(
        {.argv = {"/bin/sh", "-c", absl::StrCat("\"$0\" history ", words, " 2>&1"), ProgramPath("client/cli/berth")},
         .environment = {absl::StrCat("BERTH_FOLDER=", daemon.folder()), absl::StrCat("TZ=", zone), "BERTH_SESSION"}});
    std::string text = command.ReadAll();
    return {text, command.Wait()};
  }

  std::string state_;
};

TEST_F(HistoryTest, EachLeaseIsRecordedWithHolderAndEnd) {
  TestDaemon daemon(Options("[pools.gpu-tests]\ncap = 1\n"));
  {
    Actor a(daemon, {.open = false}), b(daemon);
    a.Do("open label=day");
    a.Do("acquire p");
    b.SendLine("acquire p");
    ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
    a.Do("release p");
    EXPECT_TRUE(Ok(b.Answer()));
    const BlockHandle handle = a.Allocate("b", kMiB);
    a.Do("reserve r 0=2097152 ttl=1h");
    a.Do("unreserve r");
    std::vector<Lease> permits = Of(daemon, Lease::PERMIT);
    ASSERT_EQ(permits.size(), 2u);
    EXPECT_EQ(permits[0].session(), a.session().value());
    EXPECT_EQ(permits[0].process().pid(), a.pid());
    EXPECT_EQ(permits[0].tenant().uid(), ClientUid());
    EXPECT_EQ(permits[0].pool(), "gpu-tests");
    EXPECT_EQ(permits[0].units(), 1u);
    EXPECT_EQ(permits[0].end(), Lease::RELEASED);
    EXPECT_TRUE(permits[0].has_held() && permits[0].has_end_time());
    EXPECT_EQ(permits[1].session(), b.session().value());
    EXPECT_EQ(permits[1].end(), Lease::END_UNSPECIFIED);
    EXPECT_FALSE(permits[1].has_held() || permits[1].has_end_time());
    EXPECT_GT(permits[1].waited().seconds() + permits[1].waited().nanos(), 0);
    const std::vector<Lease> blocks = Of(daemon, Lease::BLOCK);
    ASSERT_EQ(blocks.size(), 1u);
    EXPECT_EQ(blocks[0].id(), handle.block.value());
    EXPECT_EQ(blocks[0].bytes(), 2 * kMiB);
    ASSERT_EQ(blocks[0].device_uuids_size(), 1);
    EXPECT_EQ(blocks[0].device_uuids(0), handle.device_uuid);
    const std::vector<Lease> reservations = Of(daemon, Lease::RESERVATION);
    ASSERT_EQ(reservations.size(), 1u);
    EXPECT_EQ(reservations[0].end(), Lease::RELEASED);
    // A death.
    b.Kill();
    EXPECT_TRUE(Eventually([&] { return Of(daemon, Lease::PERMIT).at(1).end() == Lease::SESSION_END; }));
    a.Do("acquire q");
    Must(daemon.inspector().RevokePermit(PermitId(Must(daemon.inspector().ListPermits()).permits(0).id())));
    EXPECT_EQ(Of(daemon, Lease::PERMIT).at(2).end(), Lease::REVOKED);
    a.Quit();
  }
  const auto [text, code] = Run(daemon, "--since 1h --kind permit");
  EXPECT_EQ(code, 0) << text;
  for (const char* const word : {"released", "session end", "revoked", "1 of gpu-tests"}) {
    EXPECT_TRUE(absl::StrContains(text, word)) << text;
  }
  EXPECT_FALSE(absl::StrContains(text, "block")) << text;
  EXPECT_TRUE(absl::StrContains(Run(daemon, "--until 1h").first, "no leases"));
  const auto [last, ended] = Run(daemon, "--limit 1 --pool gpu-tests");
  EXPECT_TRUE(absl::StrContains(last, "revoked") && !absl::StrContains(last, "released")) << last;
  EXPECT_TRUE(absl::StrContains(last, "the last 1")) << last;
  EXPECT_TRUE(absl::StrContains(Run(daemon, "--json").first, "\"grant_time\""));
  EXPECT_EQ(Run(daemon, "--since yesterday").second, 64);
  EXPECT_EQ(Run(daemon, "--kind gpu").second, 64);
  EXPECT_EQ(Run(daemon, "--limit 0").second, 64);
  daemon.ExpectAccountsBack();
}

TEST_F(HistoryTest, ShownTimeIsReadInEachForm) {
  TestDaemon daemon(Options());
  Actor actor(daemon);
  actor.Do("acquire p");
  actor.Do("release p");
  actor.Quit();
  // A zone in which it is midday.
  const int64_t hour = absl::ToUnixSeconds(absl::Now()) / 3600 % 24;
  const absl::TimeZone zone = absl::FixedTimeZone(static_cast<int>(12 - hour) * 3600 + 1800);
  const std::string name = zone.name();
  const auto shows = [&](absl::string_view option, const std::string& time) {
    const auto [text, code] = Run(daemon, absl::StrCat(option, " '", time, "'"), name);
    EXPECT_EQ(code, 0) << option << " " << time << "\n" << text;
    return absl::StrContains(text, "released");
  };
  const std::string text = Run(daemon, "", name).first;
  // The first column of the row below the heading.
  const std::string row = text.substr(text.find('\n') + 1);
  const std::string shown = row.substr(0, row.find("  "));
  absl::Time granted;
  ASSERT_TRUE(absl::ParseTime("%Y-%m-%d %H:%M:%S%Ez", shown, &granted, nullptr)) << text;
  EXPECT_LT(absl::Now() - granted, absl::Hours(1));
  EXPECT_TRUE(shows("--since", shown));
  EXPECT_TRUE(shows("--until", shown)) << "the lease was granted within that second";
  for (const char* const form : {"%Y-%m-%d %H:%M:%S%Ez", "%Y-%m-%dT%H:%M:%S%Ez", "%Y-%m-%d %H:%M:%S",
                                 "%Y-%m-%dT%H:%M:%S", "@%s"}) {
    const auto at = [&](absl::Duration after) { return absl::FormatTime(form, granted + after, zone); };
    EXPECT_TRUE(shows("--since", at(absl::ZeroDuration()))) << form;
    EXPECT_FALSE(shows("--since", at(absl::Hours(1)))) << form;
    EXPECT_TRUE(shows("--until", at(absl::ZeroDuration()))) << form;
    EXPECT_TRUE(shows("--until", at(absl::Seconds(1)))) << form;
    EXPECT_FALSE(shows("--until", at(-absl::Seconds(1)))) << form;
  }
  // The times for programs, to the nanosecond.
  const std::string json = Run(daemon, "--json", name).first;
  for (const char* const field : {"grant_time", "end_time"}) {
    const size_t at = json.find(absl::StrCat("\"", field, "\": \""));
    ASSERT_NE(at, std::string::npos) << json;
    const std::string time = json.substr(json.find(": \"", at) + 3);
    const std::string exact = time.substr(0, time.find('"'));
    EXPECT_TRUE(shows("--since", exact)) << exact;
    EXPECT_TRUE(shows("--until", exact)) << exact;
  }
  const auto day = [&](int days) { return absl::FormatTime("%Y-%m-%d", granted + absl::Hours(24 * days), zone); };
  for (const std::string& time : {day(0), std::string("today"), std::string("1d")}) {
    EXPECT_TRUE(shows("--since", time)) << time;
    EXPECT_FALSE(shows("--until", time)) << time;
  }
  EXPECT_FALSE(shows("--since", day(1)));
  EXPECT_TRUE(shows("--until", day(1)));
  daemon.ExpectAccountsBack();
}

TEST_F(HistoryTest, HistorySurvivesBrokerAndDaemonDeaths) {
  uint64_t incarnation = 0;
  {
    TestDaemon daemon(Options("[pools.gpu-tests]\ncap = 8\n"));
    Actor early(daemon), holder(daemon);
    for (int i = 0; i < 20; ++i) {
      early.Do("acquire p");
      early.Do("release p");
    }
    ASSERT_EQ(Of(daemon, Lease::PERMIT).size(), 20u);
    // Leases held at the broker's death are in the history, whether or not the broker had written them.
    holder.Do("acquire held");
    holder.Do(absl::StrCat("allocate b ", kMiB));
    daemon.KillBroker();
    early.Do("acquire p");
    early.Do("release p");
    const std::vector<Lease> permits = Of(daemon, Lease::PERMIT);
    ASSERT_EQ(permits.size(), 22u);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(permits[i].end(), Lease::RELEASED) << i;
    EXPECT_EQ(permits[20].session(), holder.session().value());
    EXPECT_EQ(permits[20].end(), Lease::END_UNSPECIFIED);
    EXPECT_EQ(Of(daemon, Lease::BLOCK).size(), 1u);
    // Held over the broker's death.
    holder.Do("release held");
    EXPECT_EQ(Of(daemon, Lease::PERMIT).at(20).end(), Lease::RELEASED);
    EXPECT_TRUE(Of(daemon, Lease::PERMIT).at(20).has_held());
    // A lease that ended while there was no broker.
    holder.Do("acquire last");
    ASSERT_EQ(Of(daemon, Lease::PERMIT).size(), 23u);
    daemon.supervisor().Signal(SIGSTOP);
    ASSERT_EQ(::kill(daemon.broker(), SIGKILL), 0);
    holder.Kill();
    daemon.supervisor().Signal(SIGCONT);
    EXPECT_TRUE(Eventually([&] { return Of(daemon, Lease::PERMIT).at(22).end() == Lease::SESSION_END; }));
    early.Do("acquire out");
    ASSERT_EQ(Of(daemon, Lease::PERMIT).size(), 24u);
    incarnation = daemon.GetNode().incarnation();
    daemon.Stop();
    // A release would wait for a daemon.
    early.Kill();
  }
  TestDaemon daemon(Options("[pools.gpu-tests]\ncap = 8\n"));
  const std::vector<Lease> permits = Of(daemon, Lease::PERMIT);
  ASSERT_EQ(permits.size(), 24u);
  uint64_t number = 0;
  for (const Lease& lease : permits) {
    EXPECT_EQ(lease.incarnation(), incarnation);
    EXPECT_GT(lease.number(), number);
    number = lease.number();
  }
  EXPECT_EQ(permits[23].end(), Lease::DAEMON_END);
  Actor later(daemon);
  later.Do("acquire p");
  ASSERT_EQ(Of(daemon, Lease::PERMIT).size(), 25u);
  EXPECT_NE(Of(daemon, Lease::PERMIT).at(24).incarnation(), incarnation);
  later.Quit();
  daemon.ExpectAccountsBack();
}

TEST_F(HistoryTest, HistoryIsBounded) {
  TestDaemon daemon(Options("[history]\nrows = 1000\nsize = \"4MiB\"\n"));
  {
    Actor actor(daemon);
    for (int i = 0; i < 1'200; ++i) {
      actor.Do("acquire p");
      actor.Do("release p");
    }
  }
  const std::vector<Lease> permits = Of(daemon, Lease::PERMIT);
  EXPECT_LE(permits.size(), 1'000u);
  EXPECT_GE(permits.size(), 900u);
  EXPECT_EQ(permits.back().id(), 1'200u);
  EXPECT_EQ(Missing(daemon).unwritten_total(), 0u);
  EXPECT_EQ(Missing(daemon).row_limit(), 1'000u);
  EXPECT_EQ(Missing(daemon).byte_limit(), 4 * kMiB);
  // The command names the limit by which leases are missing, and how to see more.
  const std::string evicted = "may be missing: the daemon holds at most 1000 leases (history.rows) and 4 MiB (history";
  for (const auto& [words, of_command, of_daemon] : std::vector<std::tuple<std::string, bool, bool>>{
           {"", true, false}, {"--limit 2000", false, true}, {"--limit 2000 --since 2h", false, true},
           {"--limit 2000 --since 0", false, false}, {"--limit 2000 --kind block", false, true}}) {
    const auto [text, code] = Run(daemon, words);
    EXPECT_EQ(code, 0) << text;
    EXPECT_EQ(absl::StrContains(text, "showing the last 100 leases; a larger --limit shows more"), of_command) << text;
    EXPECT_EQ(absl::StrContains(text, evicted), of_daemon) << words << ": " << text;
  }
  uint64_t bytes = 0;
  for (const char* const name : {"history.db", "history.db-wal"}) {
    bytes += std::filesystem::file_size(absl::StrCat(state_, "/", name));
  }
  EXPECT_LE(bytes, 4 * kMiB);
  daemon.ExpectAccountsBack();
}

TEST_F(HistoryTest, TenantSeesItsOwnObserverSeesAll) {
  if (!IsRoot()) GTEST_SKIP() << "needs root: changes users";
  if (OtherUser().has_value()) GTEST_SKIP() << "this process asks as the user of its actors";
  TestDaemon daemon(Options());
  {
    Actor own(daemon), other(daemon, {.uid = kOther});
    own.Do("acquire p");
    other.Do("acquire p");
    other.Do(absl::StrCat("allocate secret ", kMiB));
    EXPECT_EQ(Leases(daemon).size(), 3u);
    const auto mine = Must(Session::Open({.folder = daemon.folder(), .always_new = true}));
    const v1::ListHistoryResponse shown = Must(ListHistory(mine, {}));
    ASSERT_EQ(shown.leases_size(), 1);
    EXPECT_EQ(shown.leases(0).session(), own.session().value());
    v1::ListHistoryRequest theirs;
    theirs.set_kind(Lease::BLOCK);
    EXPECT_EQ(Must(ListHistory(mine, theirs)).leases_size(), 0);
    const auto observer = Must(Session::Open({.folder = daemon.folder(), .observer = true}));
    EXPECT_EQ(Must(ListHistory(observer, {})).leases_size(), 3);
    struct stat info;
    ASSERT_EQ(::stat(absl::StrCat(state_, "/history.db").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
  daemon.ExpectAccountsBack();
}

TEST_F(HistoryTest, InvalidHistoryIsRenamedAndReplaced) {
  std::ofstream(state_ + "/history.db") << "what somebody else has left here: " << std::string(5'000, 'x');
  TestDaemon daemon(Options());
  {
    Actor actor(daemon);
    actor.Do("acquire p");
    EXPECT_EQ(Leases(daemon).size(), 1u);
    EXPECT_TRUE(std::filesystem::exists(state_ + "/history.unreadable.db"));
    EXPECT_EQ(Missing(daemon).fault(), "");
  }
  daemon.ExpectAccountsBack();
}

TEST_F(HistoryTest, DisabledHistoryIsReportedAsUnsupported) {
  TestDaemon daemon(Options("[history]\nsize = \"0B\"\n"));
  {
    Actor actor(daemon);
    actor.Do("acquire p");
    const absl::Status refused = ListHistory(daemon.admin_session(), {}).status();
    EXPECT_TRUE(Refused(refused, Reason::kUnsupported, {{"capability", "history"}}));
    EXPECT_FALSE(std::filesystem::exists(state_ + "/history.db"));
  }
  daemon.ExpectAccountsBack();
}

// The state folder is on a disk of two megabytes.
class FullDiskTest : public HistoryTest {
 protected:
  void SetUp() override {
    if (!kOwnMounts) GTEST_SKIP() << "needs the right to mount a small disk";
    ASSERT_EQ(::mount("berth-test", state_.c_str(), "tmpfs", 0, "size=2m,mode=0700"), 0);
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) ::umount2(state_.c_str(), MNT_DETACH);
  }
  // Fills the disk completely.
  void Fill() {
    std::ofstream file(state_ + "/filler");
    while (file << std::string(4096, 'x') << std::flush) {
    }
  }

  bool mounted_ = false;
};

TEST_F(FullDiskTest, FullDiskDelaysNoPermitsAndGapsAreReported) {
  TestDaemon daemon(Options("[log]\naudit_size = \"0B\"\n[history]\nsize = \"4MiB\"\n"));
  {
    Actor actor(daemon);
    actor.Do("acquire before");
    actor.Do("release before");
    ASSERT_EQ(Leases(daemon).size(), 1u);
    Fill();
    for (int i = 0; i < 300; ++i) {
      actor.Do("acquire p");
      actor.Do("release p");
    }
    EXPECT_TRUE(Eventually([&] {
      for (int i = 0; i < 20; ++i) {
        actor.Do("acquire p");
        actor.Do("release p");
      }
      return !Missing(daemon).fault().empty();
    }));
    EXPECT_TRUE(absl::StrContains(Missing(daemon).fault(), state_));
    std::filesystem::remove(state_ + "/filler");
    EXPECT_TRUE(Eventually([&] { return Missing(daemon).fault().empty(); }));
    // The pending records are there: none was left out.
    EXPECT_GT(Leases(daemon).size(), 300u);
    EXPECT_EQ(Missing(daemon).unwritten_total(), 0u);
    actor.Do("acquire after");
    EXPECT_EQ(Leases(daemon).back().end(), Lease::END_UNSPECIFIED);
  }
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
