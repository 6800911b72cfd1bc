// Files that become published blocks, across real processes: files with concurrent writers, names replaced under
// readers, grants to users, device capacity, and lost devices.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "berth/v1/resources.pb.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/node_file.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/stepped_program.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr char kNode[] = "[[device]]\ncount = 3\nuuid = \"GPU\"\nmemory = \"1GiB\"\n";

class PublishFileTest : public ::testing::Test {
 protected:
  PublishFileTest()
      : node_(kNode),
        daemon_({.flags = {node_.flag()}}),
        berth_(daemon_.folder()),
        folder_(daemon_.folder() + "/files") {
    std::filesystem::create_directories(folder_);
    GiveToClients(folder_);
  }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  // Writes a file that consists of one letter.
  std::string File(const std::string& name, char letter, size_t bytes) const {
    std::ofstream(Path(name), std::ios::binary) << std::string(bytes, letter);
    GiveToClients(Path(name));
    return Path(name);
  }
  struct Ended {
    int code;
    std::string said;
  };
  Ended Publish(std::vector<std::string> words) const {
    words.insert(words.begin(), {"blocks", "publish"});
    Subprocess process = berth_.Start(words, {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"});
    std::string said = process.ReadAll();
    return {.code = process.Wait(), .said = std::move(said)};
  }
  bool HasNoBlocks() const { return berth_.ShowJson({"blocks"})["blocks"].empty(); }

  NodeFile node_;
  TestDaemon daemon_;
  BerthCommand berth_;
  const std::string folder_;
};

TEST_F(PublishFileTest, FileWrittenDuringPublishMakesNoName) {
  struct Case {
    const char* what;
    // A script that another process runs; $F is the file. It prints a line once it has begun. It has the file open all
    // the time: between two writes nothing else shows that the file is not complete.
    const char* writer;
    // A refusal contains one of these texts. A file that only loses its name is published whole.
    std::vector<std::string> says;
  };
  const Case cases[] = {
      {"append",
       "exec 9>>$F; echo x >&9; echo up; while :; do echo x >&9; done",
       {"changed while it was read", "open for writing"}},
      {"append by a writer that pauses",
       "exec 9>>$F; echo x >&9; echo up; while :; do sleep 1; done",
       {"open for writing"}},
      {"write in place",
       "exec 9<>$F; echo up; while :; do echo x 1<> $F; done",
       {"changed while it was read", "open for writing"}},
      {"truncate",
       "exec 9<>$F; truncate -s 1M $F; echo up; while :; do truncate -s 1M $F; truncate -s 64M $F; done",
       {"changed while it was read", "open for writing"}},
      {"rename over", "echo up; while :; do cp $F.same $F.next; mv -f $F.next $F; done", {}},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.what);
    // A file of its own: the last command of a writer that was killed may still run.
    const std::string name = absl::StrCat("w", &each - cases);
    const std::string path = File(name, 'w', 64 << 20);
    File(name + ".same", 'w', 64 << 20);
    Subprocess writer = Subprocess::Start(
        {.argv = {"/bin/sh", "-c", absl::StrCat("F=", path, "; ", each.writer)}, .of_operator = true});
    ASSERT_TRUE(writer.ReadLine().ok());
    const Ended ended = Publish({"w", path});
    writer.Kill();
    if (each.says.empty()) {
      EXPECT_EQ(ended.code, 0) << ended.said;
      EXPECT_EQ(berth_.Run({"blocks", "unpublish", "w"}), 0);
      continue;
    }
    EXPECT_EQ(ended.code, 1) << ended.said;
    bool said = false;
    for (const std::string& text : each.says) said = said || absl::StrContains(ended.said, text);
    EXPECT_TRUE(said) << ended.said;
    EXPECT_TRUE(Eventually([&] { return HasNoBlocks(); })) << "nothing is left behind";
  }
}

// The command is stopped where it begins to read, and goes on with a file that has changed.
TEST_F(PublishFileTest, FileChangedAtFirstReadMakesNoName) {
#ifdef BERTH_SANITIZED
  GTEST_SKIP() << "a sanitizer cannot be traced";
#endif
  const struct {
    const char* what;
    // A script; $F is the file, and $G another one with other content.
    const char* change;
    // Empty where the file that was opened is published.
    const char* says;
  } cases[] = {
      {"append", "echo more >>$F", "changed while it was read: its size was 8192 bytes and is 8197"},
      {"write in place", "printf x | dd of=$F conv=notrunc status=none", "a process wrote to it (mtime)"},
      {"write in place, with the times of before",
       "touch -r $F $F.times; printf x | dd of=$F conv=notrunc status=none; touch -r $F.times $F", "(ctime)"},
      {"truncate", "truncate -s 100 $F", "its size was 8192 bytes and is 100"},
      {"truncate and fill again", "cp $F $F.copy; cat $F.copy >$F", "a process wrote to it (mtime)"},
      {"chmod", "chmod 0600 $F", "mode, owner or links were set (ctime)"},
      {"rename over", "mv $G $F", ""},
      {"remove", "rm $F", ""},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.what);
    // One chunk, which the command's first thread reads.
    const std::string name = absl::StrCat("c", &each - cases);
    const std::string path = File(name, 'w', 8192), other = File(name + ".other", 'o', 8192);
    SteppedProgram program({.argv = {ProgramPath("client/cli/berth"), "blocks", "publish", "w", path},
                            .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION"},
                            .errors = Path("errors")});
    bool reads = false;
    while (!reads && program.Step()) reads = program.Enters(SYS_pread64, path);
    ASSERT_TRUE(reads) << "it has ended before";
    EXPECT_EQ(berth_.ShowJson({"blocks"})["blocks"][0].value("name", ""), "");
    Subprocess change = Subprocess::Start(
        {.argv = {"/bin/sh", "-c", absl::StrCat("F=", path, "; G=", other, "; ", each.change)}, .of_operator = true});
    EXPECT_EQ(change.Wait(), 0);
    program.LetGo(0);
    const bool published = *each.says == '\0';
    EXPECT_EQ(program.process().Wait(), published ? 0 : 1);
    std::stringstream errors;
    errors << std::ifstream(Path("errors")).rdbuf();
    EXPECT_TRUE(absl::StrContains(errors.str(), each.says)) << errors.str();
    std::filesystem::remove(Path("errors"));
    if (published) EXPECT_EQ(berth_.Run({"blocks", "unpublish", "w"}), 0);
    EXPECT_TRUE(Eventually([&] { return HasNoBlocks(); })) << "nothing is left behind";
  }
}

