#include "daemon/config/options.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace berth {
namespace {

std::optional<int> Parse(std::vector<std::string> flags, Options* options) {
  std::vector<const char*> argv = {"berthd"};
  for (const std::string& flag : flags) argv.push_back(flag.c_str());
  return ParseOptions(static_cast<int>(argv.size()), argv.data(), options);
}

TEST(OptionsTest, NoFlagsMeanSupervisorOnDefaultFolder) {
  Options options;
  ASSERT_EQ(Parse({}, &options), std::nullopt);
  EXPECT_EQ(options.role, Role::kSupervisor);
  EXPECT_EQ(options.folder, DefaultFolder());
  EXPECT_EQ(options.backend, BackendChoice::kAuto);
  EXPECT_EQ(options.device_budget, std::nullopt);
  EXPECT_TRUE(options.memory_scrub_check);
  EXPECT_EQ(options.ready_fd, -1);
  EXPECT_FALSE(options.version);
}

TEST(OptionsTest, SupervisorFlagsReachChildrenUnchanged) {
  Options options;
  ASSERT_EQ(Parse({"--folder=/tmp/with space", "--backend=host", "--host-devices=3", "--host-bytes=1.5GiB",
                   "--host-devices-file=/tmp/node.toml", "--config=/etc/berth.toml", "--device-budget=256MiB",
                   "--warm-blocks=0", "--no-clears-check", "--streams-per-device=5", "--max-connections=7",
                   "--call-deadline=1.5s", "--ready-fd=9", "--state=/var/lib/berth", "--pool=a=3", "--pool",
                   "b=c=4", "--pool=gpu-tests=5", "--pool=a=6"},
                  &options),
            std::nullopt);
  Options child;
  std::vector<std::string> flags = FlagsForChildren(options);
  flags.push_back("--role=broker");
  flags.push_back("--parent=12");
  ASSERT_EQ(Parse(flags, &child), std::nullopt);
  EXPECT_EQ(child.role, Role::kBroker);
  EXPECT_EQ(child.parent, 12);
  EXPECT_EQ(child.folder, "/tmp/with space");
  EXPECT_EQ(child.state, "/var/lib/berth");
  EXPECT_EQ(child.backend, BackendChoice::kHost);
  EXPECT_EQ(child.host_devices, 3u);
  EXPECT_EQ(child.host_bytes, MiB(1536));
  EXPECT_EQ(child.host_devices_file, "/tmp/node.toml");
  EXPECT_EQ(child.config, "/etc/berth.toml");
  EXPECT_EQ(child.device_budget, MiB(256));
  EXPECT_EQ(child.pools, (std::map<std::string, uint64_t>{{"a", 6}, {"b=c", 4}, {"gpu-tests", 5}}));
  EXPECT_EQ(child.warm_blocks, 0u);
  EXPECT_EQ(child.streams_per_device, 5u);
  EXPECT_FALSE(child.memory_scrub_check);
  EXPECT_EQ(child.max_connections, 7u);
  EXPECT_EQ(child.call_deadline, absl::Milliseconds(1500));
  EXPECT_EQ(child.ready_fd, -1) << "the supervisor alone says that it is ready";
}

TEST(OptionsTest, InvalidFlagEndsProgramWithError) {
  for (const char* const flag :
       {"--folder=", "--backend=vulkan", "--host-devices=0", "--host-devices=65", "--device-budget=much",
        "--host-bytes=-1", "--device=64", "--max-connections=0", "--role=cook", "--nonsense",
        "--warm-blocks=-1", "--pool=a", "--pool=a=", "--pool=a=0", "--pool=a=-1", "--pool=a=x", "--pool==2",
        "--pool=a\n=2", "--pool=a=99999999999999999999", "--call-deadline=0.1", "--call-deadline=1ms",
        "--call-deadline=inf", "--context-idle=inf"}) {
    Options options;
    const std::optional<int> code = Parse({flag}, &options);
    ASSERT_TRUE(code.has_value()) << flag;
    EXPECT_EQ(*code, 1) << flag;
  }
}

TEST(OptionsTest, InvalidValueIsReportedWithOptionAndLimit) {
  const struct {
    const char* flag;
    const char* error;
  } cases[] = {
      {"--backend=rocm", "--backend: \"rocm\" is not one of auto, host and cuda"},
      {"--host-devices=65", "--host-devices: \"65\" is not a whole number from 1 to 64"},
      {"--warm-blocks=-1", "--warm-blocks: \"-1\" is not a whole number from 0 to 4294967295"},
      {"--warm-blocks=many", "--warm-blocks: \"many\" is not a whole number from 0 to 4294967295"},
      {"--streams-per-device=0", "--streams-per-device: \"0\" is not a whole number from 1 to 4294967295"},
      {"--max-connections=99999999999", "--max-connections: \"99999999999\" is not a whole number from 1 to 4"},
      {"--ready-fd=-5", "--ready-fd: \"-5\" is not a whole number from 0 to 2147483647"},
      {"--host-bytes=0x10", "--host-bytes: \"0x10\" is not an amount of bytes"},
      {"--device-budget=-1", "--device-budget: \"-1\" is not an amount of bytes"},
      {"--call-deadline=0", "--call-deadline: \"0\" is not a time of at least 500ms"},
      {"--context-idle=soon", "--context-idle: \"soon\" is not a time such as 90, 90s, 1m30s, 2d"},
      {"--pool=one=0", "--pool: \"one=0\" is not NAME=CAP with a cap of at least 1"}};
  for (const auto& [flag, error] : cases) {
    Options options;
    testing::internal::CaptureStderr();
    EXPECT_EQ(Parse({flag}, &options), 1);
    const std::string text = testing::internal::GetCapturedStderr();
    EXPECT_TRUE(absl::StrContains(text, error)) << text;
  }
}

// As `berthd --config "$CONFIG"` without the variable.
TEST(OptionsTest, EmptyValueIsRejected) {
  for (const char* const option :
       {"--folder", "--state", "--config", "--client-group", "--observer-group", "--backend", "--host-devices",
        "--host-bytes", "--host-devices-file", "--pool", "--device-budget", "--warm-blocks", "--streams-per-device",
        "--call-deadline", "--context-idle", "--max-connections", "--ready-fd"}) {
    for (const std::vector<std::string>& flags :
         {std::vector<std::string>{option, ""}, {option, "", "--no-clears-check"}, {absl::StrCat(option, "=")},
          {absl::StrCat(option, "="), "--no-clears-check"}}) {
      Options options;
      EXPECT_EQ(Parse(flags, &options), 1) << option << " in " << flags.size() << " words";
    }
  }
}

TEST(OptionsTest, HelpExitsSuccessfully) {
  Options options;
  EXPECT_EQ(Parse({"--help"}, &options), 0);
}

TEST(OptionsTest, StateFolderFollowsEnvironmentServiceAndSockets) {
  ASSERT_EQ(::setenv("BERTH_STATE", "/somewhere", 1), 0);
  ASSERT_EQ(::setenv("STATE_DIRECTORY", "/var/lib/berth:/var/lib/other", 1), 0);
  EXPECT_EQ(DefaultState("/run/berth"), "/somewhere");
  ASSERT_EQ(::unsetenv("BERTH_STATE"), 0);
  EXPECT_EQ(DefaultState("/run/berth"), "/var/lib/berth");
  ASSERT_EQ(::unsetenv("STATE_DIRECTORY"), 0);
  EXPECT_EQ(DefaultState("/run/berth"), "/run/berth/state");
  Options options;
  ASSERT_EQ(Parse({"--folder=/run/mine"}, &options), std::nullopt);
  EXPECT_EQ(options.state, "/run/mine/state");
}

TEST(OptionsTest, FolderFollowsEnvironmentThenUser) {
  ASSERT_EQ(::setenv("BERTH_FOLDER", "/somewhere", 1), 0);
  EXPECT_EQ(DefaultFolder(), "/somewhere");
  ASSERT_EQ(::unsetenv("BERTH_FOLDER"), 0);
  ASSERT_EQ(::setenv("XDG_RUNTIME_DIR", "/run/user/7", 1), 0);
  EXPECT_EQ(DefaultFolder(), ::geteuid() == 0 ? "/run/berth" : "/run/user/7/berth");
}

}  // namespace
}  // namespace berth
