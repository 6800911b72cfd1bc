// The memory log, recalled blocks, and frees by id, across real processes.

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include <berth/block_handle.h>
#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/resources.pb.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/testing.h"
#include "tests/support/whole_lines.h"

namespace berth::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

std::vector<v1::LogRecord> RecordsOf(TestDaemon& daemon, v1::LogRecord::Action action) {
  std::vector<v1::LogRecord> records;
  const v1::ListLogRecordsResponse all = Must(daemon.inspector().ListLogRecords());
  uint64_t number = 0;
  for (const v1::LogRecord& record : all.records()) {
    EXPECT_GT(record.number(), number);
    number = record.number();
    if (record.action() == action) records.push_back(record);
  }
  return records;
}

// Makes a block as `owner` and maps it in `guest`.
BlockHandle Share(Actor& owner, Actor& guest) {
  const BlockHandle handle = owner.Allocate("b", 4 * kMiB);
  owner.Do(absl::StrCat("grant-session b ", guest.session().value()));
  guest.Do(absl::StrCat("import b ", FormatHandle(handle)));
  guest.Do("map b");
  return handle;
}

TEST(LogTest, EndOfEachImportHasItsCause) {
  TestDaemon daemon;
  Actor owner(daemon), killed(daemon), stopped(daemon);
  const BlockHandle handle = Share(owner, killed);
  owner.Do(absl::StrCat("grant-session b ", stopped.session().value()));
  stopped.Do(absl::StrCat("import b ", FormatHandle(handle)));
  killed.Kill();
  EXPECT_TRUE(Eventually([&] { return RecordsOf(daemon, v1::LogRecord::IMPORT_END).size() == 1; }));
  v1::LogRecord ended = RecordsOf(daemon, v1::LogRecord::IMPORT_END).at(0);
  EXPECT_EQ(ended.cause(), v1::LogRecord::PROCESS_GONE);
  EXPECT_EQ(ended.process().pid(), killed.pid());
  EXPECT_EQ(ended.block(), handle.block.value());
  // A stopped process retains its import, despite every recall.
  ASSERT_EQ(::kill(stopped.pid(), SIGSTOP), 0);
  owner.Do("drop b");
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.quarantined == 4 * kMiB; }));
  EXPECT_EQ(RecordsOf(daemon, v1::LogRecord::IMPORT_END).size(), 2u) << "the owner's own is the second";
  ASSERT_EQ(::kill(stopped.pid(), SIGCONT), 0);
  stopped.Do("drop b");
  EXPECT_TRUE(Eventually([&] { return RecordsOf(daemon, v1::LogRecord::RELEASE).size() == 1; }));
  ended = RecordsOf(daemon, v1::LogRecord::IMPORT_END).back();
  EXPECT_EQ(ended.cause(), v1::LogRecord::LET_GO);
  EXPECT_EQ(ended.process().pid(), stopped.pid());
  owner.Quit();
  stopped.Quit();
  daemon.ExpectAccountsBack();
}

TEST(LogTest, RecallLeavesBlockUsableFreeReturnsIt) {
  TestDaemon daemon;
  Actor owner(daemon), guest(daemon);
  const BlockHandle handle = Share(owner, guest);
  EXPECT_EQ(guest.Do("asked-back b"), "no");
  const v1::Block recalled = Must(daemon.inspector().RecallBlock(handle.block));
  EXPECT_EQ(recalled.state(), v1::Block::LIVE);
  EXPECT_TRUE(Eventually([&] { return guest.Do("asked-back b") == "yes"; }));
  EXPECT_TRUE(Ok(guest.Ask("access b")));
  EXPECT_TRUE(Refused(daemon.inspector().RecallBlock(BlockId(4711)), Reason::kNotFound));
  EXPECT_EQ(Must(daemon.inspector().FreeBlock(handle.block)).state(), v1::Block::QUARANTINED);
  EXPECT_TRUE(Refused(daemon.inspector().FreeBlock(handle.block), Reason::kStale));
  EXPECT_TRUE(Eventually([&] { return !Ok(guest.Ask("access b")); }));
  EXPECT_EQ(RecordsOf(daemon, v1::LogRecord::RECALL).size(), 1u);
  EXPECT_EQ(RecordsOf(daemon, v1::LogRecord::FREE).at(0).cause(), v1::LogRecord::BY_ID);
  guest.Do("drop b");
  owner.Do("drop b");
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.blocks == 0; }));
  const v1::ReapBlocksResponse reaped = Must(daemon.inspector().ReapBlocks());
  EXPECT_EQ(reaped.tried_blocks(), 0u);
  owner.Quit();
  guest.Quit();
  daemon.ExpectAccountsBack();
}

