// Hostile surroundings: a wall clock that is set, a folder without space, another user's folder.

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>
#include <berth/session.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/admin/inspector.h"
#include "client/sdk/transport/attach.h"
#include "common/os/unique_fd.h"
#include "common/wire/attach_wire.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/client_folder.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// The mounts of these tests end with them, also where a test aborts.
const bool kOwnMounts = EnterOwnMounts();

std::string MakeFolder() {
  std::string name = "/tmp/berth-around-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) Fatal(absl::InternalError("mkdtemp"), name);
  return name;
}

// A wall clock that is set only for a daemon and its processes (tests/support/clock_library.cc).
class WallClock {
 public:
  WallClock() : path_(MakeFolder() + "/clock") { Set(absl::ZeroDuration()); }
  ~WallClock() { std::filesystem::remove_all(std::filesystem::path(path_).parent_path()); }

  std::vector<std::string> environment() const {
    const std::string library = std::filesystem::canonical(ProgramPath("tests/support/libclock.so"));
    return {absl::StrCat("LD_PRELOAD=", library), absl::StrCat("BERTH_TEST_CLOCK=", path_)};
  }
  // Sets the clock ahead of the real one by `ahead`.
  void Set(absl::Duration ahead) {
    ahead_ = ahead;
    const int64_t seconds = absl::ToInt64Seconds(ahead);
    const UniqueFd file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    if (::pwrite(file.get(), &seconds, sizeof(seconds), 0) != sizeof(seconds)) {
      Fatal(absl::InternalError("pwrite"), path_);
    }
  }
  // Returns the age of that time by this clock.
  absl::Duration Age(const google::protobuf::Timestamp& time) const {
    return absl::Now() + ahead_ - absl::FromUnixSeconds(time.seconds()) - absl::Nanoseconds(time.nanos());
  }

 private:
  const std::string path_;
  absl::Duration ahead_;
};

class WallClockTest : public ::testing::Test {
 protected:
  // Expects the ages that an unset clock would give.
  void ExpectAges(TestDaemon& daemon) {
    const auto fits = [&](const google::protobuf::Timestamp& time) {
      const absl::Duration age = clock_.Age(time);
      return age > -absl::Seconds(1) && age < absl::Now() - begin_ + absl::Seconds(1);
    };
    const v1::ListPermitsResponse permits = Must(daemon.inspector().ListPermits());
    for (const v1::Permit& permit : permits.permits()) {
      EXPECT_TRUE(fits(permit.grant_time())) << clock_.Age(permit.grant_time());
    }
    for (const v1::Waiter& waiter : permits.waiters()) {
      EXPECT_TRUE(fits(waiter.wait_start_time())) << clock_.Age(waiter.wait_start_time());
    }
    const v1::ListReservationsResponse reservations = Must(daemon.inspector().ListReservations());
    for (const v1::Reservation& reservation : reservations.reservations()) {
      EXPECT_TRUE(fits(reservation.create_time())) << clock_.Age(reservation.create_time());
      EXPECT_GT(-clock_.Age(reservation.expire_time()), absl::Minutes(50));
    }
    EXPECT_TRUE(fits(daemon.GetNode().serve_time()));
  }

  WallClock clock_;
  const absl::Time begin_ = absl::Now();
};

