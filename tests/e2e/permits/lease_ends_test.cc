// Every way in which a lease ends before its holder releases it, for every kind of holder. The holder learns the reason
// and the originator, gets its signal, and does not end as if nothing had happened.

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <berth/end_notice.h>
#include <berth/gang.h>
#include <berth/permit.h>
#include <berth/session.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "berth/v1/permit.pb.h"
#include "common/mutex.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/damaged_ledger.h"
#include "tests/support/daemon/service_manager.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr int kPermitEnded = 79;

// One way in which leases end.
struct Way {
  const char* name;
  // The operator's commands; "PERMIT" and "SESSION" stand for each granted permit and its session.
  std::vector<std::string> command;
  EndReason reason;
  // The daemon has ended afterwards.
  bool stops = false;
  // Makes the ledger unreadable first.
  bool damages = false;
  // A daemon that resumes nothing follows, instead of a command.
  bool forgets = false;
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

const Way kWays[] = {
    {.name = "Revoke", .command = {"permits", "revoke", "PERMIT"}, .reason = EndReason::kRevoked},
    {.name = "HoldLimit",
     .command = {"permits", "set", "gpu-tests", "--hold-limit", "1s"},
     .reason = EndReason::kHoldLimit},
    {.name = "SessionEnd", .command = {"sessions", "end", "SESSION"}, .reason = EndReason::kSessionEnded},
    {.name = "Reset", .command = {"reset", "--yes"}, .reason = EndReason::kReset, .damages = true},
    {.name = "Stop", .command = {"stop", "--end-leases", "--yes"}, .reason = EndReason::kStopped, .stops = true},
    {.name = "NotResumed", .command = {}, .reason = EndReason::kNotResumed, .forgets = true},
};

class LeaseEndsTest : public ::testing::TestWithParam<Way> {
 protected:
  LeaseEndsTest()
      : daemon_({.flags = {"--host-devices=2"}, .environment = {"BERTH_GPU_TEST_CONCURRENCY=2"}}),
        berth_(daemon_.folder()) {}

  void TearDown() override {
    if (!GetParam().stops) return daemon_.ExpectAccountsBack();
    EXPECT_EQ(daemon_.supervisor().Wait(), 0);
    daemon_.Abandon();
  }

  EndNotice Expected() const {
    const bool by_operator = GetParam().reason != EndReason::kHoldLimit && !GetParam().forgets;
    return {.reason = GetParam().reason, .uid = by_operator ? ::getuid() : 0};
  }
  std::string Said() const { return absl::StrCat("berth: the permit has ended: ", Describe(Expected()), "; "); }

  // Ends all leases, and waits until that is done.
  void EndLeases() {
    EndEach();
    if (GetParam().stops) {
      daemon_.supervisor().Wait();
    } else if (GetParam().reason != EndReason::kSessionEnded) {
      // Permits of an ended session stay granted until its processes have ended.
      EXPECT_TRUE(Eventually([&] {
        const absl::StatusOr<v1::ListPermitsResponse> left = daemon_.inspector().ListPermits();
        return left.ok() && left->permits().empty();
      }));
    }
  }
  void EndEach() {
    if (GetParam().forgets) {
      daemon_.Stop();
      daemon_.ForgetBoot();
      return daemon_.StartAgain();
    }
    const v1::ListPermitsResponse out = Must(daemon_.inspector().ListPermits());
    if (GetParam().damages) DamageLedger(daemon_);
    for (const v1::Permit& permit : out.permits()) {
      std::vector<std::string> words = GetParam().command;
      for (std::string& word : words) {
        if (word == "PERMIT") word = absl::StrCat(permit.id());
        if (word == "SESSION") word = absl::StrCat(permit.session());
      }
      // The end of one permit of a gang may end the others before their own revocation.
      const int code = berth_.Run(words);
      EXPECT_TRUE(code == 0 || &permit != &out.permits(0)) << words[0] << " ended with " << code;
      // Every other command ends all permits at once.
      if (GetParam().reason != EndReason::kRevoked) return;
    }
  }

  Subprocess Start(std::vector<std::string> argv) {
    return Subprocess::Start({.argv = std::move(argv),
                              .environment = {absl::StrCat("BERTH=", ProgramPath("client/cli/berth")),
                                              absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION",
                                              "BERTH_PERMIT_KEEPER", "BERTH_DEVICE"}});
  }
  // Starts `berth run` of a script, with stderr redirected to stdout.
  Subprocess StartRun(std::vector<std::string> options, const std::string& script) {
    std::vector<std::string> argv = {"/bin/sh", "-c", "exec $BERTH run \"$@\" 2>&1", "sh"};
    argv.insert(argv.end(), options.begin(), options.end());
    argv.insert(argv.end(), {"--", "/bin/sh", "-c", script});
    return Start(std::move(argv));
  }

