// MIG instances by name. Every option and command that names a device takes an instance's UUID, a unique prefix of the
// UUID, and the ordinal. Each refuses any other name with the same text.

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/node_file.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// Device 0 is whole; 1 and 2 are the instances MIG-GPU-b-0 and MIG-GPU-b-1; 3 has an instance's UUID as a driver forms
// it.
constexpr char kNode[] =
    "[[device]]\nuuid = \"GPU-a\"\nmemory = \"64MiB\"\n"
    "[[device]]\nuuid = \"GPU-b\"\nslices = 2\nmemory = \"128MiB\"\n"
    "[[device]]\nuuid = \"MIG-12345678-9abc-def0-1234-56789abcdef0\"\nmemory = \"64MiB\"\n";

struct Name {
  const char* name;
  int ordinal;
  const char* uuid;
};
constexpr Name kNames[] = {{"MIG-GPU-b-1", 2, "MIG-GPU-b-1"},
                           {"MIG-1", 3, "MIG-12345678-9abc-def0-1234-56789abcdef0"},
                           {"2", 2, "MIG-GPU-b-1"}};
// Names that fit no device, or several, and the texts of their refusals.
constexpr struct {
  const char* name;
  const char* says;
} kWrong[] = {{"MIG-GPU-b", "device MIG-GPU-b matches 1 (MIG-GPU-b-0), 2 (MIG-GPU-b-1): give more of its UUID"},
              {"MIG-9", "no device MIG-9"},
              // The GPU that is divided into the instances.
              {"GPU-b", "no device GPU-b"}};

// A script that names device @. It runs in a shell whose output is what `says` has a part of: @ there is the device's
// UUID, and # its ordinal.
struct Use {
  const char* script;
  const char* says;
  // Exit code where the name is refused.
  int refused;
};

constexpr char kShow[] = "-- sh -c 'echo $BERTH_DEVICE'";

const std::vector<Use>& Uses() {
  static const auto* const uses = new std::vector<Use>{
      {"berth run --device @ SHOW", "@\n", 125},
      {"berth run --devices @ SHOW", "@\n", 125},
      {"berth run --gpus 2 --devices 0,@ SHOW", "GPU-a,@\n", 125},
      {"berth run --island-of @ SHOW", "@\n", 125},
      {"CUDA_VISIBLE_DEVICES=@ berth run --gpus 1 SHOW", "@\n", 125},
      {"CUDA_VISIBLE_DEVICES=0,@ berth run --gpus 2 SHOW", "GPU-a,@\n", 125},
      {"eval \"$(berth acquire --shell --device @)\" && echo $BERTH_DEVICE", "@\n", 125},
      {"eval \"$(berth acquire --shell --gpus 2 --devices 0,@)\" && echo $BERTH_DEVICE", "GPU-a,@\n", 125},
      {"export CUDA_VISIBLE_DEVICES=@; eval \"$(berth acquire --shell --gpus 1)\" && echo $BERTH_DEVICE", "@\n", 125},
      {"CUDA_VISIBLE_DEVICES=@ berth ctest-run --any-device SHOW", "@\n", 125},
      {"CUDA_VISIBLE_DEVICES=@ berth ctest-spec", "\"slots\"", 1},
      {"berth blocks publish --device @ w $FILE && berth --json blocks | tr -d ' \n' && berth blocks unpublish w",
       "\"device\":#,", 1},
      {"berth probe label --host-devices --device @", "label backend: device #, ", 1},
      {"berth permits set d --device-cap @=1", "on @ 1", 1},
      {"berth --json budget set --device @ 32MiB", "\"device\": #,", 1},
      {"berth device drain @ --reason fan", "device #: DRAINING (fan)", 1},
      {"berth device undrain @", "device #: ", 1},
      {"berth device enable @", "device #: ", 1},
      {"berth device restart @", "device #: ", 1},
      {"berth device reset --yes @", "device #: ", 1},
  };
  return *uses;
}

class MigNamesTest : public ::testing::Test {
 protected:
  MigNamesTest() : file_(std::filesystem::path(daemon_.folder()).parent_path() / "w") {
    std::ofstream(file_) << "weights";
    GiveToClients(file_);
  }
  void TearDown() override { daemon_.ExpectAccountsBack(); }

  struct Outcome {
    int code = 0;
    std::string said;
  };
  Outcome Run(const std::string& script, const std::string& device) {
    const std::string text = absl::StrReplaceAll(script, {{"@", device}, {"SHOW", kShow}, {"berth ", "\"$BERTH\" "}});
    // Only operators may run these.
    const bool of_operator = absl::StrContains(script, "permits set") || absl::StrContains(script, "budget set") ||
                             absl::StrContains(script, "berth device") || absl::StrContains(script, "--admin");
    Subprocess shell = Subprocess::Start(
        {.argv = {"/bin/sh", "-c", absl::StrCat("exec 2>&1; ", text)},
         .environment = {absl::StrCat("BERTH=", ProgramPath("client/cli/berth")),
                         absl::StrCat("BERTH_FOLDER=", daemon_.folder()), absl::StrCat("FILE=", file_),
                         "CTEST_RESOURCE_GROUP_COUNT=1", "CTEST_RESOURCE_GROUP_0=gpus",
                         "CTEST_RESOURCE_GROUP_0_GPUS=id:any,slots:1", "CUDA_VISIBLE_DEVICES", "BERTH_SESSION",
                         "BERTH_DEVICE", "BERTH_VISIBLE_DEVICES", "BERTH_PERMIT_KEEPER", "LOCAL_RANK",
                         "SLURM_LOCALID"},
         .of_operator = of_operator});
    Outcome outcome;
    outcome.said = shell.ReadAll();
    outcome.code = shell.Wait();
    return outcome;
  }
  bool AllServe() {
    return Eventually([&] { return berth_.Run({"health"}) == 0; });
  }

