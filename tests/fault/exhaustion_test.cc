// Clients exhaust every resource that they can: file descriptors, the broker's memory. The daemon still serves
// operators, and leases stay.

#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/device.grpc.pb.h"
#include "berth/v1/permit.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/os/fd_passing.h"
#include "common/status_macros.h"
#include "common/wire/attach_wire.h"
#include "common/wire/session_credentials.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"
#include "tests/support/wire/answer_times.h"
#include "tests/support/wire/flood.h"
#include "tests/support/wire/raw_client.h"

namespace berth::testing {
namespace {

// Runs `berth` as an operator. Returns its output; fails where the command fails.
std::string Berth(const TestDaemon& daemon, const std::string& verb) {
  Subprocess berth = Subprocess::Start(
      {.argv = {ProgramPath("client/cli/berth"), "--admin", absl::StrCat("--folder=", daemon.folder()), verb}});
  const std::string said = berth.ReadAll();
  EXPECT_EQ(berth.Wait(), 0) << said;
  return said;
}

// A new operator opens a session, reads, changes a setting and watches, all within the time of one answer. Errors: the
// first failure.
absl::Status Come(const TestDaemon& daemon, AnswerTimes* times) {
  BERTH_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session,
                         Session::Open({.folder = daemon.folder(), .admin = true, .always_new = true}));
  const Inspector inspector(session);
  BERTH_ASSIGN_OR_RETURN(const v1::Node node, inspector.GetNode());
  times->Saw(node.pressure());
  BERTH_RETURN_IF_ERROR(inspector.DrainDevice(0, "to look at it").status());
  BERTH_RETURN_IF_ERROR(inspector.UndrainDevice(0).status());
  bool received = false;
  const absl::Status watched = inspector.WatchDevices([&](const v1::WatchDevicesResponse&) {
    received = true;
    return false;
  });
  return received ? absl::OkStatus() : watched;
}

absl::Status ComeAsOperator(const TestDaemon& daemon, AnswerTimes* times) {
  return times->Time([&] { return Come(daemon, times); });
}

TEST(FdExhaustionTest, OperatorsAreServedDespiteExhaustedClientFds) {
  TestDaemon daemon({.fd_limit = 400});
  Actor holder(daemon);
  holder.Do("acquire p");
  // The first call over gRPC connects.
  holder.Do("allocate b 4096");
  std::shared_ptr<Session> unconnected =
      Must(Session::Open({.folder = daemon.folder(), .always_new = true, .timeout = absl::Seconds(2)}));
  Flood calls = Flood::Start("silent", daemon.folder() + "/berthd.sock", 300);
  Flood sessions = Flood::Start("silent", daemon.folder() + "/attach.sock", 300);
  // No other client gets a session.
  ASSERT_TRUE(Eventually([&] { return !Actor(daemon, {.open = false}).Ask("open").ok(); }));
  // A client with a session does not exceed the clients' limit either, by any resource.
  absl::Status refused;
  for (int i = 0; i < 400 && refused.ok(); ++i) {
    refused = holder.Ask(absl::StrCat("allocate b", i, " 4096")).status();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  const absl::Status no_connection = Inspector(unconnected).GetNode().status();
  EXPECT_TRUE(absl::StrContains(no_connection.message(), "accepted no connection on")) << no_connection;
  AnswerTimes times;
  for (uint64_t i = 0; i < GateOrSoak(2, 10) && !HasFailure(); ++i) {
    EXPECT_TRUE(absl::StrContains(Berth(daemon, "status"), "gpu-tests"));
    Berth(daemon, "health");
    EXPECT_TRUE(Ok(ComeAsOperator(daemon, &times)));
  }
  times.ExpectInTime("every fd taken");
  // An existing client continues.
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  EXPECT_TRUE(Ok(holder.Ask("acquire p")));
  EXPECT_GT(calls.Stop().ended, 0u);
  EXPECT_GT(sessions.Stop().ended, 0u);
  EXPECT_TRUE(Eventually([&] { return Inspector(unconnected).GetNode().ok(); }));
  unconnected.reset();
  holder.Quit();
  daemon.ExpectAccountsBack();
  Actor later(daemon);
  EXPECT_TRUE(Ok(later.Ask("acquire p")));
}

// Opens a session, and hangs up without receiving its credentials. Returns the open socket, or the refusal.
absl::StatusOr<AttachSocket> LeaveCredentialsInFlight(const TestDaemon& daemon) {
  AttachSocket socket = AttachSocket::Connect(daemon.folder());
  // Fails if the daemon has closed the connection already; the refusal is still there.
  socket.Send(attach::Hello{}).IgnoreError();
  BERTH_ASSIGN_OR_RETURN(const Message next, PeekMessage(socket.fd()));
  if (next.bytes.size() == sizeof(attach::Refused)) return socket.Receive<attach::Welcome>().status();
  ::shutdown(socket.fd(), SHUT_WR);
  return socket;
}

TEST(FdExhaustionTest, UnreceivedFdsStopOnlyTheirUser) {
  TestDaemon daemon({.fd_limit = 400});
  std::vector<AttachSocket> silent;
  absl::Status refused;
  // The kernel would refuse every fd that the daemon sends once more than 400 are in flight.
  while (refused.ok() && silent.size() < 500) {
    absl::StatusOr<AttachSocket> socket = LeaveCredentialsInFlight(daemon);
    refused = socket.status();
    if (socket.ok()) silent.push_back(*std::move(socket));
  }
  EXPECT_TRUE(Refused(refused, Reason::kLimit)) << refused;
  AnswerTimes times;
  EXPECT_TRUE(Ok(ComeAsOperator(daemon, &times)));
  silent.clear();
  EXPECT_TRUE(Eventually([&] { return Actor(daemon, {.open = false}).Ask("open").ok(); }));
  daemon.ExpectAccountsBack();
}

TEST(FdExhaustionTest, StreamWithoutPageGetsItWhenFdsAreFree) {
  TestDaemon daemon({.fd_limit = 400});
  Actor actor(daemon);
  absl::Status refused;
  int blocks = 0;
  while (refused.ok() && blocks < 400) {
    refused = actor.Ask(absl::StrCat("allocate b", blocks++, " 4096")).status();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  const absl::Status without = actor.Ask("stream s").status();
  EXPECT_TRUE(absl::IsResourceExhausted(without)) << without;
  // The last allocation failed.
  for (int i = 0; i < blocks - 1; ++i) actor.Do(absl::StrCat("free b", i));
  EXPECT_TRUE(Eventually([&] { return actor.Ask("stream s").ok(); }));
  EXPECT_TRUE(Ok(actor.Ask("sync s")));
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST(PlacesTest, OperatorsConnectWhenTheirUserIsAtLimit) {
  TestDaemon daemon({.config = "[limits]\nconnections = 24\nconnections_per_uid = 12\nattach_fds_per_uid = 24\n"});
  Actor holder(daemon);
  holder.Do("acquire p");
  Flood calls = Flood::Start("silent", daemon.folder() + "/berthd.sock", 60);
  Flood sessions = Flood::Start("silent", daemon.folder() + "/attach.sock", 60);
  ASSERT_TRUE(Eventually([&] { return !Actor(daemon, {.open = false}).Ask("open").ok(); }));
  AnswerTimes times;
  for (uint64_t i = 0; i < GateOrSoak(2, 10) && !HasFailure(); ++i) EXPECT_TRUE(Ok(ComeAsOperator(daemon, &times)));
  times.ExpectInTime("every place of one's user taken");
  // More operators at once than their user's places.
  std::vector<std::shared_ptr<Session>> operators;
  for (int i = 0; i < 20; ++i) {
    operators.push_back(Must(Session::Open({.folder = daemon.folder(), .admin = true, .always_new = true})));
    EXPECT_TRUE(Ok(Inspector(operators.back()).ListPermits()));
  }
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  operators.clear();
  calls.Stop();
  sessions.Stop();
  holder.Quit();
  daemon.ExpectAccountsBack();
}

TEST(PlacesTest, OperatorsWatchWhenTheirUserIsAtLimit) {
  TestDaemon daemon;
  struct Watch {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::WatchDevicesResponse>> reader;
  };
  std::vector<RawClient> clients;
  std::vector<std::unique_ptr<Watch>> watches;
  // Returns whether it received the devices.
  const auto watch = [&](const RawClient& client, const std::string& credentials) {
    auto& open = *watches.emplace_back(std::make_unique<Watch>());
    open.context.AddMetadata(kCredentialsHeader, credentials);
    open.reader =
        v1::DeviceService::NewStub(client.grpc_channel())->WatchDevices(&open.context, v1::WatchDevicesRequest());
    v1::WatchDevicesResponse response;
    return open.reader->Read(&response);
  };
  for (int of_user = 0; of_user < 64; ++of_user) {
    if (of_user % 8 == 0) clients.push_back(RawClient::Open(daemon.folder()));
    ASSERT_TRUE(watch(clients.back(), EncodeCredentials(clients.back().credentials()))) << of_user;
  }
  RawClient late = RawClient::Open(daemon.folder());
  EXPECT_FALSE(watch(late, EncodeCredentials(late.credentials())));
  EXPECT_EQ(watches.back()->reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  watches.pop_back();
  AnswerTimes times;
  EXPECT_TRUE(Ok(ComeAsOperator(daemon, &times)));
  times.ExpectInTime("every watch of one's user taken");
  for (const std::unique_ptr<Watch>& open : watches) {
    open->context.TryCancel();
    open->reader->Finish();
  }
}

TEST(MemoryExhaustionTest, BrokerPastMemoryBoundRestartsWithItsState) {
#ifdef BERTH_SANITIZED
  GTEST_SKIP() << "a sanitizer's memory is more than the bound";
#endif
  if (!Soaks()) GTEST_SKIP() << "in the soak: a broker serves for 10 s before it may end for its memory";
  TestDaemon daemon({.config = "[limits]\nbroker_memory = \"24MiB\"\n"});
  Actor holder(daemon);
  holder.Do("acquire p");
  holder.Allocate("b", 4096);
  const auto look = [&] { return daemon.GetNode(); };
  const v1::Node before = look();
  EXPECT_EQ(before.pressure().memory_bound_bytes(), 24u << 20);
  EXPECT_EQ(before.pressure().memory_restarts(), 0u);
  Flood flood = Flood::Start("silent", daemon.folder() + "/berthd.sock", 2000);
  ASSERT_TRUE(Eventually([&] { return look().pressure().memory_restarts() > 0; }, 2 * kPatience));
  flood.Stop();
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  EXPECT_TRUE(Ok(holder.Ask("acquire p")));
  EXPECT_TRUE(daemon.AccountsBecome(
      [](const Accounts& accounts) { return accounts.units == 1 && accounts.blocks == 1 && accounts.waiters == 0; }));
  const v1::Node after = look();
  EXPECT_EQ(after.incarnation(), before.incarnation());
  // Restarts do not follow each other directly: a broker runs for a minimum time before it may end this way.
  EXPECT_LE(after.pressure().memory_restarts(), 2u);
  EXPECT_EQ(after.epoch(), before.epoch() + after.pressure().memory_restarts());
  EXPECT_TRUE(absl::StrContains(Berth(daemon, "status"), "of memory, limit 24 MiB"));
  holder.Quit();
  EXPECT_TRUE(daemon.AccountsBecome(
      [](const Accounts& accounts) { return accounts.units == 0 && accounts.blocks == 0 && accounts.live == 0; }));
}

TEST(MemoryExhaustionTest, MemoryBoundBelowNeedIsRejectedAtStart) {
  TestDaemon other;
  const std::string config = absl::StrCat(other.folder(), "/berthd.toml");
  Subprocess berthd = Subprocess::Start(
      {.argv = {"/bin/sh", "-c",
                "printf '[limits]\nbroker_memory = \"1MiB\"\n' > \"$1\"; "
                "exec \"$0\" --config=\"$1\" --folder=\"$1.run\" --backend=host 2>&1",
                ProgramPath("daemon/berthd"), config}});
  const std::string said = berthd.ReadAll();
  EXPECT_EQ(berthd.Wait(), 1);
  EXPECT_TRUE(absl::StrContains(said, "limits.broker_memory: 1 MiB, but a broker without clients uses")) << said;
}

}  // namespace
}  // namespace berth::testing