// An operator resets the device while the command is stopped at a system call on the file.
TEST_F(PublishFileTest, DeviceResetDuringPublishMakesNoName) {
#ifdef BERTH_SANITIZED
  GTEST_SKIP() << "a sanitizer cannot be traced";
#endif
  const struct {
    const char* what;
    long call;
    // The number of that call at which the command stops; 0: it has ended.
    int turn;
    bool published;
    bool lost;
  } cases[] = {
      {"before the block is made", SYS_fcntl, 1, true, false},
      {"before the first read", SYS_pread64, 1, false, false},
      {"after the last read", SYS_pread64, 2, false, false},
      {"after the publication", 0, 0, true, true},
  };
  // A whole granule, which the command's first thread reads as one chunk.
  const std::string path = File("w", 'w', 2 << 20), other = File("o", 'o', 2 << 20);
  const auto blocks = [&] { return berth_.ShowJson({"blocks"})["blocks"]; };
  const auto serves = [&] { return berth_.ShowJson({"devices"})["devices"][0]["state"] == "READY"; };
  // Before the first command: the daemon may not have noticed yet that a command has ended.
  const Accounts before = daemon_.TakeAccounts();
  for (const auto& each : cases) {
    SCOPED_TRACE(each.what);
    ASSERT_TRUE(Eventually(serves));
    SteppedProgram program({.argv = {ProgramPath("client/cli/berth"), "blocks", "publish", "--device", "0", "w", path},
                            .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION"},
                            .errors = Path("errors")});
    for (int turn = 0; turn < each.turn;) {
      ASSERT_TRUE(program.Step()) << "it has ended before";
      if (program.Enters(each.call, path)) ++turn;
    }
    if (each.turn > 0) {
      EXPECT_TRUE(Ok(daemon_.inspector().ResetDevice(0)));
      ASSERT_TRUE(Eventually(serves));
    }
    program.LetGo(0);
    EXPECT_EQ(program.process().Wait(), each.published ? 0 : 1);
    if (each.turn == 0) EXPECT_TRUE(Ok(daemon_.inspector().ResetDevice(0)));
    std::stringstream errors;
    errors << std::ifstream(Path("errors")).rdbuf();
    std::filesystem::remove(Path("errors"));
    if (!each.published) {
      EXPECT_TRUE(absl::StrContains(errors.str(), "context rebuilt")) << errors.str();
      EXPECT_TRUE(Eventually([&] { return HasNoBlocks(); })) << "nothing is left behind";
    }
    Actor reader(daemon_);
    if (each.published) {
      ASSERT_EQ(blocks().size(), 1u);
      EXPECT_EQ(blocks()[0]["state"], each.lost ? "LOST" : "LIVE");
      EXPECT_EQ(Ok(reader.Ask("import-published r w")), !each.lost);
    }
    if (each.published && !each.lost) {
      reader.Do("map r");
      EXPECT_EQ(reader.Do("letter r"), "w");
      reader.Do("drop r");
      EXPECT_EQ(berth_.Run({"blocks", "unpublish", "w"}), 0);
    }
    // The name is free for the device's new memory.
    ASSERT_TRUE(Eventually(serves));
    const Ended again = Publish({"--device", "0", "w", other});
    EXPECT_EQ(again.code, 0) << again.said;
    reader.Do("import-published r w");
    reader.Do("map r");
    EXPECT_EQ(reader.Do("letter r"), "o");
    reader.Quit();
    EXPECT_EQ(berth_.Run({"blocks", "unpublish", "w"}), 0);
    EXPECT_TRUE(Eventually([&] { return HasNoBlocks(); }));
    EXPECT_TRUE(daemon_.AccountsReturnTo(before));
  }
}