  const NodeFile node_{kNode};
  TestDaemon daemon_{{.flags = {node_.flag()}, .config = "[pools.d]\ncap = 8\n"}};
  const BerthCommand berth_{daemon_.folder()};
  const std::string file_;
};

TEST_F(MigNamesTest, EveryUseTakesUuidPrefixAndOrdinal) {
  for (const Use& use : Uses()) {
    for (const Name& device : kNames) {
      SCOPED_TRACE(absl::StrCat(use.script, " for ", device.name));
      const Outcome outcome = Run(use.script, device.name);
      EXPECT_EQ(outcome.code, 0) << outcome.said;
      const std::string says =
          absl::StrReplaceAll(use.says, {{"@", device.uuid}, {"#", absl::StrCat(device.ordinal)}});
      EXPECT_TRUE(absl::StrContains(outcome.said, says)) << outcome.said;
      if (absl::StrContains(use.script, " drain ")) {
        EXPECT_EQ(Run("berth device undrain @", device.name).code, 0);
      }
      if (absl::StrContains(use.script, "berth device")) ASSERT_TRUE(AllServe());
    }
  }
}

TEST_F(MigNamesTest, EveryUseRefusesOtherNamesAlike) {
  for (const Use& use : Uses()) {
    for (const auto& wrong : kWrong) {
      SCOPED_TRACE(absl::StrCat(use.script, " for ", wrong.name));
      const Outcome outcome = Run(use.script, wrong.name);
      EXPECT_EQ(outcome.code, use.refused) << outcome.said;
      EXPECT_TRUE(absl::StrContains(outcome.said, wrong.says)) << outcome.said;
    }
  }
  EXPECT_TRUE(berth_.ShowJson({"blocks"})["blocks"].empty());
}

TEST_F(MigNamesTest, OrdinalIsDigitsOnly) {
  for (const Use& use : Uses()) {
    // The variable is refused as CUDA would not read it.
    if (absl::StrContains(use.script, "CUDA_VISIBLE_DEVICES")) continue;
    SCOPED_TRACE(use.script);
    const Outcome outcome = Run(use.script, "+2");
    EXPECT_EQ(outcome.code, use.refused) << outcome.said;
    EXPECT_TRUE(absl::StrContains(outcome.said, "no device +2")) << outcome.said;
  }
}

TEST_F(MigNamesTest, CtestRunTakesNameOfSpecification) {
  const Outcome spec = Run("berth ctest-spec", "");
  EXPECT_TRUE(absl::StrContains(spec.said, "\"mig_gpu_b_1\"")) << spec.said;
  EXPECT_TRUE(absl::StrContains(spec.said, "\"mig_12345678_9abc_def0_1234_56789abcdef0\"")) << spec.said;
  const std::string test = "CTEST_RESOURCE_GROUP_0_GPUS=id:@,slots:1 berth ctest-run SHOW";
  EXPECT_EQ(Run(test, "mig_gpu_b_1").said, "MIG-GPU-b-1\n");
  const Outcome wrong = Run(test, "mig_9");
  EXPECT_EQ(wrong.code, 125);
  EXPECT_TRUE(absl::StrContains(wrong.said, "mig_9")) << wrong.said;
}

// The configuration's names are those of the options.
TEST_F(MigNamesTest, FileNamesInstancesForCaps) {
  const auto reload = [&](const std::string& name) {
    std::ofstream(daemon_.config_path()) << "[pools.d]\ncap = 8\ndevice_caps = {\"" << name << "\" = 1}\n";
    return Run("berth --admin config reload", "");
  };
  for (const Name& device : kNames) {
    SCOPED_TRACE(device.name);
    const Outcome outcome = reload(device.name);
    EXPECT_EQ(outcome.code, 0) << outcome.said;
    EXPECT_TRUE(absl::StrContains(Run("berth --admin config", "").said, absl::StrCat("{", device.uuid, " = 1}")));
  }
  for (const auto& wrong : kWrong) {
    SCOPED_TRACE(wrong.name);
    const Outcome outcome = reload(wrong.name);
    EXPECT_EQ(outcome.code, 1) << outcome.said;
    EXPECT_TRUE(absl::StrContains(outcome.said, wrong.says)) << outcome.said;
  }
}

}  // namespace
}  // namespace berth::testing
