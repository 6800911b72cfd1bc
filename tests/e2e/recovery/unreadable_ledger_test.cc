// The verbs of `berth` against a daemon that cannot read its ledger. Changes are refused and leave nothing behind.
// Lists report what they lack, and a stop leaves the leases to the next daemon.

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <berth/session.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/admin/inspector.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// A daemon of two devices, which starts again with one of them while a permit is out.
class UnreadableLedgerTest : public ::testing::Test {
 protected:
  UnreadableLedgerTest()
      : log_(absl::StrCat(::testing::TempDir(), "/unreadable_ledger_", ::getpid(), ".log")),
        daemon_({.flags = {"--host-devices=2"}, .errors = log_}),
        berth_(daemon_.folder()),
        holder_(daemon_) {
    holder_.Do("acquire p");
  }
  ~UnreadableLedgerTest() override { ::unlink(log_.c_str()); }

  std::string ledger() const { return Read(daemon_.folder() + "/ledger"); }
  std::string settings() const { return Read(daemon_.folder() + "/state/operator_settings.json"); }

  // In a new session: the test's own may be among those that the ledger has.
  Inspector Look() const {
    return Inspector(Must(Session::Open({.folder = daemon_.folder(), .admin = true, .always_new = true})));
  }
  void StopAndStartWith(int devices) {
    daemon_.Stop();
    StartWith(devices);
  }
  void StartWith(int devices) {
    daemon_.AddFlag(absl::StrCat("--host-devices=", devices));
    daemon_.StartAgain();
    const v1::Node node = daemon_.GetNode();
    EXPECT_EQ(node.ledger_unreadable(), devices == 1) << node.ledger_fault();
    EXPECT_EQ(absl::StrContains(node.ledger_fault(), "device 1 was"), devices == 1) << node.ledger_fault();
  }
  // Returns the exit code of `berth` with these words, and both of its outputs.
  std::pair<int, std::string> Run(const std::vector<std::string>& words) {
    Subprocess command = berth_.Start(words, {"/bin/sh", "-c", "exec \"$@\" 2>&1 < /dev/null", "sh"});
    std::string text = command.ReadAll();
    return {command.Wait(), std::move(text)};
  }
  void ExpectLeaseContinues() {
    EXPECT_EQ(Must(Look().ListPermits()).permits_size(), 1);
    EXPECT_TRUE(Ok(holder_.Ask("release p")));
    holder_.Quit();
  }

  const std::string log_;
  TestDaemon daemon_;
  BerthCommand berth_;
  Actor holder_;
};

TEST_F(UnreadableLedgerTest, ChangesAreRefusedAndNothingIsWritten) {
  EXPECT_EQ(berth_.Run({"permits", "set", "gpu-tests", "5"}), 0);
  EXPECT_EQ(berth_.Run({"device", "drain", "1", "--reason", "fan"}), 0);
  StopAndStartWith(1);
  const std::string stored = settings();
  const std::vector<std::string> kChanges[] = {
      {"permits", "set", "gpu-tests", "3"},
      {"permits", "set", "gpu-tests", "default"},
      {"permits", "revoke", "1"},
      {"device", "drain", "0", "--reason", "RMA"},
      {"device", "undrain", "0"},
      {"device", "enable", "0"},
      {"device", "restart", "0"},
      {"device", "reset", "0", "--yes"},
      {"device", "drop", "0", "--yes"},
      {"--admin", "budget", "set", "1MiB", "--device", "0"},
      {"--admin", "budget", "set", "1MiB", "--tenant", "1"},
      {"config", "reload"},
      {"blocks", "free", "1"},
      {"blocks", "recall", "1"},
      {"blocks", "clear-torn", "1"},
      {"sessions", "end", "1"},
      {"reap"},
  };
  for (const std::vector<std::string>& words : kChanges) {
    const auto [code, said] = Run(words);
    SCOPED_TRACE(absl::StrCat(words[0], " ", words.back(), ": ", said));
    EXPECT_EQ(code, 1);
    EXPECT_TRUE(absl::StrContains(said, "device 1 was"));
    EXPECT_TRUE(absl::StrContains(said, "berth reset"));
    EXPECT_EQ(settings(), stored);
  }
  const auto device = [this] { return Must(Look().ListDevices()).devices(0); };
  EXPECT_EQ(device().drain_reason(), "");
  EXPECT_TRUE(Eventually([&] { return device().state() == v1::Device::READY; }));
  EXPECT_EQ(Must(Look().ListPools()).pools(0).cap(), 5u);
  StopAndStartWith(2);
  EXPECT_EQ(Must(Look().ListPools()).pools(0).cap(), 5u);
  const v1::ListDevicesResponse devices = Must(Look().ListDevices());
  EXPECT_EQ(devices.devices(0).drain_reason(), "");
  EXPECT_EQ(devices.devices(1).drain_reason(), "fan");
  ExpectLeaseContinues();
}

TEST_F(UnreadableLedgerTest, ListsReportTheLeasesThatTheyLack) {
  EXPECT_FALSE(absl::StrContains(Run({"permits"}).second, "not shown"));
  StopAndStartWith(1);
  for (const char* const list : {"permits", "blocks", "sessions", "plans", "reservations", "streams", "strays"}) {
    const auto [code, said] = Run({list});
    EXPECT_EQ(code, 0) << list << ": " << said;
    EXPECT_TRUE(absl::StrContains(said, "the leases in the ledger are not shown")) << list << ": " << said;
    EXPECT_TRUE(absl::StrContains(said, "device 1 was")) << list << ": " << said;
    EXPECT_TRUE(berth_.ShowJson({list}).is_object()) << list;
  }
  StopAndStartWith(2);
  EXPECT_FALSE(absl::StrContains(Run({"permits"}).second, "not shown"));
  ExpectLeaseContinues();
}

TEST_F(UnreadableLedgerTest, StopLeavesLeasesToNextDaemon) {
  StopAndStartWith(1);
  const std::string found = ledger();
  const std::vector<std::string> kRefused[] = {{"stop", "--end-leases", "--yes"},
                                               {"stop", "--drain", "--yes"},
                                               {"stop", "--drain", "--timeout", "1", "--end-leases", "--yes"}};
  for (const std::vector<std::string>& words : kRefused) {
    const auto [code, said] = Run(words);
    EXPECT_EQ(code, 1) << said;
    for (const char* const part : {"device 1 was", "`berth stop` without --drain and --end-leases", "`berth reset`"}) {
      EXPECT_TRUE(absl::StrContains(said, part)) << part << " in " << said;
    }
  }
  const auto [unasked, prompt] = Run({"stop"});
  EXPECT_EQ(unasked, 1) << prompt;
  EXPECT_TRUE(absl::StrContains(prompt, "--yes")) << prompt;
  EXPECT_TRUE(absl::StrContains(prompt, "The stop leaves the ledger as it is")) << prompt;
  EXPECT_EQ(berth_.Run({"status"}), 0) << "it serves on";

  const auto [code, said] = Run({"stop", "--yes"});
  EXPECT_EQ(code, 0) << said;
  EXPECT_TRUE(absl::StrContains(said, "stopped; the ledger stays as it is")) << said;
  EXPECT_EQ(daemon_.supervisor().Wait(), 0);
  EXPECT_EQ(ledger(), found);
  const std::string log = Read(log_);
  EXPECT_TRUE(absl::StrContains(log, "stopping: the leases that are out are unknown: ledger")) << log;
  EXPECT_FALSE(absl::StrContains(log, "stopping: 0 permit units")) << log;
  StartWith(2);
  ExpectLeaseContinues();
}

}  // namespace
}  // namespace berth::testing