TEST_F(PublishFileTest, OnlyRegularFileIsPublished) {
  ASSERT_EQ(::mkfifo(Path("fifo").c_str(), 0666), 0);
  File("empty", 'e', 0);
  const struct {
    std::string path;
    const char* says;
  } cases[] = {{Path("fifo"), "is a FIFO"},     {folder_, "is a directory"},
               {daemon_.folder() + "/berthd.sock", "is a socket"},
               {"/dev/zero", "is a device"},    {Path("empty"), "is empty"},
               {"/proc/version", "the kernel"}, {Path("none"), "No such file"}};
  for (const auto& each : cases) {
    SCOPED_TRACE(each.path);
    const Ended ended = Publish({"w", each.path});
    EXPECT_EQ(ended.code, 1);
    EXPECT_TRUE(absl::StrContains(ended.said, each.says)) << ended.said;
    EXPECT_TRUE(HasNoBlocks());
  }
}

// Without a lease, such as on a file of another user, only the file's times show a writer that pauses.
TEST_F(PublishFileTest, PausedWriterOfForeignFileMakesNoName) {
  if (!IsRoot() || OtherUser().has_value()) GTEST_SKIP() << "needs root, to be another user";
  const std::vector<std::string> without_leases = {
      "/bin/sh", "-c", "exec /usr/bin/setpriv --bounding-set=-lease \"$@\" 2>&1", "sh"};
  if (Subprocess::Start({.argv = {"/usr/bin/setpriv", "--bounding-set=-lease", "/bin/true"}}).Wait() != 0) {
    GTEST_SKIP() << "needs the right to drop capabilities";
  }
  const std::string path = File("w", 'w', 1 << 20);
  ASSERT_EQ(::chown(path.c_str(), 4711, 4711), 0);
  const auto waits = [](pid_t pid) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/syscall"));
    long call = -1;
    file >> call;
    return call == SYS_clock_nanosleep || call == SYS_nanosleep;
  };
  std::ofstream writer(path, std::ios::binary | std::ios::app);
  int code = 0;
  std::string said;
  // On a machine that stalls, the last write may be too long ago.
  for (int round = 0; round < 20 && code == 0; ++round) {
    writer << "w" << std::flush;
    Subprocess publish = berth_.Start({"blocks", "publish", "--replace", "w", path}, without_leases);
    bool waited = false;
    ASSERT_TRUE(Eventually([&] { return publish.IsGone() || (waited = waits(publish.pid())); }));
    if (waited) writer << "w" << std::flush;
    said = publish.ReadAll();
    code = publish.Wait();
  }
  EXPECT_EQ(code, 1) << said;
  EXPECT_TRUE(absl::StrContains(said, "changed while it was read: its size was ")) << said;
  writer.close();
  // Once nothing writes the file any more, it is published whole.
  const Ended ended = Publish({"--replace", "w", path});
  EXPECT_EQ(ended.code, 0) << ended.said;
}

