// Calls of RPCs on a side channel (attach::Ask), by processes that have not started gRPC.

#include <string.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>
#include <berth/permit.h>
#include <berth/session.h>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.pb.h"
#include "client/sdk/transport/status_conversion.h"
#include "common/wire/attach_wire.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"
#include "tests/support/wire/raw_client.h"

namespace berth::testing {
namespace {

using attach::Method;
using Outcome = attach::Answer::Outcome;

class SideCallsTest : public ::testing::Test {
 protected:
  SideCallsTest() : daemon_({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}}) {}

  static attach::Ask AskOf(const RawClient& client, Method method, const std::string& body, uint64_t number = 1) {
    attach::Ask ask = {.method = method,
                       .number = number,
                       .session = client.session_credentials().session.value(),
                       .secret = client.session_credentials().secret,
                       .bytes = static_cast<uint32_t>(body.size())};
    memcpy(ask.body, body.data(), body.size());
    return ask;
  }
  static std::string BytesOf(const attach::Ask& ask) {
    return std::string(reinterpret_cast<const char*>(&ask), attach::Ask::BytesOf(ask.bytes));
  }
  static void Send(RawClient& client, const attach::Ask& ask) {
    Must(client.channel().Send(absl::string_view(BytesOf(ask))), "ask");
  }

  static v1::AcquirePermitRequest Acquire(RawClient& client, const std::string& key = "k") {
    v1::AcquirePermitRequest request;
    *request.mutable_request() = client.NextTag();
    request.set_units(1);
    request.set_holder_key(key);
    return request;
  }

  // Returns the answer's body. Errors: the refusal that the Answer, or a Refused, carries.
  static absl::StatusOr<std::string> Receive(RawClient& client, uint64_t number = 1) {
    absl::StatusOr<Message> message = client.channel().Receive();
    while (message.ok() && message->bytes.size() == sizeof(attach::Delivery)) message = client.channel().Receive();
    if (!message.ok()) return message.status();
    if (message->bytes.size() == sizeof(attach::Refused)) {
      attach::Refused refused;
      memcpy(&refused, message->bytes.data(), sizeof(refused));
      return ToStatus(refused);
    }
    attach::Answer answer;
    EXPECT_GE(message->bytes.size(), attach::Answer::kHeadBytes);
    memcpy(&answer, message->bytes.data(), message->bytes.size());
    EXPECT_EQ(answer.kind, attach::Kind::kAnswer);
    EXPECT_EQ(answer.number, number);
    EXPECT_EQ(message->bytes.size(), attach::Answer::BytesOf(answer.bytes));
    const std::string body(answer.body, answer.bytes);
    if (answer.outcome == Outcome::kRefused) return FromStatusProto(body);
    EXPECT_EQ(answer.outcome, Outcome::kDone);
    return body;
  }
  template <typename Proto>
  static Proto Parse(const std::string& body) {
    Proto proto;
    EXPECT_TRUE(proto.ParseFromString(body));
    return proto;
  }

  bool WaitersBecome(uint64_t count) {
    return daemon_.AccountsBecome([&](const Accounts& accounts) { return accounts.waiters == count; });
  }

