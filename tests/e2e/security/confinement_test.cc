// Privileges that the daemon's processes have dropped, as the kernel reports them.

#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "berth/v1/device.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// Returns a line of /proc/<pid>/status.
std::string StatusOf(pid_t pid, const std::string& name) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, name + ":\t")) return std::string(rest);
  }
  return "";
}

pid_t LauncherOf(const TestDaemon& daemon) {
  for (const ChildInfo& child : ProcessesWith("berthd", absl::StrCat("--folder=", daemon.folder()))) {
    if (child.name == "berth-launcher") return child.pid;
  }
  return 0;
}

// Checks a broker that serves: an earlier check might find it unconfined.
void ExpectBrokerConfined(TestDaemon& daemon) {
  daemon.GetNode();
  const pid_t broker = daemon.broker();
  EXPECT_EQ(StatusOf(broker, "NoNewPrivs"), "1");
#ifndef BERTH_SANITIZED
  EXPECT_EQ(StatusOf(broker, "Seccomp"), "2");
#endif
  constexpr uint64_t kSeePeers = uint64_t{1} << 19;
  for (const char* const name : {"CapPrm", "CapEff", "CapInh", "CapAmb"}) {
    uint64_t set = ~uint64_t{0};
    EXPECT_TRUE(absl::SimpleHexAtoi(StatusOf(broker, name), &set)) << name;
    EXPECT_EQ(set & ~kSeePeers, 0u) << name;
  }
}

[[maybe_unused]] int FiltersOf(pid_t process) {
  int filters = -1;
  EXPECT_TRUE(absl::SimpleAtoi(StatusOf(process, "Seccomp_filters"), &filters));
  return filters;
}

// Whether the process may set filters without no_new_privs (CAP_SYS_ADMIN).
[[maybe_unused]] bool MayFilter() {
  uint64_t set = 0;
  return absl::SimpleHexAtoi(StatusOf(::getpid(), "CapEff"), &set) && (set >> 21 & 1) != 0;
}

// Expects the one filter of the first supervisor, in addition to those of this process.
void ExpectFiltered([[maybe_unused]] pid_t process) {
#ifndef BERTH_SANITIZED
  EXPECT_EQ(FiltersOf(process), FiltersOf(::getpid()) + (MayFilter() ? 1 : 0));
#endif
}

TEST(ConfinementTest, EveryBrokerAndSupervisorIsConfined) {
  TestDaemon daemon;
  {
    ExpectFiltered(daemon.supervisor_pid());
    for (const pid_t worker : daemon.workers()) ExpectFiltered(worker);
    Actor actor(daemon);
    actor.Do("acquire p");
    actor.Allocate("b", 4096);
    ExpectBrokerConfined(daemon);
    daemon.KillBroker();
    ExpectBrokerConfined(daemon);
    daemon.KillSupervisor();
    ExpectFiltered(daemon.supervisor_pid());
    // The new supervisor starts workers and brokers as the first one did.
    daemon.KillBroker();
    ExpectBrokerConfined(daemon);
    actor.Do("release p");
    actor.Do("acquire p");
    actor.Allocate("c", 4096);
  }
}

TEST(ConfinementTest, BrokerWithoutLauncherIsReplaced) {
  TestDaemon daemon;
  {
    Actor actor(daemon);
    actor.Do("acquire p");
    const pid_t launcher = LauncherOf(daemon);
    const pid_t broker = daemon.broker();
    ASSERT_NE(launcher, 0);
    ASSERT_EQ(::kill(launcher, SIGKILL), 0);
    EXPECT_TRUE(Eventually([&] {
      const pid_t next = LauncherOf(daemon);
      return next != 0 && next != launcher && !IsAlive(broker);
    }));
    // The actor's own permit shows nothing: an acquire nests in it without a call.
    ExpectBrokerConfined(daemon);
    daemon.KillSupervisor();
    actor.Do("release p");
  }
}

}  // namespace
}  // namespace berth::testing
