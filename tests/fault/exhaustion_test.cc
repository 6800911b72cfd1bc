// What clients can use up, they use up: file descriptors, the broker's memory. Operators are served all the same, and
// leases stay.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/device.grpc.pb.h"
#include "client/inspector.h"
#include "client/session.h"
#include "common/session_capsule.h"
#include "common/status_macros.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "tests/support/actor_handle.h"
#include "tests/support/answer_times.h"
#include "tests/support/flood.h"
#include "tests/support/raw_client.h"
#include "tests/support/subprocess.h"
#include "tests/support/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// Runs `berth` as an operator. Returns what it printed; fails where it does not end well.
std::string Berth(const TestDaemon& daemon, const std::string& verb) {
  Subprocess berth = Subprocess::Start(
      {.argv = {ProgramPath("client/cli/berth"), "--admin", absl::StrCat("--folder=", daemon.folder()), verb}});
  const std::string said = berth.ReadAll();
  EXPECT_EQ(berth.Wait(), 0) << said;
  return said;
}

// An operator who has just come, with a session of its own: looks, changes something, and watches, which is all within
// the time of one answer. Errors: whatever keeps it from that.
absl::Status Come(const TestDaemon& daemon, AnswerTimes* times) {
  BERTH_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session,
                         Session::Open({.folder = daemon.folder(), .admin = true, .always_new = true}));
  const Inspector inspector(session);
  BERTH_ASSIGN_OR_RETURN(const v1::Node node, inspector.GetNode());
  times->Saw(node.pressure());
  BERTH_RETURN_IF_ERROR(inspector.DrainDevice(0, "to look at it").status());
  BERTH_RETURN_IF_ERROR(inspector.UndrainDevice(0).status());
  bool told = false;
  const absl::Status watched = inspector.WatchDevices([&](const v1::WatchDevicesResponse&) {
    told = true;
    return false;
  });
  return told ? absl::OkStatus() : watched;
}

absl::Status ComeAsOperator(const TestDaemon& daemon, AnswerTimes* times) {
  return times->Time([&] { return Come(daemon, times); });
}