TEST_F(WallClockTest, SettingClockEndsAndAgesNothing) {
  TestDaemon daemon({.config = "[pools.gpu-tests]\ncap = 1\nhold_limit = \"1h\"\nhold_warning = \"30m\"\n",
                     .environment = clock_.environment()});
  {
    Actor holder(daemon), waiter(daemon);
    holder.Do("acquire p");
    holder.Do("reserve r 0=2097152 ttl=1h");
    waiter.SendLine("acquire p");
    ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
    int deaths = 0;
    for (const absl::Duration ahead : {absl::Hours(2), -absl::Hours(2), absl::Hours(24 * 400), absl::ZeroDuration()}) {
      clock_.Set(ahead);
      for (const bool next_broker : {false, true}) {
        // The SDK does not send a call again of which three brokers died.
        if (next_broker && deaths++ >= 2) break;
        if (next_broker) daemon.KillBroker();
        const auto as_it_was = [](const Accounts& accounts) {
          return accounts.permits == 1 && accounts.waiters == 1 && accounts.reserved == 2 << 20;
        };
        EXPECT_TRUE(daemon.AccountsBecome(as_it_was)) << ahead << Describe(daemon.TakeAccounts());
        ExpectAges(daemon);
        // This call makes the core read its clock.
        EXPECT_TRUE(Ok(holder.Ask("allocate b 4096")));
        EXPECT_TRUE(Ok(holder.Ask("drop b")));
        EXPECT_EQ(Must(daemon.inspector().ListPools()).pools(0).overdue(), 0u);
      }
    }
    holder.Do("release p");
    EXPECT_TRUE(Ok(waiter.Answer()));
    holder.Do("unreserve r");
  }
  daemon.ExpectAccountsBack();
}

TEST_F(WallClockTest, HoldLimitExpiresOnTimeAfterClockSetBack) {
  TestDaemon daemon(
      {.config = "[pools.gpu-tests]\ncap = 1\nhold_limit = \"1s\"\n", .environment = clock_.environment()});
  {
    Actor holder(daemon), next(daemon);
    for (const bool next_broker : {false, true}) {
      holder.Do("acquire p");
      next.SendLine("acquire p");
      clock_.Set(-absl::Hours(3));
      if (next_broker) daemon.KillBroker();
      EXPECT_TRUE(Ok(next.Answer())) << "the first one's time is over";
      next.Do("release p");
      clock_.Set(absl::ZeroDuration());
    }
  }
  daemon.ExpectAccountsBack();
}

TEST_F(WallClockTest, PeriodicWorkContinuesAfterClockSetBack) {
  TestDaemon daemon({.environment = clock_.environment()});
  const auto memory = [&] { return daemon.GetNode().pressure().memory_bytes(); };
  for (const absl::Duration ahead : {-absl::Hours(3), absl::Hours(3), -absl::Hours(3)}) {
    clock_.Set(ahead);
    // The broker checks its memory use four times a second, and uses more as it serves more.
    const uint64_t before = memory();
    std::vector<std::shared_ptr<Session>> sessions;
    EXPECT_TRUE(Eventually([&] {
      sessions.push_back(Must(Session::Open({.folder = daemon.folder(), .always_new = true})));
      return memory() != before;
    })) << ahead;
  }
}

TEST_F(WallClockTest, CallDeadlineIgnoresClockSetBack) {
  TestDaemon daemon;
  {
    // The actor waits for the end of the time-out.
    Actor waiting(daemon, {.environment = clock_.environment(), .open = false});
    waiting.Do("open timeout=5s");
    Actor without(daemon, {.environment = clock_.environment()});
    waiting.Do("status");
    daemon.supervisor().Signal(SIGSTOP);
    const pid_t broker = daemon.StopBroker();
    waiting.SendLine("allocate b 4096");
    without.SendLine("acquire p");
    // The client usually waits by then; where it does not, its clock only differed from the start.
    const absl::Time begin = absl::Now();
    ASSERT_TRUE(Eventually([&] { return absl::Now() - begin > absl::Seconds(1); }));
    clock_.Set(-absl::Hours(3));
    const absl::Status late = waiting.Answer().status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
    EXPECT_TRUE(absl::StrContains(late.message(), "did not answer in time")) << late;
    ASSERT_EQ(::kill(broker, SIGCONT), 0);
    daemon.supervisor().Signal(SIGCONT);
    // Clients that may wait longer, and clients with a pending answer, get it at once.
    EXPECT_TRUE(Ok(without.Answer()));
    EXPECT_TRUE(Ok(waiting.Ask("allocate c 4096")));
    waiting.Quit();
    without.Quit();
  }
  daemon.ExpectAccountsBack();
}

