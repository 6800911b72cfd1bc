// Resumes that must fail: other processes claim leases, and pids name other processes. Nothing is granted twice, and
// nothing is forgotten.

#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/permit.grpc.pb.h"
#include "common/os/unique_fd.h"
#include "common/secret.h"
#include "common/wire/attach_wire.h"
#include "common/wire/session_credentials.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel_posix.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/peer_process.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"
#include "tests/support/wire/raw_client.h"

namespace berth::testing {
namespace {

constexpr uid_t kStranger = 1001;

// A session of one process that has a permit. Like the SDK, it holds the session credentials' file open, and so its
// session.
class Owner {
 public:
  explicit Owner(const std::string& folder)
      : process_(PeerProcess::Start()),
        lifeline_(AttachSocket::Connect(folder, process_)),
        channel_(AttachSocket::Connect(folder, process_)) {
    Must(lifeline_.Send(MakeHello("owner")), "hello");
    auto [welcome, session_credentials] = Must(lifeline_.Receive<attach::Welcome>(), "welcome");
    credentials_fd_ = std::move(session_credentials.at(0));
    const SessionCredentials read = Must(ReadSessionCredentials(credentials_fd_.get()), "session credentials");
    attach::Join join;
    join.session = read.session.value();
    join.secret = read.secret;
    Must(channel_.Send(join), "join");
    const auto [joined, page] = Must(channel_.Receive<attach::Joined>(), "joined");
    rejoin_.session = join.session;
    rejoin_.secret = join.secret;
    rejoin_.channel = joined.channel;
    UniqueFd connection = process_.Connect(folder + "/berthd.sock", SOCK_STREAM);
    Must(SetNonBlocking(connection.get()), "gRPC's connection");
    const auto stub =
        v1::PermitService::NewStub(grpc::CreateInsecureChannelFromFd("owner", connection.release()));
    grpc::ClientContext context;
    context.AddMetadata(kCredentialsHeader, EncodeCredentials({.session = read.session,
                                                               .channel = ChannelId(joined.channel),
                                                               .secret = read.secret}));
    v1::AcquirePermitRequest request;
    request.mutable_request()->set_sequence(1);
    request.set_holder_key("k");
    v1::AcquirePermitResponse response;
    Must(FromGrpc(stub->AcquirePermit(&context, request, &response)), "the permit");
  }

  PeerProcess& process() { return process_; }
  // The message with which the process resumes with a later daemon.
  const attach::Rejoin& rejoin() const { return rejoin_; }

 private:
  PeerProcess process_;
  AttachSocket lifeline_;
  AttachSocket channel_;
  UniqueFd credentials_fd_;
  attach::Rejoin rejoin_;
};

class BadResumeTest : public ::testing::Test {
 protected:
  void Restart() {
    daemon_.Stop();
    daemon_.StartAgain();
    // Lets other users reach the daemon, too.
    for (const char* const path : {"", "/attach.sock"}) {
      std::filesystem::permissions(daemon_.folder() + path, std::filesystem::perms::all);
    }
  }
  bool PermitsBecome(uint64_t count) {
    return daemon_.AccountsBecome([count](const Accounts& accounts) { return accounts.permits == count; });
  }
  // Whether the one unit of the pool is granted.
  bool IsFull() {
    Actor newcomer(daemon_);
    const absl::Status status = newcomer.Ask("acquire p try").status();
    newcomer.Quit();
    return IsRefusal(status, Reason::kNoPermit);
  }
  // Returns the daemon's answer to `rejoin` from `process`. An accepted connection is moved to `*kept`.
  absl::Status Ask(PeerProcess& process, const attach::Rejoin& rejoin,
                   std::unique_ptr<AttachSocket>* accepted = nullptr) {
    auto socket = std::make_unique<AttachSocket>(AttachSocket::Connect(daemon_.folder(), process));
    absl::Status status = socket->Send(rejoin);
    if (status.ok()) status = socket->Receive<attach::Joined>().status();
    if (accepted != nullptr) *accepted = std::move(socket);
    return status;
  }

