// A ledger that a new broker, or a restarted daemon, cannot read: the daemon grants nothing and reports why. `berth
// reset` is the remedy. A ledger of an earlier schema is read, and rewritten.

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <berth/error.h>
#include <berth/ids.h>
#include <berth/session.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/permit_resources.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/os/unique_fd.h"
#include "common/steady_clock.h"
#include "daemon/base/boot_id.h"
#include "daemon/base/ledger_record.h"
#include "daemon/core/types/record_kind.h"
#include "daemon/ledger/ledger_file.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"
#include "tests/support/whole_lines.h"

namespace berth::testing {
namespace {

class LedgerTest : public ::testing::Test {
 protected:
  explicit LedgerTest(const TestDaemonOptions& options = {}) : daemon_(options) {}

  std::string path() const { return daemon_.folder() + "/ledger"; }

  std::string Content() const {
    std::ostringstream text;
    text << std::ifstream(path(), std::ios::binary).rdbuf();
    return text.str();
  }
  // Kills the broker, damages its ledger, and lets the supervisor start the next broker.
  void KillBrokerAnd(const std::function<void()>& damage) {
    daemon_.supervisor().Signal(SIGSTOP);
    ASSERT_EQ(::kill(daemon_.broker(), SIGKILL), 0);
    damage();
    daemon_.supervisor().Signal(SIGCONT);
  }
  // Returns 0 if the file is missing.
  static ino_t InodeOf(const std::string& path) {
    struct stat info;
    return ::stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
  }
  // Returns the output of `berth` with these words, and its exit code.
  std::pair<std::string, int> Run(const std::string& words) { return RunScript(absl::StrCat("\"$0\" ", words)); }
  // As above, for a shell script in which `berth` is $0.
  std::pair<std::string, int> RunScript(const std::string& script) {
    Subprocess command = Subprocess::Start(
        {.argv = {"/bin/sh", "-c", absl::StrCat("{ ", script, "; } 2>&1"), ProgramPath("client/cli/berth")},
         .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION"},
         .of_operator = true});
    std::string text = command.ReadAll();
    return {text, command.Wait()};
  }

