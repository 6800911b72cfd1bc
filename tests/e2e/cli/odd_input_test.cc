// The `berth` command with words that name nothing, and with a daemon that does not answer.

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

// Prints stderr to stdout, too.
const Words kWithErrors = {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"};
// Waits as the product does.
const Words kImpatient = {"/usr/bin/env", "BERTH_TEST_PATIENCE=1", "/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"};

// Verbs of each way to reach the daemon: a session, an observer, an operator; with one answer and with many.
const std::vector<Words> kVerbs = {{"run", "--", "/bin/true"},
                                   {"run", "--no-wait", "--", "/bin/true"},
                                   {"acquire", "--shell"},
                                   {"ctest-spec"},
                                   {"status"},
                                   {"--observer", "status"},
                                   {"--admin", "status"},
                                   {"permits"},
                                   {"health"},
                                   {"devices", "--watch"},
                                   {"log", "--follow"},
                                   {"config"},
                                   {"device", "drain", "0"},
                                   {"stop", "--yes"}};

void ExpectSilenceIsReported(const BerthCommand& berth) {
  std::vector<Subprocess> commands;
  for (const Words& words : kVerbs) commands.push_back(berth.Start(words, kImpatient));
  for (size_t i = 0; i < commands.size(); ++i) {
    const std::string said = Must(commands[i].ReadLine());
    EXPECT_TRUE(absl::StrContains(said, "berth: waiting for the daemon, which has not answered on "))
        << absl::StrJoin(kVerbs[i], " ") << ": " << said;
    commands[i].Kill();
    commands[i].Wait();
  }
}

TEST(OddInputTest, StoppedBrokerIsReportedWhileVerbsWait) {
  TestDaemon daemon;
  const pid_t broker = daemon.StopBroker();
  ExpectSilenceIsReported(BerthCommand(daemon.folder()));
  ASSERT_EQ(::kill(broker, SIGCONT), 0);
}

// The broker stops after the session was opened: calls on the side channel are reported as those over gRPC are.
TEST(OddInputTest, StoppedBrokerIsReportedDuringLaterCalls) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=8"}});
  const struct {
    const char* before;
    const char* call;
  } rows[] = {{"", "acquire p try"}, {"acquire p", "release p"}, {"acquire p", "end"}, {"", "allocate b 4096"}};
  {
    std::deque<Actor> actors;
    for (const auto& row : rows) {
      Actor& actor = actors.emplace_back(daemon,
                                         ActorOptions{.environment = {"BERTH_TEST_PATIENCE=1"}, .open = false});
      actor.Do("open silence");
      if (*row.before != '\0') actor.Do(row.before);
    }
    // A wrapper ends its session after its command.
    Subprocess run = BerthCommand(daemon.folder()).Start({"run", "--", "/bin/sh", "-c", "echo in; read line; exit 9"},
                                                         kImpatient);
    EXPECT_EQ(Must(run.ReadLine()), "in");
    const pid_t broker = daemon.StopBroker();
    for (size_t i = 0; i < std::size(rows); ++i) actors[i].SendLine(rows[i].call);
    run.WriteLine("go");
    for (size_t i = 0; i < std::size(rows); ++i) {
      const std::string said = Must(actors[i].process().ReadLine());
      EXPECT_TRUE(absl::StartsWith(said, absl::StrCat("silent ", daemon.folder(), "/")))
          << rows[i].call << ": " << said;
    }
    const std::string said = Must(run.ReadLine());
    EXPECT_TRUE(absl::StrContains(said, "berth: waiting for the daemon, which has not answered on ")) << said;
    ASSERT_EQ(::kill(broker, SIGCONT), 0);
    EXPECT_EQ(run.Wait(), 9);
    // The calls end as the time of the continuation has it: with the answer, or late.
    for (Actor& actor : actors) actor.Answer().IgnoreError();
    for (Actor& actor : actors) actor.Quit();
  }
  daemon.ExpectAccountsBack();
}