  std::shared_ptr<Session> OpenSession() {
    return Must(Session::Open({.folder = daemon_.folder(), .label = "holder", .always_new = true}));
  }

  TestDaemon daemon_;
  BerthCommand berth_;
};

// Records the arguments of an on_event callback.
class Heard {
 public:
  std::function<void(const PermitEvent&)> Listener() {
    return [this](const PermitEvent& event) {
      MutexLock lock(&mu_);
      if (event.what == PermitEvent::kEnded) ends_.push_back(event.end);
    };
  }
  std::vector<EndNotice> ends() const {
    MutexLock lock(&mu_);
    return ends_;
  }

 private:
  mutable Mutex mu_;
  std::vector<EndNotice> ends_ ABSL_GUARDED_BY(mu_);
};

TEST_P(LeaseEndsTest, RunReportsLeaseEndSignalsAndExitsWithItsCode) {
  for (const std::vector<std::string>& mode :
       std::vector<std::vector<std::string>>{{}, {"--until=tree"}, {"--cgroup"}, {"--gpus", "2"}}) {
    std::vector<std::string> options = mode;
    options.push_back("--on-revoke=USR1");
    Subprocess run = StartRun(options, "trap 'echo told; exit 7' USR1; echo in; while :; do read line; done");
    const std::string first = Must(run.ReadLine());
    if (absl::StrContains(first, "cgroup")) continue;
    ASSERT_EQ(first, "in");
    EndLeases();
    const std::string said = run.ReadAll();
    EXPECT_TRUE(absl::StrContains(said, "told\n")) << said;
    EXPECT_TRUE(absl::StrContains(said, Said())) << said;
    EXPECT_EQ(run.Wait(), kPermitEnded) << said;
    EXPECT_TRUE(absl::StrContains(said, "the command ended with code 7")) << said;
    if (GetParam().stops) return;
    EXPECT_EQ(berth_.Run({"permits", "set", "gpu-tests", "--hold-limit", "never"}), 0);
  }
}

TEST_P(LeaseEndsTest, NestedRunIsNotifiedAsOuterRunIs) {
  // Both wrappers and both commands write to one pipe. The outer shell runs its trap after the inner wrapper's end.
  const std::string inner = "trap \"echo inner told; exit 5\" USR1; echo in; while :; do read line; done";
  Subprocess outer = StartRun({"--on-revoke=USR1"},
                              absl::StrCat("trap told=yes USR1; $BERTH run --on-revoke=USR1 -- /bin/sh -c '", inner,
                                           "'; echo inner ended with $?; until [ \"$told\" ]; do sleep 0.01; done; "
                                           "echo outer told; exit 7"));
  ASSERT_EQ(Must(outer.ReadLine()), "in");
  EndLeases();
  const std::string said = outer.ReadAll();
  EXPECT_EQ(outer.Wait(), kPermitEnded) << said;
  for (const std::string& part :
       {std::string("inner told\n"), std::string("outer told\n"), absl::StrCat("inner ended with ", kPermitEnded, "\n"),
        std::string("the command ended with code 5"), std::string("the command ended with code 7")}) {
    EXPECT_TRUE(absl::StrContains(said, part)) << said << " lacks " << part;
  }
  // Each wrapper reports the end once.
  const std::vector<std::string> reports = absl::StrSplit(said, Said());
  EXPECT_EQ(reports.size(), 3u) << said;
}

TEST_P(LeaseEndsTest, RunWithoutSignalFailsAfterItsCommand) {
  Subprocess run = StartRun({}, "echo in; read line; echo out");
  ASSERT_EQ(Must(run.ReadLine()), "in");
  EndLeases();
  EXPECT_TRUE(absl::StartsWith(Must(run.ReadLine()), Said()));
  run.CloseInput();
  EXPECT_TRUE(absl::StrContains(run.ReadAll(), "out\n"));
  EXPECT_EQ(run.Wait(), kPermitEnded);
}

TEST_P(LeaseEndsTest, ReleaseOfEndedShellPermitFails) {
  Subprocess shell = Start({"/bin/sh", "-s"});
  shell.WriteLine("exec 2>&1; trap 'told=yes' USR1; eval \"$($BERTH acquire --shell --on-revoke USR1)\"; echo $?");
  ASSERT_EQ(Must(shell.ReadLine()), "0");
  EndLeases();
  EXPECT_TRUE(Eventually([&] {
    shell.WriteLine("echo told=$told");
    return Must(shell.ReadLine()) == "told=yes";
  }));
  shell.WriteLine("eval \"$($BERTH release --shell)\"; echo $?");
  EXPECT_EQ(Must(shell.ReadLine()),
            absl::StrCat("berth: the permit ended before its release: ", Describe(Expected())));
  EXPECT_EQ(Must(shell.ReadLine()), absl::StrCat(kPermitEnded));
  shell.CloseInput();
  shell.Wait();
}

TEST_P(LeaseEndsTest, ReleaseOfEndedProgramPermitFails) {
  Subprocess program = Start({"/bin/sh", "-c",
                              "trap 'told=yes' USR1; json=$($BERTH --json acquire --owner $$ --on-revoke USR1); "
                              "keeper=${json#*BERTH_PERMIT_KEEPER\\\":\\\"}; "
                              "export BERTH_PERMIT_KEEPER=\"${keeper%%\\\"*}\"; echo in; read line; "
                              "until [ \"$told\" ]; do sleep 0.01; done; $BERTH release 2>&1; echo $?; read line"});
  ASSERT_EQ(Must(program.ReadLine()), "in");
  EndLeases();
  program.WriteLine("");
  EXPECT_TRUE(absl::StrContains(Must(program.ReadLine()), Describe(Expected())));
  EXPECT_EQ(Must(program.ReadLine()), absl::StrCat(kPermitEnded));
  program.CloseInput();
  program.Wait();
}

TEST_P(LeaseEndsTest, SdkPermitIsNotifiedOfEndAndReleaseFails) {
  const std::shared_ptr<Session> session = OpenSession();
  Heard heard;
  Permit permit = Must(Permit::Acquire(session, {.on_event = heard.Listener()}));
  Permit nested = Must(Permit::Acquire(session));
  EXPECT_FALSE(permit.revoked());
  EndLeases();
  EXPECT_TRUE(Eventually([&] { return !heard.ends().empty(); }));
  EXPECT_EQ(heard.ends(), std::vector<EndNotice>{Expected()});
  EXPECT_EQ(permit.end(), Expected());
  EXPECT_EQ(nested.end(), Expected());
  EXPECT_TRUE(nested.Release().ok()) << "the last guard gives back";
  const absl::Status released = permit.Release();
  EXPECT_TRUE(absl::IsAborted(released)) << released;
  EXPECT_TRUE(absl::StrContains(released.message(), Describe(Expected()))) << released;
}

TEST_P(LeaseEndsTest, ReleaseAfterEndFailsWithoutListener) {
  const std::shared_ptr<Session> session = OpenSession();
  Permit permit = Must(Permit::Acquire(session));
  EndLeases();
  EXPECT_TRUE(absl::IsAborted(permit.Release()));
}

TEST_P(LeaseEndsTest, GangIsNotifiedOfEachPermit) {
  const std::shared_ptr<Session> session = OpenSession();
  Heard heard;
  Gang gang = Must(Gang::Acquire(
      session, {.members = {{.device = "any"}, {.device = "any"}}, .on_event = heard.Listener()}));
  EndLeases();
  EXPECT_TRUE(Eventually([&] { return heard.ends().size() == 2; }));
  EXPECT_EQ(heard.ends(), (std::vector<EndNotice>{Expected(), Expected()}));
  EXPECT_TRUE(absl::IsAborted(gang.Release()));
}

TEST_P(LeaseEndsTest, EndedLeaseMakesPlanStale) {
  // A separate process: a lease of an ended session comes back at the end of its process.
  Actor holder(daemon_);
  holder.Do("plan p 4 pool=gpu-tests");
  EXPECT_EQ(holder.Do("plan-stale p"), "0");
  EndLeases();
  EXPECT_TRUE(Eventually([&] { return holder.Do("plan-stale p") == "1"; }));
  holder.Kill();
}

INSTANTIATE_TEST_SUITE_P(Ways, LeaseEndsTest, ::testing::ValuesIn(kWays),
                         [](const auto& info) { return std::string(info.param.name); });

// Sends text on every socket of this process that is connected to attach.sock. Returns the number of these sockets.
int SendToAttachSockets(absl::string_view text) {
  int sent = 0;
  for (int fd = 0; fd < ::getdtablesize(); ++fd) {
    sockaddr_un peer = {};
    socklen_t size = sizeof(peer);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) < 0 || peer.sun_family != AF_UNIX) continue;
    if (!absl::EndsWith(peer.sun_path, "/attach.sock")) continue;
    sent += ::send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()) ? 1 : 0;
  }
  return sent;
}

