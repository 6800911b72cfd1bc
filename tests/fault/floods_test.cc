// Clients that send requests cheap for them and expensive for the daemon, on any number of connections. Meanwhile
// operators get answers and other clients retain their leases; afterwards the daemon is unchanged.

#include <algorithm>
#include <atomic>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <berth/error.h>
#include <berth/session.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/device.pb.h"
#include "client/sdk/admin/inspector.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"
#include "tests/support/wire/answer_times.h"
#include "tests/support/wire/flood.h"

namespace berth::testing {
namespace {

// How long each flood is in the soak. The gate asks a few times, beside a quarter of the connections.
constexpr absl::Duration kFlood = absl::Seconds(3);
constexpr int kGateLooks = 3;
// An answer still missing then would not come before the flood's end; it is expected sooner (AnswerTimes).
constexpr absl::Duration kAnswer = absl::Seconds(10);
// The broker's allowed growth: data in transit when a connection is ended, and the allocator's overhead. An unbounded
// flood exceeds this in a second.
constexpr uint64_t kGrowth = 256 << 20;

struct Kind {
  const char* name;
  const char* socket;
  // Whether each of its connections exceeds a connection's limits.
  bool ends;
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name << " on " << kind.socket; }

class FloodTest : public ::testing::TestWithParam<Kind> {
 protected:
  // A new operator, who needs no session.
  absl::StatusOr<v1::Node> Look() {
    const auto session = Session::Open(
        {.folder = daemon_.folder(), .admin = true, .observer = true, .always_new = true, .timeout = kAnswer});
    if (!session.ok()) return session.status();
    return Inspector(*session).GetNode();
  }

  TestDaemon daemon_;
};

TEST_P(FloodTest, OperatorsAreAnsweredDuringFloodWithoutLeaks) {
  auto holder = std::make_unique<Actor>(daemon_);
  holder->Do("acquire p");
  [[maybe_unused]] const uint64_t before = ResidentBytes(daemon_.broker());
  const pid_t broker = daemon_.broker();
  const bool attach = absl::string_view(GetParam().socket) == "attach.sock";
  Flood flood = Flood::Start(GetParam().name, absl::StrCat(daemon_.folder(), "/", GetParam().socket),
                             static_cast<int>(GateOrSoak(4, 16)));
  const absl::Time end = absl::Now() + kFlood;
  AnswerTimes times;
  uint64_t peak = 0;
  for (int looks = 0; Soaks() ? absl::Now() < end : looks < kGateLooks; ++looks) {
    const absl::StatusOr<v1::Node> node = times.Time([this] { return Look(); });
    ASSERT_TRUE(Ok(node));
    times.Saw(node->pressure());
    peak = std::max(peak, ResidentBytes(broker));
  }
  times.ExpectInTime(::testing::PrintToString(GetParam()));
#ifndef BERTH_SANITIZED
  EXPECT_LT(peak, before + kGrowth);
#endif
  EXPECT_EQ(Must(Look(), "the node").pressure().memory_restarts(), 0u);
  // Too slow a machine exceeds no connection's limits.
  const bool ends = GetParam().ends && Soaks();
  if (ends) {
    EXPECT_TRUE(Eventually([&] { return Must(Look(), "the node").pressure().ended_connections() > 0; }));
  }
  const Flood::Outcome outcome = flood.Stop();
  if (ends) {
    EXPECT_GT(outcome.ended, 0u);
  }
  EXPECT_EQ(daemon_.broker(), broker) << "the broker has ended";
  // An existing client continues; a new client of the flood's user may have to wait a moment.
  EXPECT_TRUE(Ok(holder->Ask("release p")));
  EXPECT_TRUE(Ok(holder->Ask("acquire p")));
  if (!attach) {
    Actor later(daemon_);
    EXPECT_TRUE(Ok(later.Ask("acquire p")));
  }
  holder.reset();
  EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.units == 0; }));
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, FloodTest,
    ::testing::Values(Kind{"resets", "berthd.sock", true}, Kind{"calls", "berthd.sock", true},
                      Kind{"strangers", "berthd.sock", true}, Kind{"pings", "berthd.sock", true},
                      Kind{"settings", "berthd.sock", true}, Kind{"deaf", "berthd.sock", true},
                      Kind{"windows", "berthd.sock", false},
                      Kind{"empty-data", "berthd.sock", false}, Kind{"continuations", "berthd.sock", false},
                      Kind{"silent", "berthd.sock", false}, Kind{"half", "berthd.sock", false},
                      Kind{"connects", "berthd.sock", false},
                      Kind{"connects", "attach.sock", false}),
    [](const ::testing::TestParamInfo<Kind>& info) {
      std::string name = absl::StrCat(info.param.name, "_on_", info.param.socket);
      for (char& letter : name) {
        if (!absl::ascii_isalnum(static_cast<unsigned char>(letter))) letter = '_';
      }
      return name;
    });