// A program that writes to a FIFO waits in open() for a reader, and must not take the command for one.
TEST_F(PublishFileTest, RefusedFifoLeavesItsWriterWaiting) {
  ASSERT_EQ(::mkfifo(Path("fifo").c_str(), 0666), 0);
  Subprocess writer = Subprocess::Start(
      {.argv = {"/bin/sh", "-c", "echo up; echo text >\"$0\"", Path("fifo")}, .of_operator = true});
  ASSERT_EQ(Must(writer.ReadLine()), "up");
  ASSERT_TRUE(Eventually([&] { return StateOf(writer.pid()) == 'S'; }));
  EXPECT_EQ(Publish({"w", Path("fifo")}).code, 1);
  const UniqueFd reader(::open(Path("fifo").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  std::string text;
  EXPECT_TRUE(Eventually([&] {
    char buffer[16];
    const ssize_t got = ::read(reader.get(), buffer, sizeof(buffer));
    if (got > 0) text.append(buffer, static_cast<size_t>(got));
    return text == "text\n";
  }));
  EXPECT_EQ(writer.Wait(), 0);
}

TEST_F(PublishFileTest, InvalidNameIsRejectedBeforeLeasing) {
  const std::string path = File("w", 'w', 1 << 20);
  for (const std::string& name : {std::string("a\nb"), std::string("\xff"), std::string(129, 'n')}) {
    for (const bool replace : {false, true}) {
      std::vector<std::string> words = {name, path};
      if (replace) words.insert(words.begin(), "--replace");
      const Ended ended = Publish(words);
      EXPECT_EQ(ended.code, 1) << ended.said;
      EXPECT_TRUE(absl::StrContains(ended.said, "name: ")) << ended.said;
    }
  }
  const std::string log = berth_.Show({"log"});
  EXPECT_FALSE(absl::StrContains(log, "  allocate  ")) << log;
}

TEST_F(PublishFileTest, TakenNameIsRejectedBeforeLeasing) {
  const std::string path = File("w", 'w', 1 << 20);
  ASSERT_EQ(Publish({"w", path}).code, 0);
  const Ended ended = Publish({"w", path});
  EXPECT_EQ(ended.code, 1);
  EXPECT_TRUE(absl::StrContains(ended.said, "--replace")) << ended.said;
  const std::string log = berth_.Show({"log"});
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(log, "  allocate  ")).size(), 2u) << log;
}

TEST_F(PublishFileTest, ReplacedNameGivesOldOrNewBlock) {
  const std::string a = File("a", 'a', 4 << 20), b = File("b", 'b', 4 << 20);
  ASSERT_EQ(Publish({"w", a}).code, 0);
  std::atomic<bool> stop = false;
  std::set<std::string> seen;
  uint64_t attached = 0;
  // Started before the threads: a program whose copy another process still has open for writing cannot be executed.
  Actor actor(daemon_);
  std::thread reader([&] {
    while (!stop && !HasFailure()) {
      actor.Do("import-published w w");
      actor.Do("map w");
      seen.insert(actor.Do("letter w"));
      actor.Do("drop w");
      ++attached;
    }
  });
  for (int round = 0; round < 8; ++round) {
    const Ended ended = Publish({"--replace", "w", round % 2 == 0 ? b : a});
    EXPECT_EQ(ended.code, 0) << ended.said;
  }
  stop = true;
  reader.join();
  actor.Quit();
  EXPECT_EQ(seen, (std::set<std::string>{"a", "b"}));
  EXPECT_GT(attached, 8u);
}

