// CTest with `berth ctest-spec` and `berth ctest-run`: real ctest runs over one daemon.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "berth/v1/permit.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kTests = 12;

class CtestTest : public ::testing::Test {
 protected:
  CtestTest()
      : daemon_({.flags = {"--host-devices=2", "--host-bytes=256MiB"},
                 .environment = {"BERTH_GPU_TEST_CONCURRENCY=3"}}),
        folder_(daemon_.folder() + "/../ctest") {
    fs::create_directory(folder_);
    fs::create_directory(folder_ / "inside");
  }

  void TearDown() override { daemon_.ExpectAccountsBack(); }

  Subprocess Start(std::vector<std::string> argv, std::vector<std::string> environment = {}) {
    environment.insert(environment.end(), {absl::StrCat("BERTH=", ProgramPath("client/cli/berth")),
                                           "BERTH_SESSION", absl::StrCat("BERTH_FOLDER=", daemon_.folder()),
                                           absl::StrCat("INSIDE=", inside().string())});
    // The variables of a CTest run that contains this test must not reach the inner runs.
    environment.insert(environment.begin(), {"CTEST_RESOURCE_GROUP_COUNT"});
    GiveToClients(folder_);
    return Subprocess::Start({.argv = std::move(argv), .environment = std::move(environment)});
  }
  Subprocess Berth(const std::string& words, std::vector<std::string> environment = {}) {
    return Start({"/bin/sh", "-c", absl::StrCat("exec $BERTH ", words, " 2>&1")}, std::move(environment));
  }
  int Run(const std::string& words, std::vector<std::string> environment = {}) {
    Subprocess command = Berth(words, std::move(environment));
    said_ = command.ReadAll();
    return command.Wait();
  }

  fs::path inside() const { return folder_ / "inside"; }

  // A project of tests that each print their device and the number of tests inside at once. A test stays until a second
  // test is inside, or until enough time has passed for one to come.
  fs::path MakeProject() {
    const fs::path source = folder_ / "source";
    fs::create_directory(source);
    std::ofstream(source / "one")
        << "#!/bin/sh\n"
           "mkdir $INSIDE/$$ || exit 1\n"
           "n=0; most=1\n"
           "while [ $n -lt 20 ]; do\n"
           "  now=$(ls $INSIDE | wc -l)\n"
           "  [ $now -gt $most ] && most=$now\n"
           "  n=$((n + 1))\n"
           "done\n"
           "rmdir $INSIDE/$$\n"
           "echo \"on $BERTH_DEVICE of $CTEST_RESOURCE_GROUP_0_GPUS most $most\" >>$LOG\n";
    fs::permissions(source / "one", fs::perms::owner_all);
    std::ofstream lists(source / "CMakeLists.txt");
    lists << "cmake_minimum_required(VERSION 3.16)\nproject(tests NONE)\nenable_testing()\n"
          << "foreach(i RANGE 1 " << kTests << ")\n"
          << "  add_test(NAME t${i} COMMAND $ENV{BERTH} ctest-run --timeout 60 -- ${CMAKE_SOURCE_DIR}/one)\n"
          << "  set_tests_properties(t${i} PROPERTIES RESOURCE_GROUPS \"gpus:1\")\n"
          << "endforeach()\n";
    return source;
  }

  // Starts one ctest run of the project, in its own build folder.
  Subprocess StartCtest(const fs::path& source, const std::string& name, const fs::path& spec) {
    const std::string build = (folder_ / name).string();
    return Start({"/bin/sh", "-c",
                  absl::StrCat("cmake -S ", source.string(), " -B ", build, " >/dev/null && cd ", build,
                               " && exec ctest --parallel 6 --output-on-failure --resource-spec-file ",
                               spec.string(), " 2>&1")},
                 {absl::StrCat("LOG=", (folder_ / (name + ".log")).string())});
  }

  TestDaemon daemon_;
  const fs::path folder_;
  std::string said_;
};