// A program that is no daemon, or a daemon whose queue of connections is full.
TEST(OddInputTest, SocketsOfNoDaemonAreReportedWhileVerbsWait) {
  for (const bool full : {false, true}) {
    std::string folder = "/tmp/berth-odd-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    std::filesystem::permissions(folder, std::filesystem::perms::all);
    std::vector<UniqueFd> sockets;
    for (const char* const name : {"attach.sock", "admin-attach.sock", "berthd.sock", "admin.sock", "observer.sock"}) {
      const int type = absl::StrContains(name, "attach") ? SOCK_SEQPACKET : SOCK_STREAM;
      const std::string path = absl::StrCat(folder, "/", name);
      sockaddr_un address = {.sun_family = AF_UNIX};
      ::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
      const auto* const at = reinterpret_cast<const sockaddr*>(&address);
      const int listener = sockets.emplace_back(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0)).get();
      ASSERT_EQ(::bind(listener, at, sizeof(address)), 0) << OsError(path, errno);
      std::filesystem::permissions(path, std::filesystem::perms::all);
      const bool fills = full && type == SOCK_SEQPACKET;
      ASSERT_EQ(::listen(listener, fills ? 0 : 64), 0) << OsError(path, errno);
      if (!fills) continue;
      const int client = sockets.emplace_back(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0)).get();
      ASSERT_EQ(::connect(client, at, sizeof(address)), 0) << OsError(path, errno);
    }
    ExpectSilenceIsReported(BerthCommand(folder));
    std::filesystem::remove_all(folder);
  }
}

class OddWordsTest : public ::testing::Test {
 protected:
  void ExpectEnd(const Words& words, int code, const std::string& says) {
    Subprocess command = berth_.Start(words, kWithErrors);
    const std::string said = command.ReadAll();
    EXPECT_EQ(command.Wait(), code) << absl::StrJoin(words, " ") << ": " << said;
    EXPECT_TRUE(absl::StrContains(said, says)) << absl::StrJoin(words, " ") << ": " << said;
  }

  TestDaemon daemon_;
  const BerthCommand berth_{daemon_.folder()};
};

TEST_F(OddWordsTest, UnknownNameEndsWithOne) {
  for (const Words& words : std::vector<Words>{{"blocks", "clear-torn", "4711"},
                                               {"blocks", "free", "4711"},
                                               {"blocks", "recall", "4711"},
                                               {"blocks", "unpublish", "4711"},
                                               {"blocks", "unpublish", "4711", "--tenant", "0"},
                                               {"permits", "set", "4711", "3"},
                                               {"permits", "revoke", "4711"},
                                               {"permits", "--pool", "4711"},
                                               {"sessions", "end", "4711"},
                                               {"budget", "set", "--device", "4711", "1GiB"},
                                               {"budget", "set", "--session", "4711", "1GiB"},
                                               {"device", "enable", "4711"},
                                               {"device", "drain", "4711"},
                                               {"device", "undrain", "4711"},
                                               {"device", "restart", "4711"},
                                               {"device", "restart-context", "4711"},
                                               {"device", "reset", "--yes", "4711"},
                                               {"device", "drop", "--yes", "4711"},
                                               {"plans", "4711"},
                                               {"explain", "4711"},
                                               {"ctest-spec", "--pool", "4711"}}) {
    ExpectEnd(words, 1, "4711");
  }
}

// For every verb but `run` and `ctest-run`, "--" ends the options, and further words are arguments.
TEST_F(OddWordsTest, WordsAfterEndOfOptionsAreArguments) {
  const std::string path = absl::StrCat(daemon_.folder(), "/-w");
  std::ofstream(path) << "weights";
  ExpectEnd({"blocks", "publish", "--", "-w", path}, 0, "-w: 7 B");
  ExpectEnd({"blocks", "publish", "--replace", "--", "-w", path}, 0, "-w: 7 B");
  ExpectEnd({"blocks", "publish", "--", "--name=", path}, 0, "--name=: 7 B");
  ExpectEnd({"blocks", "unpublish", "--", "-w"}, 0, "");
  ExpectEnd({"blocks", "unpublish", "--", "--name="}, 0, "");
  ExpectEnd({"permits", "revoke", "--", "4711"}, 1, "4711");
  ExpectEnd({"status", "--"}, 0, "");
  for (const Words& words : std::vector<Words>{{"status", "--", "soon"},
                                               {"stop", "--", "--yes"},
                                               {"reset", "--", "soon"},
                                               {"acquire", "--shell", "--", "/bin/true"},
                                               {"acquire", "--shell", "--", "--foo"},
                                               {"acquire", "--", "--shell"},
                                               {"status", "--", "--json"},
                                               {"permits", "--", "--admin"},
                                               {"blocks", "publish", "--", "a", "b", "recall"},
                                               {"release", "--", "4711"},
                                               {"permits", "revoke", "--", "1", "2"}}) {
    ExpectEnd(words, 64, words.back());
  }
}

