// Evidence: a user who floods the daemon cannot displace other users' and operators' records in the audit log, the
// memory log and the history.

#include <sys/types.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/history.pb.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/admin/history.h"
#include "client/sdk/admin/inspector.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/peer_process.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"
#include "tests/support/whole_lines.h"
#include "tests/support/wire/raw_client.h"

namespace berth::testing {
namespace {

using Json = nlohmann::json;

constexpr uid_t kVictim = 1001;
constexpr uid_t kAttacker = 1002;
constexpr uid_t kSubordinate = 100'000;
constexpr uint64_t kAuditBytes = 96 << 10;

class EvidenceTest : public ::testing::Test {
 protected:
  EvidenceTest()
      : daemon_({.config = absl::StrCat("[log]\naudit_size = \"96KiB\"\n[history]\nsize = \"4MiB\"\nrows = 1000\n")}) {}
  void SetUp() override {
    if (!IsRoot()) GTEST_SKIP() << "needs root, to be two users";
  }

  std::vector<Json> AuditLines() const {
    std::vector<Json> lines;
    for (const char* const name : {"audit.1.jsonl", "audit.jsonl"}) {
      for (const std::string& line : WholeLines(absl::StrCat(daemon_.folder(), "/state/", name))) {
        lines.push_back(Json::parse(line));
      }
    }
    return lines;
  }
  // Counts the lines about that user, or about operators.
  size_t CountLines(const std::string& what, const std::string& share) const {
    size_t count = 0;
    for (const Json& line : AuditLines()) count += line["what"] == what && line["share"] == share ? 1 : 0;
    return count;
  }
  uint64_t AuditBytes() const {
    uint64_t bytes = 0;
    for (const auto& file : std::filesystem::directory_iterator(daemon_.folder() + "/state")) {
      std::error_code renamed;
      const uint64_t size = file.file_size(renamed);
      if (absl::StartsWith(file.path().filename().string(), "audit.") && !renamed) bytes += size;
    }
    return bytes;
  }
  size_t CountRecords(uid_t uid) {
    const v1::ListLogRecordsResponse all = Must(daemon_.inspector().ListLogRecords());
    return static_cast<size_t>(std::count_if(all.records().begin(), all.records().end(), [&](const auto& record) {
      return record.tenant().uid() == uid;
    }));
  }
  size_t CountLeases(uid_t uid) {
    const v1::ListHistoryResponse all = Must(ListHistory(daemon_.admin_session(), {}, 1'000'000));
    return static_cast<size_t>(std::count_if(all.leases().begin(), all.leases().end(), [&](const auto& lease) {
      return lease.tenant().uid() == uid;
    }));
  }

