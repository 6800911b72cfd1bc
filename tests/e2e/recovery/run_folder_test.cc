// Files of the run folder, and the folder itself, are deleted under a running daemon. The daemon continues and becomes
// reachable again, and no second daemon serves the folder. The soak combines each damage with each event, the gate five
// damages with one event each.

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/installed.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

namespace fs = std::filesystem;

// The mounts of these tests end with them, also where a test aborts.
const bool kOwnMounts = EnterOwnMounts();

constexpr const char* kSockets[] = {"berthd.sock", "admin.sock", "attach.sock", "observer.sock", "admin-attach.sock"};
constexpr const char* kFiles[] = {"berthd.lock", "node",        "ledger",        "berthd.sock",
                                  "admin.sock",  "attach.sock", "observer.sock", "admin-attach.sock"};

struct Damage {
  std::string name;
  std::function<void(const std::string& folder)> inflict;
  // The damage concerns the supervisor's own files, which its log names.
  bool is_logged = true;
  bool mounts = false;
};

void Delete(const std::string& path) { ASSERT_EQ(::unlink(path.c_str()), 0) << path; }

std::vector<Damage> Damages() {
  std::vector<Damage> damages;
  for (const std::string name : kFiles) {
    damages.push_back({name, [name](const std::string& folder) { Delete(folder + "/" + name); }, name != "ledger"});
  }
  for (const std::string name : {"berthd.lock", "berthd.sock", "ledger"}) {
    damages.push_back({"another " + name,
                       [name](const std::string& folder) {
                         std::ofstream(folder + "/other") << "1\n";
                         fs::rename(folder + "/other", folder + "/" + name);
                       },
                       name != "ledger"});
  }
  damages.push_back({"all files", [](const std::string& folder) {
                       for (const std::string name : kFiles) Delete(folder + "/" + name);
                     }});
  damages.push_back({"everything in it", [](const std::string& folder) {
                       std::error_code ignored;
                       for (const auto& entry : fs::directory_iterator(folder)) fs::remove_all(entry, ignored);
                     }});
  const auto move_away = [](const std::string& folder) {
    fs::rename(folder, folder + ".gone");
    fs::remove_all(folder + ".gone");
  };
  damages.push_back({"the folder", move_away});
  damages.push_back({"the folder for another", [](const std::string& folder) {
                       // Replaces the folder in one step, as far as the daemon can see.
                       fs::create_directory(folder + ".new");
                       ASSERT_EQ(::renameat2(AT_FDCWD, (folder + ".new").c_str(), AT_FDCWD, folder.c_str(),
                                             RENAME_EXCHANGE),
                                 0);
                       fs::remove_all(folder + ".new");
                     }});
  damages.push_back({"a mount over it",
                     [](const std::string& folder) {
                       ASSERT_EQ(::mount("tmpfs", folder.c_str(), "tmpfs", 0, "mode=0755"), 0);
                     },
                     /*is_logged=*/true, /*mounts=*/true});
  return damages;
}

// The damages that the gate inflicts, each with the event that it adds.
const std::map<std::string, std::string>& GateEvents() {
  static const auto* const kEvents = new std::map<std::string, std::string>{
      {"berthd.lock", "nothing"},
      {"another berthd.sock", "SIGHUP"},
      {"everything in it", "the broker's death"},
      {"the folder for another", "the supervisor's death"},
      {"a mount over it", "an upgrade"},
  };
  return *kEvents;
}

std::vector<Damage> TriedDamages() {
  std::vector<Damage> damages = Damages();
  if (!Soaks()) std::erase_if(damages, [](const Damage& damage) { return !GateEvents().contains(damage.name); });
  return damages;
}