TEST(FdExhaustionTest, OperatorsAreServedWhenClientsHaveTakenEveryFd) {
  TestDaemon daemon({.fd_limit = 400});
  Actor holder(daemon);
  holder.Do("acquire p");
  Flood calls = Flood::Start("silent", daemon.folder() + "/berthd.sock", 300);
  Flood sessions = Flood::Start("silent", daemon.folder() + "/attach.sock", 300);
  // Nobody else gets in.
  ASSERT_TRUE(Eventually([&] { return !Actor(daemon, {.open = false}).Ask("open").ok(); }));
  // Nor does who is in get more than clients may have, whatever it is.
  absl::Status refused;
  for (int i = 0; i < 400 && refused.ok(); ++i) {
    refused = holder.Ask(absl::StrCat("allocate b", i, " 4096")).status();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  AnswerTimes times;
  for (int i = 0; i < 10 && !HasFailure(); ++i) {
    EXPECT_TRUE(absl::StrContains(Berth(daemon, "status"), "gpu-tests"));
    Berth(daemon, "health");
    EXPECT_TRUE(Ok(ComeAsOperator(daemon, &times)));
  }
  times.ExpectInTime("every fd taken");
  // Who was there goes on.
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  EXPECT_TRUE(Ok(holder.Ask("acquire p")));
  EXPECT_GT(calls.Stop().ended, 0u);
  EXPECT_GT(sessions.Stop().ended, 0u);
  holder.Quit();
  daemon.ExpectBooksBack();
  Actor later(daemon);
  EXPECT_TRUE(Ok(later.Ask("acquire p")));
}

TEST(FdExhaustionTest, WhoGotNoPageForItsStreamsGetsOneOnceThereIsRoom) {
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
  // The last of them was not made.
  for (int i = 0; i < blocks - 1; ++i) actor.Do(absl::StrCat("free b", i));
  EXPECT_TRUE(Eventually([&] { return actor.Ask("stream s").ok(); }));
  EXPECT_TRUE(Ok(actor.Ask("sync s")));
  actor.Quit();
  daemon.ExpectBooksBack();
}

TEST(PlacesTest, OperatorsComeInWhenTheirOwnUserHasTakenAllOfItsPlaces) {
  TestDaemon daemon({.config = "[limits]\nconnections = 24\nconnections_per_uid = 12\nattach_fds_per_uid = 24\n"});
  Actor holder(daemon);
  holder.Do("acquire p");
  Flood calls = Flood::Start("silent", daemon.folder() + "/berthd.sock", 60);
  Flood sessions = Flood::Start("silent", daemon.folder() + "/attach.sock", 60);
  ASSERT_TRUE(Eventually([&] { return !Actor(daemon, {.open = false}).Ask("open").ok(); }));
  AnswerTimes times;
  for (int i = 0; i < 10 && !HasFailure(); ++i) EXPECT_TRUE(Ok(ComeAsOperator(daemon, &times)));
  times.ExpectInTime("every place of one's user taken");
  // More of them at once than their user has places.
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
  daemon.ExpectBooksBack();
}

TEST(PlacesTest, OperatorsWatchWhenTheirOwnUserHasTakenAllOfItsWatches) {
  TestDaemon daemon;
  struct Watch {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::WatchDevicesResponse>> reader;
  };
  std::vector<RawClient> clients;
  std::vector<std::unique_ptr<Watch>> watches;
  // Returns whether it was told of the devices.
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

TEST(MemoryExhaustionTest, ABrokerPastItsBoundIsFollowedByOneThatGoesOnWithEverything) {
#ifdef BERTH_SANITIZED
  GTEST_SKIP() << "a sanitizer's memory is more than the bound";
#endif
  TestDaemon daemon({.config = "[limits]\nbroker_memory = \"24MiB\"\n"});
  Actor holder(daemon);
  holder.Do("acquire p");
  holder.Allocate("b", 4096);
  const auto look = [&] { return Must(daemon.inspector().GetNode()); };
  const v1::Node before = look();
  EXPECT_EQ(before.pressure().memory_bound_bytes(), 24u << 20);
  EXPECT_EQ(before.pressure().memory_restarts(), 0u);
  Flood flood = Flood::Start("silent", daemon.folder() + "/berthd.sock", 2000);
  ASSERT_TRUE(Eventually([&] { return look().pressure().memory_restarts() > 0; }, 2 * kPatience));
  flood.Stop();
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  EXPECT_TRUE(Ok(holder.Ask("acquire p")));
  EXPECT_TRUE(daemon.BooksBecome(
      [](const Books& books) { return books.units == 1 && books.blocks == 1 && books.waiters == 0; }));
  const v1::Node after = look();
  EXPECT_EQ(after.incarnation(), before.incarnation());
  // It is not one after the other: a broker has its time before it may end so.
  EXPECT_LE(after.pressure().memory_restarts(), 2u);
  EXPECT_EQ(after.epoch(), before.epoch() + after.pressure().memory_restarts());
  EXPECT_TRUE(absl::StrContains(Berth(daemon, "status"), "of memory, bound 24 MiB"));
  holder.Quit();
  EXPECT_TRUE(daemon.BooksBecome(
      [](const Books& books) { return books.units == 0 && books.blocks == 0 && books.live == 0; }));
}

TEST(MemoryExhaustionTest, ABoundWithoutRoomIsRefusedAtTheStartWithWhatIsNeeded) {
  TestDaemon other;
  const std::string config = absl::StrCat(other.folder(), "/berthd.toml");
  Subprocess berthd = Subprocess::Start(
      {.argv = {"/bin/sh", "-c",
                "printf '[limits]\nbroker_memory = \"1MiB\"\n' > \"$1\"; "
                "exec \"$0\" --config=\"$1\" --folder=\"$1.run\" --backend=host 2>&1",
                ProgramPath("daemon/berthd"), config}});
  const std::string said = berthd.ReadAll();
  EXPECT_EQ(berthd.Wait(), 1);
  EXPECT_TRUE(absl::StrContains(said, "limits.broker_memory: 1 MiB, but a broker that serves nobody has")) << said;
}

}  // namespace
}  // namespace berth::testing