TEST_F(OddWordsTest, AcquireWithEndOfOptionsHoldsOnePermit) {
  // The client's user may send it a signal.
  const Subprocess owner = Subprocess::Start({.argv = {"/bin/cat"}});
  const Words words = {"--json", "acquire", absl::StrCat("--owner=", owner.pid()), "--on-revoke=USR1", "--"};
  Subprocess acquire = berth_.Start(words, kWithErrors);
  const std::string said = acquire.ReadAll();
  EXPECT_EQ(acquire.Wait(), 0) << said;
  EXPECT_EQ(daemon_.TakeAccounts().permits, 1u);
  const Json answer = Json::parse(said, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(answer.is_object()) << said;
  ::kill(answer["keeper"].get<pid_t>(), SIGTERM);
  EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 0; }));
}

TEST_F(OddWordsTest, NumberOutOfRangeIsReportedWithOptionAndLimit) {
  for (const auto& [words, says] : std::vector<std::pair<Words, const char*>>{
           {{"run", "--timeout", "0x10", "--", "/bin/true"}, "--timeout: \"0x10\" is not a time such as"},
           {{"history", "--since", "0x10"}, "--since: \"0x10\" is neither a duration"},
           {{"run", "--priority", "soon", "--", "/bin/true"}, "--priority: \"soon\" is not a whole number from -10 to"},
           {{"run", "--priority", "11", "--", "/bin/true"}, "\"11\" is not a whole number from -10 to 10"},
           {{"run", "--status-fd", "99999999999", "--", "/bin/true"}, "is not a whole number from 0 to 2147483647"},
           {{"run", "--status-fd", "-1", "--", "/bin/true"}, "--status-fd: \"-1\" is not a whole number from 0"},
           {{"acquire", "--shell", "--owner", "99999999999"}, "--owner: \"99999999999\" is not a "}}) {
    ExpectEnd(words, 64, says);
  }
}

TEST_F(OddWordsTest, EmptyValueIsUsageErrorAndChangesNothing) {
  const std::string before = berth_.Show({"budget", "show"});
  for (const Words& words : std::vector<Words>{{"--folder", "", "status"},
                                               {"--folder=", "status"},
                                               {"status", "--folder", ""},
                                               {"run", "--status-file", "", "--", "/bin/true"},
                                               {"run", "--status-fd", "", "--", "/bin/true"},
                                               {"run", "--timeout", "", "--", "/bin/true"},
                                               {"run", "--mem", "", "--", "/bin/true"},
                                               {"run", "--pool", "", "--", "/bin/true"},
                                               {"run", "--pool=", "gpu-tests", "--", "/bin/true"},
                                               {"run", "--timeout=", "--quiet", "--", "/bin/true"},
                                               {"acquire", "--owner", ""},
                                               {"ctest-spec", "--output", ""},
                                               {"permits", "--pool", ""},
                                               {"history", "--since", ""},
                                               {"history", "--since=", "--until=1d"},
                                               {"plans", ""},
                                               {"blocks", "publish", "weights", ""},
                                               {"blocks", "unpublish", "weights", "--tenant", ""},
                                               {"device", "drain", ""},
                                               {"permits", "set", "gpu-tests", "--ageing", ""},
                                               {"budget", "set", "--session", "", "1MiB"},
                                               {"stop", "--yes", "--drain", "--timeout", ""}}) {
    ExpectEnd(words, 64, "the value is empty");
  }
  EXPECT_EQ(berth_.Show({"budget", "show"}), before);
  // Free text may be empty.
  EXPECT_EQ(berth_.Run({"run", "--label", "", "--", "/bin/true"}), 0);
  EXPECT_EQ(berth_.Run({"run", "--label=", "--quiet", "--", "/bin/true"}), 0);
}

}  // namespace
}  // namespace berth::testing