  TestDaemon daemon_;
};

// The parameters: the damage to the ledger, and whether the whole daemon is stopped meanwhile or its broker killed.
class UnreadableLedgerTest : public LedgerTest,
                             public ::testing::WithParamInterface<std::tuple<const char*, bool>> {
 public:
  static std::string NameOf(const ::testing::TestParamInfo<ParamType>& info) {
    std::string name = std::get<0>(info.param);
    for (char& c : name) c = c == ' ' || c == '.' ? '_' : c;
    return name + (std::get<1>(info.param) ? "_at_a_start" : "");
  }
};

TEST_P(UnreadableLedgerTest, UnreadableLedgerIsReportedAndResetRecovers) {
  const auto [text, stopped] = GetParam();
  const std::string what = text;
  Actor holder(daemon_);
  holder.Do("acquire p");
  holder.Do("allocate b 1048576");
  holder.Do("map b");
  holder.Do("fill b 4");
  const v1::Node node = daemon_.GetNode();
  const uint64_t incarnation = node.incarnation();
  const auto damage = [&] {
    LedgerIdentity identity = {.schema = core::kRecordSchema, .node = node.id(), .incarnation = incarnation};
    const UniqueFd file(::open(path().c_str(), O_RDWR));
    ASSERT_TRUE(file);
    // Writes in place: the daemon has this file open, and a new file under its name would have no effect on it.
    const auto overwrite = [&] {
      const std::string other = path() + ".other";
      ASSERT_TRUE(Ok(LedgerFile::Create(other, identity)));
      std::string header(sizeof(LedgerHeader), '\0');
      std::ifstream(other, std::ios::binary).read(header.data(), static_cast<std::streamsize>(header.size()));
      ASSERT_EQ(::pwrite(file.get(), header.data(), header.size(), 0), static_cast<ssize_t>(header.size()));
      ::unlink(other.c_str());
    };
    if (what == "version 1.99") {
      identity.schema = 99;
      identity.boot = Must(ReadBootId());
      overwrite();
    } else if (what == "another boot") {
      identity.boot = "00000000-0000-0000-0000-000000000000";
      overwrite();
    } else if (what == "truncated") {
      ASSERT_EQ(::ftruncate(file.get(), 200), 0);
    } else if (what == "is damaged") {
      ASSERT_EQ(::pwrite(file.get(), "\xff\xff", 2, 230), 2);
    } else if (what == "No such file") {
      ASSERT_EQ(::unlink(path().c_str()), 0);
    } else {
      ASSERT_EQ(::pwrite(file.get(), "something", 9, 0), 9);
    }
  };
  if (stopped) {
    daemon_.Stop();
    damage();
    daemon_.StartAgain();
  } else {
    KillBrokerAnd(damage);
  }
  const std::string found = Content();
  Actor other(daemon_);
  const absl::Status refused = other.Ask("acquire p").status();
  EXPECT_TRUE(Refused(refused, Reason::kLedgerUnreadable, {{"path", path()}})) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "berth reset")) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), what)) << refused;
  EXPECT_TRUE(Refused(other.Ask("allocate b 4096"), Reason::kLedgerUnreadable));
  const auto [health, sick] = Run("health");
  EXPECT_EQ(sick, 1) << health;
  EXPECT_TRUE(absl::StrContains(health, path())) << health;
  const auto [status, looked] = Run("status");
  EXPECT_EQ(looked, 0) << status;
  EXPECT_TRUE(absl::StrContains(status, "The daemon grants nothing")) << status;
  // Another broker finds the same damage.
  KillBrokerAnd([] {});
  EXPECT_TRUE(Eventually([&] { return Run("health").second == 1; }));
  EXPECT_EQ(Content(), found) << "what cannot be read is left as it is";

  const auto [asks, unasked] = Run("reset < /dev/null");
  EXPECT_EQ(unasked, 1) << asks;
  EXPECT_TRUE(absl::StrContains(asks, path())) << asks;
  EXPECT_TRUE(absl::StrContains(asks, "The reset ends every session")) << asks;
  EXPECT_TRUE(absl::StrContains(asks, "--yes")) << asks;
  const auto [prompt, declined] = RunScript("printf 'n\\n' | script -qec \"$0 reset\" /dev/null");
  EXPECT_EQ(declined, 1) << prompt;
  EXPECT_TRUE(absl::StrContains(prompt, "[y/N]")) << prompt;
  EXPECT_TRUE(absl::StrContains(prompt, "nothing changed: not confirmed")) << prompt;
  EXPECT_EQ(Content(), found) << "nothing is begun before the answer";
  EXPECT_EQ(Run("reset --yes").second, 0);
  EXPECT_TRUE(Eventually([&] { return Run("health").second == 0; }));
  EXPECT_NE(daemon_.GetNode().incarnation(), incarnation);
  EXPECT_TRUE(Eventually([&] { return !holder.Ask("status").ok(); }));
  EXPECT_TRUE(Refused(holder.Ask("access b"), Reason::kStale));
  // The holder's mapped memory is still its own.
  EXPECT_TRUE(Ok(holder.Ask("check b 4")));
  Actor next(daemon_);
  EXPECT_TRUE(Ok(next.Ask("acquire p try")));
  next.Quit();
  other.Quit();
  holder.Quit();
  daemon_.ExpectAccountsBack();
}

INSTANTIATE_TEST_SUITE_P(Damage, UnreadableLedgerTest,
                         ::testing::Combine(::testing::Values("truncated", "is damaged", "not a ledger", "version 1.99",
                                                              "another boot"),
                                            ::testing::Bool()),
                         UnreadableLedgerTest::NameOf);
// A daemon that serves has its ledger open: see run_folder_test.
INSTANTIATE_TEST_SUITE_P(Deletion, UnreadableLedgerTest,
                         ::testing::Combine(::testing::Values("No such file"), ::testing::Values(true)),
                         UnreadableLedgerTest::NameOf);

// The parameters: the schema of the ledger, and whether the whole daemon is stopped meanwhile or its broker killed.
class EarlierLedgerTest : public LedgerTest, public ::testing::WithParamInterface<std::tuple<uint32_t, bool>> {
 protected:
  // The pools and devices of the recorded ledgers.
  EarlierLedgerTest()
      : LedgerTest({.flags = {"--host-devices=2", "--host-bytes=64MiB"},
                    .config = "[pools.gpu-tests]\ncap = 2\n[pools.wide]\ncap = 8\n"
                              "[pools.placed]\ncap = 4\ndevice_cap = 2\n",
                    .errors = LogPath()}) {}
  ~EarlierLedgerTest() override { std::filesystem::remove(LogPath()); }

