// client/testing/cargo_runner as Cargo and nextest call it; and under the real Cargo, where it is installed.

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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

class CargoTest : public ::testing::Test {
 protected:
  CargoTest()
      : daemon_({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}}), folder_(daemon_.folder() + "/../cargo") {
    fs::create_directory(folder_);
  }

  void TearDown() override { daemon_.ExpectAccountsBack(); }

  Subprocess Start(std::vector<std::string> argv, std::vector<std::string> environment = {}) {
    argv.insert(argv.begin(), {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"});
    environment.insert(
        environment.end(),
        {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION",
         absl::StrCat("BERTH_COMMAND=", fs::absolute(ProgramPath("client/cli/berth")).string())});
    GiveToClients(folder_);
    return Subprocess::Start({.argv = std::move(argv), .environment = std::move(environment)});
  }

  static std::string Runner() { return fs::absolute(ProgramPath("client/testing/cargo_runner")).string(); }

  // Writes a file of the package, by its path in the package.
  void Write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }

  TestDaemon daemon_;
  const fs::path folder_;
};

TEST_F(CargoTest, TestRunsWithPermitListingWithout) {
  Write("binary", "#!/bin/sh\necho \"ran with $*\"\nexit 3\n");
  const std::string binary = (folder_ / "binary").string();
  fs::permissions(binary, fs::perms::owner_all);
  const std::vector<std::string> no_wait = {"BERTH_RUN_OPTIONS=--no-wait --quiet"};
  // As nextest starts one test.
  Subprocess one = Start({Runner(), binary, "--exact", "a::test", "--nocapture"}, no_wait);
  EXPECT_EQ(one.ReadAll(), "ran with --exact a::test --nocapture\n");
  EXPECT_EQ(one.Wait(), 3);
  Actor holder(daemon_);
  holder.Do("acquire p");
  Subprocess refused = Start({Runner(), binary, "--exact", "a::test", "--nocapture"}, no_wait);
  EXPECT_EQ(refused.Wait(), 75);
  Subprocess listed = Start({Runner(), binary, "--list", "--format", "terse"}, no_wait);
  EXPECT_EQ(listed.ReadAll(), "ran with --list --format terse\n");
  EXPECT_EQ(listed.Wait(), 3);
  holder.Quit();
}

TEST_F(CargoTest, RealCargoRunsTests) {
  // A test's PATH does not contain a Cargo that was installed for a user.
  const char* const home = ::getenv("CARGO_HOME");
  const std::string cargo = home == nullptr ? "/usr/bin/cargo" : absl::StrCat(home, "/bin/cargo");
  if (::access(cargo.c_str(), X_OK) != 0) GTEST_SKIP() << "there is no Cargo: " << cargo;
  Write("Cargo.toml", "[package]\nname = \"slots\"\nversion = \"0.1.0\"\nedition = \"2021\"\n");
  Write(".cargo/config.toml", absl::StrCat("[target.'cfg(unix)']\nrunner = \"", Runner(), "\"\n"));
  const std::string test =
      "#[test]\nfn holds() {\n"
      "  assert!(std::env::var(\"BERTH_SESSION\").is_ok());\n"
      "  std::fs::create_dir(std::env::var(\"ALONE\").unwrap()).unwrap();\n"
      "  std::fs::remove_dir(std::env::var(\"ALONE\").unwrap()).unwrap();\n}\n";
  Write("src/lib.rs", test);
  Write("tests/more.rs", test);
  // Two runs at once, as of two projects on a node.
  const auto start = [&](const std::string& target) {
    return Start(
        {"/bin/sh", "-c",
         absl::StrCat("cd ", folder_.string(), " && PATH=$PATH:", fs::path(cargo).parent_path().string(),
                      " exec ", cargo, " test --offline --tests --target-dir ", target)},
        {absl::StrCat("ALONE=", (folder_ / "alone").string())});
  };
  Subprocess first = start("first");
  Subprocess second = start("second");
  for (Subprocess* const run : {&first, &second}) {
    const std::string said = run->ReadAll();
    EXPECT_EQ(run->Wait(absl::Minutes(2)), 0) << said;
  }
  const v1::ListPoolsResponse pools = Must(daemon_.inspector().ListPools());
  EXPECT_EQ(pools.pools(0).granted_total(), 4u) << "two test binaries, twice";
  EXPECT_EQ(pools.pools(0).peak(), 1u);
}

}  // namespace
}  // namespace berth::testing
