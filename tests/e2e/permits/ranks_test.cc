// A lease of a whole node's GPUs, as a training job uses it: a stock daemon of eight devices, and ranks inside the
// lease.

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "berth/v1/permit.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr char kAll[] = "HOST-0,HOST-1,HOST-2,HOST-3,HOST-4,HOST-5,HOST-6,HOST-7";

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

class RanksTest : public ::testing::Test {
 protected:
  RanksTest() : daemon_({.flags = {"--host-devices=8", "--host-bytes=64MiB"}}) {}
  void TearDown() override { daemon_.ExpectAccountsBack(); }

  // Returns the output of `VARIABLES berth run WORDS... -- sh -c SCRIPT`, and expects it to succeed. "$BERTH" in the
  // script is `berth`.
  std::string Run(std::vector<std::string> words, const std::string& script, const std::string& variables = "") {
    std::vector<std::string> argv = {
        "/bin/sh", "-c", absl::StrCat("exec env ", variables, " \"$BERTH\" run \"$@\" 2>&1"), "sh"};
    argv.insert(argv.end(), words.begin(), words.end());
    argv.insert(argv.end(), {"--", "/bin/sh", "-c", script});
    Subprocess command =
        Subprocess::Start({.argv = argv,
                           .environment = {absl::StrCat("BERTH=", ProgramPath("client/cli/berth")),
                                           absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION",
                                           "BERTH_RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                           "SLURM_LOCALID", "MPI_LOCALRANKID", "CUDA_VISIBLE_DEVICES=7,3"}});
    const std::string said = command.ReadAll();
    EXPECT_EQ(command.Wait(), 0) << said;
    return said;
  }

  TestDaemon daemon_;
};

TEST_F(RanksTest, NodeLeasesAllDevicesInOrdinalOrder) {
  EXPECT_EQ(Run({"--gpus", "8"}, "echo $BERTH_DEVICE"), absl::StrCat(kAll, "\n"));
  const v1::ListPoolsResponse pools = Must(daemon_.inspector().ListPools());
  EXPECT_EQ(pools.pools(0).cap(), 8u);
  EXPECT_EQ(pools.pools(0).no_device_cap(), 2u);
}

struct StartLine {
  const char* name;
  int devices;
  // An entry of the daemon's environment, or the text of its configuration file; empty for none.
  const char* environment;
  const char* config;
  // The pool's part of the daemon's log at its start.
  const char* line;
};

class StartLineTest : public ::testing::TestWithParam<StartLine> {};

INSTANTIATE_TEST_SUITE_P(
    Nodes, StartLineTest,
    ::testing::Values(StartLine{"OneDevice", 1, "", "", "cap 2, cap without a device 2, devices on this node 1"},
                      StartLine{"TwoDevices", 2, "", "", "cap 2, cap without a device 2, devices on this node 2"},
                      StartLine{"EightDevices", 8, "", "", "cap 8, cap without a device 2, devices on this node 8"},
                      StartLine{"Environment", 8, "BERTH_GPU_TEST_CONCURRENCY=3", "",
                                "cap 3, cap without a device 3, devices on this node 8"},
                      StartLine{"InvalidEnvironment", 8, "BERTH_GPU_TEST_CONCURRENCY=many", "",
                                "cap 2, cap without a device 2, devices on this node 8"},
                      StartLine{"Configuration", 8, "", "[pools.gpu-tests]\ncap = 5\n",
                                "cap 5, cap without a device 5, devices on this node 8"}),
    [](const auto& info) { return info.param.name; });

TEST_P(StartLineTest, DaemonLogsCapOfGpuTests) {
  const StartLine& node = GetParam();
  const std::string log = absl::StrCat(::testing::TempDir(), "/start-line-", ::getpid());
  TestDaemonOptions options = {.flags = {absl::StrCat("--host-devices=", node.devices)},
                               .config = node.config,
                               .errors = log};
  if (*node.environment != '\0') options.environment = {node.environment};
  const TestDaemon daemon(options);
  std::stringstream said;
  said << std::ifstream(log).rdbuf();
  ::unlink(log.c_str());
  EXPECT_TRUE(absl::StrContains(said.str(), absl::StrCat("pool gpu-tests: ", node.line, "\n"))) << said.str();
}

TEST_F(RanksTest, PermitsWithoutDeviceHaveOwnCapOfTwo) {
  Actor first(daemon_), second(daemon_);
  first.Do("acquire p");
  second.Do("acquire p");
  Subprocess third = Subprocess::Start(
      {.argv = {ProgramPath("client/cli/berth"), "run", "--no-wait", "--", "/bin/true"},
       .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION"}});
  EXPECT_EQ(third.Wait(), 75);
  EXPECT_EQ(Run({"--gpus", "6", "--no-wait"}, "echo $BERTH_DEVICE | tr , '\\n' | wc -l"), "6\n");
  first.Quit();
  second.Quit();
}

TEST_F(RanksTest, NestingWithoutDeviceOptionsChangesNothing) {
  const std::string shown = "echo $BERTH_DEVICE ${CUDA_VISIBLE_DEVICES-unset} ${CUDA_DEVICE_ORDER-unset}";
  const std::string twice = absl::StrCat(shown, "; \"$BERTH\" run -- /bin/sh -c '", shown, "'");
  for (const auto& words : {std::vector<std::string>{"--gpus", "8"}, {"--gpus", "1"}, {}}) {
    const std::string said = Run(words, twice);
    const size_t half = said.size() / 2;
    EXPECT_EQ(said.substr(0, half), said.substr(half)) << absl::StrJoin(words, " ") << ": " << said;
    EXPECT_TRUE(absl::StrContains(said, "7,3 unset")) << said;
  }
}

TEST_F(RanksTest, EachRankTakesDeviceOfItsNumber) {
  const std::string ranks =
      "for rank in 0 1 2 3 4 5 6 7; do"
      "  LOCAL_RANK=$rank \"$BERTH\" run --gpus 1 -- /bin/sh -c 'echo $BERTH_DEVICE'; "
      "done";
  std::string one_each;
  for (int i = 0; i < 8; ++i) absl::StrAppend(&one_each, "HOST-", i, "\n");
  EXPECT_EQ(Run({"--gpus", "8"}, ranks), one_each);
  const std::string beyond =
      Run({"--gpus", "2"}, "SLURM_LOCALID=3 \"$BERTH\" run --gpus 1 -- /bin/sh -c 'echo $BERTH_DEVICE'");
  EXPECT_TRUE(absl::StrContains(beyond, "SLURM_LOCALID 3: shares device HOST-1 with rank 1")) << beyond;
  EXPECT_TRUE(absl::EndsWith(beyond, "\nHOST-1\n")) << beyond;
}

// Every way to request any device of the lease, by the rank's number and without one.
TEST_F(RanksTest, EveryRequestForAnyDeviceIsTheRanks) {
  const std::string show = " -- /bin/sh -c 'echo $BERTH_DEVICE'; ";
  for (const char* const words : {"--device any", "--gpus 1 --device any", "--mem 1MiB", "--gpus 1 --mem 1MiB"}) {
    std::string script, expected;
    for (const int rank : {3, 1}) {
      absl::StrAppend(&script, "LOCAL_RANK=", rank, " \"$BERTH\" run ", words, show);
      absl::StrAppend(&expected, "HOST-", rank, "\n");
    }
    EXPECT_EQ(Run({"--gpus", "4", "--mem", "2MiB"}, script), expected) << words;
    // Runs without device options, two of which stay, are on no device: the next run gets the same device as before.
    const std::string plain =
        "folder=$(mktemp -d); mkfifo $folder/there $folder/end; exec 3<>$folder/there 4<>$folder/end; rm -r $folder;"
        "for i in 1 2; do \"$BERTH\" run -- /bin/sh -c 'echo >&3; read line <&4' & read line <&3; done;";
    const std::string one = absl::StrCat("\"$BERTH\" run ", words, show);
    const std::string said =
        Run({"--gpus", "2", "--mem", "2MiB"}, absl::StrCat(one, plain, one, "printf '\\n\\n' >&4; wait"));
    const size_t half = said.size() / 2;
    EXPECT_EQ(said.substr(0, half), said.substr(half)) << words << ": " << said;
    EXPECT_TRUE(absl::StartsWith(said, "HOST-")) << words << ": " << said;
  }
  // A choice by the user comes first.
  EXPECT_EQ(Run({"--gpus", "4"}, absl::StrCat("LOCAL_RANK=3 \"$BERTH\" run --devices 2", show)), "HOST-2\n");
  EXPECT_EQ(Run({"--gpus", "4"}, absl::StrCat("LOCAL_RANK=3 \"$BERTH\" run --device HOST-1", show)), "HOST-1\n");
}

// The variables in their order: the first one that is set to a number decides.
TEST_F(RanksTest, FirstVariableWithNumberDecides) {
  const struct {
    const char* variables;
    // Empty where no variable has a number: any device, as all have as many nested runs.
    const char* decides;
    const char* device;
  } rows[] = {
      {"LOCAL_RANK=3", "LOCAL_RANK", "HOST-3"},
      {"OMPI_COMM_WORLD_LOCAL_RANK=3", "OMPI_COMM_WORLD_LOCAL_RANK", "HOST-3"},
      {"SLURM_LOCALID=3", "SLURM_LOCALID", "HOST-3"},
      {"MPI_LOCALRANKID=3", "MPI_LOCALRANKID", "HOST-3"},
      {"MPI_LOCALRANKID=4 SLURM_LOCALID=3 OMPI_COMM_WORLD_LOCAL_RANK=2 LOCAL_RANK=1", "LOCAL_RANK", "HOST-1"},
      {"MPI_LOCALRANKID=4 SLURM_LOCALID=3 OMPI_COMM_WORLD_LOCAL_RANK=2", "OMPI_COMM_WORLD_LOCAL_RANK", "HOST-2"},
      {"MPI_LOCALRANKID=4 SLURM_LOCALID=3", "SLURM_LOCALID", "HOST-3"},
      {"SLURM_LOCALID=3 LOCAL_RANK=", "SLURM_LOCALID", "HOST-3"},
      {"SLURM_LOCALID=3 LOCAL_RANK=x", "SLURM_LOCALID", "HOST-3"},
      {"SLURM_LOCALID=3 LOCAL_RANK=-1", "SLURM_LOCALID", "HOST-3"},
      {"SLURM_LOCALID=3 LOCAL_RANK=1.5", "SLURM_LOCALID", "HOST-3"},
      {"SLURM_LOCALID=3 LOCAL_RANK=18446744073709551616", "SLURM_LOCALID", "HOST-3"},
      {"LOCAL_RANK=", "", ""},
      {"SLURM_LOCALID=x MPI_LOCALRANKID=-1", "", ""},
      // The rank modulo the number of devices, here 5.
      {"LOCAL_RANK=99", "LOCAL_RANK", "HOST-4"},
      {"MPI_LOCALRANKID=5", "MPI_LOCALRANKID", "HOST-0"},
  };
  std::string script;
  for (const auto& row : rows) {
    absl::StrAppend(&script, row.variables, " \"$BERTH\" run --gpus 1 -- /bin/sh -c 'echo $BERTH_DEVICE'; echo end; ");
  }
  const std::vector<std::string> said = absl::StrSplit(Run({"--gpus", "5"}, script), "end\n", absl::SkipEmpty());
  ASSERT_EQ(said.size(), std::size(rows));
  for (size_t i = 0; i < said.size(); ++i) {
    SCOPED_TRACE(rows[i].variables);
    const absl::string_view device = rows[i].device;
    if (device.empty()) {
      EXPECT_TRUE(absl::StartsWith(said[i], "HOST-") && said[i].size() == 7) << said[i];
      continue;
    }
    EXPECT_TRUE(absl::EndsWith(said[i], absl::StrCat(device, "\n"))) << said[i];
    // A rank within the devices shares with no other, and nothing is said.
    const bool shares = absl::StrContains(rows[i].variables, "99") || absl::StrContains(rows[i].variables, "=5");
    if (!shares) {
      EXPECT_EQ(said[i], absl::StrCat(device, "\n"));
    } else {
      EXPECT_TRUE(absl::StrContains(said[i], absl::StrCat("berth: ", rows[i].decides, " "))) << said[i];
      EXPECT_TRUE(absl::StrContains(said[i], absl::StrCat("shares device ", device))) << said[i];
    }
  }
}

TEST_F(RanksTest, UnnumberedRanksSpreadOverDevices) {
  // Each rank stays until all have their devices.
  const std::string ranks =
      "folder=$(mktemp -d); mkfifo $folder/there $folder/end; exec 3<>$folder/there 4<>$folder/end; rm -r $folder;"
      "for rank in 1 2 3 4; do"
      "  \"$BERTH\" run --gpus 1 -- /bin/sh -c 'echo $BERTH_DEVICE; echo >&3; read line <&4' &"
      "done;"
      "for rank in 1 2 3 4; do read line <&3; done; printf '\\n\\n\\n\\n' >&4; wait";
  const std::string said = Run({"--gpus", "2"}, ranks);
  for (const char* const device : {"HOST-0", "HOST-1"}) {
    EXPECT_EQ(Count(said, absl::StrCat(device, "\n")), 2) << said;
    // The second rank on the device says it.
    const std::string shares = "berth: shares device %s with 1 other run of the lease, which has 2 devices\n";
    EXPECT_EQ(Count(said, absl::StrReplaceAll(shares, {{"%s", device}})), 1) << said;
  }
  EXPECT_EQ(Count(said, "shares"), 2) << said;
  EXPECT_EQ(Count(Run({"--gpus", "4"}, ranks), "shares"), 0) << "as many devices as ranks";
}

// A rank's own runs are no ranks, nor is a number that the lease's holder has inherited the number of a rank inside the
// lease.
TEST_F(RanksTest, OnlyRanksOfLeaseAreSaidToShare) {
  const std::string run = "\"$BERTH\" run --gpus 1 --";
  const std::string inside = absl::StrCat(run, " /bin/sh -c 'echo $BERTH_DEVICE'");
  const struct {
    const char* name;
    std::vector<std::string> words;
    std::string script;
    const char* variables;
    // Empty: nothing is said.
    const char* says;
  } rows[] = {
      {"a run inside a rank", {"--gpus", "8"}, absl::StrCat("LOCAL_RANK=3 ", run, " ", run, " true"), "", ""},
      {"a run inside a run inside a rank",
       {"--gpus", "8"},
       absl::StrCat("LOCAL_RANK=3 ", run, " \"$BERTH\" run -- \"$BERTH\" run --gpus 1 -- ", run, " true"),
       "",
       ""},
      {"a launcher inside a rank",
       {"--gpus", "8"},
       absl::StrCat("LOCAL_RANK=3 ", run, " env LOCAL_RANK=1 ", run, " true"),
       "",
       ""},
      {"a run inside a rank without a number", {"--gpus", "2"}, absl::StrCat(run, " ", run, " true"), "", ""},
      {"a rank beyond the lease's devices",
       {"--gpus", "2"},
       absl::StrCat("LOCAL_RANK=3 ", inside),
       "",
       "berth: LOCAL_RANK 3: shares device HOST-1 with rank 1: the lease has 2 devices\nHOST-1\n"},
      {"ranks of one device",
       {"--gpus", "1"},
       absl::StrCat("LOCAL_RANK=1 ", inside),
       "",
       "berth: LOCAL_RANK 1: shares device HOST-0 with rank 0: the lease has 1 device\nHOST-0\n"},
      {"a lease that is a rank's", {"--gpus", "1"}, absl::StrCat(run, " true"), "LOCAL_RANK=3", ""},
      {"ranks in a lease that is a rank's",
       {"--gpus", "2"},
       absl::StrCat("LOCAL_RANK=2 ", inside),
       "SLURM_LOCALID=3",
       "berth: LOCAL_RANK 2: shares device HOST-0 with rank 0: the lease has 2 devices\nHOST-0\n"},
  };
  for (const auto& row : rows) EXPECT_EQ(Run(row.words, row.script, row.variables), row.says) << row.name;
}

}  // namespace
}  // namespace berth::testing
