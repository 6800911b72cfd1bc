// Compiled modules across processes: one process compiles, the others get its module, whichever process dies.

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/module.pb.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kOther = 1001;

class ModulesTest : public ::testing::Test {
 protected:
  ModulesTest() {
    char folder[] = "/tmp/berth-modules-XXXXXX";
    folder_ = ::mkdtemp(folder);
    ::chmod(folder_.c_str(), 01777);
    EXPECT_EQ(::mkfifo(hold().c_str(), 0666), 0);
    // Writable for every user, whatever the umask.
    std::ofstream(folder_ + "/count") << "";
    ::chmod((folder_ + "/count").c_str(), 0666);
  }
  ~ModulesTest() override { fs::remove_all(folder_); }

  std::string state() const { return folder_ + "/state"; }
  std::string hold() const { return folder_ + "/hold"; }
  std::string Count() const { return absl::StrCat(" count=", folder_, "/count"); }
  TestDaemonOptions Options(const std::string& config = "") const {
    return {.flags = {"--state=" + state()}, .config = config};
  }
  // Returns the number of compilations.
  int Compiles() const {
    std::ifstream file(folder_ + "/count");
    int lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    return lines;
  }
  bool CompilesBecome(int count) {
    return Eventually([&] { return Compiles() >= count; });
  }
  // Lets the compiling process continue.
  void LetGo() { const UniqueFd fifo(::open(hold().c_str(), O_WRONLY | O_CLOEXEC)); }

  static v1::ListModulesResponse List(TestDaemon& daemon) { return Must(daemon.inspector().ListModules()); }
  static bool WaitersBecome(TestDaemon& daemon, uint64_t count) {
    return Eventually([&] {
      const v1::ListModulesResponse list = List(daemon);
      uint64_t waiters = 0;
      for (const v1::KeptModule& module : list.modules()) waiters += module.waiters();
      return waiters == count;
    });
  }
  // Returns the module files on disk.
  std::vector<fs::path> Files() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(state() + "/modules")) {
      if (entry.path().extension() == ".module") files.push_back(entry.path());
    }
    return files;
  }

  std::string folder_;
};

TEST_F(ModulesTest, TenProcessesCompileOnce) {
  TestDaemon daemon(Options());
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < 10; ++i) {
    actors.push_back(std::make_unique<Actor>(daemon));
    actors.back()->SendLine(absl::StrCat("module sphere kernel hold=", hold(), Count()));
  }
  ASSERT_TRUE(CompilesBecome(1));
  ASSERT_TRUE(WaitersBecome(daemon, 9));
  LetGo();
  int compiled = 0;
  for (const auto& actor : actors) {
    const absl::StatusOr<std::string> answer = actor->Answer();
    ASSERT_TRUE(Ok(answer));
    compiled += absl::StartsWith(*answer, "compiled ") ? 1 : 0;
    EXPECT_TRUE(absl::EndsWith(*answer, " compute_60:kernel:test 1")) << *answer;
  }
  EXPECT_EQ(compiled, 1);
  EXPECT_EQ(Compiles(), 1);
  const v1::ModuleUsage usage = List(daemon).usage();
  EXPECT_EQ(usage.misses(), 1u);
  EXPECT_EQ(usage.waits(), 9u);
  EXPECT_EQ(usage.hits(), 9u);
  EXPECT_EQ(usage.stored(), 1u);
}

TEST_F(ModulesTest, DifferingModulesAreCompiledSeparately) {
  TestDaemon daemon(Options());
  Actor actor(daemon);
  EXPECT_EQ(actor.Do("module a kernel"), "compiled compute_60:kernel:test 1");
  EXPECT_EQ(actor.Do("module b kernel"), "node compute_60:kernel:test 1") << "the label is no part of it";
  EXPECT_EQ(actor.Do("module a other"), "compiled compute_60:other:test 1");
  EXPECT_EQ(actor.Do("module a kernel option=-O3"), "compiled compute_60:kernel:test 1");
  EXPECT_EQ(actor.Do("module a kernel version=test-2"), "compiled compute_60:kernel:test-2");
  EXPECT_EQ(actor.Do("module a kernel option=-I/x"), "alone compute_60:kernel:test 1");
  EXPECT_EQ(List(daemon).modules_size(), 4);
}

TEST_F(ModulesTest, KilledCompilerIsReplacedByNext) {
  TestDaemon daemon(Options());
  Actor first(daemon), second(daemon), third(daemon);
  first.SendLine(absl::StrCat("module sphere kernel hold=", hold(), Count()));
  ASSERT_TRUE(CompilesBecome(1));
  second.SendLine("module sphere kernel" + Count());
  ASSERT_TRUE(WaitersBecome(daemon, 1));
  third.SendLine("module sphere kernel" + Count());
  ASSERT_TRUE(WaitersBecome(daemon, 2));
  first.Kill();
  EXPECT_EQ(*second.Answer(), "compiled compute_60:kernel:test 1");
  EXPECT_EQ(*third.Answer(), "node compute_60:kernel:test 1");
  EXPECT_EQ(Compiles(), 2);
  EXPECT_EQ(List(daemon).usage().failed(), 1u);
}

