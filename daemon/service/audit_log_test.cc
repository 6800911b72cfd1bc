#include "daemon/service/audit_log.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/error.h"
#include "daemon/service/audit_who.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace berth::service {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kPatience = absl::Seconds(60);

class AuditLogTest : public ::testing::Test {
 protected:
  AuditLogTest() {
    char path[] = "/tmp/berth-audit-XXXXXX";
    root_ = ::mkdtemp(path);
    folder_ = root_ + "/state";
  }
  ~AuditLogTest() override { std::filesystem::remove_all(root_); }

  std::string PathOf(int turn) const {
    return absl::StrCat(folder_, turn == 0 ? "/audit.jsonl" : absl::StrCat("/audit.", turn, ".jsonl"));
  }
  std::vector<Json> Read(int turn = 0) const {
    std::vector<Json> lines;
    std::ifstream file(PathOf(turn));
    for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
    return lines;
  }
  AuditLog::Options Options(Bytes size = kAuditSize) const {
    return {.folder = folder_, .size = size, .incarnation = 10, .epoch = 2};
  }

  std::string root_;
  std::string folder_;
};

core::Caller CallerOf(uint64_t session, uint64_t channel) {
  core::Caller caller;
  caller.credentials.session = SessionId(session);
  caller.credentials.channel = ChannelId(channel);
  caller.credentials.secret.bits.fill(0xab);
  caller.tenant = {.uid = 1000, .container = "/c"};
  return caller;
}

TEST_F(AuditLogTest, ARecordSaysWhatWhyAndWho) {
  AuditLog log(Options());
  log.NoteSession(SessionId(1), "job");
  log.NoteProcess(SessionId(1), ChannelId(2),
                  std::make_shared<const AuditWho>(
                      AuditWho{.process = {.pid = 7, .uid = 1000, .gid = 100, .name = "sh"},
                               .origin = {.started = 99, .cgroup = "/x", .executable = "/bin/sh"}}));
  log.Append({.what = "acquire", .facts = {{"pool", "p"}, {"permit", "5"}}, .caller = CallerOf(1, 2)});
  log.Append({.what = "acquire",
              .facts = {{"change", "a"}, {"change", "b"}},
              .outcome = Refuse(Reason::kNoPermit, "permit pool {pool}: no", {{"pool", "p"}}),
              .caller = CallerOf(1, 2)});
  log.EndProcess(ChannelId(2));
  log.EndSession(SessionId(1));
  log.Append({.what = "broker_started"});
  log.Append({.what = "acquire", .caller = CallerOf(1, 2)});
  log.Flush(kPatience);
  const std::vector<Json> lines = Read();
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[0]["what"], "acquire");
  EXPECT_EQ(lines[0]["outcome"], "done");
  EXPECT_EQ(lines[0]["permit"], "5");
  EXPECT_EQ(lines[0]["epoch"], 2);
  const Json who = {{"role", "tenant"},    {"session", "0000000000000001"}, {"label", "job"},
                    {"channel", "0000000000000002"}, {"container", "/c"},   {"uid", 1000},
                    {"gid", 100},          {"pid", 7},                      {"name", "sh"},
                    {"started", 99},       {"cgroup", "/x"},                {"executable", "/bin/sh"}};
  EXPECT_EQ(lines[0]["who"], who);
  EXPECT_EQ(lines[1]["outcome"], "refused");
  EXPECT_EQ(lines[1]["reason"], "NO_PERMIT");
  EXPECT_EQ(lines[1]["why"], "permit pool p: no");
  EXPECT_EQ(lines[1]["change"], (Json{"a", "b"}));
  EXPECT_EQ(lines[2]["what"], "process_over");
  EXPECT_EQ(lines[2]["who"]["pid"], 7);
  EXPECT_EQ(lines[3]["who"]["label"], "job");
  EXPECT_EQ(lines[4]["who"], "daemon");
  EXPECT_FALSE(lines[5]["who"].contains("pid")) << "nothing is known any more of who is over";
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i]["number"], i + 1);
  EXPECT_EQ(log.unwritten(), 0u);
}

