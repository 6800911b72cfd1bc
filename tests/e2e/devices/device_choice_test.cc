// Device selection by commands: a stock daemon of eight devices with names like CUDA's, through the command line.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/resources.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/node_file.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// GPU-a-0 to GPU-a-7.
constexpr char kDevices[] = "[[device]]\ncount = 8\nuuid = \"GPU-a\"\nmemory = \"64MiB\"";

class DeviceChoiceTest : public ::testing::Test {
 protected:
  DeviceChoiceTest() : node_(kDevices), daemon_({.flags = {node_.flag(), "--host-bytes=64MiB"}}) {}
  void TearDown() override { daemon_.ExpectAccountsBack(); }

  struct Outcome {
    int code = 0;
    std::string said;
  };
  // Starts `berth WORDS...` with CUDA_VISIBLE_DEVICES=`visible` ("unset" for none); captures both outputs.
  Subprocess Start(const std::string& visible, const std::vector<std::string>& words) {
    std::vector<std::string> argv = {"/bin/sh", "-c", "exec \"$BERTH\" \"$@\" 2>&1", "sh"};
    argv.insert(argv.end(), words.begin(), words.end());
    const std::string bound = visible == "unset" ? "" : absl::StrCat("=", visible);
    return Subprocess::Start(
        {.argv = argv,
         .environment = {absl::StrCat("BERTH=", ProgramPath("client/cli/berth")),
                         absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION", "BERTH_DEVICE",
                         "BERTH_VISIBLE_DEVICES", "LOCAL_RANK", "SLURM_LOCALID",
                         absl::StrCat("CUDA_VISIBLE_DEVICES", bound)}});
  }
  Outcome Run(const std::string& visible, const std::vector<std::string>& words) {
    Subprocess command = Start(visible, words);
    Outcome outcome;
    outcome.said = command.ReadAll();
    outcome.code = command.Wait();
    return outcome;
  }
  // As above, for `berth run WORDS... -- sh -c SCRIPT`.
  Outcome RunScript(const std::string& visible, std::vector<std::string> words, const std::string& script) {
    words.insert(words.begin(), "run");
    words.insert(words.end(), {"--", "/bin/sh", "-c", script});
    return Run(visible, words);
  }

  NodeFile node_;
  TestDaemon daemon_;
};