// A daemon whose folder is on a separate disk of so many megabytes.
class SmallFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kOwnMounts) GTEST_SKIP() << "needs the right to mount a small disk";
    ASSERT_EQ(::mount("berth-test", disk_.c_str(), "tmpfs", 0, "size=16m,mode=0755"), 0);
    mounted_ = true;
    int ready[2];
    ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    daemon_.emplace(Subprocess::Start(
        {.argv = {ProgramPath("daemon/berthd"), absl::StrCat("--folder=", folder()), absl::StrCat("--state=", state_),
                  "--backend=host", "--warm-blocks=0", absl::StrCat("--ready-fd=", ready[1])},
         .environment = {"BERTH_GPU_TEST_CONCURRENCY=2", "BERTH_SESSION"},
         .inherited_fd = ready[1],
         .of_operator = true}));
    ::close(ready[1]);
    char text[6] = {};
    ASSERT_EQ(::read(ready[0], text, sizeof(text)), 6);
    ::close(ready[0]);
    OpenToClients(folder());
  }
  void TearDown() override {
    if (daemon_.has_value()) {
      daemon_->Signal(SIGTERM);
      EXPECT_EQ(daemon_->Wait(), 0);
    }
    if (mounted_) ::umount2(disk_.c_str(), MNT_DETACH);
    std::filesystem::remove_all(disk_);
    std::filesystem::remove_all(state_);
  }

  std::string folder() const { return disk_ + "/run"; }
  void Fill() {
    std::ofstream file(disk_ + "/filler");
    while (file << std::string(4096, 'x') << std::flush) {
    }
  }
  Inspector Look() {
    absl::StatusOr<std::shared_ptr<Session>> session;
    Eventually([&] {
      session = Session::Open({.folder = folder(), .admin = true, .always_new = true});
      return session.ok();
    });
    return Inspector(Must(std::move(session)));
  }
  uint64_t Out() { return Must(Look().ListPools()).pools(0).out(); }
  void KillBroker() {
    for (const ChildInfo& child : ChildrenOf(daemon_->pid())) {
      if (child.name == "berth-broker") ::kill(child.pid, SIGKILL);
    }
  }

  const std::string disk_ = MakeFolder();
  const std::string state_ = MakeFolder();
  bool mounted_ = false;
  std::optional<Subprocess> daemon_;
};

TEST_F(SmallFolderTest, FullDiskGrantsAndLosesNothingThenRecovers) {
  Actor holder(folder()), busy(folder()), doomed(folder());
  holder.Do("acquire held");
  doomed.Do("allocate b 1048576");
  Fill();
  // Optional records use up the space that is reserved for required ones.
  absl::Status refused;
  // A long label makes a record long: fewer records take the space.
  const std::string label(attach::kMaxLabelBytes - 1, 'l');
  const std::string acquire = absl::StrCat("acquire p label=", label);
  for (const absl::Time deadline = absl::Now() + kPatience; refused.ok() && absl::Now() < deadline;) {
    refused = busy.Ask(acquire).status();
    if (refused.ok()) refused = busy.Ask("release p").status();
  }
  EXPECT_TRUE(Refused(refused, Reason::kLedgerFull, {{"path", folder() + "/ledger"}})) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "No space left")) << refused;
  EXPECT_TRUE(absl::StrContains(Must(Look().GetNode()).ledger_fault(), folder() + "/ledger"));
  // No new tenant gets a session, however often it tries.
  const auto come = [&](bool as_operator) {
    return Session::Open({.folder = folder(), .admin = as_operator, .always_new = true}).status();
  };
  const Inspector look = Look();
  const uint64_t epoch = Must(look.GetNode()).epoch();
  absl::Status tenant, an_operator;
  for (int i = 0; i < 100; ++i) tenant = come(false);
  EXPECT_TRUE(IsRefusal(tenant, Reason::kLedgerFull)) << tenant;
  // Operators do, until only the space that is reserved for ends is left.
  const std::string attach_path = internal::AttachPath(folder(), /*of_operator=*/true);
  while (an_operator.ok()) an_operator = internal::OpenSession(attach_path, label, {.timeout = kPatience}).status();
  EXPECT_TRUE(IsRefusal(an_operator, Reason::kLedgerFull)) << an_operator;
  an_operator = come(true);
  EXPECT_TRUE(IsRefusal(an_operator, Reason::kLedgerFull)) << an_operator;
  const BerthCommand berth(folder());
  // Another user is no observer.
  if (!OtherUser().has_value()) {
    EXPECT_EQ(berth.Run({"health"}), 1) << "the daemon answers, and is not healthy";
    EXPECT_TRUE(absl::StrContains(berth.Show({"status"}), "The daemon grants nothing: "));
  }
  EXPECT_EQ(berth.Run({"stop", "--yes"}), 1);
  // Read calls are answered, deaths are recorded, and the next broker knows what this one knew.
  const uint64_t out = Must(look.ListPools()).pools(0).out();
  EXPECT_GE(out, 1u);
  doomed.Kill();
  EXPECT_TRUE(Eventually([&] { return Must(look.ListBlocks()).blocks_size() == 0; }));
  EXPECT_EQ(Must(look.GetNode()).epoch(), epoch) << "a broker ended because its disk was full";
  KillBroker();
  EXPECT_TRUE(Eventually([&] { return Must(look.GetNode()).epoch() > epoch; }));
  EXPECT_EQ(Must(look.ListPools()).pools(0).out(), out);
  EXPECT_FALSE(Must(look.GetNode()).ledger_fault().empty());
  std::filesystem::remove(disk_ + "/filler");
  EXPECT_TRUE(Eventually([&] { return Must(Look().GetNode()).ledger_fault().empty(); }));
  EXPECT_TRUE(Ok(holder.Ask("release held")));
  busy.Kill();
  EXPECT_TRUE(Eventually([&] { return Out() == 0; }));
  EXPECT_TRUE(Ok(holder.Ask("acquire again try")));
  EXPECT_TRUE(Ok(holder.Ask("release again")));
  holder.Quit();
}