class RunFolderTest : public ::testing::TestWithParam<Damage> {
 protected:
  RunFolderTest()
      : errors_(absl::StrCat(::testing::TempDir(), "/errors-", ::getpid())),
        daemon_({.program = installed_.path(), .environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}, .errors = errors_}),
        command_(daemon_.folder()) {}
  ~RunFolderTest() override {
    if (HasFailure()) std::cout << "the daemon's log:\n" << Log() << std::endl;
    ::unlink(errors_.c_str());
    // Removes each mount over the folder, after the daemon's own stop.
    daemon_.Stop();
    while (::umount(daemon_.folder().c_str()) == 0) {
    }
  }

  std::string Log() const {
    std::ostringstream text;
    text << std::ifstream(errors_).rdbuf();
    return text.str();
  }
  std::string PathOf(const std::string& name) const { return daemon_.folder() + "/" + name; }

  // Whether each file exists and belongs to the daemon.
  bool IsWhole() const {
    for (const std::string name : kSockets) {
      struct stat info;
      if (::stat(PathOf(name).c_str(), &info) < 0 || !S_ISSOCK(info.st_mode)) return false;
    }
    const UniqueFd lock(::open(PathOf("berthd.lock").c_str(), O_RDWR | O_CLOEXEC));
    if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return false;
    return fs::exists(PathOf("node")) && fs::exists(PathOf("ledger")) && fs::file_size(PathOf("ledger")) > 100;
  }

  // Starts a second daemon for the folder, or for `folder`. Returns its output and exit code.
  std::pair<std::string, int> StartSecond(std::vector<std::string> wrapper = {}, const std::string& folder = "") const {
    wrapper.insert(wrapper.end(),
                   {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1", installed_.path(),
                    absl::StrCat("--folder=", folder.empty() ? daemon_.folder() : folder), "--backend=host"});
    Subprocess second = Subprocess::Start({.argv = wrapper});
    const int code = second.Wait();
    return {second.ReadAll(), code};
  }
  void ExpectNoSecond() const {
    const auto [said, code] = StartSecond();
    EXPECT_EQ(code, 1) << said;
    EXPECT_TRUE(absl::StrContains(said, "is served by another berthd")) << said;
    EXPECT_TRUE(absl::StrContains(said, daemon_.folder())) << said;
  }

  // An event for the daemon in addition to the damage.
  struct Event {
    const char* name;
    // `supervisor` was the supervisor's pid before the damage, which may have removed its lock.
    std::function<void(pid_t supervisor)> happen;
  };
  std::vector<Event> Events() {
    return {{"nothing", [](pid_t) {}},
            {"SIGHUP", [](pid_t supervisor) { ::kill(supervisor, SIGHUP); }},
            {"the broker's death", [this](pid_t) { daemon_.KillBroker(); }},
            {"the supervisor's death",
             [this](pid_t supervisor) {
               ::kill(supervisor, SIGKILL);
               daemon_.AwaitSupervisorAfter(supervisor);
             }},
            {"an upgrade", [this](pid_t) {
               installed_.Install();
               // The sockets may not be back yet.
               EXPECT_TRUE(Eventually([this] { return command_.Run({"upgrade"}) == 0; }));
             }}};
  }

  // Expects the permit to be still granted, and the daemon to be reachable in all ways.
  void ExpectReachable() {
    Actor other(daemon_);
    EXPECT_TRUE(Refused(other.Ask("acquire p try"), Reason::kNoPermit));
    other.Quit();
    EXPECT_EQ(command_.Run({"permits"}), 0);
    EXPECT_EQ(command_.Run({"--admin", "permits"}), 0);
    EXPECT_EQ(daemon_.GetNode().incarnation(), incarnation_);
  }

  const std::string errors_;
  Installed installed_;
  TestDaemon daemon_;
  const BerthCommand command_;
  const uint64_t incarnation_ = daemon_.GetNode().incarnation();
};

TEST_P(RunFolderTest, DaemonContinuesAndIsReachable) {
  if (GetParam().mounts && !kOwnMounts) GTEST_SKIP() << "needs the right to mount";
  Actor holder(daemon_);
  holder.Do("acquire p");
  for (const Event& event : Events()) {
    if (!Soaks() && GateEvents().at(GetParam().name) != event.name) continue;
    for (const bool noticed : {true, false}) {
      SCOPED_TRACE(absl::StrCat(event.name, noticed ? " once the damage was noticed" : " at once"));
      const size_t logged = Log().size();
      const pid_t supervisor = daemon_.supervisor_pid();
      ASSERT_GT(supervisor, 0);
      GetParam().inflict(daemon_.folder());
      if (noticed) {
        ASSERT_TRUE(Eventually([&] { return IsWhole(); }));
      }
      event.happen(supervisor);
      ASSERT_TRUE(Eventually([&] { return IsWhole(); }));
      ExpectReachable();
      ExpectNoSecond();
      if (noticed && GetParam().is_logged) {
        EXPECT_TRUE(absl::StrContains(Log().substr(logged), "recreated deleted or replaced entries"))
            << Log().substr(logged);
      }
      if (HasFailure()) return;
    }
  }
  EXPECT_TRUE(Ok(holder.Ask("status")));
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  holder.Quit();
  daemon_.ExpectAccountsBack();
}