TEST(FloodOfOneUserTest, EndedConnectionIsShownInAuditLogAndStatus) {
  TestDaemon daemon({.config = "[limits]\nresets_per_second = 10\n"});
  Flood flood = Flood::Start("resets", daemon.folder() + "/berthd.sock", 1);
  const auto ended = [&] { return daemon.GetNode().pressure().ended_connections() > 0; };
  ASSERT_TRUE(Eventually(ended));
  flood.Stop();
  Subprocess status = Subprocess::Start(
      {.argv = {ProgramPath("client/cli/berth"), "--admin", absl::StrCat("--folder=", daemon.folder()), "status"}});
  const std::string said = status.ReadAll();
  EXPECT_EQ(status.Wait(), 0);
  EXPECT_TRUE(absl::StrContains(said, "closed because their calls exceeded the rate limit")) << said;
  // The daemon writes its disk asynchronously.
  std::string log;
  EXPECT_TRUE(Eventually([&] {
    std::ifstream file(daemon.folder() + "/state/audit.jsonl");
    log.assign(std::istreambuf_iterator<char>(file), {});
    return absl::StrContains(log, "end_connection");
  })) << log;
}

TEST(AcceptRateTest, FastConnectorIsRejectedOperatorIsNot) {
  TestDaemon daemon({.config = "[limits]\naccepts_per_second_per_uid = 5\n"});
  Flood flood = Flood::Start("connects", daemon.folder() + "/berthd.sock", 4);
  const auto refused = [&] { return daemon.GetNode().pressure().refused_connections() > 0; };
  EXPECT_TRUE(Eventually(refused));
  // Each of these is a separate connection.
  for (uint64_t i = 0; i < GateOrSoak(5, 30) && !HasFailure(); ++i) {
    Subprocess status = Subprocess::Start(
        {.argv = {ProgramPath("client/cli/berth"), "--admin", absl::StrCat("--folder=", daemon.folder()), "health"}});
    EXPECT_EQ(status.Wait(), 0) << i;
  }
  flood.Stop();
}

TEST(AcceptRateTest, SessionsAboveAcceptRateOpenInTurn) {
  // Four at once; each session has two connections.
  TestDaemon daemon({.config = "[limits]\naccepts_per_second_per_uid = 1\n"});
  std::atomic<bool> refused = false;
  std::vector<std::future<absl::Status>> crowd;
  for (int i = 0; i < 4; ++i) {
    crowd.push_back(std::async(std::launch::async, [&] {
      absl::Status status;
      do {
        status = Session::Open({.folder = daemon.folder(), .timeout = kPatience}).status();
      } while (status.ok() && !refused);
      return status;
    }));
  }
  EXPECT_TRUE(Eventually([&] { return daemon.GetNode().pressure().refused_connections() > 0; }));
  refused = true;
  for (std::future<absl::Status>& opened : crowd) EXPECT_TRUE(Ok(opened.get()));
}

TEST(AcceptRateTest, RejectedConnectorTimesOutWithReason) {
  TestDaemon daemon({.config = "[limits]\naccepts_per_second_per_uid = 1\n"});
  absl::Status status;
  // A stalled daemon does not answer in time, and refuses later.
  EXPECT_TRUE(Eventually([&] {
    status = Session::Open({.folder = daemon.folder(), .timeout = absl::Milliseconds(50)}).status();
    return IsRefusal(status, Reason::kLimit);
  })) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "1 a second")) << status;
}

}  // namespace
}  // namespace berth::testing