TEST(ForeignFolderTest, ForeignFolderIsReportedAndUntouched) {
  if (!IsRoot()) GTEST_SKIP() << "needs root: changes users";
  const auto start = [](const std::string& as, const std::string& folder) {
    Subprocess daemon = Subprocess::Start(
        {.argv = {"/bin/sh", "-c", absl::StrCat("exec ", as, " \"$0\" --folder=", folder, " --backend=host 2>&1"),
                  std::filesystem::canonical(ProgramPath("daemon/berthd")).string()},
         .environment = {"BERTH_SESSION", "BERTH_STATE"},
         .of_operator = true});
    const int code = daemon.Wait();
    return std::make_pair(code, daemon.ReadAll());
  };
  const std::string parent = MakeFolder();
  ASSERT_EQ(::chmod(parent.c_str(), 0755), 0);
  const std::string folder = parent + "/run";
  ASSERT_EQ(::mkdir(folder.c_str(), 0777), 0);
  ASSERT_EQ(::chmod(folder.c_str(), 0777), 0);
  constexpr char kAsOther[] = "setpriv --reuid=1001 --regid=1001 --clear-groups";
  const auto [as_other, said] = start(kAsOther, folder);
  EXPECT_EQ(as_other, 1) << said;
  EXPECT_TRUE(absl::StrContains(said, absl::StrCat(folder, " is not a folder of uid 1001"))) << said;
  ASSERT_EQ(::chown(folder.c_str(), 1001, 1001), 0);
  const auto [as_root, output] = start("", folder);
  EXPECT_EQ(as_root, 1) << output;
  EXPECT_TRUE(absl::StrContains(output, absl::StrCat(folder, " is not a folder of uid 0"))) << output;
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  struct stat info;
  ASSERT_EQ(::stat(folder.c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 1001u);
  EXPECT_EQ(info.st_mode & 0777, 0777u);
  // A link to a folder of its own is no folder of its own.
  const std::string link = parent + "/link";
  std::filesystem::create_symlink(parent, link);
  const auto [linked, why] = start("", link);
  EXPECT_EQ(linked, 1) << why;
  EXPECT_TRUE(absl::StrContains(why, absl::StrCat(link, " is a symbolic link"))) << why;
  std::filesystem::remove_all(parent);
}

}  // namespace
}  // namespace berth::testing