TEST_F(ModulesTest, StoppedCompilerIsReplacedAfterTimeout) {
  TestDaemon daemon(Options("[modules]\ncompile_patience = \"2s\"\n"));
  Actor first(daemon), second(daemon);
  first.SendLine(absl::StrCat("module sphere kernel hold=", hold(), Count()));
  ASSERT_TRUE(CompilesBecome(1));
  ASSERT_EQ(::kill(first.pid(), SIGSTOP), 0);
  EXPECT_EQ(second.Do("module sphere kernel" + Count()), "compiled compute_60:kernel:test 1");
  // A module that it delivers late is used by it alone.
  ASSERT_EQ(::kill(first.pid(), SIGCONT), 0);
  LetGo();
  EXPECT_EQ(*first.Answer(), "alone compute_60:kernel:test 1");
  EXPECT_EQ(first.Do("module sphere kernel" + Count()), "node compute_60:kernel:test 1");
}

TEST_F(ModulesTest, ExpiredModuleWaiterCompilesForItself) {
  TestDaemon daemon(Options());
  Actor first(daemon), second(daemon);
  first.SendLine(absl::StrCat("module sphere kernel hold=", hold(), Count()));
  ASSERT_TRUE(CompilesBecome(1));
  EXPECT_EQ(second.Do("module sphere kernel wait_ms=50" + Count()), "alone compute_60:kernel:test 1");
  LetGo();
  EXPECT_EQ(*first.Answer(), "compiled compute_60:kernel:test 1");
}

TEST_F(ModulesTest, FailingSourceIsCompiledOnceForAll) {
  TestDaemon daemon(Options());
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < 4; ++i) {
    actors.push_back(std::make_unique<Actor>(daemon));
    actors.back()->SendLine(absl::StrCat("module sphere", i, " bad hold=", hold(), Count()));
  }
  ASSERT_TRUE(CompilesBecome(1));
  ASSERT_TRUE(WaitersBecome(daemon, 3));
  LetGo();
  for (int i = 0; i < 4; ++i) {
    const absl::Status status = actors[i]->Answer().status();
    EXPECT_TRUE(IsRefusal(status, Reason::kInvalidField)) << status;
    EXPECT_EQ(status.message(), absl::StrCat("sphere", i, " NVRTC compile failed: line 1:\n\tit is bad"));
    EXPECT_EQ(NamedValueOf(status, "label"), absl::StrCat("sphere", i));
  }
  EXPECT_EQ(Compiles(), 1);
  EXPECT_EQ(List(daemon).modules_size(), 0);
}

TEST_F(ModulesTest, UsersHaveSeparateModulesUnderSameKey) {
  if (!IsRoot()) GTEST_SKIP() << "needs root: changes users";
  TestDaemon daemon(Options());
  Actor root(daemon), other(daemon, {.uid = kOther}), again(daemon, {.uid = kOther});
  EXPECT_EQ(root.Do("module sphere kernel" + Count()), "compiled compute_60:kernel:test 1");
  EXPECT_EQ(other.Do("module sphere kernel" + Count()), "compiled compute_60:kernel:test 1");
  EXPECT_EQ(again.Do("module sphere kernel" + Count()), "node compute_60:kernel:test 1");
  EXPECT_EQ(Compiles(), 2);
  const v1::ListModulesResponse all = List(daemon);
  ASSERT_EQ(all.modules_size(), 2);
  EXPECT_NE(all.modules(0).tenant().uid(), all.modules(1).tenant().uid());
  EXPECT_EQ(all.modules(0).key(), all.modules(1).key());
}

TEST_F(ModulesTest, ModuleOutlivesTheDaemonAndItsBroker) {
  {
    TestDaemon daemon(Options());
    Actor(daemon).Do("module sphere kernel" + Count());
    Actor(daemon).Do("module sphere second" + Count());
    ASSERT_TRUE(Eventually([&] { return Files().size() == 2; }));
    const pid_t broker = daemon.broker();
    ::kill(broker, SIGKILL);
    ASSERT_TRUE(Eventually([&] { return daemon.inspector().ListModules().ok(); }));
    EXPECT_EQ(List(daemon).modules(0).state(), v1::KeptModule::ON_DISK);
    EXPECT_EQ(Actor(daemon).Do("module sphere kernel" + Count()), "node compute_60:kernel:test 1");
  }
  TestDaemon daemon(Options());
  EXPECT_EQ(Actor(daemon).Do("module sphere kernel" + Count()), "node compute_60:kernel:test 1");
  EXPECT_EQ(Actor(daemon).Do("module sphere second" + Count()), "node compute_60:second:test 1");
  EXPECT_EQ(Compiles(), 2);
}