TEST_P(RunFolderTest, SecondDaemonIsRejectedBeforeFirstNotices) {
  if (GetParam().mounts && !kOwnMounts) GTEST_SKIP() << "needs the right to mount";
  Actor holder(daemon_);
  holder.Do("acquire p");
  daemon_.supervisor().Signal(SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return StateOf(daemon_.supervisor().pid()) == 'T'; }));
  GetParam().inflict(daemon_.folder());
  const bool there = fs::exists(daemon_.folder());
  ExpectNoSecond();
  EXPECT_EQ(fs::exists(daemon_.folder()), there) << "the second daemon touched what it was refused";
  daemon_.supervisor().Signal(SIGCONT);
  ASSERT_TRUE(Eventually([&] { return IsWhole(); }));
  ExpectReachable();
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  holder.Quit();
  daemon_.ExpectAccountsBack();
}

INSTANTIATE_TEST_SUITE_P(Damages, RunFolderTest, ::testing::ValuesIn(TriedDamages()), [](const auto& info) {
  std::string name = info.param.name;
  for (char& c : name) c = std::isalnum(c) ? c : '_';
  return name;
});

using LockTest = RunFolderTest;

INSTANTIATE_TEST_SUITE_P(Lock, LockTest, ::testing::Values(Damages()[0]), [](const auto&) { return "deleted"; });

// Two network namespaces have separate abstract names: there the restored lock refuses the second daemon.
TEST_P(LockTest, SecondDaemonInOtherNetworkIsRejectedByLock) {
  if (!MayUnshare(CLONE_NEWNET)) GTEST_SKIP() << "needs the right to make a network namespace";
  GetParam().inflict(daemon_.folder());
  ASSERT_TRUE(Eventually([&] { return IsWhole(); }));
  const auto [said, code] = StartSecond({"/usr/bin/unshare", "--net"});
  EXPECT_EQ(code, 1) << said;
  EXPECT_TRUE(absl::StrContains(said, absl::StrCat("is served by another berthd, pid ", daemon_.supervisor_pid())))
      << said;
}

class OtherPathTest : public LockTest {
 protected:
  // Expects that no second daemon starts on `folder`, which has the node id of the first, and that it changes nothing.
  void ExpectNodeIsServed(const std::string& folder) {
    SCOPED_TRACE(folder);
    const std::string before = LockIn(folder);
    const std::string named = absl::StrCat("is served by another berthd, pid ", daemon_.supervisor_pid(), ",");
    std::string said;
    // After a supervisor's death its claim is open until the broker has received the next one's.
    EXPECT_TRUE(Eventually([&] {
      const auto [text, code] = StartSecond({}, folder);
      said = text;
      EXPECT_EQ(code, 1) << said;
      return code != 1 || absl::StrContains(said, named);
    })) << named << "; said: " << said;
    EXPECT_TRUE(absl::StrContains(said, folder)) << said;
    EXPECT_EQ(LockIn(folder), before);
  }
  static std::string LockIn(const std::string& folder) {
    std::ostringstream text;
    text << std::ifstream(folder + "/berthd.lock").rdbuf();
    return text.str();
  }
};

INSTANTIATE_TEST_SUITE_P(Lock, OtherPathTest, ::testing::Values(Damages()[0]), [](const auto&) { return "deleted"; });

TEST_P(OtherPathTest, MovedOrCopiedFolderIsRejected) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  const std::string moved = daemon_.folder() + ".moved";
  const std::string copied = daemon_.folder() + ".copied";
  fs::create_directory(copied);
  for (const char* const name : {"node", "record", "ledger"}) fs::copy_file(PathOf(name), copied + "/" + name);
  fs::rename(daemon_.folder(), moved);
  ASSERT_TRUE(Eventually([&] { return IsWhole(); }));
  const std::function<void()> events[] = {[] {},
                                          [this] {
                                            const pid_t supervisor = daemon_.supervisor_pid();
                                            ::kill(supervisor, SIGKILL);
                                            daemon_.AwaitSupervisorAfter(supervisor);
                                          },
                                          [this] {
                                            daemon_.Stop();
                                            daemon_.StartAgain();
                                          }};
  for (const std::function<void()>& event : events) {
    event();
    for (const std::string& folder : {moved, copied}) ExpectNodeIsServed(folder);
    ExpectReachable();
    if (HasFailure()) return;
  }
  fs::remove_all(moved);
  fs::remove_all(copied);
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  holder.Quit();
  daemon_.ExpectAccountsBack();
}