// Ends that this process causes itself.
class OwnEndTest : public ::testing::Test {
 protected:
  TestDaemon daemon_{TestDaemonOptions{.environment = {"BERTH_GPU_TEST_CONCURRENCY=2"}}};
};

TEST_F(OwnEndTest, OwnSessionEndIsNotReported) {
  const std::shared_ptr<Session> session =
      Must(Session::Open({.folder = daemon_.folder(), .always_new = true}));
  Heard heard;
  Permit permit = Must(Permit::Acquire(session, {.on_event = heard.Listener()}));
  ASSERT_TRUE(session->End().ok());
  EXPECT_TRUE(permit.Release().ok());
  EXPECT_TRUE(heard.ends().empty());
}

TEST_F(OwnEndTest, BrokenChannelIsReportedToHolders) {
  const std::shared_ptr<Session> session =
      Must(Session::Open({.folder = daemon_.folder(), .always_new = true}));
  Heard heard;
  Permit permit = Must(Permit::Acquire(session, {.on_event = heard.Listener()}));
  // The daemon refuses an invalid message, and the SDK cannot read a refusal that it did not request.
  ASSERT_GT(SendToAttachSockets("x"), 0);
  EXPECT_TRUE(Eventually([&] { return !heard.ends().empty(); }));
  const EndNotice broken = {.reason = EndReason::kChannelBroken};
  EXPECT_EQ(heard.ends(), std::vector<EndNotice>{broken});
  EXPECT_EQ(permit.end(), broken);
  const absl::Status released = permit.Release();
  EXPECT_TRUE(absl::StrContains(released.message(), Describe(broken))) << released;
}

