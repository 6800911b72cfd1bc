// Caps of single devices, by the command line and by the configuration file: which device a name means, and the refusal
// of a name that no device has.

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "berth/v1/permit.pb.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/node_file.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr char kDevices[] =
    "[[device]]\nuuid = \"GPU-1a2b\"\nmemory = \"64MiB\"\n"
    "[[device]]\nuuid = \"GPU-1a3c\"\nmemory = \"64MiB\"\n"
    "[[device]]\nuuid = \"GPU-12345678-9abc-def0-1234-56789abcdef0\"\nmemory = \"64MiB\"";
constexpr char kFull[] = "GPU-12345678-9abc-def0-1234-56789abcdef0";
constexpr char kAbsent[] = "GPU-87654321-9abc-def0-1234-56789abcdef0";

std::string TextWithCaps(const std::string& caps) {
  return absl::StrCat("[pools.d]\ncap = 8\n", caps.empty() ? "" : absl::StrCat("device_caps = {", caps, "}\n"));
}

class DeviceCapsTest : public ::testing::Test {
 protected:
  TestDaemonOptions OptionsWithCaps(const std::string& caps) const {
    return {.flags = {node_.flag()}, .config = TextWithCaps(caps), .errors = log_};
  }
  void TearDown() override { std::filesystem::remove(log_); }

