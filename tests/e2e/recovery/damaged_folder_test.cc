// The node id or the node record of the run folder is emptied, overwritten, truncated or deleted, under a daemon or
// between two daemons. No lease is forgotten, and no unit is granted twice.

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <tuple>

#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "daemon/supervisor/fd_store/node_record.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

namespace fs = std::filesystem;

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Overwrites the first bytes of a file in place.
void Overwrite(const std::string& path, const std::string& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file << bytes;
}

struct Damage {
  const char* name;
  std::function<void(const std::string& path)> inflict;
};

const Damage kDamages[] = {
    {"Emptied", [](const std::string& path) { fs::resize_file(path, 0); }},
    {"Zeroed", [](const std::string& path) { Overwrite(path, std::string(fs::file_size(path), '\0')); }},
    {"Truncated", [](const std::string& path) { fs::resize_file(path, fs::file_size(path) / 2); }},
    {"Replaced", [](const std::string& path) { Overwrite(path, std::string(fs::file_size(path), 'x')); }},
    {"Deleted", [](const std::string& path) { fs::remove(path); }},
};

class DamagedFolderTest : public ::testing::TestWithParam<std::tuple<const char*, size_t>> {
 public:
  static std::string NameOf(const ::testing::TestParamInfo<ParamType>& info) {
    return absl::StrCat(std::get<0>(info.param), kDamages[std::get<1>(info.param)].name);
  }

 protected:
  DamagedFolderTest()
      : errors_(absl::StrCat(::testing::TempDir(), "/errors-", ::getpid())),
        daemon_({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}, .errors = errors_}),
        command_(daemon_.folder()) {}
  ~DamagedFolderTest() override {
    if (HasFailure()) std::cout << "the daemon's log:\n" << Read(errors_) << std::endl;
    ::unlink(errors_.c_str());
  }

  std::string file() const { return std::get<0>(GetParam()); }
  std::string PathOf(const std::string& name) const { return daemon_.folder() + "/" + name; }
  void Inflict() const { kDamages[std::get<1>(GetParam())].inflict(PathOf(file())); }

  bool IsWhole() const { return Read(PathOf("node")) == node_ && NodeRecord::ReadNode(daemon_.folder()) == node_id_; }

  // Expects the next daemon to continue with the holder's permit.
  void ExpectResumed(Actor& holder) {
    EXPECT_EQ(daemon_.GetNode().ledger_fault(), "");
    EXPECT_EQ(daemon_.GetNode().id(), node_id_);
    EXPECT_EQ(daemon_.GetNode().incarnation(), incarnation_);
    Actor other(daemon_);
    EXPECT_TRUE(Refused(other.Ask("acquire p try"), Reason::kNoPermit));
    other.Quit();
    EXPECT_TRUE(Ok(holder.Ask("release p")));
    EXPECT_TRUE(Ok(holder.Ask("acquire p"))) << "the session continues";
  }

  const std::string errors_;
  TestDaemon daemon_;
  const BerthCommand command_;
  const std::string node_ = Read(PathOf("node"));
  const uint64_t node_id_ = daemon_.GetNode().id();
  const uint64_t incarnation_ = daemon_.GetNode().incarnation();
};

TEST_P(DamagedFolderTest, LivingDaemonRepairsFile) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  Inflict();
  ASSERT_TRUE(Eventually([&] { return IsWhole(); }));
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Read(errors_), "recreated deleted or replaced entries"); }))
      << Read(errors_);
  daemon_.KillSupervisorAndBroker();
  daemon_.StartAgain();
  ExpectResumed(holder);
  // The stop may come before the daemon has noticed the damage.
  Inflict();
  daemon_.Stop();
  EXPECT_TRUE(IsWhole());
  daemon_.StartAgain();
  ExpectResumed(holder);
  holder.Quit();
  daemon_.ExpectAccountsBack();
}

TEST_P(DamagedFolderTest, NextDaemonForgetsNoLease) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  daemon_.Stop();
  Inflict();
  daemon_.StartAgain();
  if (file() == "node") {
    ExpectResumed(holder);
    EXPECT_TRUE(IsWhole());
    holder.Quit();
    return daemon_.ExpectAccountsBack();
  }
  EXPECT_TRUE(absl::StrContains(Read(errors_), "until `berth reset`")) << Read(errors_);
  // A broker's death, a supervisor's death, and another stop change nothing.
  const std::function<void()> events[] = {[] {}, [&] { daemon_.KillBroker(); }, [&] { daemon_.KillSupervisor(); },
                                          [&] {
                                            daemon_.Stop();
                                            daemon_.StartAgain();
                                          }};
  for (const std::function<void()>& happen : events) {
    happen();
    const std::string fault = daemon_.GetNode().ledger_fault();
    EXPECT_TRUE(absl::StrContains(fault, PathOf("record"))) << fault;
    EXPECT_TRUE(absl::StrContains(fault, "berth reset")) << fault;
    Actor other(daemon_);
    EXPECT_TRUE(Refused(other.Ask("acquire p try"), Reason::kLedgerUnreadable, {{"path", PathOf("ledger")}}));
    other.Quit();
  }
  EXPECT_EQ(command_.Run({"reset", "--yes"}), 0);
  EXPECT_TRUE(Eventually([&] { return command_.Run({"health"}) == 0; }));
  EXPECT_TRUE(Eventually([&] { return !Ok(holder.Ask("status")); })) << "the session is over";
  holder.Quit();
  EXPECT_TRUE(IsWhole());
  Actor next(daemon_);
  EXPECT_TRUE(Ok(next.Ask("acquire p try")));
  next.Quit();
  daemon_.ExpectAccountsBack();
}

TEST_P(DamagedFolderTest, LedgerWithoutLeasesNeedsNoReset) {
  daemon_.Stop();
  Inflict();
  daemon_.StartAgain();
  EXPECT_EQ(daemon_.GetNode().ledger_fault(), "");
  EXPECT_EQ(daemon_.GetNode().id(), node_id_);
  Actor next(daemon_);
  EXPECT_TRUE(Ok(next.Ask("acquire p try")));
  next.Quit();
  daemon_.ExpectAccountsBack();
}

INSTANTIATE_TEST_SUITE_P(Files, DamagedFolderTest,
                         ::testing::Combine(::testing::Values("node", "record"), ::testing::Range<size_t>(0, 5)),
                         DamagedFolderTest::NameOf);

}  // namespace
}  // namespace berth::testing