TEST_F(ModulesTest, CorruptModuleIsDroppedAndCompiledAnew) {
  for (const bool record : {false, true}) {
    {
      TestDaemon daemon(Options());
      Actor(daemon).Do("module sphere kernel" + Count());
      ASSERT_TRUE(Eventually([&] { return Files().size() == 1; }));
    }
    const int before = Compiles();
    {
      const UniqueFd file(::open(Files()[0].c_str(), O_RDWR | O_CLOEXEC));
      const off_t at = record ? 60 : ::lseek(file.get(), -2, SEEK_END);
      ASSERT_EQ(::pwrite(file.get(), "\x7f", 1, at), 1);
    }
    TestDaemon daemon(Options());
    EXPECT_EQ(Actor(daemon).Do("module sphere kernel" + Count()), "compiled compute_60:kernel:test 1");
    EXPECT_EQ(Actor(daemon).Do("module sphere kernel" + Count()), "node compute_60:kernel:test 1");
    EXPECT_EQ(Compiles(), before + 1);
    EXPECT_EQ(List(daemon).usage().corrupt(), 1u);
  }
}

TEST_F(ModulesTest, CachedModulesAreBounded) {
  TestDaemon daemon(Options("[modules]\ntotal = \"100KiB\"\ntenant = \"64KiB\"\n"));
  Actor actor(daemon);
  for (const char* const code : {"a", "b", "c"}) actor.Do(absl::StrCat("module m ", code, " bytes=20000"));
  EXPECT_TRUE(absl::StartsWith(actor.Do("module m a bytes=20000"), "node "));
  EXPECT_TRUE(absl::StartsWith(actor.Do("module m d bytes=20000"), "compiled "));
  EXPECT_TRUE(absl::StartsWith(actor.Do("module m a bytes=20000"), "node "));
  EXPECT_TRUE(absl::StartsWith(actor.Do("module m b bytes=20000"), "compiled ")) << "it was evicted";
  EXPECT_TRUE(absl::StartsWith(actor.Do("module m large bytes=70000"), "alone "));
  const v1::ListModulesResponse list = List(daemon);
  EXPECT_LE(list.usage().bytes(), 64u << 10);
  EXPECT_EQ(list.usage().evicted(), 2u);
  EXPECT_TRUE(Eventually([&] { return Files().size() == 3; })) << "on disk, too";
}

TEST_F(ModulesTest, MissingFolderDisablesPersistenceOnly) {
  fs::create_directory(state());
  std::ofstream(state() + "/modules") << "in the way";
  TestDaemon daemon(Options());
  Actor actor(daemon);
  EXPECT_EQ(actor.Do("module sphere kernel"), "compiled compute_60:kernel:test 1");
  EXPECT_EQ(actor.Do("module sphere kernel"), "node compute_60:kernel:test 1");
}

TEST_F(ModulesTest, DisabledCacheLetsProcessesCompile) {
  TestDaemon daemon(Options("[modules]\ntotal = \"0\"\n"));
  Actor actor(daemon);
  EXPECT_EQ(actor.Do("module sphere kernel"), "alone compute_60:kernel:test 1");
}

TEST_F(ModulesTest, CompileRightEndsWithItsProcess) {
  TestDaemon daemon(Options());
  {
    Actor first(daemon);
    first.SendLine(absl::StrCat("module sphere kernel hold=", hold(), Count()));
    ASSERT_TRUE(CompilesBecome(1));
    first.Kill();
  }
  EXPECT_TRUE(Eventually([&] { return List(daemon).modules_size() == 0; }));
  daemon.ExpectAccountsBack();
}

TEST_F(ModulesTest, ModulesCommandShowsCachedModules) {
  TestDaemon daemon(Options());
  Actor actor(daemon);
  actor.Do("module sphere kernel");
  actor.Do("module sphere kernel");
  Subprocess command =
      Subprocess::Start({.argv = {ProgramPath("client/cli/berth"), "modules"},
                         .environment = {absl::StrCat("BERTH_FOLDER=", daemon.folder()), "BERTH_SESSION"}});
  const std::string text = command.ReadAll();
  EXPECT_EQ(command.Wait(), 0) << text;
  for (const char* const part : {"1 modules", "1 hits, 1 misses", "0 corrupt", "compute_60", "test 1", "READY",
                                 "sphere"}) {
    EXPECT_TRUE(absl::StrContains(text, part)) << part << " in\n" << text;
  }
}

}  // namespace
}  // namespace berth::testing
