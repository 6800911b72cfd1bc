// Log files are moved away under the daemon, as by logrotate, and a reload opens new ones. Other kinds of entries than
// files, named by `log.file`.

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/memory.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

std::string Read(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

bool ComesToHave(const std::string& path, const std::string& text) {
  return Eventually([&] { return absl::StrContains(Read(path), text); });
}

// A daemon with both logs, and a block as a subject of records.
class LogRotationTest : public ::testing::Test {
 protected:
  std::string MakeFolder() {
    std::string path = ::testing::TempDir() + "/rotation-XXXXXX";
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
    return path;
  }
  ~LogRotationTest() override { std::filesystem::remove_all(folder_); }

  std::string Config() const { return absl::StrCat("[log]\nfile = \"", folder_, "/memory.jsonl\"\n"); }
  std::vector<std::string> paths() const {
    return {folder_ + "/memory.jsonl", daemon_.folder() + "/state/audit.jsonl"};
  }
  // Returns a part of the line that both logs have about an allocation of this many bytes, which are whole granules.
  static std::string LineOf(uint64_t bytes) {
    return absl::StrCat("\"bytes\":\"", bytes, "\"");
  }

  int Reload() {
    Subprocess reload = Subprocess::Start({.argv = {ProgramPath("client/cli/berth"),
                                                    absl::StrCat("--folder=", daemon_.folder()), "--admin", "config",
                                                    "reload"},
                                           .environment = {"BERTH_SESSION"}});
    reload.ReadAll();
    return reload.Wait();
  }

  const std::string folder_ = MakeFolder();
  // The daemon's standard error.
  const std::string errors_ = folder_ + "/errors";
  TestDaemon daemon_{{.config = Config(), .errors = errors_}};
};

TEST_F(LogRotationTest, MovedFilesAreNotWrittenAfterReload) {
  const auto signal = [&] { daemon_.supervisor().Signal(SIGHUP); };
  const auto remove = [&] {
    for (const std::string& path : paths()) std::filesystem::remove(path);
  };
  // The tool makes the next file itself.
  const auto create = [&] {
    for (const std::string& path : paths()) {
      std::filesystem::rename(path, path + ".old");
      std::ofstream(path).close();
      std::filesystem::permissions(path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    }
  };
  const struct {
    const char* name;
    std::function<void()> move;
    std::function<void()> reload;
    bool mistake;
  } cases[] = {
      {"renamed, SIGHUP", nullptr, signal, false},
      {"renamed, config reload", nullptr, [&] { EXPECT_EQ(Reload(), 0); }, false},
      {"renamed, SIGHUP, mistake in the configuration", nullptr, signal, true},
      {"renamed, config reload, mistake in the configuration", nullptr, [&] { EXPECT_EQ(Reload(), 1); }, true},
      {"deleted, SIGHUP", remove, signal, false},
      {"renamed and made anew, SIGHUP", create, signal, false},
  };
  uint64_t bytes = 2 << 20;
  int turn = 0;
  for (const auto& [name, move, reload, mistake] : cases) {
    SCOPED_TRACE(name);
    Actor actor(daemon_);
    const uint64_t before = bytes += 2 << 20;
    actor.Do(absl::StrCat("allocate a ", before));
    for (const std::string& path : paths()) ASSERT_TRUE(ComesToHave(path, LineOf(before))) << path;
    const std::string suffix = absl::StrCat(".", ++turn);
    if (move) {
      move();
    } else {
      for (const std::string& path : paths()) std::filesystem::rename(path, path + suffix);
    }
    if (mistake) std::ofstream(daemon_.config_path()) << "[log]\nfil = 1\n";
    reload();
    // The record of the reload ("reload", or the verb "ReloadConfig") comes after the files were opened.
    ASSERT_TRUE(ComesToHave(paths()[1], "eload"));
    std::vector<std::string> earlier;
    for (const std::string& path : paths()) earlier.push_back(Read(path + suffix));
    const uint64_t after = bytes += 2 << 20;
    actor.Do(absl::StrCat("allocate b ", after));
    for (const std::string& path : paths()) EXPECT_TRUE(ComesToHave(path, LineOf(after))) << path;
    for (size_t i = 0; i < paths().size(); ++i) EXPECT_EQ(Read(paths()[i] + suffix), earlier[i]) << paths()[i];
    std::ofstream(daemon_.config_path()) << Config();
    actor.Quit();
  }
  daemon_.ExpectAccountsBack();
}

// As logrotate's copytruncate: without a reload the records go on at the start of the file, not behind a hole.
TEST_F(LogRotationTest, TruncatedFileIsAppendedTo) {
  Actor actor(daemon_);
  const std::string path = paths()[0];
  actor.Do(absl::StrCat("allocate a ", 2 << 20));
  ASSERT_TRUE(ComesToHave(path, LineOf(2 << 20)));
  std::filesystem::copy_file(path, path + ".1");
  std::filesystem::resize_file(path, 0);
  actor.Do(absl::StrCat("allocate b ", 4 << 20));
  ASSERT_TRUE(ComesToHave(path, LineOf(4 << 20)));
  EXPECT_EQ(Read(path).substr(0, 1), "{");
  EXPECT_FALSE(absl::StrContains(Read(path), LineOf(2 << 20)));
  actor.Quit();
  daemon_.ExpectAccountsBack();
}

TEST_F(LogRotationTest, FailedReopenKeepsEarlierFile) {
  Actor actor(daemon_);
  uint64_t bytes = 2 << 20;
  for (const std::string& path : paths()) {
    SCOPED_TRACE(path);
    actor.Do(absl::StrCat("allocate a", bytes, " ", bytes));
    ASSERT_TRUE(ComesToHave(path, LineOf(bytes)));
    bytes += 2 << 20;
    std::filesystem::rename(path, path + ".moved");
    std::filesystem::create_directory(path);
    const absl::Status status = daemon_.inspector().ReloadConfig().status();
    EXPECT_TRUE(IsRefusal(status, Reason::kInvalidField)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), path)) << status;
    actor.Do(absl::StrCat("allocate a", bytes, " ", bytes));
    EXPECT_TRUE(ComesToHave(path + ".moved", LineOf(bytes)));
    bytes += 2 << 20;
    std::filesystem::remove(path);
    Must(daemon_.inspector().ReloadConfig(), "a reload once the path is free");
    EXPECT_TRUE(std::filesystem::is_regular_file(path));
  }
  actor.Quit();
  daemon_.ExpectAccountsBack();
}