TEST(LogTest, RequestsOfKilledProcessStayInLog) {
  TestDaemon daemon({.flags = {"--device-budget=16MiB"}});
  Actor holder(daemon), victim(daemon);
  holder.Do(absl::StrCat("allocate x ", 8 * kMiB));
  victim.Do(absl::StrCat("reserve r 0=", 8 * kMiB, " ttl=1h"));
  EXPECT_TRUE(Refused(victim.Ask(absl::StrCat("allocate y ", 2 * kMiB)), Reason::kOverBudget));
  const v1::LogRecord refused = RecordsOf(daemon, v1::LogRecord::ALLOCATE).back();
  EXPECT_EQ(refused.error(), "OVER_BUDGET");
  EXPECT_EQ(refused.bytes(), 2 * kMiB);
  victim.SendLine(absl::StrCat("allocate y ", 2 * kMiB, " wait=1h"));
  victim.Kill();
  EXPECT_TRUE(Eventually([&] { return !RecordsOf(daemon, v1::LogRecord::RESERVATION_END).empty(); }));
  EXPECT_EQ(RecordsOf(daemon, v1::LogRecord::RESERVATION_END).at(0).cause(), v1::LogRecord::SESSION_END);
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.reserved == 0; }));
  holder.Do(absl::StrCat("allocate z ", 8 * kMiB));
  holder.Quit();
  daemon.ExpectAccountsBack();
}

TEST(LogTest, SharedUsesAreLoggedWhenConfigured) {
  TestDaemon daemon({.config = "[log]\nfences = true\n"});
  Actor owner(daemon), guest(daemon);
  const BlockHandle handle = owner.Allocate("b", kMiB);
  owner.Do(absl::StrCat("grant-session b ", guest.session().value()));
  owner.Do("map b");
  owner.Do("stream s");
  // A sole user's use causes no record.
  owner.Do("preflight l s b:w");
  owner.Do("commit l");
  EXPECT_TRUE(RecordsOf(daemon, v1::LogRecord::USE_PREPARE).empty());
  guest.Do(absl::StrCat("import b ", FormatHandle(handle)));
  guest.Do("map b");
  EXPECT_EQ(RecordsOf(daemon, v1::LogRecord::HAND_OVER).size(), 1u);
  guest.Do("stream s");
  guest.Do("preflight l s b:rw");
  guest.Do("commit l");
  const std::vector<v1::LogRecord> finished = RecordsOf(daemon, v1::LogRecord::USE_FINISH);
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].block(), handle.block.value());
  EXPECT_EQ(finished[0].access(), v1::LogRecord::READ_WRITE);
  EXPECT_GT(finished[0].value(), 0u);
  EXPECT_EQ(RecordsOf(daemon, v1::LogRecord::USE_PREPARE).at(0).use(), finished[0].use());
  guest.Do("preflight l s b:w");
  guest.Kill();
  EXPECT_TRUE(Eventually([&] { return RecordsOf(daemon, v1::LogRecord::TORN).size() == 1; }));
  EXPECT_EQ(RecordsOf(daemon, v1::LogRecord::TORN).at(0).process().pid(), guest.pid());
  owner.Do("clear-torn b");
  EXPECT_EQ(RecordsOf(daemon, v1::LogRecord::CLEAR_TORN).size(), 1u);
  owner.Quit();
  daemon.ExpectAccountsBack();
}