  TestDaemon daemon_{TestDaemonOptions{.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}}};
};

TEST_F(BadResumeTest, ClaimOfOtherSessionIsRejected) {
  Owner owner(daemon_.folder());
  RawClient other = RawClient::Open(daemon_.folder());
  Restart();
  PeerProcess colleague = PeerProcess::Start();
  struct Claim {
    const char* name;
    std::function<void(attach::Rejoin&)> change;
    PeerProcess* process;
  };
  std::vector<Claim> claims = {
      {"another session's secret", [&](attach::Rejoin& rejoin) { rejoin.secret = other.session_credentials().secret; },
       &colleague},
      {"no secret", [](attach::Rejoin& rejoin) { rejoin.secret = Secret(); }, &colleague},
      {"the lifeline with another session's secret",
       [&](attach::Rejoin& rejoin) {
         rejoin.channel = 0;
         rejoin.secret = other.session_credentials().secret;
       },
       &colleague},
      {"another session's channel",
       [&](attach::Rejoin& rejoin) { rejoin.channel = other.credentials().channel.value(); }, &owner.process()},
      {"a session that never was", [](attach::Rejoin& rejoin) { rejoin.session ^= 1; }, &owner.process()},
      {"a channel that never was", [](attach::Rejoin& rejoin) { rejoin.channel ^= 1; }, &owner.process()},
      {"another version", [](attach::Rejoin& rejoin) { rejoin.version = 77; }, &owner.process()},
      {"the secret, from another process", [](attach::Rejoin&) {}, &colleague},
  };
  std::unique_ptr<PeerProcess> stranger;
  if (IsRoot()) {
    stranger = std::make_unique<PeerProcess>(PeerProcess::Start(kStranger));
    claims.push_back({"the secret, from another user", [](attach::Rejoin&) {}, stranger.get()});
    claims.push_back({"the lifeline's secret, from another user",
                      [](attach::Rejoin& rejoin) { rejoin.channel = 0; }, stranger.get()});
  }
  for (const Claim& claim : claims) {
    attach::Rejoin rejoin = owner.rejoin();
    claim.change(rejoin);
    const absl::Status status = Ask(*claim.process, rejoin);
    EXPECT_TRUE(GetErrorDetails(status).has_value()) << claim.name << ": " << status;
    EXPECT_TRUE(IsFull()) << claim.name;
  }
  EXPECT_TRUE(PermitsBecome(1));
  // The daemon nevertheless accepts the owner, once.
  std::unique_ptr<AttachSocket> channel;
  EXPECT_TRUE(Ok(Ask(owner.process(), owner.rejoin(), &channel)));
  EXPECT_FALSE(Ok(Ask(owner.process(), owner.rejoin()))) << "twice";
  EXPECT_TRUE(IsFull());
  // This process holds the credentials, too, so the session would continue.
  EXPECT_EQ(BerthCommand(daemon_.folder()).Run({"sessions", "end", absl::StrCat(owner.rejoin().session)}), 0);
  owner.process().Kill();
  EXPECT_TRUE(PermitsBecome(0));
}

// Scripts in a separate PID namespace, where root can choose the next process's pid.
class ReusedPidTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!MayUnshare(CLONE_NEWPID)) GTEST_SKIP() << "needs the right to make a PID namespace";
    std::string parent = "/tmp/berth-pids-XXXXXX";
    if (::mkdtemp(parent.data()) == nullptr) Fatal(absl::InternalError("mkdtemp"), parent);
    parent_ = parent;
  }
  void TearDown() override {
    if (!parent_.empty()) std::filesystem::remove_all(parent_);
  }

  // Runs a script that uses the functions below. Returns its output.
  std::string Run(const std::string& script) {
    static constexpr char kFunctions[] = R"(
start() { mkfifo ready; "$BERTHD" --folder="$BERTH_FOLDER" --backend=host --warm-blocks=0 "$@" 2>>log & daemon=$!
          until "$BERTH" --admin status >/dev/null 2>&1; do :; done; rm ready; }
stop()  { kill -TERM $daemon; wait $daemon; }
taken() { "$BERTH" run --no-wait -- true 2>/dev/null; echo "$1: $?"; }
)";
    Subprocess shell = Subprocess::Start(
        {.argv = {"/bin/sh", "-c", absl::StrCat("cd ", parent_, " || exit 1\n", kFunctions, script)},
         .environment = {absl::StrCat("BERTH=", ProgramPath("client/cli/berth")),
                         absl::StrCat("BERTHD=", ProgramPath("daemon/berthd")),
                         absl::StrCat("BERTH_FOLDER=", parent_, "/run"), "BERTH_GPU_TEST_CONCURRENCY=1",
                         "BERTH_SESSION", "BERTH_STATE"},
         .pid_namespace = true,
         .of_operator = true});
    return shell.ReadAll();
  }

  std::string parent_;
};

TEST_F(ReusedPidTest, HolderEndedDuringStopHoldsNothing) {
  const std::string said = Run(R"(
start
"$BERTH" run --exec -- sleep 1000 & holder=$!
until "$BERTH" --admin permits | grep -q sleep; do :; done
taken "while it is held"
stop
kill -KILL $holder; wait $holder
echo $((holder - 1)) > /proc/sys/kernel/ns_last_pid; sleep 1000 & stranger=$!
[ $stranger = $holder ] || echo "the pid is not reused: $holder $stranger"
start
until "$BERTH" run --no-wait -- true 2>/dev/null; do :; done
taken "after it ended"
kill -0 $stranger && echo "the stranger lives"
kill $stranger; stop
)");
  EXPECT_EQ(said, "while it is held: 75\nafter it ended: 0\nthe stranger lives\n");
}

TEST_F(ReusedPidTest, HolderOfOtherPidNamespaceStaysCounted) {
  const std::string said = Run(R"(
start
"$BERTH" run --exec -- sleep 1000 & holder=$!
until "$BERTH" --admin permits | grep -q sleep; do :; done
stop
# Its pids are other processes' to this daemon, or nobody's.
unshare --pid --fork --kill-child --mount-proc sh -c '
  "$BERTHD" --folder="$BERTH_FOLDER" --backend=host --warm-blocks=0 2>>log & daemon=$!
  until "$BERTH" --admin status >/dev/null 2>&1; do :; done
  "$BERTH" --admin run --no-wait -- true 2>/dev/null; echo "from another namespace: $?"
  session=$("$BERTH" --admin --json permits | grep -o "\"session\": *\"[0-9]*\"" | grep -o "[0-9]*")
  "$BERTH" sessions end $session >/dev/null
  until "$BERTH" --admin run --no-wait -- true 2>/dev/null; do :; done
  echo "after its session was ended"
  kill $daemon; wait $daemon'
grep -c "cannot be observed by this daemon" log
kill $holder
)");
  EXPECT_EQ(said, "from another namespace: 75\nafter its session was ended\n1\n");
}

}  // namespace
}  // namespace berth::testing