// A tool of another user rotates, or one that leaves a folder in which the daemon may make no file.
TEST_F(LogRotationTest, DeniedReopenNamesFilesAndKeepsEarlier) {
  const struct {
    const char* name;
    // Both files are another user's; otherwise the folder of the first takes no file.
    bool foreign;
    bool signal;
    // The configuration has a mistake, too.
    bool mistake;
  } rows[] = {
      {"folder, SIGHUP", false, true, false},          {"folder, config reload", false, false, false},
      {"folder, config reload, mistake", false, false, true}, {"owner, SIGHUP", true, true, false},
      {"owner, config reload", true, false, false},    {"owner, config reload, mistake", true, false, true},
      {"owner, SIGHUP, mistake", true, true, true},
  };
  constexpr char kDenied[] = "cannot reopen a log: ";
  const auto denials = [&] {
    std::vector<std::string> lines;
    for (const absl::string_view line : absl::StrSplit(Read(errors_), '\n')) {
      if (absl::StrContains(line, kDenied)) lines.emplace_back(line);
    }
    return lines;
  };
  uint64_t bytes = 2 << 20;
  Actor actor(daemon_);
  for (const auto& row : rows) {
    // Only root can give a file away.
    if (row.foreign && !IsRoot()) continue;
    SCOPED_TRACE(row.name);
    const auto record = [&] {
      bytes += 2 << 20;
      actor.Do(absl::StrCat("allocate a ", bytes));
      actor.Do("drop a");
      return LineOf(bytes);
    };
    std::vector<std::string> denied = {paths()[0]};
    if (row.foreign) denied = paths();
    const std::string before = record();
    for (const std::string& path : denied) ASSERT_TRUE(ComesToHave(path, before)) << path;
    for (const std::string& path : denied) {
      std::filesystem::rename(path, path + ".moved");
      if (!row.foreign) continue;
      std::ofstream(path).close();
      std::filesystem::permissions(path, std::filesystem::perms(0600));
      ASSERT_EQ(::chown(path.c_str(), 65533, 65533), 0);
    }
    if (!row.foreign) std::filesystem::permissions(folder_, std::filesystem::perms(0555));
    if (row.mistake) std::ofstream(daemon_.config_path()) << "[log]\nfil = 1\n";
    const size_t earlier = denials().size();
    if (row.signal) {
      daemon_.supervisor().Signal(SIGHUP);
    } else {
      EXPECT_EQ(Reload(), 1);
    }
    ASSERT_TRUE(Eventually([&] { return denials().size() > earlier; })) << Read(errors_);
    for (const std::string& path : denied) {
      const std::string why = row.foreign ? ": Permission denied: the file is user 65533's with mode 0600; let user "
                                          : absl::StrCat(": Permission denied: let user ", ::geteuid(),
                                                         " make files in ", folder_);
      EXPECT_TRUE(absl::StrContains(denials().back(), path + why)) << denials().back();
    }
    // Records go on into the earlier files.
    const std::string after = record();
    for (const std::string& path : denied) {
      EXPECT_TRUE(ComesToHave(path + ".moved", after)) << path;
      // The audit log has the paths, also beside a mistake in the configuration.
      if (row.foreign) EXPECT_TRUE(ComesToHave(paths()[1] + ".moved", path + ": Permission denied"));
    }
    std::filesystem::permissions(folder_, std::filesystem::perms(0755));
    std::ofstream(daemon_.config_path()) << Config();
    for (const std::string& path : denied) std::filesystem::remove(path);
    Must(daemon_.inspector().ReloadConfig(), "a reload once access is granted");
    const std::string last = record();
    for (const std::string& path : denied) {
      EXPECT_TRUE(ComesToHave(path, last)) << path;
      std::filesystem::remove(path + ".moved");
    }
  }
  actor.Quit();
  daemon_.ExpectAccountsBack();
}

