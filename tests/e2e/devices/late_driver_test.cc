// A GPU driver that is not ready when the daemon starts, and comes later.

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/client_folder.h"
#include "tests/support/driver/driver_script.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

namespace fs = std::filesystem;

// The libcuda.so.1 that the daemon finds at its start.
enum class Library { kNone, kTorn, kBrokenLink, kTooOld, kScripted };

struct Start {
  const char* name;
  Library library;
  // The result of cuInit, in the driver's script.
  const char* init = "";
  const char* backend = "auto";
  // Part of the daemon's environment; empty for none.
  const char* environment = "";
  // The text of its configuration file; empty for no file.
  const char* config = "";
  // The reason that `berth devices` shows.
  const char* why;
};

std::string MakeFolder() {
  char folder[] = "/tmp/berth-late-XXXXXX";
  if (::mkdtemp(folder) == nullptr) Fatal(absl::InternalError("mkdtemp"), folder);
  // Clients may make files in it, and cannot rename the daemon's folder.
  fs::permissions(folder, fs::perms(01777));
  return folder;
}

class Node : public ::testing::Test {
 protected:
  explicit Node(int devices = 2) : driver_(devices) {}
  void SetUp() override {
    if (!DriverScript::IsOfUse()) GTEST_SKIP() << "built without CUDA's headers";
    fs::create_directory(libraries_);
  }
  void TearDown() override {
    StopDaemon();
    fs::remove_all(parent_);
  }

