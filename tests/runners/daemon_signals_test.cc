// A daemon in the foreground of a terminal, as an operator runs it by hand: keys, signals to its process group, and the
// terminal's hang-up. The daemon's children have process groups of their own, so a signal reaches the supervisor alone.

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/runners/signal_job.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

class DaemonSignalsTest : public ::testing::Test {
 protected:
  DaemonSignalsTest() {
    std::string parent = "/tmp/berth-signals-XXXXXX";
    EXPECT_NE(::mkdtemp(parent.data()), nullptr);
    parent_ = parent;
    folder_ = parent + "/run";
    job_.emplace(Cell{}, Words{ProgramPath("daemon/berthd"), FolderFlag(), "--backend=host", "--warm-blocks=0"},
                 std::vector<std::string>{"BERTH_GPU_TEST_CONCURRENCY=1", "BERTH_SESSION"}, /*of_operator=*/true);
    EXPECT_TRUE(Eventually([&] { return Run() == 0; }));
    holder_.emplace(Start({"run", "--", "/bin/sh", "-c", "echo granted; cat"}));
    EXPECT_EQ(Must(holder_->ReadLine()), "granted");
  }
  ~DaemonSignalsTest() override {
    // A failed test leaves a broker, which starts supervisors.
    EXPECT_TRUE(Eventually([&] {
      const std::vector<ChildInfo> left = ProcessesWith("berthd", FolderFlag());
      for (const ChildInfo& process : left) ::kill(process.pid, SIGKILL);
      return left.empty();
    }));
    job_.reset();
    std::filesystem::remove_all(parent_);
  }

  std::string FolderFlag() const { return absl::StrCat("--folder=", folder_); }
  Subprocess Start(const Words& words) const {
    Words argv = {ProgramPath("client/cli/berth"), "--folder", folder_};
    argv.insert(argv.end(), words.begin(), words.end());
    return Subprocess::Start(
        {.argv = argv, .environment = {"BERTH_SESSION"}, .errors = "/dev/null", .of_operator = true});
  }
  // Returns the code of a command that needs the only permit: 75 if it is in use.
  Subprocess StartRun() const { return Start({"run", "--no-wait", "--", "/bin/true"}); }
  int Run() const { return StartRun().Wait(); }
  // Returns the pid in the lock file; 0 if there is none now.
  pid_t Supervisor() const {
    pid_t pid = 0;
    std::ifstream(folder_ + "/berthd.lock") >> pid;
    return pid;
  }
  bool AwaitSupervisorAfter(pid_t before) const {
    return Eventually([&] { return Supervisor() != 0 && Supervisor() != before && IsAlive(Supervisor()); });
  }
  // Gives the permit back, and takes it again.
  void ExpectPermitReturns() {
    holder_->CloseInput();
    EXPECT_EQ(holder_->Wait(), 0);
    EXPECT_TRUE(Eventually([&] { return Run() == 0; }));
  }

  std::string parent_;
  std::string folder_;
  std::optional<Job> job_;
  std::optional<Subprocess> holder_;
};

TEST_F(DaemonSignalsTest, KeysAndGroupSignalsEndNoLease) {
  // They end nothing.
  for (const int signal : {SIGHUP, SIGPIPE, SIGTTOU}) {
    SCOPED_TRACE(signal);
    job_->Send(signal, kGroup);
    EXPECT_EQ(Run(), 75);
    EXPECT_EQ(Supervisor(), job_->pid());
  }
  for (const bool key : {true, false}) {
    SCOPED_TRACE(key ? "^Z" : "SIGTTIN");
    if (key) {
      job_->Press('\x1a');
    } else {
      job_->Send(SIGTTIN, kGroup);
    }
    ASSERT_TRUE(job_->Read({"stopped"}));
    // The broker alone answers, or the supervisor has to continue first.
    Subprocess meanwhile = StartRun();
    job_->GoOn();
    EXPECT_EQ(meanwhile.Wait(), 75);
  }
  // The broker starts the next supervisor, which is no job of the shell's any more.
  pid_t before = job_->pid();
  job_->Press('\x1c');
  job_->ReadToEnd();
  EXPECT_EQ(job_->last()[0], "died") << absl::StrJoin(job_->said(), "\n");
  for (const int signal : {SIGUSR1, SIGUSR2, SIGALRM, SIGQUIT}) {
    SCOPED_TRACE(absl::StrCat("before ", signal));
    ASSERT_TRUE(AwaitSupervisorAfter(before));
    EXPECT_EQ(Run(), 75);
    before = Supervisor();
    ASSERT_NE(::getpgid(before), ::getpgrp());
    ::kill(-::getpgid(before), signal);
  }
  ASSERT_TRUE(AwaitSupervisorAfter(before));
  EXPECT_EQ(Run(), 75);
  ExpectPermitReturns();
  EXPECT_EQ(Start({"stop", "--yes"}).Wait(), 0);
  EXPECT_TRUE(Eventually([&] { return ProcessesWith("berthd", FolderFlag()).empty(); }));
}

TEST_F(DaemonSignalsTest, HungUpTerminalEndsNoDaemon) {
  job_->HangUp();
  EXPECT_EQ(Run(), 75);
  EXPECT_EQ(Supervisor(), job_->pid());
  ExpectPermitReturns();
  job_->Send(SIGINT, kGroup);
  job_->ReadToEnd();
  EXPECT_EQ(absl::StrJoin(job_->last(), " "), "exited 0");
  EXPECT_TRUE(ProcessesWith("berthd", FolderFlag()).empty());
}

}  // namespace
}  // namespace berth::testing
