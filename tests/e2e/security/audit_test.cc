// The audit log: every decision, its reason, and the process that requested it.

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <berth/block_handle.h>
#include <berth/error.h>
#include <berth/permit.h>
#include <berth/session.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/admin.grpc.pb.h"
#include "berth/v1/device.grpc.pb.h"
#include "berth/v1/fence.grpc.pb.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/module.grpc.pb.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/session.grpc.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/digest.h"
#include "common/wire/session_credentials.h"
#include "daemon/base/process_origin.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/testing.h"
#include "tests/support/whole_lines.h"
#include "tests/support/wire/raw_client.h"

namespace berth::testing {
namespace {

using Json = nlohmann::json;

class AuditTest : public ::testing::Test {
 protected:
  explicit AuditTest() : daemon_({.config = "[pools.gpu-tests]\ncap = 1\n"}) {}

  std::string path() const { return daemon_.folder() + "/state/audit.jsonl"; }
  std::vector<Json> Records() const {
    std::vector<Json> records;
    for (const std::string& line : WholeLines(path())) records.push_back(Json::parse(line));
    return records;
  }
  // Waits for a record with all of these facts, by `session` where that is not 0.
  Json Await(const std::map<std::string, std::string>& facts, uint64_t session = 0) {
    Json found;
    const bool there = Eventually([&] {
      for (const Json& record : Records()) {
        const std::string by = record["who"].is_object() ? record["who"].value("session", "") : "";
        bool fits = session == 0 || by == absl::StrCat(session);
        for (const auto& [name, value] : facts) {
          fits = fits && record.contains(name) && record[name].is_string() && record[name] == value;
        }
        if (fits) found = record;
      }
      return !found.is_null();
    });
    std::string wanted;
    for (const auto& [name, value] : facts) absl::StrAppend(&wanted, " ", name, "=", value);
    EXPECT_TRUE(there) << "no record" << wanted;
    return there ? found : Json{{"who", Json::object()}};
  }
  // Expects the record to name that process.
  void ExpectWho(const Json& record, Actor& actor) {
    const Json& who = record["who"];
    EXPECT_EQ(who.value("pid", 0), actor.pid());
    EXPECT_EQ(who.value("uid", -1), static_cast<int>(ClientUid()));
    EXPECT_EQ(who.value("gid", -1), static_cast<int>(ClientGid()));
    const ProcessOrigin origin = ReadOrigin(actor.pid());
    EXPECT_EQ(who.value("started", uint64_t{0}), origin.started);
    EXPECT_EQ(who.value("executable", ""), origin.executable);
    EXPECT_EQ(who.value("cgroup", "-"), origin.cgroup);
    EXPECT_EQ(who.value("role", ""), "tenant");
    EXPECT_EQ(who.value("session", ""), absl::StrCat(actor.session().value()));
  }

  // Expects the record to name the process of that raw client, as the kernel does.
  static void ExpectWho(const Json& record, RawClient& client) {
    const Json& who = record["who"];
    EXPECT_EQ(who.value("pid", 0), client.process().pid()) << record;
    EXPECT_EQ(who.value("uid", -1), static_cast<int>(ClientUid()));
    EXPECT_EQ(who.value("gid", -1), static_cast<int>(ClientGid()));
    const ProcessOrigin origin = ReadOrigin(client.process().pid());
    EXPECT_NE(origin.started, 0u);
    EXPECT_EQ(who.value("started", uint64_t{0}), origin.started);
    EXPECT_EQ(who.value("executable", ""), origin.executable);
    EXPECT_EQ(who.value("cgroup", "-"), origin.cgroup);
  }