// Returns the numbers of the records in a file, in order.
std::vector<uint64_t> NumbersIn(const std::string& text) {
  std::vector<uint64_t> numbers;
  constexpr absl::string_view kNumber = "\"number\":\"";
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const size_t at = line.find(kNumber);
    uint64_t number = 0;
    const absl::string_view rest = at == absl::string_view::npos ? "" : line.substr(at + kNumber.size());
    EXPECT_TRUE(absl::SimpleAtoi(rest.substr(0, rest.find('"')), &number)) << line;
    numbers.push_back(number);
  }
  return numbers;
}

// The sample of deploy/, with the paths of this test in place of the installed ones.
TEST_F(LogRotationTest, LogrotateLosesNoRecord) {
  std::string logrotate;
  const char* const path_variable = ::getenv("PATH");
  const std::string folders = absl::StrCat(path_variable == nullptr ? "" : path_variable, ":/usr/sbin");
  for (const absl::string_view folder : absl::StrSplit(folders, ':', absl::SkipEmpty())) {
    const std::string path = absl::StrCat(folder, "/logrotate");
    if (logrotate.empty() && std::filesystem::exists(path)) logrotate = path;
  }
  if (logrotate.empty()) GTEST_SKIP() << "needs logrotate";
  const std::string reload = absl::StrCat(ProgramPath("client/cli/berth"), " --folder=", daemon_.folder(),
                                          " --admin config reload");
  const std::string sample = absl::StrReplaceAll(
      Read(ProgramPath("deploy/logrotate/berthd")),
      {{"/var/log/berth/", folder_ + "/"}, {"systemctl reload berthd.service", reload}});
  ASSERT_TRUE(absl::StrContains(sample, reload)) << sample;
  const std::string config = folder_ + "/sample";
  std::ofstream(config) << sample;
  std::filesystem::permissions(config, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);

  Actor actor(daemon_);
  const std::string path = paths()[0];
  int turns = 0;
  for (int rotation = 1; rotation <= 3; ++rotation) {
    std::atomic<bool> rotated = false;
    std::thread writer([&] {
      for (; !rotated; ++turns) {
        actor.Do("allocate a 4096");
        actor.Do("drop a");
      }
    });
    EXPECT_TRUE(Eventually([&] { return !Read(path).empty(); }));
    Subprocess tool = Subprocess::Start(
        {.argv = {"/bin/sh", "-c",
                  absl::StrCat("exec ", logrotate, " --force --state ", folder_, "/state ", config, " 2>&1")},
         .environment = {"BERTH_SESSION"},
         .of_operator = true});
    const std::string said = tool.ReadAll();
    EXPECT_EQ(tool.Wait(), 0) << said;
    rotated = true;
    writer.join();
    EXPECT_TRUE(std::filesystem::exists(absl::StrCat(path, ".", rotation, ".gz")));
  }
  // Four records for each turn at the most; the last ones are written soon.
  const v1::ListLogRecordsResponse all = Must(daemon_.inspector().ListLogRecords());
  const uint64_t last = all.records(all.records_size() - 1).number();
  EXPECT_TRUE(ComesToHave(path, absl::StrCat("\"number\":\"", last, "\"")));
  std::vector<uint64_t> numbers;
  for (int rotation = 3; rotation >= 1; --rotation) {
    Subprocess unpacked = Subprocess::Start({.argv = {"/bin/gzip", "-dc", absl::StrCat(path, ".", rotation, ".gz")}});
    for (const uint64_t number : NumbersIn(unpacked.ReadAll())) numbers.push_back(number);
    unpacked.Wait();
  }
  for (const uint64_t number : NumbersIn(Read(path))) numbers.push_back(number);
  EXPECT_GE(numbers.size(), static_cast<size_t>(turns));
  EXPECT_EQ(numbers.front(), 1u);
  for (size_t i = 1; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], numbers[i - 1] + 1);
  EXPECT_EQ(daemon_.GetNode().unwritten_log_records(), 0u);
  actor.Quit();
  daemon_.ExpectAccountsBack();
}