  static std::string PathOf(const char* library) {
    return fs::absolute(ProgramPath(absl::StrCat("tests/support/driver/", library)));
  }
  void Install(const Start& start) {
    const std::string path = libraries_ + "/libcuda.so.1";
    switch (start.library) {
      case Library::kNone:
        return;
      case Library::kTorn:
        std::ofstream(path) << "half of a library";
        return;
      case Library::kBrokenLink:
        return fs::create_symlink(libraries_ + "/libcuda.so.535", path);
      case Library::kTooOld:
        return fs::create_symlink(PathOf("libnvidia-ml.so.1"), path);
      case Library::kScripted:
        return fs::create_symlink(PathOf("libcuda.so.1"), path);
    }
  }
  // Makes the driver ready.
  void DriverComes() {
    for (const char* const library : {"libnvidia-ml.so.1", "libcuda.so.1"}) {
      const std::string next = absl::StrCat(libraries_, "/next");
      fs::create_symlink(PathOf(library), next);
      fs::rename(next, absl::StrCat(libraries_, "/", library));
    }
    driver_.Set("cuInit", "");
  }
  void StartDaemon(const Start& start) {
    std::vector<std::string> environment = {"BERTH_SESSION", "CUDA_VISIBLE_DEVICES", "BERTH_GPU_TEST_CONCURRENCY",
                                            "REALIZAR_GPU_TEST_CONCURRENCY"};
    for (const std::string& entry : driver_.environment()) {
      if (!absl::StartsWith(entry, "LD_LIBRARY_PATH=")) environment.push_back(entry);
    }
    environment.push_back(absl::StrCat("LD_LIBRARY_PATH=", libraries_));
    if (*start.environment != '\0') environment.emplace_back(start.environment);
    std::vector<std::string> argv = {ProgramPath("daemon/berthd"), absl::StrCat("--folder=", folder_),
                                     absl::StrCat("--backend=", start.backend), "--no-clears-check", "--warm-blocks=0"};
    if (*start.config != '\0') {
      std::ofstream(config_) << start.config;
      argv.push_back(absl::StrCat("--config=", config_));
    }
    daemon_.emplace(Subprocess::Start({.argv = argv,
                                       .environment = environment,
                                       .errors = log_,
                                       .of_operator = true}));
    ASSERT_TRUE(Eventually([&] { return daemon_->IsGone() || fs::exists(folder_ + "/observer.sock"); })) << Log();
    ASSERT_FALSE(daemon_->IsGone()) << Log();
    OpenToClients(folder_);
  }
  // A broker whose supervisor is killed would go on.
  void StopDaemon() {
    if (!daemon_.has_value() || daemon_->IsGone()) return;
    daemon_->Signal(SIGTERM);
    EXPECT_EQ(daemon_->Wait(), 0) << Log();
  }
  std::string Log() const {
    std::stringstream text;
    text << std::ifstream(log_).rdbuf();
    return text.str();
  }
  int CountInLog(const std::string& words) const {
    return static_cast<int>(std::vector<std::string>(absl::StrSplit(Log(), words)).size()) - 1;
  }
  // Returns the command's exit code, and what it printed to either output.
  std::pair<int, std::string> Run(const std::vector<std::string>& words) const {
    Subprocess command = berth_.Start(words, {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"});
    std::string text = command.ReadAll();
    return {command.Wait(), std::move(text)};
  }

  const std::string parent_ = MakeFolder();
  const std::string folder_ = parent_ + "/run";
  const std::string libraries_ = parent_ + "/libraries";
  const std::string log_ = parent_ + "/log";
  const std::string config_ = parent_ + "/config";
  const BerthCommand berth_{folder_};
  DriverScript driver_;
  std::optional<Subprocess> daemon_;
};

class LateDriverTest : public Node, public ::testing::WithParamInterface<Start> {};

INSTANTIATE_TEST_SUITE_P(
    Starts, LateDriverTest,
    ::testing::Values(
        Start{.name = "NoDevice", .library = Library::kScripted, .init = "!100", .why = "no CUDA: no device"},
        Start{.name = "Stub", .library = Library::kScripted, .init = "!34", .why = "the toolkit's stub"},
        Start{.name = "NotReady", .library = Library::kScripted, .init = "!802", .why = "cuInit: CUDA_ERROR (802)"},
        Start{.name = "Unknown",
              .library = Library::kScripted,
              .init = "!999",
              .backend = "cuda",
              .why = "cuInit: CUDA_ERROR_UNKNOWN"},
        Start{.name = "HiddenDevices",
              .library = Library::kScripted,
              .init = "!100",
              .environment = "CUDA_VISIBLE_DEVICES=1",
              .why = "no CUDA: no device (CUDA_VISIBLE_DEVICES=\"1\")"},
        Start{.name = "HiddenDevicesWithoutNvml",
              .library = Library::kScripted,
              .environment = "CUDA_VISIBLE_DEVICES=1",
              .why = "no NVML: libnvidia-ml.so.1"},
        Start{.name = "Abort",
              .library = Library::kScripted,
              .init = "abort",
              .why = "without a list of devices: signal 6"},
        Start{.name = "Exit", .library = Library::kScripted, .init = "exit", .why = "ended without a list of devices"},
        Start{.name = "TornLibrary", .library = Library::kTorn, .why = "libcuda.so.1: "},
        Start{.name = "BrokenLink", .library = Library::kBrokenLink, .why = "libcuda.so.1 is a link to a missing file"},
        Start{.name = "OldLibrary", .library = Library::kTooOld, .why = "libcuda.so.1 is too old"},
        Start{.name = "NoLibrary", .library = Library::kNone, .backend = "cuda", .why = "libcuda.so.1: cannot open"}),
    [](const auto& info) { return info.param.name; });

TEST_P(LateDriverTest, DevicesServeOnceDriverIsReady) {
  const Start& start = GetParam();
  const bool needs_no_nvml = absl::StrContains(start.why, "no NVML");
  if (needs_no_nvml && ::dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr) {
    GTEST_SKIP() << "this machine has NVML";
  }
  Install(start);
  if (*start.init != '\0') driver_.Set("cuInit", start.init);
  ASSERT_NO_FATAL_FAILURE(StartDaemon(start));

  // Not healthy, and no device to lease.
  const auto [sick, health] = Run({"health"});
  EXPECT_EQ(sick, 1) << health;
  EXPECT_TRUE(absl::StrContains(health, "1 of 1 devices do not serve")) << health;
  EXPECT_TRUE(absl::StrContains(health, start.why)) << health;
  for (const std::vector<std::string>& device : std::vector<std::vector<std::string>>{
           {"--gpus", "1"}, {"--device", "0"}, {"--mem", "1MiB"}, {"--gpus", "2"}}) {
    std::vector<std::string> words = {"run"};
    words.insert(words.end(), device.begin(), device.end());
    words.insert(words.end(), {"--", "echo", "ran"});
    const auto [refused, text] = Run(words);
    EXPECT_NE(refused, 0) << device[0] << ": " << text;
    EXPECT_FALSE(absl::StrContains(text, "ran\n")) << device[0] << ": " << text;
  }

  // A lease without a device outlives the change.
  Subprocess holder = berth_.Start({"run", "--", "/bin/sh", "-c", "echo granted; cat"});
  EXPECT_EQ(Must(holder.ReadLine()), "granted");
  DriverComes();
  ASSERT_TRUE(Eventually([&] { return Run({"health"}).first == 0; })) << Run({"health"}).second << Log();
  EXPECT_EQ(Run({"run", "--device", "1", "--", "printenv", "CUDA_VISIBLE_DEVICES"}).second,
            DriverScript::UuidOf(1) + "\n");
  holder.CloseInput();
  EXPECT_EQ(holder.Wait(), 0);
  EXPECT_EQ(CountInLog("waiting for the GPU driver: "), 1) << Log();
  EXPECT_EQ(CountInLog("the GPU driver is ready"), 1) << Log();
}

class NoVisibleDeviceTest : public Node {};

// The driver is ready, and lists no device to this daemon.
TEST_F(NoVisibleDeviceTest, EmptyVariableMakesNoHostMemory) {
  const Start start = {.name = "", .library = Library::kScripted, .environment = "CUDA_VISIBLE_DEVICES=", .why = ""};
  Install(start);
  ASSERT_NO_FATAL_FAILURE(StartDaemon(start));
  const auto [sick, health] = Run({"health"});
  EXPECT_EQ(sick, 1) << health;
  EXPECT_TRUE(absl::StrContains(health, "no CUDA: no device (CUDA_VISIBLE_DEVICES=\"\")")) << health;
  const auto [refused, text] = Run({"run", "--gpus", "1", "--", "echo", "ran"});
  EXPECT_NE(refused, 0) << text;
  EXPECT_FALSE(absl::StrContains(text, "ran\n")) << text;
  EXPECT_EQ(Run({"run", "--", "true"}).first, 0);
}

class LateDriverCapsTest : public Node {};

// Names in the configuration file are those of the devices to come. A wrong name ends no later broker.
TEST_F(LateDriverCapsTest, DeviceCapsApplyOnceDriverIsReady) {
  const Start start = {.name = "",
                       .library = Library::kScripted,
                       .config = "[pools.d]\ncap = 8\ndevice_caps = {1 = 3, 7 = 4}\n",
                       .why = ""};
  Install(start);
  driver_.Set("cuInit", "!100");
  ASSERT_NO_FATAL_FAILURE(StartDaemon(start));
  EXPECT_TRUE(absl::StrContains(Run({"config"}).second, "{1 = 3, 7 = 4}")) << Run({"config"}).second;
  EXPECT_EQ(CountInLog(":3: pools.d.device_caps: no device "), 2) << Log();
  const auto [refused, why] = Run({"permits", "set", "d", "--device-cap", "0=1"});
  EXPECT_EQ(refused, 1) << why;
  EXPECT_TRUE(absl::StrContains(why, "device 0 is a device that the driver has not identified")) << why;

  Subprocess holder = berth_.Start({"run", "--", "/bin/sh", "-c", "echo granted; cat"});
  EXPECT_EQ(Must(holder.ReadLine()), "granted");
  DriverComes();
  ASSERT_TRUE(Eventually([&] { return Run({"health"}).first == 0; })) << Run({"health"}).second << Log();
  const std::string caps = absl::StrCat("{7 = 4, ", DriverScript::UuidOf(1), " = 3}");
  EXPECT_TRUE(absl::StrContains(Run({"config"}).second, caps)) << Run({"config"}).second;
  EXPECT_TRUE(absl::StrContains(Log(), "cannot apply the configuration: ")) << Log();
  const auto [reloaded, mistake] = Run({"config", "reload"});
  EXPECT_EQ(reloaded, 1) << mistake;
  EXPECT_TRUE(absl::StrContains(mistake, "no device 7: this node has 0 (GPU-")) << mistake;
  EXPECT_EQ(Run({"permits", "set", "d", "--device-cap", "0=1"}).first, 0);
  holder.CloseInput();
  EXPECT_EQ(holder.Wait(), 0);
}

struct DefaultCap {
  const char* name;
  int devices;
  const char* environment;
  const char* config;
  // Words of `berth permits set gpu-tests` before the driver comes; none for no change.
  std::vector<std::string> set;
  // The cap, and that of permits without a device (0 for none), before and after the driver comes.
  uint64_t cap_before, no_device_cap_before;
  uint64_t cap, no_device_cap;
};

class LateDriverDefaultCapTest : public Node, public ::testing::WithParamInterface<DefaultCap> {
 protected:
  LateDriverDefaultCapTest() : Node(GetParam().devices) {}

  // Returns a member of the pool gpu-tests; 0 where it has none.
  uint64_t PoolNumber(const char* name) const {
    const nlohmann::json status = berth_.ShowJson({"status"});
    for (const nlohmann::json& pool : status["pools"]["pools"]) {
      if (pool["name"] == "gpu-tests") return std::stoull(pool.value(name, "0"));
    }
    ADD_FAILURE() << status;
    return 0;
  }
};

INSTANTIATE_TEST_SUITE_P(
    Rows, LateDriverDefaultCapTest,
    ::testing::Values(DefaultCap{"OneDevice", 1, "", "", {}, 2, 0, 2, 0},
                      DefaultCap{"EightDevices", 8, "", "", {}, 2, 0, 8, 2},
                      DefaultCap{"Environment", 8, "BERTH_GPU_TEST_CONCURRENCY=3", "", {}, 3, 0, 3, 0},
                      DefaultCap{"Configuration", 8, "", "[pools.gpu-tests]\ncap = 5\n", {}, 5, 0, 5, 0},
                      DefaultCap{"OtherKeyInFile", 8, "", "[pools.gpu-tests]\nageing = \"5m\"\n", {}, 2, 0, 8, 2},
                      DefaultCap{"Operator", 8, "", "", {"4"}, 4, 0, 4, 2},
                      DefaultCap{"OperatorNoDeviceCap", 8, "", "", {"--no-device-cap", "1"}, 2, 1, 8, 1},
                      DefaultCap{"OperatorTakenBack", 8, "", "", {"default"}, 2, 0, 8, 2}),
    [](const auto& info) { return std::string(info.param.name); });

// The default cap is the larger of 2 and the number of devices, also of devices that come later.
TEST_P(LateDriverDefaultCapTest, CapFollowsDevicesThatCome) {
  const DefaultCap& row = GetParam();
  const Start start = {.name = "",
                       .library = Library::kScripted,
                       .environment = row.environment,
                       .config = row.config,
                       .why = ""};
  Install(start);
  driver_.Set("cuInit", "!100");
  ASSERT_NO_FATAL_FAILURE(StartDaemon(start));
  if (!row.set.empty()) {
    std::vector<std::string> words = {"permits", "set", "gpu-tests"};
    words.insert(words.end(), row.set.begin(), row.set.end());
    EXPECT_EQ(Run(words).first, 0);
  }
  EXPECT_EQ(PoolNumber("cap"), row.cap_before);
  EXPECT_EQ(PoolNumber("no_device_cap"), row.no_device_cap_before);
  // A permit of before counts against the cap of after.
  Subprocess holder = berth_.Start({"run", "--", "/bin/sh", "-c", "echo granted; cat"});
  EXPECT_EQ(Must(holder.ReadLine()), "granted");

  DriverComes();
  ASSERT_TRUE(Eventually([&] { return Run({"health"}).first == 0; })) << Run({"health"}).second << Log();
  EXPECT_EQ(PoolNumber("cap"), row.cap);
  EXPECT_EQ(PoolNumber("no_device_cap"), row.no_device_cap);
  const std::string gpus = absl::StrCat(std::min<uint64_t>(row.cap, static_cast<uint64_t>(row.devices)));
  const std::vector<std::string> gang = {"run", "--gpus", gpus, "--no-wait", "--", "printenv", "BERTH_DEVICE"};
  EXPECT_EQ(Run(gang).first, row.cap > static_cast<uint64_t>(row.devices) ? 0 : 75);
  holder.CloseInput();
  EXPECT_EQ(holder.Wait(), 0);
  const auto [code, devices] = Run(gang);
  EXPECT_EQ(code, 0) << devices;
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(devices, ',')).size(), std::stoull(gpus)) << devices;
  if (row.devices > static_cast<int>(row.cap)) {
    const auto [refused, why] = Run({"run", "--gpus", absl::StrCat(row.devices), "--", "true"});
    EXPECT_EQ(refused, 125) << why;
    EXPECT_TRUE(absl::StrContains(why, absl::StrCat("cap ", row.cap))) << why;
  }
}

