// The end of a block is notified once, to the owner and to an importer, for every way in which a block ends. The death
// of a worker or a broker is no end of an FD block.

#include <signal.h>
#include <sys/types.h>

#include <ostream>
#include <string>
#include <vector>

#include <berth/block_handle.h>
#include <berth/end_notice.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// The Actor's text of an event: BlockEvent::What, and the reason.
std::string Lost(EndReason reason) { return absl::StrCat("1:", static_cast<uint32_t>(reason)); }

struct Way {
  const char* name;
  // "fd" or "ipc".
  const char* kind;
  // Brings about the end. `block` is the number of the block.
  void (*end)(TestDaemon& daemon, const std::string& block);
  // The owner's event, and the importer's.
  std::string owner;
  std::string importer;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

void KillEach(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) ASSERT_EQ(::kill(pid, SIGKILL), 0);
}

const Way kWays[] = {
    {"RestartedDaemon", "fd",
     [](TestDaemon& daemon, const std::string&) {
       daemon.Stop();
       daemon.StartAgain();
     },
     Lost(EndReason::kStateLost), Lost(EndReason::kStateLost)},
    {"KilledDaemon", "fd",
     [](TestDaemon& daemon, const std::string&) {
       daemon.KillSupervisorAndBroker();
       daemon.StartAgain();
     },
     Lost(EndReason::kStateLost), Lost(EndReason::kStateLost)},
    {"ResetDevice", "fd",
     [](TestDaemon& daemon, const std::string&) { EXPECT_TRUE(Ok(daemon.inspector().ResetDevice(0))); },
     Lost(EndReason::kMemoryLost), Lost(EndReason::kMemoryLost)},
    {"DroppedDevice", "fd",
     [](TestDaemon& daemon, const std::string&) { EXPECT_TRUE(Ok(daemon.inspector().DropDevice(0))); },
     Lost(EndReason::kMemoryLost), Lost(EndReason::kMemoryLost)},
    {"DeadContextWorker", "ipc",
     [](TestDaemon& daemon, const std::string&) { KillEach(daemon.context_workers()); },
     Lost(EndReason::kMemoryLost), Lost(EndReason::kMemoryLost)},
    {"FreedByOperator", "fd",
     [](TestDaemon& daemon, const std::string& block) {
       EXPECT_EQ(BerthCommand(daemon.folder()).Run({"--admin", "blocks", "free", block}), 0);
     },
     "2:0", "2:0"},
    {"EndedDaemon", "fd",
     [](TestDaemon& daemon, const std::string&) {
       EXPECT_EQ(BerthCommand(daemon.folder()).Run({"stop", "--end-leases", "--yes"}), 0);
       daemon.supervisor().Wait();
       daemon.Abandon();
     },
     absl::StrCat("3:", static_cast<uint32_t>(EndReason::kStopped)),
     absl::StrCat("3:", static_cast<uint32_t>(EndReason::kStopped))},
};

class BlockEndTest : public ::testing::TestWithParam<Way> {};

TEST_P(BlockEndTest, EndOfBlockIsNotifiedOnce) {
  TestDaemon daemon;
  Actor owner(daemon), importer(daemon);
  const BlockHandle handle = owner.Allocate("b", 4096, GetParam().kind);
  owner.Do("map b");
  owner.Do("fill b 3");
  owner.Do(absl::StrCat("grant-session b ", importer.session().value()));
  importer.Do(absl::StrCat("import b ", FormatHandle(handle), " kind=", GetParam().kind));
  importer.Do("map b");
  // The death of a worker, and of the broker, end no FD block.
  if (GetParam().kind == std::string("fd")) KillEach(daemon.workers());
  daemon.KillBroker();
  EXPECT_TRUE(Eventually([&] { return Ok(importer.Ask("allocate own 4096")); }));
  EXPECT_EQ(owner.Do("heard b"), "");
  EXPECT_EQ(importer.Do("heard b"), "");
  GetParam().end(daemon, absl::StrCat(handle.block.value()));
  EXPECT_TRUE(Eventually([&] { return owner.Do("heard b") == GetParam().owner; })) << owner.Do("heard b");
  EXPECT_TRUE(Eventually([&] { return importer.Do("heard b") == GetParam().importer; })) << importer.Do("heard b");
  EXPECT_TRUE(Ok(owner.Ask("check b 3"))) << "its mapping is its own";
  importer.Kill();
  owner.Kill();
}

INSTANTIATE_TEST_SUITE_P(Ways, BlockEndTest, ::testing::ValuesIn(kWays),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(BlockEventsTest, OwnFreeNotifiesOnlyOthers) {
  TestDaemon daemon;
  Actor owner(daemon), importer(daemon);
  const BlockHandle handle = owner.Allocate("b", 4096);
  owner.Do("map b");
  owner.Do(absl::StrCat("grant-session b ", importer.session().value()));
  importer.Do(absl::StrCat("import b ", FormatHandle(handle)));
  importer.Do("map b");
  owner.Do("free b");
  EXPECT_TRUE(Eventually([&] { return importer.Do("heard b") == "2:0"; }));
  EXPECT_EQ(owner.Do("heard b"), "");
  importer.Quit();
  owner.Quit();
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