// `log.file` as another kind of entry than a file: each is used as documented or refused by name.
class LogFileKindTest : public ::testing::Test {
 protected:
  LogFileKindTest() {
    // The path of a socket is short.
    std::string path = "/tmp/berth-log-XXXXXX";
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
  }
  ~LogFileKindTest() override { std::filesystem::remove_all(folder_); }

  std::string PathOf(const std::string& name) const { return folder_ + "/" + name; }
  std::string Config(const std::string& name) const {
    return absl::StrCat("[log]\nfile = \"", PathOf(name), "\"\n");
  }

  std::string folder_;
};

TEST_F(LogFileKindTest, UnusableKindIsRefusedByNameAtStart) {
  std::filesystem::create_directory(PathOf("folder"));
  ASSERT_EQ(::mkfifo(PathOf("fifo").c_str(), 0600), 0);
  std::filesystem::create_symlink(PathOf("loop"), PathOf("loop"));
  std::filesystem::create_symlink(PathOf("folder"), PathOf("link"));
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {.sun_family = AF_UNIX};
  PathOf("socket").copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  std::vector<std::pair<std::string, std::string>> rows = {
      {"folder", "is a directory: name a file in it"},
      {"link", "is a directory: name a file in it"},
      {"fifo", "is a FIFO without a reader: start its reader, or name a file"},
      {"socket", "is a socket: name a file"},
      {"loop", "Too many levels of symbolic links"},
      {"none/file", "No such file or directory"},
  };
  if (IsRoot()) {
    std::ofstream(PathOf("target")).close();
    std::filesystem::create_symlink(PathOf("target"), PathOf("foreign"));
    ASSERT_EQ(::lchown(PathOf("foreign").c_str(), 65533, 65533), 0);
    rows.emplace_back("foreign", "is a symbolic link of user 65533's: name its target, or make the link anew");
  }
  for (const auto& [name, says] : rows) {
    SCOPED_TRACE(name);
    std::ofstream(PathOf("config")) << Config(name);
    Subprocess daemon = Subprocess::Start(
        {.argv = {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1", ProgramPath("daemon/berthd"), "--backend=host",
                  absl::StrCat("--folder=", PathOf("run")), absl::StrCat("--config=", PathOf("config"))},
         .environment = {"BERTH_SESSION", "BERTH_STATE"},
         .of_operator = true});
    const std::string said = daemon.ReadAll();
    EXPECT_EQ(daemon.Wait(), 1) << said;
    EXPECT_TRUE(absl::StrContains(said, absl::StrCat("log.file: ", PathOf(name), says[0] == 'i' ? " " : ": ", says)))
        << said;
  }
}