  TestDaemon daemon_;
};

v1::RequestTag Tag(RawClient& client) {
  v1::RequestTag tag = client.NextTag();
  tag.set_answered_below(tag.sequence());
  return tag;
}

// Sends a well-formed request that is refused: a decision that is also in the memory log.
void FreeNothing(RawClient& client) {
  v1::FreeBlockRequest free;
  *free.mutable_request() = Tag(client);
  free.mutable_handle()->set_block(1);
  free.mutable_handle()->set_device_uuid("HOST-0");
  EXPECT_TRUE(Refused(client.Call(&v1::MemoryService::Stub::FreeBlock, free), Reason::kStale));
}

void TakeAndGiveBack(RawClient& client) {
  v1::AcquirePermitRequest acquire;
  *acquire.mutable_request() = Tag(client);
  acquire.set_holder_key("k");
  const auto taken = client.Call(&v1::PermitService::Stub::AcquirePermit, acquire);
  ASSERT_TRUE(taken.ok()) << taken.status();
  v1::ReleasePermitRequest release;
  *release.mutable_request() = Tag(client);
  release.set_acquisition(taken->acquisition());
  ASSERT_TRUE(Ok(client.Call(&v1::PermitService::Stub::ReleasePermit, release)));
}

TEST_F(EvidenceTest, FloodOfUserLeavesRecordsOfOthers) {
  Actor victim(daemon_, {.uid = kVictim});
  victim.Do("acquire p");
  victim.Do("release p");
  victim.Do("allocate b 1");
  ASSERT_TRUE(Ok(daemon_.inspector().DrainDevice(0, "evidence")));
  ASSERT_TRUE(Ok(daemon_.inspector().EnableDevice(0)));
  const std::string own = std::to_string(kVictim);
  ASSERT_TRUE(Eventually([&] {
    return CountLines("operate", "operators") == 2 && CountLines("release", own) == 1 && CountLeases(kVictim) == 2;
  }));
  const size_t records = CountRecords(kVictim);
  ASSERT_GT(records, 0u);

  RawClient attacker = RawClient::Open(daemon_.folder(), "berthd.sock", kAttacker);
  // More records than the capacity of each of the three rings.
  constexpr int kRefusals = 4'600, kCycles = 1'300;
  for (int i = 0; i < kRefusals; ++i) FreeNothing(attacker);
  for (int i = 0; i < kCycles; ++i) TakeAndGiveBack(attacker);
  // The attacker's newest records are there and have displaced its older ones.
  ASSERT_TRUE(Eventually([&] {
    const v1::Node node = daemon_.GetNode();
    return node.audit_reach().has_complete_since() && node.log_reach().has_complete_since() &&
           node.history_reach().has_complete_since();
  }));

  for (const char* const what : {"acquire", "release", "allocate"}) EXPECT_EQ(CountLines(what, own), 1u) << what;
  EXPECT_EQ(CountLines("join_session", absl::StrCat("admission ", own)), 1u);
  EXPECT_EQ(CountLines("operate", "operators"), 2u);
  EXPECT_EQ(CountRecords(kVictim), records);
  EXPECT_EQ(CountLeases(kVictim), 2u);
  EXPECT_EQ(CountLines("join_session", absl::StrCat("admission ", kAttacker)), 1u) << "who did it is there as well";
  EXPECT_LE(AuditBytes(), kAuditBytes);
  EXPECT_EQ(daemon_.GetNode().unwritten_audit_records(), 0u);
  SubprocessOptions status = {.argv = {ProgramPath("client/cli/berth"), "status"},
                              .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder())}};
  const std::string shown = Subprocess::Start(status).ReadAll();
  for (const char* const ring : {"The audit log reaches back ", "The allocation log reaches back ",
                                 "The history reaches back ", "and is complete for the last "}) {
    EXPECT_TRUE(absl::StrContains(shown, ring)) << shown;
  }

  // The next broker has the records on disk: the audit log and the history.
  daemon_.KillBroker();
  EXPECT_EQ(CountLines("operate", "operators"), 2u);
  EXPECT_TRUE(Eventually([&] { return CountLeases(kVictim) == 2u; }));
  EXPECT_TRUE(daemon_.GetNode().audit_reach().has_complete_since());
  victim.Quit();
}

TEST_F(EvidenceTest, RefusalsAreSuppressedByAccountAndCounted) {
  RawClient attacker = RawClient::Open(daemon_.folder(), "berthd.sock", kAttacker);
  RawClient other = RawClient::Open(daemon_.folder(), "berthd.sock", kVictim);
  constexpr int kRefusals = 3'000;
  for (int i = 0; i < kRefusals; ++i) FreeNothing(attacker);
  FreeNothing(other);
  EXPECT_TRUE(Eventually([&] { return CountLines("free", std::to_string(kVictim)) == 1; }));
  // A separate record counts them, without another refusal.
  EXPECT_TRUE(Eventually([&] { return CountLines("left_out", std::to_string(kAttacker)) > 0; }));
  for (const Json& line : AuditLines()) {
    EXPECT_TRUE(line["what"] != "left_out" || line["account"] == std::to_string(kAttacker)) << line;
  }
}

// A user with five subordinate uids writes 700 of the history's 1,000 rows. As one account it leaves the victim half of
// them, and as six accounts a sixth.
TEST_F(EvidenceTest, SubordinateUidsShareTheirUsersPart) {
  constexpr size_t kOfVictim = 400;
  constexpr int kUids = 5, kOfEach = 140;
  RawClient victim = RawClient::Open(daemon_.folder(), "berthd.sock", kVictim);
  for (size_t i = 0; i < kOfVictim; ++i) TakeAndGiveBack(victim);
  for (uid_t uid = kSubordinate; uid < kSubordinate + kUids; ++uid) {
    absl::StatusOr<PeerProcess> peer =
        PeerProcess::TryStart({.uid = kAttacker, .user_namespace = true, .subordinate_uid = uid});
    if (!peer.ok()) GTEST_SKIP() << "the kernel makes no such process here: " << peer.status();
    RawClient client = RawClient::Open(daemon_.folder(), "berthd.sock", *std::move(peer));
    for (int i = 0; i < kOfEach; ++i) TakeAndGiveBack(client);
  }
  ASSERT_TRUE(Eventually([&] { return daemon_.GetNode().history_reach().has_complete_since(); }));
  EXPECT_EQ(CountLeases(kVictim), kOfVictim);
}

}  // namespace
}  // namespace berth::testing