TEST_F(PublishFileTest, GrantedUserImportsByPublishersName) {
  if (!IsRoot()) GTEST_SKIP() << "needs root, to be other users";
  const std::string path = File("w", 'w', 1 << 20);
  const Ended unknown = Publish({"--grant", "nobody-of-this-name", "w", path});
  EXPECT_EQ(unknown.code, 64) << unknown.said;
  EXPECT_EQ(Publish({"--grant", "4711", "--grant", "group:0", "w", path}).code, 0);
  const struct {
    uid_t uid;
    bool granted;
  } cases[] = {{4711, true}, {4712, false}};
  for (const auto& each : cases) {
    Actor actor(daemon_, {.uid = each.uid});
    EXPECT_EQ(Ok(actor.Ask(absl::StrCat("import-published-of w w ", ClientUid()))), each.granted) << each.uid;
    EXPECT_FALSE(Ok(actor.Ask("import-published v w"))) << "it is no name of its own";
    actor.Quit();
  }
}

// The members are those of the user database, not the processes that have the group.
TEST_F(PublishFileTest, GrantedGroupsMembersImport) {
  if (!IsRoot() || OtherUser().has_value()) GTEST_SKIP() << "needs root, to be other users";
  const std::string path = File("w", 'w', 1 << 20);
  std::ofstream(Path("passwd")) << "root:x:0:0::/:/bin/sh\n"
                                << "first:x:4711:4800::/:/bin/sh\n"
                                << "listed:x:4712:4712::/:/bin/sh\n"
                                << "stranger:x:4713:4713::/:/bin/sh\n";
  std::ofstream(Path("group")) << "root:x:0:\nml:x:4800:listed,departed\nlisted:x:4712:\nstranger:x:4713:\n"
                               << "empty:x:4801:\n";
  // Publishes with these users and groups, in a mount namespace of its own. Returns the exit code and the output.
  const auto publish = [&](const char* whom) {
    Subprocess process = berth_.Start(
        {"blocks", "publish", "--replace", "--grant", whom, "w", path},
        {"/usr/bin/unshare", "--mount", "/bin/sh", "-c",
         absl::StrCat("mount --bind ", Path("passwd"), " /etc/passwd && mount --bind ", Path("group"),
                      " /etc/group || exit 99; exec \"$@\" 2>&1"),
         "sh"});
    std::string said = process.ReadAll();
    return Ended{.code = process.Wait(), .said = std::move(said)};
  };
  if (publish("0").code != 0) GTEST_SKIP() << "cannot mount here";
  for (const char* const whom : {"empty", "group:empty", "group:none", "group:4802", "group:stray:ml"}) {
    const Ended refused = publish(whom);
    EXPECT_EQ(refused.code, 64) << whom << ": " << refused.said;
    EXPECT_TRUE(absl::StrContains(refused.said, absl::StartsWith(whom, "group:") ? whom + 6 : whom)) << refused.said;
  }
  for (const char* const whom : {"ml", "group:ml", "group:4800"}) {
    SCOPED_TRACE(whom);
    const Ended published = publish(whom);
    ASSERT_EQ(published.code, 0) << published.said;
    const struct {
      uid_t uid;
      bool granted;
    } cases[] = {{4711, true}, {4712, true}, {4713, false}, {4800, false}};
    for (const auto& each : cases) {
      Actor actor(daemon_, {.uid = each.uid});
      const absl::StatusOr<std::string> imported = actor.Ask("import-published-of w w 0");
      EXPECT_EQ(imported.ok(), each.granted) << each.uid << ": " << imported.status();
      if (each.granted) EXPECT_TRUE(Ok(actor.Ask("map w"))) << each.uid;
      actor.Quit();
    }
  }
}