TEST_F(CtestTest, ConcurrentRunsDoNotCollide) {
  const fs::path spec = folder_ / "spec.json";
  ASSERT_EQ(Run(absl::StrCat("ctest-spec --output ", spec.string())), 0) << said_;
  const fs::path source = MakeProject();
  Subprocess first = StartCtest(source, "first", spec);
  Subprocess second = StartCtest(source, "second", spec);
  for (Subprocess* const run : {&first, &second}) {
    const std::string said = run->ReadAll();
    EXPECT_EQ(run->Wait(absl::Minutes(2)), 0) << said;
    EXPECT_TRUE(absl::StrContains(said, absl::StrCat("100% tests passed, 0 tests failed out of ", kTests)))
        << said;
  }
  int most = 0;
  std::set<std::string> devices;
  int lines = 0;
  for (const char* const name : {"first.log", "second.log"}) {
    std::ifstream log(folder_ / name);
    for (std::string line; std::getline(log, line); ++lines) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      ASSERT_EQ(words.size(), 6u) << line;
      devices.insert(words[1]);
      // The device is the one that CTest assigned.
      EXPECT_EQ(words[3], absl::StrCat("id:", words[1] == "HOST-0" ? "host_0" : "host_1", ",slots:1"))
          << line;
      most = std::max(most, std::stoi(words[5]));
    }
  }
  EXPECT_EQ(lines, 2 * kTests);
  EXPECT_EQ(devices, (std::set<std::string>{"HOST-0", "HOST-1"}));
  // By CTest's count, each run alone would have had four tests at once.
  EXPECT_LE(most, 3);
  const v1::ListPoolsResponse pools = Must(daemon_.inspector().ListPools());
  EXPECT_EQ(pools.pools(0).peak(), 3u);
  EXPECT_EQ(pools.pools(0).granted_total(), uint64_t{2 * kTests});
}

TEST_F(CtestTest, SpecificationHasServingDevices) {
  const std::string one = "{\"id\": \"host_0\", \"slots\": 2}";
  ASSERT_EQ(Run("ctest-spec"), 0) << said_;
  EXPECT_TRUE(absl::StrContains(said_, one) && absl::StrContains(said_, "\"host_1\"")) << said_;
  EXPECT_EQ(Run("ctest-spec --pool of-nobody"), 1) << said_;
  EXPECT_EQ(Run("ctest-spec --output /no/such/folder/spec.json"), 1) << said_;
  EXPECT_EQ(Run("--folder /nowhere ctest-spec"), 69) << said_;
}

TEST_F(CtestTest, TestTakesGivenSlots) {
  const std::vector<std::string> given = {"CTEST_RESOURCE_GROUP_COUNT=1", "CTEST_RESOURCE_GROUP_0=gpus",
                                          "CTEST_RESOURCE_GROUP_0_GPUS=id:host_1,slots:2"};
  const auto start = [&](const std::string& words) {
    return Start(
        {"/bin/sh", "-c", absl::StrCat("exec env ", absl::StrJoin(given, " "), " $BERTH ", words, " 2>&1")});
  };
  Subprocess test = start("ctest-run -- sh -c 'echo on $BERTH_DEVICE; read line; exit 4'");
  EXPECT_EQ(Must(test.ReadLine()), "on HOST-1");
  EXPECT_EQ(daemon_.TakeAccounts().units, 2u);
  // Two of three permits are granted.
  Subprocess beside = start("ctest-run --no-wait -- true");
  EXPECT_EQ(beside.Wait(), 75);
  test.CloseInput();
  EXPECT_EQ(test.Wait(), 4);
  Subprocess any = start("ctest-run --any-device -- sh -c 'echo on $BERTH_DEVICE'");
  EXPECT_TRUE(absl::StartsWith(Must(any.ReadLine()), "on HOST-"));
  EXPECT_EQ(any.Wait(), 0);
}