struct HostMemory {
  const char* backend;
  Library library;
  // How often the log says that the node has no GPU.
  int said;
};

class HostMemoryTest : public Node, public ::testing::WithParamInterface<HostMemory> {};

INSTANTIATE_TEST_SUITE_P(Backends, HostMemoryTest,
                         ::testing::Values(HostMemory{"host", Library::kScripted, 0},
                                           HostMemory{"auto", Library::kNone, 1}),
                         [](const auto& info) { return std::string(info.param.backend); });

TEST_P(HostMemoryTest, ServesOnRequestOrWithoutLibrary) {
  const HostMemory& node = GetParam();
  if (node.library == Library::kNone && ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr) {
    GTEST_SKIP() << "this machine has CUDA's library";
  }
  const Start start = {.name = "", .library = node.library, .backend = node.backend, .why = ""};
  Install(start);
  driver_.Set("cuInit", "!100");
  ASSERT_NO_FATAL_FAILURE(StartDaemon(start));
  const auto [healthy, health] = Run({"health"});
  EXPECT_EQ(healthy, 0) << health;
  EXPECT_EQ(Run({"run", "--gpus", "1", "--", "printenv", "BERTH_DEVICE"}).second, "HOST-0\n");
  EXPECT_EQ(CountInLog("this node has no GPU"), node.said) << Log();
}

}  // namespace
}  // namespace berth::testing