TEST_F(AuditLogTest, OnlyTheDaemonsUserReadsItAndNoSecretIsInIt) {
  AuditLog log(Options());
  log.Append({.what = "acquire", .caller = CallerOf(1, 2)});
  log.Flush(kPatience);
  struct stat info;
  ASSERT_EQ(::stat(PathOf(0).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  std::ifstream file(PathOf(0));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(text.find("abab"), std::string::npos);
}

TEST_F(AuditLogTest, WhatIsNoTextIsWrittenAsSome) {
  AuditLog log(Options());
  log.Append({.what = "acquire", .facts = {{"label", "\xff\n\"x"}}});
  log.Flush(kPatience);
  ASSERT_EQ(Read().size(), 1u);
  EXPECT_EQ(Read()[0]["label"], "\uFFFD\n\"x");
}

TEST_F(AuditLogTest, FilesTakeTurnsAndTheOldestGoes) {
  constexpr uint64_t kSize = 16 << 10;
  {
    AuditLog log(Options(Bytes(kSize)));
    for (int i = 0; i < 2'000; ++i) log.Append({.what = "acquire", .facts = {{"i", std::to_string(i)}}});
    log.Flush(kPatience);
    EXPECT_EQ(log.unwritten(), 0u);
  }
  uint64_t total = 0;
  for (int turn = 0; turn < AuditLog::kFiles; ++turn) total += std::filesystem::file_size(PathOf(turn));
  EXPECT_LE(total, kSize);
  EXPECT_GT(total, kSize / 2);
  EXPECT_FALSE(std::filesystem::exists(PathOf(AuditLog::kFiles)));
  EXPECT_EQ(Read().back()["i"], "1999");
  // Another daemon goes on in the same file.
  AuditLog next(Options(Bytes(kSize)));
  next.Append({.what = "broker_started"});
  next.Flush(kPatience);
  EXPECT_EQ(Read().back()["what"], "broker_started");
}

TEST_F(AuditLogTest, WhatTheDiskDoesNotTakeIsCountedAndMissingAndTheRestGoesOn) {
  std::ofstream(folder_) << "no folder";
  AuditLog log(Options());
  log.Append({.what = "lost"});
  log.Flush(kPatience);
  EXPECT_EQ(log.unwritten(), 1u);
  std::filesystem::remove(folder_);
  log.Append({.what = "kept"});
  log.Flush(kPatience);
  ASSERT_EQ(Read().size(), 1u);
  EXPECT_EQ(Read()[0]["number"], 2) << "the missing number shows that one is lost";
  EXPECT_EQ(log.unwritten(), 1u);
}

TEST_F(AuditLogTest, AFileThatIsNoneIsNotWaitedFor) {
  // A pipe without a reader: whoever opens it would wait.
  std::filesystem::create_directory(folder_);
  ASSERT_EQ(::mkfifo(PathOf(0).c_str(), 0600), 0);
  AuditLog log(Options());
  const absl::Time begin = absl::Now();
  for (size_t i = 0; i < 3 * AuditLog::kWaiting; ++i) log.Append({.what = "acquire"});
  log.Flush(kPatience);
  EXPECT_LT(absl::Now() - begin, kPatience);
  EXPECT_EQ(log.unwritten(), 3 * AuditLog::kWaiting);
}

TEST_F(AuditLogTest, WithoutASizeThereIsNone) {
  AuditLog log(Options(Bytes(0)));
  log.Append({.what = "acquire"});
  log.EndSession(SessionId(1));
  log.Flush(kPatience);
  EXPECT_FALSE(std::filesystem::exists(folder_));
  EXPECT_EQ(log.unwritten(), 0u);
}

TEST_F(AuditLogTest, AUsersRefusalsAreBoundedAndCountedAndOthersAreKept) {
  AuditLog log(Options());
  const absl::Time now = absl::UnixEpoch();
  const int burst = static_cast<int>(AuditLog::kRefusals.burst);
  int made = 0;
  const auto refuse = [&](uint32_t uid, absl::Time when) {
    log.AppendRefusal(uid, when, [&] {
      ++made;
      return AuditRecord{.what = "call", .outcome = absl::PermissionDeniedError("no")};
    });
  };
  for (int i = 0; i < burst + 7; ++i) refuse(1000, now);
  EXPECT_EQ(made, burst) << "what is left out costs nothing";
  refuse(1001, now);
  EXPECT_EQ(made, burst + 1);
  refuse(1000, now + absl::Seconds(1));
  refuse(1000, now + absl::Seconds(1));
  refuse(1000, now + absl::Seconds(2));
  log.Flush(kPatience);
  const std::vector<Json> lines = Read();
  ASSERT_EQ(lines.size(), static_cast<size_t>(burst) + 3);
  EXPECT_EQ(lines[burst - 1].contains("left_out"), false);
  EXPECT_EQ(lines[burst].value("left_out", ""), "7");
  EXPECT_EQ(lines[burst + 1].contains("left_out"), false);
  EXPECT_EQ(lines[burst + 2].value("left_out", ""), "1");
}

TEST_F(AuditLogTest, AChannelIsItsOwnSessionsAlone) {
  AuditLog log(Options());
  log.NoteProcess(SessionId(1), ChannelId(2), std::make_shared<const AuditWho>());
  EXPECT_TRUE(log.Knows(SessionId(1), ChannelId(2)));
  EXPECT_FALSE(log.Knows(SessionId(3), ChannelId(2)));
  EXPECT_FALSE(log.Knows(SessionId(1), ChannelId(4)));
  log.EndProcess(ChannelId(2));
  EXPECT_FALSE(log.Knows(SessionId(1), ChannelId(2)));
}

}  // namespace
}  // namespace berth::service