TEST_F(CtestTest, TestGivenTwoDevicesHasBoth) {
  const std::vector<std::string> given = {"CTEST_RESOURCE_GROUP_COUNT=2", "CTEST_RESOURCE_GROUP_0=gpus",
                                          "CTEST_RESOURCE_GROUP_0_GPUS=id:host_1,slots:1",
                                          "CTEST_RESOURCE_GROUP_1=gpus",
                                          "CTEST_RESOURCE_GROUP_1_GPUS=id:host_0,slots:"};
  const auto start = [&](const std::string& slots, const std::string& words) {
    return Start({"/bin/sh", "-c",
                  absl::StrCat("exec env ", absl::StrJoin(given, " "), slots, " $BERTH ctest-run ", words,
                               " -- sh -c 'echo on $BERTH_DEVICE; read line; exit 0' 2>&1")});
  };
  Subprocess named = start("2", "");
  EXPECT_EQ(Must(named.ReadLine()), "on HOST-0,HOST-1");
  EXPECT_EQ(daemon_.TakeAccounts().units, 3u);
  named.CloseInput();
  EXPECT_EQ(named.Wait(), 0);
  Subprocess any = start("1", "--any-device");
  EXPECT_EQ(Must(any.ReadLine()).size(), std::string("on HOST-0,HOST-1").size());
  EXPECT_EQ(daemon_.TakeAccounts().units, 2u);
  any.CloseInput();
  EXPECT_EQ(any.Wait(), 0);
}

TEST_F(CtestTest, OptionsThatCtestDeterminesAreRejected) {
  const auto run = [&](const std::string& words) {
    Subprocess command = Start(
        {"/bin/sh", "-c",
         absl::StrCat("exec env CTEST_RESOURCE_GROUP_COUNT=1 CTEST_RESOURCE_GROUP_0=gpus "
                      "CTEST_RESOURCE_GROUP_0_GPUS=id:host_1,slots:1 $BERTH ctest-run ",
                      words, " -- sh -c 'echo on $BERTH_DEVICE' 2>&1")});
    said_ = command.ReadAll();
    return command.Wait();
  };
  for (const char* const option : {"--gpus 2", "--permits 2", "--device HOST-0", "--min-capability 9.0",
                                   "--island-of HOST-0", "--any-device --gpus 2", "--any-device --permits 2"}) {
    EXPECT_EQ(run(option), 64) << option;
    EXPECT_TRUE(absl::StrContains(said_, "not allowed here, as CTest assigns the devices")) << said_;
  }
  // A preference among any devices is allowed, and so are options that add to the assigned device.
  EXPECT_EQ(run("--any-device --device best"), 0) << said_;
  EXPECT_EQ(run("--mem 1MiB --label mine"), 0) << said_;
  EXPECT_EQ(said_, "on HOST-1\n");
  EXPECT_EQ(Run("ctest-run --gpus 2 -- true"), 0) << said_;
}

TEST_F(CtestTest, TestWithoutSpecificationTakesSinglePermit) {
  EXPECT_EQ(Run("ctest-run -- sh -c 'echo on ${BERTH_DEVICE-none}; $BERTH permits | grep gpu-tests'"), 0) << said_;
  EXPECT_TRUE(absl::StartsWith(said_, "on none\n") && absl::StrContains(said_, "gpu-tests")) << said_;
  EXPECT_EQ(Run("ctest-run -- true", {"CTEST_RESOURCE_GROUP_0=gpus"}), 0) << said_;
}

TEST_F(CtestTest, InvalidOrMissingCtestDeviceIsRejected) {
  Subprocess gone = Start({"/usr/bin/env", "CTEST_RESOURCE_GROUP_COUNT=1", "CTEST_RESOURCE_GROUP_0=gpus",
                           "CTEST_RESOURCE_GROUP_0_GPUS=id:host_9,slots:1", "/bin/sh", "-c",
                           "exec $BERTH ctest-run -- true 2>&1"});
  EXPECT_EQ(
      gone.ReadAll(),
      "berth: CTest gave device host_9, which this node does not have: write the file again with `berth ctest-spec`\n");
  EXPECT_EQ(gone.Wait(), 125);
  Subprocess wrong = Start({"/usr/bin/env", "CTEST_RESOURCE_GROUP_COUNT=many", "/bin/sh", "-c",
                            "exec $BERTH ctest-run -- true 2>&1"});
  EXPECT_EQ(wrong.ReadAll(), "berth: CTEST_RESOURCE_GROUP_COUNT=\"many\" does not have the form that CTest writes\n");
  EXPECT_EQ(wrong.Wait(), 125);
}

}  // namespace
}  // namespace berth::testing