  TestDaemon daemon_;
};

v1::AcquirePermitRequest AcquireOf(RawClient& client) {
  v1::AcquirePermitRequest request;
  *request.mutable_request() = client.NextTag();
  request.set_holder_key("k");
  request.mutable_max_wait();
  return request;
}

TEST_F(AuditTest, EachDecisionIsLoggedWithCallerAndReason) {
  Await({{"what", "broker_started"}});
  {
    Actor a(daemon_, {.open = false});
    a.Do("open label=day");
    Actor b(daemon_);
    const uint64_t session = a.session().value();
    Await({{"what", "open_session"}, {"outcome", "done"}}, session);
    Await({{"what", "join_session"}, {"outcome", "done"}}, session);

    // Permits.
    a.Do("acquire p");
    const Json granted = Await({{"what", "acquire"}, {"outcome", "done"}, {"pool", "gpu-tests"}}, session);
    ExpectWho(granted, a);
    EXPECT_EQ(granted["who"].value("label", ""), "day");
    EXPECT_FALSE(b.Ask("acquire p try").ok());
    const Json refused = Await({{"what", "acquire"}, {"outcome", "refused"}, {"reason", "NO_PERMIT"}});
    ExpectWho(refused, b);
    EXPECT_TRUE(absl::StrContains(refused.value("why", ""), "1 of 1 out"));
    a.Do("release p");
    Await({{"what", "release"}, {"returned", "true"}}, session);

    // Memory.
    const BlockHandle handle = a.Allocate("b", 1 << 20);
    const std::string block = absl::StrCat(handle.block.value());
    Await({{"what", "allocate"}, {"block", block}, {"bytes", "1048576"}}, session);
    a.Do(absl::StrCat("grant-session b ", b.session().value()));
    Await({{"what", "grant"}, {"block", block}, {"to", absl::StrCat("session ", b.session().value())}});
    const uint64_t imports = daemon_.TakeAccounts().imports;
    b.Do(absl::StrCat("import b ", FormatHandle(handle)));
    ExpectWho(Await({{"what", "import"}, {"block", block}}), b);
    b.Do("drop b");
    // The side channel carries the release of an import, and no call waits for it.
    ASSERT_TRUE(daemon_.AccountsBecome([&](const Accounts& accounts) { return accounts.imports == imports; }));
    a.Do("publish b weights");
    Await({{"what", "publish"}, {"block_name", "weights"}});
    a.Do("unpublish weights");
    Await({{"what", "unpublish"}, {"block_name", "weights"}});
    EXPECT_FALSE(a.Ask("allocate c 99999999999999").ok());
    Await({{"what", "allocate"}, {"outcome", "refused"}, {"reason", "OVER_BUDGET"}}, session);
    a.Do("reserve r 0=2097152");
    Await({{"what", "reserve"}, {"outcome", "done"}}, session);
    a.Do("unreserve r");
    Await({{"what", "release_reservation"}, {"outcome", "done"}}, session);

    // An operator.
    const Inspector inspector = daemon_.inspector();
    v1::SetBudgetRequest budget;
    budget.set_session(session);
    budget.set_limit_bytes(1 << 21);
    Must(inspector.SetBudget(budget));
    EXPECT_EQ(Await({{"what", "set_budget"}, {"limit_bytes", "2097152"}})["who"].value("role", ""), "admin");
    v1::SetPoolRequest pool;
    pool.set_cap(2);
    Must(inspector.SetPool(pool));
    Await({{"what", "operate"}, {"verb", "SetPool"}, {"change", "cap: 2"}});
    Must(inspector.DrainDevice(0, "a look"));
    Await({{"what", "operate"}, {"verb", "DrainDevice"}, {"device", "0"}});
    Must(inspector.UndrainDevice(0));
    a.Do("acquire q");
    const uint64_t permit = Must(inspector.ListPermits()).permits(0).id();
    Must(inspector.RevokePermit(PermitId(permit)));
    Await({{"what", "operate"}, {"verb", "RevokePermit"}, {"permit", absl::StrCat(permit)},
           {"from_session", absl::StrCat(session)}});
    const Json taken = Await({{"what", "revoke"}, {"permit", absl::StrCat(permit)}});
    EXPECT_EQ(taken["who"], "daemon");
    std::ofstream(daemon_.config_path()) << "[pools.gpu-tests]\ncap = 3\n[tenants]\npermits = 7\n";
    Must(inspector.ReloadConfig());
    const Json reloaded = Await({{"what", "operate"}, {"verb", "ReloadConfig"}});
    EXPECT_TRUE(absl::StrContains(reloaded["change"].dump(), "tenants.permits: none -> 7")) << reloaded;

    // The next broker knows the clients of the broker that died.
    daemon_.KillBroker();
    b.Do("acquire p");
    const Json later = Await({{"what", "acquire"}, {"outcome", "done"}}, b.session().value());
    EXPECT_EQ(later["epoch"], 2);
    // The record is complete once the broker has had the time to read the process's origin. The broker does not see
    // nested permits.
    b.Do("release p");
    EXPECT_TRUE(Eventually([&] {
      b.Do("acquire again");
      b.Do("release again");
      for (const Json& record : Records()) {
        const Json& who = record["who"];
        if (record["epoch"] == 2 && record["what"] == "release" && who.value("pid", 0) == b.pid() &&
            who.value("executable", "") == ReadOrigin(b.pid()).executable) {
          return true;
        }
      }
      return false;
    }));

    // Ends of sessions.
    Must(daemon_.inspector().EndSession(a.session()));
    Await({{"what", "end_session"}, {"ended", absl::StrCat(session)}});
    const uint64_t second = b.session().value();
    const pid_t pid = b.pid();
    b.Kill();
    const Json over = Await({{"what", "session_over"}}, second);
    bool gone = false;
    for (const Json& record : Records()) {
      gone = gone || (record["what"] == "process_over" && record["who"].value("pid", 0) == pid);
    }
    EXPECT_TRUE(gone);
  }
  daemon_.ExpectAccountsBack();
}

TEST_F(AuditTest, OperatorRoleSurvivesBrokerDeath) {
  const std::shared_ptr<Session> session = daemon_.admin_session();
  Permit permit = Must(Permit::Acquire(session));
  daemon_.KillBroker();
  EXPECT_TRUE(Ok(permit.Release()));
  const Json released = Await({{"what", "release"}, {"returned", "true"}}, session->id().value());
  EXPECT_EQ(released["epoch"], 2) << released;
  EXPECT_EQ(released["who"].value("role", ""), "admin") << released;
  daemon_.ExpectAccountsBack();
}

TEST_F(AuditTest, DeniedRequestIsLoggedWithCaller) {
  {
    Actor a(daemon_);
    const auto session = Must(Session::Open({.folder = daemon_.folder(), .always_new = true}));
    EXPECT_FALSE(Inspector(session).DropDevice(0).ok());
    const Json refused = Await({{"what", "operate"}, {"verb", "DropDevice"}, {"reason", "ADMIN_ONLY"}});
    EXPECT_EQ(refused["who"].value("role", ""), "tenant");
    EXPECT_EQ(refused["who"].value("pid", 0), ::getpid());
    const auto observer = Must(Session::Open({.folder = daemon_.folder(), .observer = true}));
    EXPECT_FALSE(Inspector(observer).EndSession(a.session()).ok());
    const Json looked = Await({{"what", "end_session"}, {"reason", "OBSERVER_ONLY_LOOKS"}});
    EXPECT_EQ(looked["who"].value("role", ""), "observer");
  }
  daemon_.ExpectAccountsBack();
}

TEST_F(AuditTest, FalseClaimIsLoggedByOwnConnection) {
  RawClient other = RawClient::Open(daemon_.folder());
  RawClient liar = RawClient::Open(daemon_.folder());
  const Credentials own = liar.credentials();
  const std::string others = absl::StrCat(other.credentials().session.value());

  // The other client's session and channel, without its secret.
  liar.credentials() = other.credentials();
  liar.credentials().secret.bits[0] ^= 1;
  EXPECT_TRUE(Refused(liar.Call(&v1::PermitService::Stub::AcquirePermit, AcquireOf(liar)), Reason::kBadCredentials));
  Json record = Await({{"what", "acquire"}, {"reason", "BAD_CREDENTIALS"}, {"claimed_session", others}});
  ExpectWho(record, liar);
  EXPECT_FALSE(record["who"].contains("session")) << record;
  EXPECT_FALSE(record["who"].contains("channel")) << record;
  EXPECT_TRUE(Refused(liar.Call(&v1::SessionService::Stub::EndSession, {}), Reason::kBadCredentials));
  ExpectWho(Await({{"what", "end_session"}, {"reason", "BAD_CREDENTIALS"}}), liar);
  // A read-only call without a kind of record of its own, and an operator's call.
  EXPECT_TRUE(Refused(liar.Call(&v1::PermitService::Stub::ListPermits, {}), Reason::kBadCredentials));
  ExpectWho(Await({{"what", "call"}, {"reason", "BAD_CREDENTIALS"}, {"claimed_session", others}}), liar);
  EXPECT_TRUE(Refused(liar.Call(&v1::AdminService::Stub::DropDevice, {}), Reason::kBadCredentials));
  ExpectWho(Await({{"what", "operate"}, {"verb", "DropDevice"}, {"reason", "BAD_CREDENTIALS"}}), liar);

  // The client's own session and secret, with the other client's channel.
  liar.credentials() = own;
  liar.credentials().channel = other.credentials().channel;
  EXPECT_TRUE(Refused(liar.Call(&v1::PermitService::Stub::AcquirePermit, AcquireOf(liar)), Reason::kNotJoined));
  record = Await({{"what", "acquire"}, {"reason", "NOT_JOINED"}});
  ExpectWho(record, liar);
  EXPECT_EQ(record.value("claimed_channel", ""), absl::StrCat(other.credentials().channel.value()));
  EXPECT_TRUE(Ok(liar.Call(&v1::SessionService::Stub::EndSession, {})));
  record = Await({{"what", "end_session"}, {"outcome", "done"}}, own.session.value());
  ExpectWho(record, liar);
  EXPECT_FALSE(record["who"].contains("channel")) << record;

  // Credentials that prove nothing, and no session at all.
  EXPECT_TRUE(Refused(liar.CallAs("short", &v1::MemoryService::Stub::AllocateBlock, {}), Reason::kBadCredentials));
  record = Await({{"what", "allocate"}, {"reason", "BAD_CREDENTIALS"}});
  ExpectWho(record, liar);
  EXPECT_FALSE(record.contains("claimed_session"));
  for (const Json& each : Records()) {
    if (each["outcome"] == "refused") {
      EXPECT_NE(each["who"].value("pid", 0), other.process().pid()) << each;
    }
  }
}

TEST_F(AuditTest, RefusalFloodIsRecordedBoundedWithCount) {
  RawClient liar = RawClient::Open(daemon_.folder());
  liar.credentials().secret.bits[0] ^= 1;
  int calls = 0;
  const auto call = [&] {
    ++calls;
    EXPECT_TRUE(Refused(liar.Call(&v1::PermitService::Stub::ListPermits, {}), Reason::kBadCredentials));
  };
  const absl::Time begin = absl::Now();
  while (calls < 1'000) call();
  const auto recorded = [&] {
    int records = 0;
    int left_out = 0;
    for (const Json& record : Records()) {
      records += record["what"] == "call" ? 1 : 0;
      left_out += std::stoi(record.value("left_out", "0"));
    }
    return std::pair(records, left_out);
  };
  // A separate record counts the records left out, within a second and without another refusal.
  EXPECT_TRUE(Eventually([&] {
    const auto [records, left_out] = recorded();
    return left_out > 0 && records + left_out == calls;
  }));
  EXPECT_LE(recorded().first, 101 + absl::ToInt64Seconds(absl::Ceil(absl::Now() - begin, absl::Seconds(1))));
  EXPECT_LT(recorded().first, calls);
}

TEST_F(AuditTest, ModulesStreamsWatchesAndUnreadableRequestsAreLogged) {
  RawClient client = RawClient::Open(daemon_.folder());
  const uint64_t session = client.credentials().session.value();
  const Digest key = {.bits = {1, 2, 3}};
  v1::ObtainModuleRequest obtain;
  *obtain.mutable_request() = client.NextTag();
  obtain.set_key(std::string(key.bytes()));
  obtain.set_architecture("sm_90");
  const auto obtained = client.Call(&v1::ModuleService::Stub::ObtainModule, obtain);
  ASSERT_TRUE(Ok(obtained));
  Json record = Await({{"what", "obtain_module"}, {"outcome", "done"}, {"key", ToHex(key)}}, session);
  ExpectWho(record, client);
  v1::AbandonModuleRequest abandon;
  *abandon.mutable_request() = client.NextTag();
  abandon.set_compile(obtained->compile());
  EXPECT_TRUE(Ok(client.Call(&v1::ModuleService::Stub::AbandonModule, abandon)));
  ExpectWho(Await({{"what", "abandon_module"}, {"outcome", "done"}}, session), client);
  v1::StoreModuleRequest store;
  *store.mutable_request() = client.NextTag();
  store.set_compile(obtained->compile());
  store.set_bytes(1);
  store.set_content(std::string(key.bytes()));
  EXPECT_FALSE(client.Call(&v1::ModuleService::Stub::StoreModule, store).ok());
  ExpectWho(Await({{"what", "store_module"}, {"outcome", "refused"}}, session), client);

  v1::OpenStreamRequest open;
  *open.mutable_request() = client.NextTag();
  EXPECT_TRUE(Ok(client.Call(&v1::FenceService::Stub::OpenStream, open)));
  ExpectWho(Await({{"what", "open_stream"}, {"outcome", "done"}}, session), client);
  v1::CloseStreamRequest close;
  *close.mutable_request() = client.NextTag();
  close.set_slot(99);
  EXPECT_FALSE(client.Call(&v1::FenceService::Stub::CloseStream, close).ok());
  ExpectWho(Await({{"what", "close_stream"}, {"outcome", "refused"}, {"slot", "99"}}, session), client);

  const auto devices = v1::DeviceService::NewStub(client.grpc_channel());
  const auto watch = [&](const std::string& credentials) {
    grpc::ClientContext context;
    context.AddMetadata(kCredentialsHeader, credentials);
    const auto reader = devices->WatchDevices(&context, v1::WatchDevicesRequest());
    v1::WatchDevicesResponse response;
    const bool received = reader->Read(&response);
    context.TryCancel();
    reader->Finish();
    return received;
  };
  EXPECT_TRUE(watch(EncodeCredentials(client.credentials())));
  ExpectWho(Await({{"what", "watch_devices"}, {"outcome", "done"}}, session), client);
  EXPECT_FALSE(watch("nothing"));
  ExpectWho(Await({{"what", "watch_devices"}, {"outcome", "refused"}, {"reason", "BAD_CREDENTIALS"}}), client);

  v1::GrantBlockRequest unreadable;
  *unreadable.mutable_request() = client.NextTag();
  EXPECT_FALSE(client.Call(&v1::MemoryService::Stub::GrantBlock, unreadable).ok());
  ExpectWho(Await({{"what", "grant"}, {"outcome", "refused"}}), client);
  AttachSocket socket = AttachSocket::Connect(daemon_.folder(), client.process());
  attach::Hello later = MakeHello("a");
  later.version = attach::kVersion + 1;
  ASSERT_TRUE(Ok(socket.Send(later)));
  EXPECT_FALSE(socket.Receive<attach::Welcome>().ok());
  ExpectWho(Await({{"what", "open_session"}, {"outcome", "refused"}}), client);
}

TEST_F(AuditTest, LogIsDaemonUsersOnlyAndNumbersHaveNoGap) {
  {
    Actor a(daemon_);
    for (int i = 0; i < 50; ++i) {
      a.Do("acquire p");
      a.Do("release p");
    }
    Await({{"what", "release"}, {"acquisition", "50"}});
  }
  struct stat info;
  ASSERT_EQ(::stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  uint64_t number = 0;
  for (const Json& record : Records()) EXPECT_EQ(record["number"], ++number);
  EXPECT_EQ(daemon_.GetNode().unwritten_audit_records(), 0u);
  daemon_.ExpectAccountsBack();
}

TEST_F(AuditTest, FailedAuditWriteIsCountedWithoutDelayingPermits) {
  {
    Actor a(daemon_);
    Await({{"what", "join_session"}}, a.session().value());
    // The path of the next file is a folder.
    daemon_.Abandon();
    daemon_.KillSupervisorAndBroker();
  }
  std::filesystem::remove(path());
  std::filesystem::create_directory(path());
  TestDaemon next({.config = absl::StrCat("[log]\naudit_folder = \"", daemon_.folder(), "/state\"\n")});
  {
    Actor b(next);
    b.Do("acquire p");
    EXPECT_TRUE(Eventually([&] { return Must(next.inspector().GetNode()).unwritten_audit_records() >= 4; }));
  }
  next.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