TEST_P(OtherPathTest, FolderMountedElsewhereIsRejectedWithoutLock) {
  if (!kOwnMounts) GTEST_SKIP() << "needs the right to mount";
  Actor holder(daemon_);
  holder.Do("acquire p");
  const std::string elsewhere = daemon_.folder() + ".elsewhere";
  fs::create_directory(elsewhere);
  ASSERT_EQ(::mount(daemon_.folder().c_str(), elsewhere.c_str(), nullptr, MS_BIND, nullptr), 0);
  daemon_.supervisor().Signal(SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return StateOf(daemon_.supervisor().pid()) == 'T'; }));
  GetParam().inflict(daemon_.folder());
  const auto [said, code] = StartSecond({}, elsewhere);
  EXPECT_EQ(code, 1) << said;
  EXPECT_TRUE(absl::StrContains(said, absl::StrCat("served by another berthd, pid ", daemon_.supervisor().pid())))
      << said;
  daemon_.supervisor().Signal(SIGCONT);
  ASSERT_TRUE(Eventually([&] { return IsWhole(); }));
  ExpectReachable();
  ASSERT_EQ(::umount(elsewhere.c_str()), 0);
  fs::remove(elsewhere);
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  holder.Quit();
  daemon_.ExpectAccountsBack();
}

// Binds a name that begins as the claim of the folder given by path, locks the folder, and waits for the end of its
// input.
constexpr char kSquat[] = R"(
import fcntl, hashlib, os, socket, sys
digest = '/' + hashlib.sha256(os.path.realpath(sys.argv[1]).encode()).hexdigest()[:16] + '/'
claim = [line.split('@')[-1] for line in open('/proc/net/unix') if digest in line][0]
squatter = socket.socket(socket.AF_UNIX)
squatter.bind('\0' + claim.rsplit('/', 1)[0] + '/squatter')
folder = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(folder, fcntl.LOCK_EX)
print('in', flush=True)
sys.stdin.read()
)";

TEST_P(LockTest, OtherUserKeepsNoDaemonOut) {
  if (!IsRoot()) GTEST_SKIP() << "needs root: changes users";
  Actor holder(daemon_);
  holder.Do("acquire p");
  // The other user may enter the folder.
  const std::string groups = OtherUser().has_value() ? absl::StrCat("--groups=", kClientsGroup) : "--clear-groups";
  Subprocess other = Subprocess::Start({.argv = {"/usr/bin/setpriv", "--reuid=1001", "--regid=1001", groups,
                                                 "/usr/bin/python3", "-c", kSquat, daemon_.folder()},
                                        .of_operator = true});
  ASSERT_EQ(Must(other.ReadLine()), "in");
  daemon_.Stop();
  daemon_.StartAgain();
  EXPECT_TRUE(absl::StrContains(Log(), "ignoring a socket name that uid 1001 bound")) << Log();
  ExpectReachable();
  ExpectNoSecond();
  other.CloseInput();
  EXPECT_EQ(other.Wait(), 0);
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  holder.Quit();
  daemon_.ExpectAccountsBack();
}

TEST_P(LockTest, ForeignLockIsLeftAlone) {
  daemon_.supervisor().Signal(SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return StateOf(daemon_.supervisor().pid()) == 'T'; }));
  GetParam().inflict(daemon_.folder());
  UniqueFd lock(::open(PathOf("berthd.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX | LOCK_NB), 0);
  ASSERT_EQ(::write(lock.get(), "4711\n", 5), 5);
  Delete(PathOf("berthd.sock"));
  daemon_.supervisor().Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Log(), "is served by another berthd, pid 4711"); })) << Log();
  EXPECT_FALSE(fs::exists(PathOf("berthd.sock"))) << "a socket was made in a folder that another daemon has locked";
  lock.reset();
  EXPECT_TRUE(Eventually([&] { return IsWhole(); }));
}

}  // namespace
}  // namespace berth::testing