  struct Outcome {
    int code = 0;
    // Both outputs.
    std::string said;
  };
  static Outcome Run(const TestDaemon& daemon, const std::vector<std::string>& words) {
    Subprocess command = BerthCommand(daemon.folder()).Start(words, {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"});
    Outcome outcome;
    outcome.said = command.ReadAll();
    outcome.code = command.Wait();
    return outcome;
  }
  // Returns the caps of pool d, such as "GPU-1a2b=1".
  static std::string Caps(TestDaemon& daemon) {
    const v1::ListPoolsResponse pools = Must(daemon.inspector().ListPools());
    for (const v1::Pool& pool : pools.pools()) {
      if (pool.name() != "d") continue;
      return absl::StrJoin(pool.device_caps(), " ", [](std::string* out, const v1::DeviceCap& cap) {
        absl::StrAppend(out, cap.uuid(), "=", cap.cap());
      });
    }
    return "no pool";
  }
  std::string Log() const {
    std::ifstream file(log_);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  const NodeFile node_{kDevices};
  const std::string log_ = ::testing::TempDir() + "/device_caps.log";
};

TEST_F(DeviceCapsTest, CommandNamesDeviceAsOtherOptionsDo) {
  TestDaemon daemon(OptionsWithCaps(""));
  const struct {
    const char* option;
    int code;
    const char* says;
    // The caps afterwards.
    const char* caps;
  } kCases[] = {
      {"=1", 64, "\"=1\" is not N, DEVICE=N or DEVICE=", ""},
      {"3=1", 1, "no device 3: this node has 0 (GPU-1a2b), 1 (GPU-1a3c), 2 (GPU-12345678", ""},
      {"GPU-1a2=x", 64, "is not N, DEVICE=N or DEVICE=", ""},
      {"GPU-1a2c=1", 1, "no device GPU-1a2c: this node has 0 (GPU-1a2b)", ""},
      {"GPU-1a2bb=1", 1, "nothing is changed; name a device by its ordinal, its UUID or a unique prefix", ""},
      {kAbsent, 64, "is not N, DEVICE=N or DEVICE=", ""},
      {"GPU-1a=1", 1, "device GPU-1a matches 0 (GPU-1a2b), 1 (GPU-1a3c): give more of its UUID", ""},
      {"GPU-1a2c=", 1, "no device GPU-1a2c", ""},
      {"0=1", 0, "on GPU-1a2b 1", "GPU-1a2b=1"},
      {"GPU-1a3=2", 0, "on GPU-1a3c 2", "GPU-1a2b=1 GPU-1a3c=2"},
      {"GPU-1a3c=3", 0, "on GPU-1a3c 3", "GPU-1a2b=1 GPU-1a3c=3"},
      {"7=1", 1, "no device 7", "GPU-1a2b=1 GPU-1a3c=3"},
      {"1=", 0, "on GPU-1a2b 1", "GPU-1a2b=1"},
  };
  for (const auto& each : kCases) {
    SCOPED_TRACE(each.option);
    const Outcome outcome = Run(daemon, {"permits", "set", "d", "--device-cap", each.option});
    EXPECT_EQ(outcome.code, each.code) << outcome.said;
    EXPECT_TRUE(absl::StrContains(outcome.said, each.says)) << outcome.said;
    EXPECT_EQ(Caps(daemon), each.caps);
    // A refused cap leaves a pool whose permits need no device.
    const Outcome plain = Run(daemon, {"run", "--pool", "d", "--", "/bin/sh", "-c", "echo ${BERTH_DEVICE-none}"});
    EXPECT_EQ(plain.said == "none\n", *each.caps == '\0') << plain.said;
  }
  EXPECT_EQ(Run(daemon, {"permits", "set", "d", "--device-cap", "0=1", "--device-cap", "GPU-1a2b=2"}).code, 1);
  EXPECT_EQ(Caps(daemon), "GPU-1a2b=1");

  // The cap bounds the device.
  Subprocess holder = BerthCommand(daemon.folder())
                          .Start({"run", "--pool", "d", "--device", "0", "--", "/bin/sh", "-c", "echo granted; cat"});
  EXPECT_EQ(Must(holder.ReadLine()), "granted");
  EXPECT_EQ(Run(daemon, {"run", "--pool", "d", "--device", "0", "--no-wait", "--", "/bin/true"}).code, 75);
  EXPECT_EQ(Run(daemon, {"run", "--pool", "d", "--device", "1", "--no-wait", "--", "/bin/true"}).code, 0);
  holder.CloseInput();
  EXPECT_EQ(holder.Wait(), 0);
}

TEST_F(DeviceCapsTest, FileNamesPresentAndAbsentDevices) {
  TestDaemon daemon(OptionsWithCaps(absl::StrCat("0 = 1, GPU-1a3 = 2, ", kFull, " = 3, ", kAbsent, " = 4")));
  const std::string caps = absl::StrCat(kFull, "=3 GPU-1a2b=1 GPU-1a3c=2 ", kAbsent, "=4");
  EXPECT_EQ(Caps(daemon), caps);
  EXPECT_TRUE(absl::StrContains(Log(), absl::StrCat(":3: pools.d.device_caps: no device ", kAbsent, ": this node")))
      << Log();
  EXPECT_FALSE(absl::StrContains(Run(daemon, {"config"}).said, "berth permits set"))
      << "the daemon takes no name for an operator's change";
  // The next broker reads the file again.
  daemon.KillBroker();
  EXPECT_EQ(Caps(daemon), caps);

  // A reload refuses a wrong name as it refuses any other mistake.
  for (const char* const wrong : {"3 = 1", "GPU-1a = 1", "GPU-9 = 1", "0 = 1, GPU-1a2b = 2"}) {
    SCOPED_TRACE(wrong);
    std::ofstream(daemon.config_path()) << TextWithCaps(wrong);
    const Outcome refused = Run(daemon, {"config", "reload"});
    EXPECT_EQ(refused.code, 1) << refused.said;
    EXPECT_TRUE(absl::StrContains(refused.said, absl::StrCat(daemon.config_path(), ":3: pools.d.device_caps: ")))
        << refused.said;
    EXPECT_EQ(Caps(daemon), caps);
  }
  // A broker that finds the wrong name keeps what its predecessor read.
  daemon.KillBroker();
  EXPECT_EQ(Caps(daemon), caps);

  // A cap of an absent device can be removed at run time, and in the file.
  EXPECT_EQ(Run(daemon, {"permits", "set", "d", "--device-cap", absl::StrCat(kAbsent, "=")}).code, 0);
  EXPECT_EQ(Caps(daemon), absl::StrCat(kFull, "=3 GPU-1a2b=1 GPU-1a3c=2"));
  std::ofstream(daemon.config_path()) << TextWithCaps("1 = 5");
  EXPECT_EQ(Run(daemon, {"config", "reload"}).code, 0);
  EXPECT_EQ(Caps(daemon), "GPU-1a3c=5");
}

TEST_F(DeviceCapsTest, WrongNameIsMistakeAtStart) {
  std::string parent = "/tmp/berth-caps-XXXXXX";
  ASSERT_NE(::mkdtemp(parent.data()), nullptr);
  const std::string path = parent + "/config";
  const std::pair<const char*, const char*> kCases[] = {
      {"3 = 1", "no device 3: this node has 0 (GPU-1a2b), 1 (GPU-1a3c), 2 (GPU-123"},
      {"GPU-2 = 1", "name a device of this node, or an absent device by its full UUID"},
      {"GPU-1a = 1", "device GPU-1a matches 0 (GPU-1a2b), 1 (GPU-1a3c)"},
      {"1 = 1, GPU-1a3c = 1", "1 and GPU-1a3c name the same device"},
  };
  for (const auto& [caps, says] : kCases) {
    SCOPED_TRACE(caps);
    std::ofstream(path) << TextWithCaps(caps);
    Subprocess daemon = Subprocess::Start(
        {.argv = {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh", ProgramPath("daemon/berthd"), "--backend=host",
                  node_.flag(), absl::StrCat("--folder=", parent, "/run"), absl::StrCat("--config=", path)}});
    const std::string said = daemon.ReadAll();
    EXPECT_EQ(daemon.Wait(), 1) << said;
    EXPECT_TRUE(absl::StrContains(said, absl::StrCat(path, ":3: pools.d.device_caps: "))) << said;
    EXPECT_TRUE(absl::StrContains(said, says)) << said;
  }
  std::filesystem::remove_all(parent);
}

}  // namespace
}  // namespace berth::testing