TEST_F(DeviceChoiceTest, VisibleDevicesAndOptionsBoundChoice) {
  // More than a request holds.
  std::string long_list = "1";
  while (long_list.size() < 6'000) long_list += ",1";
  const struct {
    const char* visible;
    std::vector<std::string> words;
    int code;
    // The devices printed, or a part of the error.
    const char* says;
  } kCases[] = {
      {"unset", {"--gpus", "1"}, 0, "GPU-a-0\n"},
      {"2,3", {"--gpus", "1"}, 0, "GPU-a-2\n"},
      {"3,2", {"--gpus", "2"}, 0, "GPU-a-2,GPU-a-3\n"},
      {"2,3", {"--gpus", "3"}, 125, "leave 2 of the node's 8: request fewer"},
      {"GPU-a-5", {"--gpus", "1"}, 0, "GPU-a-5\n"},
      {"GPU-a-5,-1,2", {"--gpus", "2"}, 125, "leave 1 of the node's 8"},
      {"2,3", {"--device", "best"}, 0, "GPU-a-2\n"},
      {"2,3", {"--device", "3"}, 0, "GPU-a-3\n"},
      {"2,3", {"--device", "4"}, 125, "asked device GPU-a-4; the caller's CUDA_VISIBLE_DEVICES=\"2,3\" excludes it"},
      {"2,3", {"--device", "1", "--devices", "1,2"}, 125, "CUDA_VISIBLE_DEVICES=\"2,3\" excludes it"},
      {"2,3", {"--mem", "1MiB"}, 0, "GPU-a-2\n"},
      {"unset", {"--mem", "10MB", "--timeout", "2d"}, 0, "GPU-a-0\n"},
      {"unset", {"--mem", "20G"}, 125, "asked 21474836480 bytes of a device"},
      // A command that requests no device has nothing to restrict.
      {"", {}, 0, "\n"},
      {"x", {}, 0, "\n"},
      {long_list.c_str(), {}, 0, "\n"},
      {long_list.c_str(), {"--gpus", "1"}, 125, "invalid CUDA_VISIBLE_DEVICES \"1\u2026\": expected ordinals"},
      {"", {"--gpus", "1"}, 125, "CUDA_VISIBLE_DEVICES=\"\" excludes all of them"},
      {"-1", {"--gpus", "1"}, 125, "CUDA_VISIBLE_DEVICES=\"-1\" excludes all of them"},
      {"NoDevFiles", {"--gpus", "1"}, 125, "excludes all of them"},
      {"all", {"--gpus", "1"}, 125, "invalid CUDA_VISIBLE_DEVICES \"all\": expected ordinals"},
      {"8", {"--gpus", "1"}, 125, "CUDA_VISIBLE_DEVICES: no device 8: this node has 0 (GPU-a-0)"},
      {"GPU-a", {"--gpus", "1"}, 125, "CUDA_VISIBLE_DEVICES: device GPU-a matches"},
      {"unset", {"--devices", "6,GPU-a-4"}, 0, "GPU-a-4\n"},
      {"unset", {"--devices", "6,GPU-a-4", "--gpus", "2"}, 0, "GPU-a-4,GPU-a-6\n"},
      {"4,5", {"--devices", "6,5", "--gpus", "1"}, 0, "GPU-a-5\n"},
      {"4,5", {"--devices", "6,7"}, 125, "one of 6, 7; the caller's CUDA_VISIBLE_DEVICES=\"4,5\" excludes all"},
      {"unset", {"--devices", "9"}, 125, "no device 9"},
      {"unset", {"--devices", "GPU"}, 125, "device GPU matches"},
      {"unset", {"--devices", "1", "--device", "0"}, 125, "asked device GPU-a-0; it is none of GPU-a-1"},
      {"unset", {"--gpus", "2", "--ordinals"}, 0, "0,1\n"},
      {"GPU-a-3,GPU-a-2", {"--gpus", "2", "--ordinals"}, 0, "2,3\n"},
  };
  for (const auto& each : kCases) {
    SCOPED_TRACE(absl::StrCat("CUDA_VISIBLE_DEVICES ", each.visible, ", ", absl::StrJoin(each.words, " ")));
    const Outcome outcome = RunScript(each.visible, each.words, "echo $BERTH_DEVICE");
    EXPECT_EQ(outcome.code, each.code) << outcome.said;
    if (each.code == 0) {
      EXPECT_EQ(outcome.said, each.says);
    } else {
      EXPECT_TRUE(absl::StrContains(outcome.said, each.says)) << outcome.said;
    }
  }
}

TEST_F(DeviceChoiceTest, NestedRunObeysOuterBoundAndLauncher) {
  const std::string nested = " \"$BERTH\" run --gpus 1 --independent -- /bin/sh -c 'echo $BERTH_DEVICE'";
  // The least used of the devices that restrict the outer run.
  EXPECT_EQ(RunScript("4,5", {"--device", "4"}, nested).said, "GPU-a-5\n");
  // On a CUDA node the outer run sets the variable to its device, which restricts nothing.
  EXPECT_EQ(RunScript("4,5", {"--device", "4"}, absl::StrCat("CUDA_VISIBLE_DEVICES=$BERTH_DEVICE", nested)).said,
            "GPU-a-5\n");
  EXPECT_EQ(RunScript("unset", {"--device", "4"}, absl::StrCat("CUDA_VISIBLE_DEVICES=$BERTH_DEVICE", nested)).said,
            "GPU-a-0\n");
  // A launcher gives each of its ranks one device, in any order.
  const std::string ranks =
      "for device in GPU-a-7 GPU-a-6; do CUDA_VISIBLE_DEVICES=$device LOCAL_RANK=0"
      " \"$BERTH\" run --gpus 1 -- /bin/sh -c 'echo $BERTH_DEVICE'; done";
  EXPECT_EQ(RunScript("unset", {"--devices", "6,7", "--gpus", "2"}, ranks).said, "GPU-a-7\nGPU-a-6\n");
  const std::string numbered = "LOCAL_RANK=1 \"$BERTH\" run --gpus 1 -- /bin/sh -c 'echo $BERTH_DEVICE'";
  EXPECT_EQ(RunScript("4,5", {"--gpus", "2", "--ordinals"}, numbered).said, "GPU-a-5\n");
}

// Every command that takes a permit obeys the variable, not only `berth run`.
TEST_F(DeviceChoiceTest, VisibleDevicesBoundAcquireAndCtestRun) {
  const struct {
    const char* visible;
    const char* command;
    int code;
    const char* says;
  } kCases[] = {
      {"5", "eval \"$(\"$BERTH\" acquire --shell --gpus 1)\" && echo $BERTH_DEVICE", 0, "GPU-a-5\n"},
      {"5,6", "eval \"$(\"$BERTH\" acquire --shell --gpus 2)\" && echo $BERTH_DEVICE", 0, "GPU-a-5,GPU-a-6\n"},
      {"", "eval \"$(\"$BERTH\" acquire --shell --gpus 1)\"", 125, "CUDA_VISIBLE_DEVICES=\"\" excludes all"},
      {"x", "eval \"$(\"$BERTH\" acquire --shell --gpus 1)\"", 125, "invalid CUDA_VISIBLE_DEVICES \"x\""},
      {"5", "\"$BERTH\" ctest-run -- /bin/sh -c 'echo $BERTH_DEVICE'", 125,
       "asked device GPU-a-0; the caller's CUDA_VISIBLE_DEVICES=\"5\" excludes it"},
      {"0,5", "\"$BERTH\" ctest-run -- /bin/sh -c 'echo $BERTH_DEVICE'", 0, "GPU-a-0\n"},
      {"5", "\"$BERTH\" ctest-run --any-device -- /bin/sh -c 'echo $BERTH_DEVICE'", 0, "GPU-a-5\n"},
  };
  const std::string slots =
      "export CTEST_RESOURCE_GROUP_COUNT=1 CTEST_RESOURCE_GROUP_0=gpus "
      "CTEST_RESOURCE_GROUP_0_GPUS=id:gpu_a_0,slots:1; ";
  for (const auto& each : kCases) {
    SCOPED_TRACE(absl::StrCat("CUDA_VISIBLE_DEVICES ", each.visible, ", ", each.command));
    Subprocess shell = Subprocess::Start(
        {.argv = {"/bin/sh", "-c", absl::StrCat("exec 2>&1; ", slots, each.command)},
         .environment = {absl::StrCat("BERTH=", ProgramPath("client/cli/berth")),
                         absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION", "BERTH_DEVICE",
                         "BERTH_VISIBLE_DEVICES", "BERTH_PERMIT_KEEPER",
                         absl::StrCat("CUDA_VISIBLE_DEVICES=", each.visible)}});
    const std::string said = shell.ReadAll();
    EXPECT_EQ(shell.Wait(), each.code) << said;
    if (each.code == 0) {
      EXPECT_EQ(said, each.says);
    } else {
      EXPECT_TRUE(absl::StrContains(said, each.says)) << said;
    }
  }
}

TEST_F(DeviceChoiceTest, CtestSpecificationListsVisibleDevices) {
  const Outcome spec = Run("6,7", {"ctest-spec"});
  EXPECT_EQ(spec.code, 0) << spec.said;
  EXPECT_TRUE(absl::StrContains(spec.said, "gpu_a_6")) << spec.said;
  EXPECT_FALSE(absl::StrContains(spec.said, "gpu_a_5")) << spec.said;
}

TEST_F(DeviceChoiceTest, StoppedOrDrainedDeviceIsRejectedOrAwaited) {
  const struct {
    v1::Device::State state;
    std::string how;
    std::function<void()> takes_out;
    std::function<void()> returns;
  } kCases[] = {
      {v1::Device::STOPPED, "out of service: ", [&] { node_.Now("[now.3]\nlost = true"); }, [&] { node_.Now(""); }},
      {v1::Device::DRAINING, "being drained: loud", [&] { Must(daemon_.inspector().DrainDevice(3, "loud")); },
       [&] { Must(daemon_.inspector().UndrainDevice(3)); }},
  };
  for (const auto& each : kCases) {
    SCOPED_TRACE(each.how);
    const auto take_out = [&] {
      each.takes_out();
      return Eventually([&] { return Must(daemon_.inspector().ListDevices()).devices(3).state() == each.state; });
    };
    ASSERT_TRUE(take_out());
    const Outcome named = RunScript("unset", {"--device", "3"}, "true");
    EXPECT_EQ(named.code, 125);
    EXPECT_TRUE(absl::StrContains(named.said, absl::StrCat("device GPU-a-3 is ", each.how))) << named.said;
    const Outcome visible = RunScript("3", {"--gpus", "1"}, "true");
    const Outcome listed = RunScript("unset", {"--devices", "3"}, "true");
    for (const Outcome& list : {visible, listed}) {
      EXPECT_EQ(list.code, 125);
      EXPECT_TRUE(absl::StrContains(list.said, absl::StrCat("device of the list is ", each.how.substr(0, 13))))
          << list.said;
    }
    EXPECT_EQ(RunScript("unset", {"--gpus", "7"}, "echo $BERTH_DEVICE | tr , '\\n' | wc -l").said, "7\n");
    const std::string all = "0,1,2,3,4,5,6,7";
    for (const Outcome& list : {RunScript("unset", {"--devices", "2,3", "--gpus", "2"}, "true"),
                                RunScript("unset", {"--devices", all, "--gpus", "8"}, "true"),
                                RunScript(all, {"--gpus", "8"}, "true")}) {
      EXPECT_EQ(list.code, 125);
      EXPECT_TRUE(absl::StrContains(list.said, absl::StrCat("device 3 is ", each.how))) << list.said;
      EXPECT_TRUE(absl::StrContains(list.said, "`berth device enable`")) << list.said;
    }

    const std::vector<std::vector<std::string>> awaited = {
        {"--device", "3"}, {"--devices", "2,3", "--gpus", "2"}, {"--devices", "3"}};
    for (size_t i = 0; i < awaited.size(); ++i) {
      if (i > 0) {
        ASSERT_TRUE(take_out());
      }
      std::vector<std::string> words = awaited[i];
      SCOPED_TRACE(absl::StrJoin(words, " "));
      words.insert(words.begin(), "run");
      words.insert(words.end(), {"--wait-for-device", "--quiet", "--", "/bin/true"});
      Subprocess waits = Start("unset", words);
      ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
      const v1::WaitExplanation wait = Must(daemon_.inspector().ExplainWait(
          Must(daemon_.inspector().ListPermits()).waiters(0).number()));
      EXPECT_EQ(wait.cause(), v1::WaitExplanation::DEVICE);
      EXPECT_FALSE(wait.has_estimate());
      EXPECT_TRUE(absl::StartsWith(wait.lacking(), absl::StrCat("device 3 is ", each.how))) << wait.lacking();
      each.returns();
      EXPECT_EQ(waits.Wait(), 0) << waits.ReadAll();
    }
  }
}

}  // namespace
}  // namespace berth::testing