TEST(LogTest, FollowerContinuesWithRecordsOfNextBroker) {
  TestDaemon daemon;
  Actor actor(daemon);
  for (int i = 0; i < 3; ++i) actor.Do(absl::StrCat("allocate a", i, " 4096"));
  v1::ListLogRecordsResponse answer = Must(daemon.inspector().ListLogRecords());
  ASSERT_EQ(answer.records_size(), 3);
  const uint64_t before = answer.records(0).incarnation();
  const std::string token = answer.follow_token();
  EXPECT_EQ(Must(daemon.inspector().ListLogRecords(token)).records_size(), 0);
  const pid_t broker = daemon.broker();
  ASSERT_EQ(::kill(broker, SIGKILL), 0);
  EXPECT_TRUE(Eventually([&] { return actor.Ask("open").ok(); }));
  actor.Do("allocate b 4096");
  answer = Must(daemon.inspector().ListLogRecords(token));
  ASSERT_GE(answer.records_size(), 1);
  EXPECT_EQ(answer.records(0).number(), 4u);
  EXPECT_EQ(answer.records(0).incarnation(), before);
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST(LogTest, FileEqualsListedRecords) {
  const std::string config = absl::StrCat(::testing::TempDir(), "/log_test.toml");
  const std::string path = absl::StrCat(::testing::TempDir(), "/memory.jsonl");
  // The file is appended to.
  ::unlink(path.c_str());
  std::ofstream(config) << "[log]\nfile = \"" << path << "\"\n";
  TestDaemon daemon({.flags = {absl::StrCat("--config=", config)}});
  Actor actor(daemon);
  for (int i = 0; i < 20; ++i) {
    actor.Do("allocate a 4096");
    actor.Do("drop a");
  }
  actor.Quit();
  EXPECT_TRUE(Eventually([&] { return RecordsOf(daemon, v1::LogRecord::RELEASE).size() == 20; }));
  const v1::ListLogRecordsResponse all = Must(daemon.inspector().ListLogRecords());
  const auto lines = [&] { return WholeLines(path); };
  EXPECT_TRUE(Eventually([&] { return lines().size() == static_cast<size_t>(all.records_size()); }));
  for (const std::string& line : lines()) {
    v1::LogRecord record;
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(line, &record).ok()) << line;
    ASSERT_LE(record.number(), static_cast<uint64_t>(all.records_size()));
    EXPECT_EQ(record.SerializeAsString(),
              all.records(static_cast<int>(record.number()) - 1).SerializeAsString());
  }
  daemon.ExpectAccountsBack();
}

TEST(LogTest, UnopenableLogFileEndsNoLease) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/logs-", ::getpid());
  std::filesystem::create_directory(folder);
  TestDaemon daemon({.config = absl::StrCat("[log]\nfile = \"", folder, "/memory.jsonl\"\n")});
  Actor actor(daemon);
  actor.Do("acquire p");
  std::filesystem::remove_all(folder);
  for (int life = 0; life < 6; ++life) {
    daemon.KillBroker();
    // A broker that ends before it serves is another case.
    daemon.GetNode();
  }
  actor.Do("allocate a 4096");
  EXPECT_EQ(Must(daemon.inspector().ListPermits()).permits_size(), 1);
  // A thread of its own writes the file.
  EXPECT_TRUE(Eventually([&] { return daemon.GetNode().unwritten_log_records() > 0; }));
  // The next broker finds the folder again.
  std::filesystem::create_directory(folder);
  daemon.KillBroker();
  actor.Do("allocate b 4096");
  EXPECT_TRUE(Eventually([&] { return !WholeLines(folder + "/memory.jsonl").empty(); }));
  EXPECT_EQ(daemon.GetNode().unwritten_log_records(), 0u);
  actor.Quit();
  daemon.ExpectAccountsBack();
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace berth::testing