TEST_F(PublishFileTest, DeviceWithCapacityIsChosen) {
  const std::string path = File("w", 'w', 300 << 20);
  // Berth may lease half of each device: one such file fits on each.
  std::set<uint32_t> devices;
  for (const char* const name : {"one", "two", "three"}) {
    const Ended ended = Publish({name, path});
    EXPECT_EQ(ended.code, 0) << ended.said;
  }
  const auto shown = berth_.ShowJson({"blocks"});
  for (const auto& block : shown["blocks"]) devices.insert(block["device"].get<uint32_t>());
  EXPECT_EQ(devices.size(), 3u);
  const Ended full = Publish({"four", path});
  EXPECT_EQ(full.code, 1) << full.said;
  // A named device is used, whatever its free capacity.
  EXPECT_EQ(Publish({"--device", "GPU-1", "small", File("small", 's', 4096)}).code, 0);
}

TEST_F(PublishFileTest, LostBlocksAreShownAndLoseTheirNames) {
  struct Case {
    const char* what;
    // The state that the driver reports; whether an operator drops the device; the device's final state.
    const char* now;
    bool drop;
    const char* state;
  };
  const Case cases[] = {
      {"lost by the driver", "[now.1]\nlost = true\n", false, "STOPPED"},
      {"fell off the bus", "[now.1]\nxids = [79]\n", false, "STOPPED"},
      {"back after it was lost", "", false, "READY"},
      {"dropped by an operator", "", true, "DROPPED"},
  };
  const std::string path = File("w", 'w', 1 << 20);
  int round = 0;
  for (const Case& each : cases) {
    SCOPED_TRACE(each.what);
    const bool back = absl::StrContains(each.what, "back");
    if (++round > 1) {
      node_.Now("");
      ASSERT_TRUE(Eventually(
          [&] { return berth_.ShowJson({"devices"})["devices"][1]["state"] == "READY"; }));
    }
    ASSERT_EQ(Publish({"--device", "1", "w", path}).code, 0);
    node_.Now(back ? "[now.1]\nlost = true\n" : each.now);
    if (each.drop) {
      EXPECT_TRUE(Ok(daemon_.inspector().DropDevice(1)));
    }
    const auto block = [&] { return berth_.ShowJson({"blocks"})["blocks"][0]; };
    ASSERT_TRUE(Eventually([&] { return block()["state"] == "LOST"; })) << block();
    if (back) node_.Now("");
    EXPECT_TRUE(Eventually([&] {
      return berth_.ShowJson({"status"})["devices"]["devices"][1]["state"] == each.state;
    }));
    EXPECT_TRUE(block()["lost"].get<bool>());
    EXPECT_TRUE(absl::StrContains(berth_.Show({"blocks"}), "LOST"));
    EXPECT_EQ(berth_.ShowJson({"status"})["devices"]["devices"][1]["lost_blocks"], "1");
    EXPECT_TRUE(absl::StrContains(berth_.Show({"status"}), "1 block is LOST with device memory: 1 on device 1"));
    Subprocess health = berth_.Start({"health"});
    const std::string said = health.ReadAll();
    EXPECT_TRUE(absl::StrContains(said, "1 block lost") || absl::StrContains(said, "1 block is LOST")) << said;
    // The name is free for memory of another device; the lost block no longer exists.
    const Ended again = Publish({"--device", "0", "w", path});
    EXPECT_EQ(again.code, 0) << again.said;
    EXPECT_EQ(berth_.ShowJson({"status"})["devices"]["devices"][1]["lost_blocks"], "0");
    Actor reader(daemon_);
    EXPECT_TRUE(Ok(reader.Ask("import-published r w")));
    reader.Quit();
    EXPECT_EQ(berth_.Run({"blocks", "unpublish", "w"}), 0);
  }
}

}  // namespace
}  // namespace berth::testing