  TestDaemon daemon_;
};

TEST_F(SideCallsTest, AcquireIsGrantedOnceAndRepeatedByTag) {
  RawClient client = RawClient::Open(daemon_.folder());
  const v1::AcquirePermitRequest request = Acquire(client);
  Send(client, AskOf(client, Method::kAcquirePermit, request.SerializeAsString(), 7));
  const auto granted = Parse<v1::AcquirePermitResponse>(Must(Receive(client, 7)));
  EXPECT_NE(granted.permit(), 0u);
  // The same request, on the channel and by gRPC.
  Send(client, AskOf(client, Method::kAcquirePermit, request.SerializeAsString(), 8));
  EXPECT_EQ(Parse<v1::AcquirePermitResponse>(Must(Receive(client, 8))).permit(), granted.permit());
  EXPECT_EQ(Must(client.Call(&v1::PermitService::Stub::AcquirePermit, request)).permit(), granted.permit());
  EXPECT_EQ(daemon_.TakeAccounts().units, 1u);
}

TEST_F(SideCallsTest, WaitIsExplainedAndEndsWithTheGrant) {
  RawClient holder = RawClient::Open(daemon_.folder());
  const v1::AcquirePermitResponse held = Must(holder.TryAcquire());
  RawClient waiter = RawClient::Open(daemon_.folder());
  Send(waiter, AskOf(waiter, Method::kExplainWait, "", 1));
  EXPECT_TRUE(IsRefusal(Receive(waiter, 1).status(), Reason::kNotFound)) << "it does not wait yet";
  Send(waiter, AskOf(waiter, Method::kAcquirePermit, Acquire(waiter).SerializeAsString(), 2));
  Send(waiter, AskOf(waiter, Method::kExplainWait, "", 3));
  const auto wait = Parse<v1::WaitExplanation>(Must(Receive(waiter, 3)));
  EXPECT_EQ(wait.waiter().session(), waiter.session_credentials().session.value());
  ASSERT_EQ(wait.holders_size(), 1);
  EXPECT_EQ(wait.holders(0).id(), held.permit());

  v1::ReleasePermitRequest release;
  *release.mutable_request() = holder.NextTag();
  release.set_acquisition(held.acquisition());
  Must(holder.Call(&v1::PermitService::Stub::ReleasePermit, release));
  EXPECT_NE(Parse<v1::AcquirePermitResponse>(Must(Receive(waiter, 2))).permit(), held.permit());
}

TEST_F(SideCallsTest, RefusalIsTheRpcs) {
  RawClient holder = RawClient::Open(daemon_.folder());
  Must(holder.TryAcquire());
  RawClient client = RawClient::Open(daemon_.folder());
  struct Row {
    const char* name;
    std::function<void(v1::AcquirePermitRequest&)> change;
  };
  for (const Row& row : {Row{"no wait", [](auto& request) { request.mutable_max_wait(); }},
                         Row{"no pool", [](auto& request) { request.set_pool("nowhere"); }},
                         Row{"bad pool", [](auto& request) { request.set_pool("\n"); }},
                         Row{"more than the cap", [](auto& request) { request.set_units(9); }},
                         Row{"no units", [](auto& request) { request.set_units(0); }},
                         Row{"no tag", [](auto& request) { request.clear_request(); }}}) {
    v1::AcquirePermitRequest request = Acquire(client);
    row.change(request);
    Send(client, AskOf(client, Method::kAcquirePermit, request.SerializeAsString()));
    const absl::Status asked = Receive(client).status();
    if (request.has_request()) *request.mutable_request() = client.NextTag();
    const absl::Status called = client.Call(&v1::PermitService::Stub::AcquirePermit, request).status();
    ASSERT_TRUE(GetErrorDetails(asked).has_value()) << row.name << asked;
    EXPECT_EQ(asked.code(), called.code()) << row.name << asked << called;
    EXPECT_EQ(GetErrorDetails(asked)->reason, GetErrorDetails(called)->reason) << row.name;
  }
  EXPECT_EQ(daemon_.TakeAccounts().units, 1u);
}

TEST_F(SideCallsTest, MalformedMessageChangesNothing) {
  RawClient client = RawClient::Open(daemon_.folder());
  const std::string body = Acquire(client).SerializeAsString();
  const attach::Ask good = AskOf(client, Method::kAcquirePermit, body);
  const Accounts before = daemon_.TakeAccounts();
  attach::Ask longer = good;
  longer.bytes += 1;
  attach::Ask endless = good;
  endless.bytes = UINT32_MAX;
  const std::vector<std::pair<const char*, std::string>> rows = {
      {"head alone", BytesOf(good).substr(0, attach::Ask::kHeadBytes)},
      {"less than a head", BytesOf(good).substr(0, attach::Ask::kHeadBytes - 1)},
      {"a byte short", BytesOf(good).substr(0, BytesOf(good).size() - 1)},
      {"a byte more", BytesOf(good) + "x"},
      {"counts a byte more", BytesOf(longer).substr(0, BytesOf(good).size())},
      {"counts too many", std::string(reinterpret_cast<const char*>(&endless), sizeof(endless))},
      {"no protobuf", BytesOf(AskOf(client, Method::kAcquirePermit, "\xff\xff\xff"))},
      {"method 0", BytesOf(AskOf(client, Method{0}, body))},
      {"method 5", BytesOf(AskOf(client, Method{5}, body))},
      {"explain with a body", BytesOf(AskOf(client, Method::kExplainWait, body))},
      {"end with another body", BytesOf(AskOf(client, Method::kEndSession, "\xff"))},
      {"cancel with a body", BytesOf(AskOf(client, Method::kCancel, body))}};
  for (const auto& [name, bytes] : rows) {
    Must(client.channel().Send(absl::string_view(bytes)), name);
    EXPECT_TRUE(IsRefusal(Receive(client).status(), Reason::kInvalidField)) << name;
  }
  EXPECT_TRUE(daemon_.AccountsReturnTo(before));
  Send(client, good);
  EXPECT_TRUE(Receive(client).ok()) << "the channel still serves";
}

TEST_F(SideCallsTest, CredentialsOfAnotherSessionAreRefused) {
  RawClient victim = RawClient::Open(daemon_.folder());
  RawClient thief = RawClient::Open(daemon_.folder());
  const Accounts before = daemon_.TakeAccounts();
  for (const Method method : {Method::kAcquirePermit, Method::kExplainWait, Method::kEndSession}) {
    const std::string body = method == Method::kAcquirePermit ? Acquire(thief).SerializeAsString() : "";
    attach::Ask wrong_secret = AskOf(thief, method, body);
    wrong_secret.secret.bits[0] ^= 1;
    attach::Ask others_session = AskOf(thief, method, body);
    others_session.session = victim.session_credentials().session.value();
    attach::Ask stolen = AskOf(victim, method, body);
    for (const attach::Ask& ask : {wrong_secret, others_session, stolen}) {
      Send(thief, ask);
      const absl::Status refused = Receive(thief).status();
      // A process that knows the secret of a session of its user may end that session, as it may by gRPC.
      if (refused.ok()) continue;
      EXPECT_TRUE(IsRefusal(refused, Reason::kBadCredentials) || IsRefusal(refused, Reason::kNotJoined) ||
                  IsRefusal(refused, Reason::kNotFound))
          << static_cast<int>(method) << refused;
    }
  }
  EXPECT_EQ(daemon_.TakeAccounts().units, before.units);
}

TEST_F(SideCallsTest, SecondAcquireIsRefusedWhileTheFirstWaits) {
  RawClient holder = RawClient::Open(daemon_.folder());
  Must(holder.TryAcquire());
  RawClient client = RawClient::Open(daemon_.folder());
  Send(client, AskOf(client, Method::kAcquirePermit, Acquire(client).SerializeAsString(), 1));
  ASSERT_TRUE(WaitersBecome(1));
  Send(client, AskOf(client, Method::kAcquirePermit, Acquire(client, "other").SerializeAsString(), 2));
  EXPECT_TRUE(IsRefusal(Receive(client).status(), Reason::kInvalidField));
  EXPECT_EQ(daemon_.TakeAccounts().waiters, 1u);
}

// More threads than a channel may have rejections.
TEST_F(SideCallsTest, ThreadsOfOneProcessWaitTogether) {
  RawClient holder = RawClient::Open(daemon_.folder());
  Must(holder.TryAcquire());
  Actor actor(daemon_);
  constexpr int kThreads = 24;
  for (int i = 0; i < kThreads; ++i) actor.Do(absl::StrCat("begin p", i));
  EXPECT_TRUE(WaitersBecome(kThreads));
  EXPECT_TRUE(Ok(actor.Ask("status")));
  actor.Kill();
  EXPECT_TRUE(WaitersBecome(0));
}

TEST_F(SideCallsTest, CancelledAndAbandonedWaitsLeaveTheQueue) {
  RawClient holder = RawClient::Open(daemon_.folder());
  Must(holder.TryAcquire());
  {
    RawClient client = RawClient::Open(daemon_.folder());
    Send(client, AskOf(client, Method::kAcquirePermit, Acquire(client).SerializeAsString(), 4));
    ASSERT_TRUE(WaitersBecome(1));
    Send(client, AskOf(client, Method::kCancel, "", 5));
    EXPECT_TRUE(IsRefusal(Receive(client, 4).status(), Reason::kCancelled));
    EXPECT_TRUE(WaitersBecome(0));
    Send(client, AskOf(client, Method::kAcquirePermit, Acquire(client).SerializeAsString(), 6));
    ASSERT_TRUE(WaitersBecome(1));
    // The connection ends, and the process lives.
    client.channel().Close();
    EXPECT_TRUE(WaitersBecome(0));
  }
  EXPECT_EQ(daemon_.TakeAccounts().units, 1u);
}

TEST_F(SideCallsTest, SessionEndsWithItsPermits) {
  {
    RawClient client = RawClient::Open(daemon_.folder());
    Send(client, AskOf(client, Method::kAcquirePermit, Acquire(client).SerializeAsString()));
    Must(Receive(client));
    Send(client, AskOf(client, Method::kEndSession, v1::EndSessionRequest().SerializeAsString(), 2));
    EXPECT_EQ(Parse<v1::Session>(Must(Receive(client, 2))).state(), v1::Session::ENDING);
  }
  EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.units == 0; }));
}