TEST_F(LogFileKindTest, LinkAndFifoReceiveRecords) {
  std::filesystem::create_symlink(PathOf("target"), PathOf("link"));
  ASSERT_EQ(::mkfifo(PathOf("fifo").c_str(), 0600), 0);
  const UniqueFd reader(::open(PathOf("fifo").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  for (const bool fifo : {false, true}) {
    TestDaemon daemon({.config = Config(fifo ? "fifo" : "link")});
    Actor actor(daemon);
    actor.Do("allocate a 4096");
    std::string text;
    EXPECT_TRUE(Eventually([&] {
      char some[4096];
      const ssize_t got = fifo ? ::read(reader.get(), some, sizeof(some)) : 0;
      if (got > 0) text.append(some, static_cast<size_t>(got));
      return absl::StrContains(fifo ? text : Read(PathOf("target")), "\"bytes\":\"");
    })) << fifo;
    EXPECT_EQ(std::filesystem::is_symlink(PathOf("link")), true);
    actor.Quit();
    daemon.ExpectAccountsBack();
  }
}

// Neither a full disk nor a limit on file sizes delays or ends a request.
TEST_F(LogFileKindTest, ReasonOfFailedWriteIsLogged) {
  // More than the daemon's other files take.
  constexpr rlim_t kLimit = 8 << 20;
  const std::string audit = PathOf("audit.jsonl");
  for (const std::string& path : {PathOf("log"), audit}) {
    std::ofstream(path).close();
    std::filesystem::permissions(path, std::filesystem::perms(0600));
    std::filesystem::resize_file(path, kLimit);
  }
  const std::string too_large = "File too large (RLIMIT_FSIZE is 8192 KiB";
  const std::pair<std::string, std::string> rows[] = {{"/dev/full", "No space left on device"},
                                                      {PathOf("log"), too_large}};
  for (const auto& [path, why] : rows) {
    SCOPED_TRACE(path);
    const std::string errors = PathOf("errors");
    std::filesystem::remove(errors);
    TestDaemon daemon({.config = absl::StrCat("[log]\nfile = \"", path, "\"\naudit_folder = \"", folder_, "\"\n"),
                       .errors = errors});
    const rlimit limit = {.rlim_cur = kLimit, .rlim_max = kLimit};
    ASSERT_EQ(::prlimit(daemon.broker(), RLIMIT_FSIZE, &limit, nullptr), 0);
    Actor actor(daemon);
    actor.Do("allocate a 4096");
    EXPECT_TRUE(ComesToHave(errors, absl::StrCat("cannot write ", path, ": write: ", why))) << Read(errors);
    EXPECT_TRUE(ComesToHave(errors, absl::StrCat("cannot write ", audit, ": write: ", too_large))) << Read(errors);
    EXPECT_TRUE(Eventually([&] { return daemon.GetNode().unwritten_log_records() > 0; }));
    actor.Quit();
    daemon.ExpectAccountsBack();
  }
}

}  // namespace
}  // namespace berth::testing
