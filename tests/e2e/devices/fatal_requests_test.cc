// Commands at which a device's worker ends. The user is refused and held back; the device serves other users.
//
// The table has the commands that reach a worker: to make a block, for an allocation or a file to publish, and to
// release one. Imports, mappings and fences need no worker.

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/resources.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uid_t kOther = 64981;

class FatalRequestsTest : public EachExportKind {
 protected:
  FatalRequestsTest()
      : path_(absl::StrCat(::testing::TempDir(), "/fatal-", ::getpid())),
        daemon_({.program = "tests/support/daemon/stubborn_berthd",
                 .environment = {absl::StrCat("BERTH_STUBBORN_WHILE=", path_)}}) {}
  ~FatalRequestsTest() override { EndNoWorker(); }

  // The file appears with its content.
  void EndWorkersAt(const std::string& call) {
    const std::string next = path_ + ".next";
    std::ofstream(next) << call << "\n";
    std::filesystem::rename(next, path_);
  }
  void EndNoWorker() { ::unlink(path_.c_str()); }
  v1::Device Device() { return Must(daemon_.inspector().ListDevices()).devices(0); }
  // Whether another user's requests succeed. Its block stays as `name`.
  void ExpectServes(Actor& other, const std::string& name) {
    other.Allocate(name, 2 * kMiB);
    EXPECT_TRUE(Eventually([&] { return Device().state() == v1::Device::READY; })) << Device().last_failure();
  }

  const std::string path_;
  TestDaemon daemon_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, FatalRequestsTest, FatalRequestsTest::Kinds());

TEST_P(FatalRequestsTest, RepeatedAllocationStopsNoDevice) {
  if (!IsRoot()) GTEST_SKIP() << "needs root: clients of several users";
  Actor culprit(daemon_);
  Actor other(daemon_, {.uid = kOther});
  EndWorkersAt(absl::StrCat("allocate ", 6 * kMiB));
  for (int i = 0; i < 4; ++i) {
    SCOPED_TRACE(i);
    EXPECT_TRUE(Refused(culprit.Ask(absl::StrCat("allocate a ", 6 * kMiB)), Reason::kDriver));
    ExpectServes(other, absl::StrCat("b", i));
  }
  // Another size of the same user waits for the end of the hold, too.
  EXPECT_TRUE(Refused(culprit.Ask(absl::StrCat("allocate a ", 4 * kMiB)), Reason::kDriver));
  EndNoWorker();
  other.Quit();
  culprit.Quit();
  daemon_.ExpectAccountsBack();
}

TEST_P(FatalRequestsTest, RepeatedPublishStopsNoDevice) {
  if (!IsRoot()) GTEST_SKIP() << "needs root: clients of several users";
  Actor other(daemon_, {.uid = kOther});
  const std::string file = path_ + ".weights";
  std::ofstream(file).put('w');
  std::filesystem::resize_file(file, 6 * kMiB);
  EndWorkersAt(absl::StrCat("allocate ", 6 * kMiB));
  for (int i = 0; i < 4; ++i) {
    SCOPED_TRACE(i);
    const std::string errors = path_ + ".errors";
    Subprocess publish = Subprocess::Start({.argv = {ProgramPath("client/cli/berth"), "--folder=" + daemon_.folder(),
                                                     "blocks", "publish", "weights", file},
                                            .errors = errors});
    EXPECT_NE(publish.Wait(), 0);
    ExpectServes(other, absl::StrCat("b", i));
  }
  EndNoWorker();
  other.Quit();
  ::unlink(file.c_str());
  daemon_.ExpectAccountsBack();
}

TEST_P(FatalRequestsTest, ReleasesStopNoDevice) {
  if (!IsRoot()) GTEST_SKIP() << "needs root: clients of several users";
  Actor culprit(daemon_);
  Actor other(daemon_, {.uid = kOther});
  for (int i = 0; i < 5; ++i) culprit.Allocate(absl::StrCat("a", i), 4 * kMiB);
  EndWorkersAt("release");
  for (int i = 0; i < 5; ++i) {
    culprit.Do(absl::StrCat("drop a", i));
    ExpectServes(other, absl::StrCat("b", i));
  }
  EndNoWorker();
  // A reap retries only on a worker that serves.
  EXPECT_TRUE(Eventually([&] {
    return daemon_.inspector().ReapBlocks().ok() && daemon_.TakeAccounts().retired == 0;
  }));
  other.Quit();
  culprit.Quit();
  daemon_.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