  // A process of this test in the role of a recorded one.
  struct Holder {
    uint64_t session = 0;
    uint64_t channel = 0;
    int32_t pid = 0;
  };
  // A recorded session that has one unit of the pool `wide`, and its one process.
  static constexpr uint64_t kSession = 1012;
  static constexpr uint64_t kChannel = 1014;
  // Offset of the pid in a channel's record of each earlier schema.
  static constexpr size_t kPidOffset = sizeof(uint64_t);
  // The kernel's limit of pids: no process has this pid or a larger one.
  static constexpr int32_t kNoPid = 1 << 22;

  // A new path for each process of the test.
  static std::string LogPath() { return absl::StrCat(::testing::TempDir(), "/earlier_ledger_", ::getpid(), ".log"); }

  template <typename Number>
  static std::string BytesOf(Number value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  // Returns the identity of a ledger of the daemon.
  static LedgerIdentity IdentityOf(const v1::Node& node, uint32_t schema) {
    return {.schema = schema, .node = node.id(), .incarnation = node.incarnation(), .boot = Must(ReadBootId())};
  }

  // Replaces the ledger by the recorded one of the schema, as if this daemon had written it. Every recorded process is
  // dead, except that `living`, if any, has the role of one of them.
  void TakeOver(Actor* living) {
    const auto [schema, stopped] = GetParam();
    const v1::Node node = daemon_.GetNode();
    Holder holder;
    if (living != nullptr) holder = {.session = living->session().value(), .pid = living->pid()};
    const auto write = [&, schema = schema] {
      if (living != nullptr) holder.channel = ChannelOf(holder.session, node);
      const std::string recorded = Recorded(schema, node, living != nullptr ? &holder : nullptr);
      // In place, as in UnreadableLedgerTest.
      const UniqueFd file(::open(path().c_str(), O_WRONLY | O_CLOEXEC));
      ASSERT_EQ(::pwrite(file.get(), recorded.data(), recorded.size(), 0), static_cast<ssize_t>(recorded.size()));
    };
    if (stopped) {
      daemon_.Stop();
      write();
      daemon_.StartAgain();
    } else {
      KillBrokerAnd(write);
    }
    // Opens a session of this daemon: the ledger does not have the test's own.
    daemon_.TakeAccounts();
    std::ostringstream log;
    log << std::ifstream(LogPath()).rdbuf();
    const std::string migrated =
        absl::StrCat("migrated its records from schema ", schema, " to schema ", core::kRecordSchema);
    EXPECT_TRUE(absl::StrContains(log.str(), migrated)) << log.str();
  }

  v1::Pool PoolOf(const std::string& name) {
    const v1::ListPoolsResponse pools = Must(daemon_.inspector().ListPools());
    for (const v1::Pool& pool : pools.pools()) {
      if (pool.name() == name) return pool;
    }
    ADD_FAILURE() << "no pool " << name;
    return {};
  }

 private:
  // Returns the channel of the session's one process, from the ledger of the daemon.
  uint64_t ChannelOf(uint64_t session, const v1::Node& node) const {
    const LedgerFile ledger = Must(LedgerFile::Open(path(), IdentityOf(node, core::kRecordSchema)));
    uint64_t channel = 0;
    ledger.ForEach([&](uint64_t, absl::string_view batch) {
      Must(RecordBatch::Walk(batch, [&](const RecordKey& key, std::optional<absl::string_view> content) {
        const bool of_session = content.has_value() && absl::StartsWith(*content, BytesOf(session));
        if (key.kind == static_cast<uint32_t>(core::RecordKind::kChannel) && of_session) channel = key.id;
      }));
    });
    EXPECT_NE(channel, 0u);
    return channel;
  }

  std::string Recorded(uint32_t schema, const v1::Node& node, const Holder* living) const {
    const std::string copy = path() + ".recorded", own = path() + ".own";
    std::filesystem::copy_file(absl::StrCat("daemon/core/recovery/testdata/ledger_schema_", schema), copy);
    std::filesystem::permissions(copy, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    std::string content;
    {
      const LedgerFile recorded =
          Must(LedgerFile::Open(copy, {.schema = schema, .node = 7, .incarnation = 9, .boot = "golden"}));
      LedgerFile written = Must(LedgerFile::Create(own, IdentityOf(node, schema)));
      Must(written.Reserve(recorded.end()));
      recorded.ForEach([&](uint64_t, absl::string_view batch) { written.Append(Cast(batch, living).bytes()); });
      content = std::string(written.At(0, written.end()));
    }
    std::filesystem::remove(copy);
    std::filesystem::remove(own);
    return content;
  }

  // Returns the batch with the pids of dead processes, and with the ids of `living`.
  static RecordBatch Cast(absl::string_view batch, const Holder* living) {
    RecordBatch result;
    Must(RecordBatch::Walk(batch, [&](RecordKey key, std::optional<absl::string_view> content) {
      std::string text(content.value_or(""));
      int32_t pid = kNoPid + static_cast<int32_t>(key.id);
      if (living != nullptr) {
        text = absl::StrReplaceAll(text, {{BytesOf(kSession), BytesOf(living->session)},
                                          {BytesOf(kChannel), BytesOf(living->channel)}});
        if (key.id == kSession) key.id = living->session;
        if (key.id == kChannel) {
          key.id = living->channel;
          pid = living->pid;
        }
      }
      if (!content.has_value()) return result.Erase(key);
      const std::string pid_bytes = BytesOf(pid);
      if (key.kind == static_cast<uint32_t>(core::RecordKind::kChannel)) {
        text.replace(kPidOffset, pid_bytes.size(), pid_bytes);
      }
      result.Put(key, text);
    }));
    return result;
  }
};

TEST_P(EarlierLedgerTest, EarlierLedgerIsMigratedAndItsDeadHoldersEnd) {
  TakeOver(nullptr);
  // No process of the record lives: every session, permit, waiter, block and reservation ends.
  daemon_.ExpectAccountsBack();
  {
    // Both units of the pool are free, once. Numbers continue: the record's last permit has number 6.
    Actor first(daemon_), second(daemon_), third(daemon_);
    first.Do("acquire p");
    second.Do("acquire p");
    EXPECT_TRUE(Refused(third.Ask("acquire p try"), Reason::kNoPermit, {{"out", "2"}, {"cap", "2"}}));
    const v1::ListPermitsResponse out = Must(daemon_.inspector().ListPermits());
    for (const v1::Permit& permit : out.permits()) EXPECT_GT(permit.id(), 6u);
    // A later broker reads the ledger as its own.
    KillBrokerAnd([] {});
    EXPECT_TRUE(Ok(first.Ask("release p")));
    EXPECT_TRUE(Ok(third.Ask("acquire p")));
    for (Actor* const actor : {&first, &second, &third}) actor->Quit();
  }
  daemon_.ExpectAccountsBack();
}

TEST_P(EarlierLedgerTest, LivingHolderOfEarlierLedgerStaysCounted) {
  Actor holder(daemon_);
  const SessionId session = holder.session();
  TakeOver(&holder);
  // The units of the dead holders return.
  EXPECT_TRUE(Eventually([&] {
    return PoolOf("wide").out() == 1 && PoolOf("gpu-tests").out() == 0 && PoolOf("placed").out() == 0;
  }));
  Actor other(daemon_), waiter(daemon_), late(daemon_);
  const auto expect_counted = [&](const char* out) {
    const v1::ListPermitsResponse permits = Must(daemon_.inspector().ListPermits("wide"));
    ASSERT_GE(permits.permits_size(), 1);
    EXPECT_EQ(permits.permits(0).id(), 3u);
    EXPECT_EQ(permits.permits(0).session(), session.value());
    EXPECT_TRUE(
        Refused(waiter.Ask("acquire p pool=wide units=8 try"), Reason::kNoPermit, {{"out", out}, {"cap", "8"}}));
  };
  expect_counted("1");
  other.Do("acquire p pool=wide units=7");
  expect_counted("8");
  // A later broker reads the process's pid from the migrated ledger.
  if (std::get<1>(GetParam())) {
    daemon_.Stop();
    daemon_.StartAgain();
  } else {
    KillBrokerAnd([] {});
  }
  daemon_.TakeAccounts();
  expect_counted("8");
  waiter.SendLine("acquire p pool=wide");
  EXPECT_TRUE(Eventually([&] { return PoolOf("wide").waiters() == 1; }));
  EXPECT_EQ(PoolOf("wide").out(), 8u);
  holder.Kill();
  EXPECT_TRUE(Ok(waiter.Answer().status()));
  EXPECT_EQ(PoolOf("wide").out(), 8u);
  EXPECT_TRUE(Refused(late.Ask("acquire p pool=wide try"), Reason::kNoPermit, {{"out", "8"}}));
  for (Actor* const actor : {&other, &waiter, &late}) actor->Quit();
  daemon_.ExpectAccountsBack();
}

INSTANTIATE_TEST_SUITE_P(Schemas, EarlierLedgerTest,
                         ::testing::Combine(::testing::Range(core::kEarliestRecordSchema, core::kRecordSchema),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return absl::StrCat("Schema", std::get<0>(info.param),
                                               std::get<1>(info.param) ? "AtAStart" : "");
                         });

// The daemon has all leases in memory, so it needs no reset.
TEST_F(LedgerTest, LedgerChangedUnderDaemonIsWrittenAgain) {
  Actor holder(daemon_);
  holder.Do("acquire p label=nightly");
  const auto overwrite = [this](size_t at, absl::string_view bytes) {
    const UniqueFd file(::open(path().c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(at)),
              static_cast<ssize_t>(bytes.size()));
  };
  const auto label = [this] {
    const size_t at = Content().find("nightly");
    EXPECT_NE(at, std::string::npos);
    return at;
  };
  const std::function<void()> damages[] = {[&] { overwrite(label(), "N"); }, [&] { overwrite(0, "something"); }};
  const auto expect_counted = [&] {
    EXPECT_EQ(daemon_.GetNode().ledger_fault(), "");
    const v1::ListPermitsResponse out = Must(daemon_.inspector().ListPermits());
    ASSERT_EQ(out.permits_size(), 1);
    EXPECT_EQ(out.permits(0).label(), "nightly");
  };
  for (const std::function<void()>& damage : damages) {
    const ino_t before = InodeOf(path());
    damage();
    ASSERT_TRUE(Eventually([&] { return InodeOf(path()) != before; })) << "in a new file";
    daemon_.KillBroker();
    expect_counted();
    // The stop may come before the daemon has noticed the damage.
    damage();
    daemon_.Stop();
    daemon_.StartAgain();
    expect_counted();
  }
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  holder.Quit();
  daemon_.ExpectAccountsBack();
}

class FailedRestoreTest : public LedgerTest {
 protected:
  FailedRestoreTest() : LedgerTest({.errors = LogPath()}), watch_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {}
  ~FailedRestoreTest() override { ::unlink(LogPath().c_str()); }

  static std::string LogPath() { return absl::StrCat(::testing::TempDir(), "/failed_restore_", ::getpid(), ".log"); }

  // Returns how many attempts to write the ledger the folder has seen so far.
  int Attempts() {
    alignas(inotify_event) char events[4096];
    for (ssize_t size; (size = ::read(watch_.get(), events, sizeof(events))) > 0;) {
      for (ssize_t at = 0; at < size;) {
        inotify_event event;
        std::memcpy(&event, events + at, sizeof(event));
        const char* const name = events + at + sizeof(event);
        if ((event.mask & IN_CREATE) != 0 && absl::string_view(name) == "ledger.new") ++attempts_;
        at += static_cast<ssize_t>(sizeof(event) + event.len);
      }
    }
    return attempts_;
  }
  static int64_t CountLines(absl::string_view part) {
    const std::vector<std::string> lines = WholeLines(LogPath());
    return std::count_if(lines.begin(), lines.end(),
                         [part](const std::string& line) { return absl::StrContains(line, part); });
  }

  const UniqueFd watch_;
  int attempts_ = 0;
};

// Each attempt creates and deletes a file in the folder that the daemon watches.
TEST_F(FailedRestoreTest, RestoreIsRetriedEachSecondAndLoggedOnce) {
  const std::string other = path() + ".other", file = daemon_.folder() + "/another";
  std::filesystem::create_directory(other);
  std::ofstream(other + "/file") << "";
  ASSERT_GE(::inotify_add_watch(watch_.get(), daemon_.folder().c_str(), IN_CREATE | IN_DELETE), 0);
  const absl::Time begin = SteadyNow();
  // A folder is in the ledger's place, so that no rename replaces it.
  ASSERT_EQ(::renameat2(AT_FDCWD, other.c_str(), AT_FDCWD, path().c_str(), RENAME_EXCHANGE), 0);
  ASSERT_TRUE(Eventually([&] {
    std::ofstream(file) << "";
    std::filesystem::remove(file);
    return Attempts() >= 3;
  }));
  EXPECT_LE(Attempts(), 1 + (SteadyNow() - begin) / absl::Seconds(1));
  EXPECT_EQ(CountLines("cannot restore the ledger's file"), 1);
  EXPECT_EQ(CountLines("the ledger's file is in the run folder again"), 0);
  std::filesystem::remove_all(path());
  EXPECT_TRUE(Eventually([&] { return CountLines("the ledger's file is in the run folder again") == 1; }));
  EXPECT_TRUE(std::filesystem::is_regular_file(path()));
  EXPECT_EQ(CountLines("cannot restore the ledger's file"), 1);
  std::filesystem::remove(other);
}

TEST_F(LedgerTest, ResetIsRejectedWhileLedgerIsReadable) {
  Actor holder(daemon_);
  holder.Do("acquire p label=nightly");
  holder.Do("allocate b 1048576");
  holder.Do("map b");
  const uint64_t incarnation = daemon_.GetNode().incarnation();
  for (const char* const words : {"reset < /dev/null", "reset --yes"}) {
    const auto [said, code] = Run(words);
    EXPECT_EQ(code, 1) << said;
    for (const char* const part : {"out: 1 permit, 0 waiting requests, 1 block of", "label nightly",
                                   "berth stop --end-leases", "berth sessions end", "berth permits revoke"}) {
      EXPECT_TRUE(absl::StrContains(said, part)) << said << " lacks " << part;
    }
  }
  EXPECT_EQ(daemon_.inspector().ResetNode().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(daemon_.GetNode().incarnation(), incarnation);
  EXPECT_TRUE(Ok(holder.Ask("access b")));
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  holder.Quit();
  daemon_.ExpectAccountsBack();
}

// On a terminal the verb prompts, and the answer decides.
TEST_F(LedgerTest, DeviceVerbsPromptOnTerminal) {
  const struct {
    const char* verb;
    const char* question;
    const char* yes;
    v1::Device::State after;
  } rows[] = {{"reset", "Reset the device? [y/N]", "y", v1::Device::READY},
              {"drop", "Drop the device? [y/N]", "YES", v1::Device::DROPPED}};
  for (const auto& row : rows) {
    const auto typed = [&](const char* answer) {
      return RunScript(absl::StrCat("printf '", answer, "\\n' | script -qec \"$0 device ", row.verb, " 0\" /dev/null"));
    };
    const auto device = [&] { return Must(daemon_.inspector().ListDevices()).devices(0); };
    const uint64_t generation = device().generation();
    // The last one may be the next command, typed ahead.
    for (const char* const no : {"n", "", "maybe", "yum"}) {
      const auto [answer, cancelled] = typed(no);
      EXPECT_EQ(cancelled, 1) << answer;
      EXPECT_TRUE(absl::StrContains(answer, "device 0 has out: 0 permits")) << answer;
      EXPECT_TRUE(absl::StrContains(answer, row.question)) << answer;
      EXPECT_TRUE(absl::StrContains(answer, "nothing changed: not confirmed")) << answer;
      EXPECT_EQ(device().state(), v1::Device::READY);
      EXPECT_EQ(device().generation(), generation);
    }
    // The question would be in the file.
    const std::string errors = ::testing::TempDir() + "/errors";
    const auto [hidden, refused] = RunScript(absl::StrCat("printf 'y\\n' | script -qec \"$0 device ", row.verb,
                                                          " 0 2>", errors, "\" /dev/null; code=$?; cat ", errors,
                                                          "; exit $code"));
    EXPECT_EQ(refused, 1) << hidden;
    EXPECT_TRUE(absl::StrContains(hidden, "no terminal to ask for confirmation; add --yes")) << hidden;
    EXPECT_EQ(device().generation(), generation);
    const auto [done, code] = typed(row.yes);
    EXPECT_EQ(code, 0) << done;
    EXPECT_TRUE(Eventually([&] { return device().state() == row.after; })) << row.verb;
    if (row.after == v1::Device::READY) EXPECT_GT(device().generation(), generation) << "its blocks are stale";
  }
}

TEST_F(LedgerTest, ResetNeedsOperator) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  {
    const Inspector inspector(Must(Session::Open({.folder = daemon_.folder()})));
    EXPECT_TRUE(Refused(inspector.ResetNode().status(), Reason::kAdminOnly));
  }
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  holder.Quit();
  daemon_.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