TEST_F(SideCallsTest, WaitSurvivesBrokerAndDaemon) {
  const auto run = [&](const char* label) {
    return Subprocess::Start({.argv = {ProgramPath("client/cli/berth"), "run", "--quiet", "--label", label, "--",
                                       "/bin/sh", "-c", "echo in; ls /proc/$PPID/task | wc -l; read line; exit 5"},
                              .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION"}});
  };
  Subprocess holder = run("holder");
  EXPECT_EQ(Must(holder.ReadLine()), "in");
  Subprocess waiter = run("waiter");
  ASSERT_TRUE(WaitersBecome(1));
  daemon_.KillBroker();
  ASSERT_TRUE(WaitersBecome(1));
  daemon_.Stop();
  daemon_.StartAgain();
  ASSERT_TRUE(WaitersBecome(1));
  EXPECT_EQ(daemon_.TakeAccounts().units, 1u);
  holder.CloseInput();
  EXPECT_EQ(holder.Wait(), 5);
  EXPECT_EQ(Must(waiter.ReadLine()), "in");
  // The main thread, the side channel's and that of signals: no thread of gRPC.
  EXPECT_EQ(Must(waiter.ReadLine()), "3");
  waiter.CloseInput();
  EXPECT_EQ(waiter.Wait(), 5);
  EXPECT_TRUE(
      daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.units == 0 && accounts.waiters == 0; }));
}

}  // namespace
}  // namespace berth::testing