// The service manager has lost the lifelines when it restarts the daemon.
TEST(LostLifelineTest, LeasesContinueWithoutNotification) {
  ServiceManager manager;
  std::vector<std::string> environment = manager.environment();
  environment.push_back("BERTH_GPU_TEST_CONCURRENCY=2");
  TestDaemon daemon({.environment = environment});
  const std::shared_ptr<Session> session =
      Must(Session::Open({.folder = daemon.folder(), .always_new = true}));
  Heard heard;
  Permit permit = Must(Permit::Acquire(session, {.on_event = heard.Listener()}));
  Subprocess run = Subprocess::Start(
      {.argv = {"/bin/sh", "-c",
                "exec $BERTH run --on-revoke=USR1 -- /bin/sh -c "
                "\"trap 'echo told' USR1; echo in; read line; exit 7\" 2>&1"},
       .environment = {absl::StrCat("BERTH=", ProgramPath("client/cli/berth")),
                       absl::StrCat("BERTH_FOLDER=", daemon.folder()), "BERTH_SESSION"}});
  ASSERT_EQ(Must(run.ReadLine()), "in");
  ASSERT_TRUE(daemon.AccountsBecome([&](const Accounts& accounts) {
    return manager.Count("berth-lifeline-") == accounts.sessions &&
           manager.Count("berth-channel-") == accounts.processes &&
           manager.Count("berth-process-") == accounts.processes;
  }));
  daemon.KillSupervisorAndBroker();
  manager.Lose([](const std::string& name) { return absl::StartsWith(name, "berth-lifeline-"); });
  daemon.StartAgain(manager.HandOver());
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 2; }));
  EXPECT_TRUE(Ok(permit.Release()));
  EXPECT_TRUE(heard.ends().empty());
  run.WriteLine("go");
  EXPECT_EQ(run.ReadAll(), "");
  EXPECT_EQ(run.Wait(), 7);
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 0; }));
}

TEST_F(OwnEndTest, EndedRunNotifiesNestedRunThatItLeaves) {
  // The command leaves its own `berth run` behind, which nests.
  Subprocess outer = Subprocess::Start(
      {.argv = {"/bin/sh", "-c",
                "exec $BERTH run -- /bin/sh -c '$BERTH run --on-revoke USR1 -- /bin/sh -c "
                "\"trap \\\"echo told; exit 0\\\" USR1; echo in; while :; do sleep 0.01; done\" & read line' 2>&1"},
       .environment = {absl::StrCat("BERTH=", ProgramPath("client/cli/berth")),
                       absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION"}});
  ASSERT_EQ(Must(outer.ReadLine()), "in");
  outer.WriteLine("");
  const std::string said = outer.ReadAll();
  EXPECT_TRUE(absl::StrContains(said, "told\n")) << said;
  EXPECT_TRUE(absl::StrContains(said, Describe(EndNotice{.reason = EndReason::kEndedByOwnProcess}))) << said;
  EXPECT_EQ(outer.Wait(), 0);
  daemon_.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
