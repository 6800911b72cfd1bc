#include "daemon/service/audit/audit_log.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/service/audit/audit_who.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/whole_lines.h"

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
    for (const std::string& line : testing::WholeLines(PathOf(turn))) lines.push_back(Json::parse(line));
    return lines;
  }
  uint64_t BytesOnDisk() const {
    uint64_t bytes = 0;
    for (const auto& file : std::filesystem::directory_iterator(folder_)) {
      if (file.is_regular_file()) bytes += file.file_size();
    }
    return bytes;
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

std::shared_ptr<const AuditWho> WhoIs(uint32_t uid) {
  return std::make_shared<const AuditWho>(AuditWho{.process = {.pid = 7, .uid = uid}});
}

TEST_F(AuditLogTest, RecordNamesActionOutcomeAndCaller) {
  AuditLog log(Options());
  log.RecordSession(SessionId(1), "job", {.uid = 1000}, /*of_operator=*/false);
  log.RecordProcess(SessionId(1), ChannelId(2),
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
  const Json who = {{"role", "tenant"},    {"session", "1"}, {"label", "job"},
                    {"channel", "2"}, {"container", "/c"},   {"uid", 1000},
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

TEST_F(AuditLogTest, LogIsDaemonUsersOnlyAndHasNoSecret) {
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

TEST_F(AuditLogTest, InvalidTextIsWrittenAsValidUtf8) {
  AuditLog log(Options());
  log.Append({.what = "acquire", .facts = {{"label", "\xff\n\"x"}}});
  log.Flush(kPatience);
  ASSERT_EQ(Read().size(), 1u);
  EXPECT_EQ(Read()[0]["label"], "\uFFFD\n\"x");
}

TEST_F(AuditLogTest, FilesStayWithinLimitDroppingOldestLines) {
  constexpr uint64_t kSize = 16 << 10;
  {
    AuditLog log(Options(Bytes(kSize)));
    for (int i = 0; i < 2'000; ++i) {
      log.Append({.what = "acquire", .facts = {{"i", std::to_string(i)}}});
      if (i % 100 != 0) continue;
      log.Flush(kPatience);
      EXPECT_LE(BytesOnDisk(), kSize) << i;
    }
    log.Flush(kPatience);
    EXPECT_EQ(log.unwritten(), 0u);
  }
  EXPECT_LE(BytesOnDisk(), kSize);
  EXPECT_GT(BytesOnDisk(), kSize / 4);
  EXPECT_EQ(Read().back()["i"], "1999");
  const std::vector<Json> older = Read(1);
  EXPECT_EQ(older[0]["what"], "evicted");
  EXPECT_EQ(std::stoul(older[0]["lines"].get<std::string>()) + older.size() - 1 + Read().size(), 2'000u)
      << "each line is there or counted";
  EXPECT_LT(older[0]["time"], older[1]["time"]);
  // Another daemon continues the same file.
  AuditLog next(Options(Bytes(kSize)));
  EXPECT_NE(next.reach().complete_since, absl::InfinitePast());
  EXPECT_LT(next.reach().oldest, absl::InfiniteFuture());
  next.Append({.what = "broker_started"});
  next.Flush(kPatience);
  EXPECT_EQ(Read().back()["what"], "broker_started");
}

// A flood of one kind of line by some accounts, which must not evict the earlier lines.
struct Flood {
  const char* name;
  const char* what;
  core::Caller (*caller)(uint32_t uid);
  uint32_t accounts = 1;
};

TEST_F(AuditLogTest, FloodDisplacesNoOtherLines) {
  const auto user = [](uint32_t uid) {
    core::Caller caller = CallerOf(1, 2);
    caller.tenant = {.uid = uid};
    return caller;
  };
  const auto admin = [](uint32_t) { return core::Caller{.credentials = {.session = SessionId(9)}, .admin = true}; };
  const Flood floods[] = {{"grants of one user", "acquire", user},
                          {"grants of ten users", "acquire", user, 10},
                          {"arrivals of one user", "join_session", user},
                          {"ends of one user", "process_over", user},
                          {"an operator's verbs", "operate", admin}};
  for (const Flood& flood : floods) {
    SCOPED_TRACE(flood.name);
    const bool of_operator = flood.caller(0).admin;
    std::filesystem::remove_all(folder_);
    constexpr uint64_t kSize = 64 << 10;
    AuditLog log(Options(Bytes(kSize)));
    const auto evidence = [&](const char* what, const core::Caller& caller) {
      for (int i = 0; i < 3; ++i) log.Append({.what = what, .facts = {{"label", "EVIDENCE"}}, .caller = caller});
    };
    evidence("acquire", user(1000));
    evidence("join_session", user(1000));
    evidence("operate", admin(0));
    evidence("order_device", {});
    for (uint32_t i = 0; i < 2'000; ++i) {
      log.Append({.what = flood.what, .caller = flood.caller(2000 + i % flood.accounts)});
      if (i % 500 == 0) log.Flush(kPatience);
    }
    log.Flush(kPatience);
    EXPECT_EQ(log.unwritten(), 0u);
    EXPECT_LE(BytesOnDisk(), kSize);
    std::map<std::string, int> left;
    for (const int turn : {0, 1}) {
      for (const Json& line : Read(turn)) left[line["what"]] += line.value("label", "") == "EVIDENCE" ? 1 : 0;
    }
    for (const char* const what : {"acquire", "join_session", "order_device"}) {
      // The daemon's own lines count in the operators' share.
      EXPECT_TRUE(left[what] == 3 || (of_operator && std::string(what) == "order_device")) << what << left[what];
    }
    EXPECT_TRUE(left["operate"] == 3 || of_operator) << left["operate"];
    EXPECT_NE(log.reach().complete_since, absl::InfinitePast());
  }
}

TEST_F(AuditLogTest, EarlierVersionsLinesAreCompacted) {
  std::filesystem::create_directory(folder_);
  for (int turn = 0; turn < 4; ++turn) {
    std::ofstream file(PathOf(turn));
    for (int i = 0; i < 10; ++i) {
      file << R"({"time":"2026-03-01T10:00:00.00000)" << 3 - turn << R"(Z","number":1,"what":"acquire"})" << '\n';
    }
  }
  AuditLog log(Options(Bytes(4 << 10)));
  EXPECT_EQ(log.reach().oldest, absl::FromUnixSeconds(1'772'359'200));
  log.RecordSession(SessionId(1), "", {.uid = 1000}, false);
  for (int i = 0; i < 20; ++i) log.Append({.what = "acquire", .caller = CallerOf(1, 2)});
  log.Flush(kPatience);
  EXPECT_FALSE(std::filesystem::exists(PathOf(2)) || std::filesystem::exists(PathOf(3)));
  EXPECT_LE(BytesOnDisk(), 4u << 10);
  EXPECT_EQ(log.unwritten(), 0u);
}

TEST_F(AuditLogTest, FailedCompactionLosesNothingAndIsCounted) {
  AuditLog log(Options(Bytes(12 << 10)));
  // A directory blocks the path of the compacted file.
  std::filesystem::create_directories(folder_ + "/audit.compacting.jsonl/x");
  for (int i = 0; i < 100; ++i) log.Append({.what = "acquire", .facts = {{"i", std::to_string(i)}}});
  log.Flush(kPatience);
  const size_t there = Read().size();
  EXPECT_EQ(there + log.unwritten(), 100u);
  EXPECT_GT(log.unwritten(), 0u);
  EXPECT_EQ(Read()[0]["i"], "0");
  EXPECT_LE(BytesOnDisk(), 12u << 10);
}

TEST_F(AuditLogTest, CompactionWritesNoEarlierFile) {
  std::filesystem::create_directory(folder_);
  // Another user has a name of the file that an earlier attempt left.
  std::ofstream(folder_ + "/mine").close();
  std::filesystem::create_hard_link(folder_ + "/mine", folder_ + "/audit.compacting.jsonl");
  AuditLog log(Options(Bytes(12 << 10)));
  for (int i = 0; i < 100; ++i) log.Append({.what = "acquire", .facts = {{"i", std::to_string(i)}}});
  log.Flush(kPatience);
  EXPECT_FALSE(Read(1).empty());
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/mine"));
  EXPECT_EQ(log.unwritten(), 0u);
}

TEST_F(AuditLogTest, FailedWriteIsCountedAndLogContinues) {
  std::ofstream(folder_) << "no folder";
  AuditLog log(Options());
  log.Append({.what = "lost"});
  log.Flush(kPatience);
  EXPECT_EQ(log.unwritten(), 1u);
  std::filesystem::remove(folder_);
  log.Append({.what = "key"});
  log.Flush(kPatience);
  ASSERT_EQ(Read().size(), 1u);
  EXPECT_EQ(Read()[0]["number"], 2) << "the missing number shows that one is lost";
  EXPECT_EQ(log.unwritten(), 1u);
}

TEST_F(AuditLogTest, PipeInsteadOfFileDoesNotBlock) {
  // A pipe without a reader: a blocking open would wait.
  std::filesystem::create_directory(folder_);
  ASSERT_EQ(::mkfifo(PathOf(0).c_str(), 0600), 0);
  AuditLog log(Options());
  const absl::Time begin = absl::Now();
  for (size_t i = 0; i < 3 * AuditLog::kWaiting; ++i) log.Append({.what = "acquire"});
  log.Flush(kPatience);
  EXPECT_LT(absl::Now() - begin, kPatience);
  EXPECT_EQ(log.unwritten(), 3 * AuditLog::kWaiting);
}

TEST_F(AuditLogTest, ZeroSizeWritesNoLog) {
  AuditLog log(Options(Bytes(0)));
  log.Append({.what = "acquire"});
  log.EndSession(SessionId(1));
  log.Flush(kPatience);
  EXPECT_FALSE(std::filesystem::exists(folder_));
  EXPECT_EQ(log.unwritten(), 0u);
}

TEST_F(AuditLogTest, RefusalsOfAccountAreBoundedAndCounted) {
  AuditLog log(Options());
  const absl::Time now = absl::UnixEpoch();
  const int burst = static_cast<int>(AuditLog::kRefusals.burst);
  int made = 0;
  const auto refuse = [&](uint32_t uid, absl::Time when) {
    log.AppendRefusal({.uid = uid}, when, [&] {
      ++made;
      return AuditRecord{.what = "call", .outcome = absl::PermissionDeniedError("no"), .who = WhoIs(uid)};
    });
  };
  for (int i = 0; i < burst + 7; ++i) refuse(1000, now);
  EXPECT_EQ(made, burst) << "what is left out costs nothing";
  refuse(1001, now);
  EXPECT_EQ(made, burst + 1);
  log.Flush(kPatience);
  const Json first = Read().back();
  EXPECT_EQ(first["what"], "left_out");
  EXPECT_EQ(first["left_out"], "7");
  EXPECT_EQ(first["account"], "1000");
  EXPECT_EQ(first["share"], "1000");
  refuse(1000, now + absl::Seconds(1));
  refuse(1000, now + absl::Seconds(1));
  log.Flush(kPatience);
  ASSERT_EQ(Read().size(), static_cast<size_t>(burst) + 4);
  EXPECT_EQ(Read().back()["left_out"], "1");
}

TEST_F(AuditLogTest, SessionRefusalsAreRateLimitedAndCounted) {
  AuditLog log(Options());
  const auto append = [&](const core::Caller& caller, absl::Status outcome) {
    log.Append({.what = "release", .outcome = std::move(outcome), .caller = caller});
  };
  const int flood = 3 * static_cast<int>(AuditLog::kSessionRefusals.burst);
  core::Caller admin = CallerOf(3, 4);
  admin.admin = true;
  for (int i = 0; i < flood; ++i) {
    append(CallerOf(1, 2), absl::NotFoundError("no such acquisition"));
    append(CallerOf(1, 2), absl::OkStatus());
    if (i < 50) append(admin, absl::NotFoundError("no such acquisition"));
  }
  core::Caller other = CallerOf(5, 6);
  other.tenant = {.uid = 1001};
  append(other, absl::NotFoundError("no such acquisition"));
  const auto count = [&] {
    std::map<std::string, int> lines;
    for (const Json& line : Read()) {
      if (line["what"] == "left_out") {
        lines["left out"] += std::stoi(line["left_out"].get<std::string>());
      } else {
        ++lines[line["share"].get<std::string>() + " " + line["outcome"].get<std::string>()];
      }
    }
    return lines;
  };
  const absl::Time enough = absl::Now() + kPatience;
  while (count()["left out"] + count()["1000 refused"] < flood && absl::Now() < enough) std::this_thread::yield();
  std::map<std::string, int> lines = count();
  EXPECT_EQ(lines["left out"] + lines["1000 refused"], flood);
  EXPECT_LT(lines["1000 refused"], flood);
  EXPECT_GE(lines["1000 refused"], AuditLog::kSessionRefusals.burst);
  EXPECT_EQ(lines["1000 done"], flood) << "what was done is recorded";
  EXPECT_EQ(lines["operators refused"], 50);
  EXPECT_EQ(lines["1001 refused"], 1);
}

TEST_F(AuditLogTest, ChannelIsKnownOnlyInItsSession) {
  AuditLog log(Options());
  log.RecordProcess(SessionId(1), ChannelId(2), std::make_shared<const AuditWho>());
  EXPECT_TRUE(log.Knows(SessionId(1), ChannelId(2)));
  EXPECT_FALSE(log.Knows(SessionId(3), ChannelId(2)));
  EXPECT_FALSE(log.Knows(SessionId(1), ChannelId(4)));
  log.EndProcess(ChannelId(2));
  EXPECT_FALSE(log.Knows(SessionId(1), ChannelId(2)));
}

}  // namespace
}  // namespace berth::service
