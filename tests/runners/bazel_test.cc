// `bazel test --run_under` with the real Bazel: a small workspace, as users have it, whose tests take turns.

#include <stdio.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/permit.pb.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kTests = 6;

std::string g_workspace_file;

class BazelTest : public ::testing::Test {
 protected:
  BazelTest()
      : daemon_({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}}), folder_(daemon_.folder() + "/../bazel") {
    fs::create_directories(folder_ / "tools");
    fs::create_directories(folder_ / "tests");
  }

  void TearDown() override { daemon_.ExpectAccountsBack(); }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    fs::permissions(folder_ / name, fs::perms::owner_all);
  }

  // Bazel without a network: its rules come from the system's packages and this project's stand-ins.
  void WriteWorkspace() const {
    const std::string ours = fs::canonical(g_workspace_file).parent_path().string() + "/third_party/";
    std::string text;
    for (const auto& [name, path] : std::vector<std::pair<std::string, std::string>>{
             {"bazel_skylib", "/usr/share/bazel/tools/skylib"},
             {"platforms", "/usr/share/bazel/platforms"},
             {"rules_java", "/usr/share/bazel/rules/java"},
             {"rules_proto", "/usr/share/bazel/rules/proto"},
             {"rules_cc", ours + "rules_cc"},
             {"remote_coverage_tools", ours + "remote_coverage_tools"}}) {
      absl::StrAppend(&text, "local_repository(name = \"", name, "\", path = \"", path, "\")\n");
    }
    Write("WORKSPACE", text);
  }

  int Bazel(const std::string& words) {
    GiveToClients(folder_);
    Subprocess bazel = Subprocess::Start(
        {.argv = {"/bin/sh", "-c",
                  absl::StrCat("cd ", folder_.string(), " && exec bazel --batch --output_user_root=",
                               folder_.string(), "-output ", words, " 2>&1")},
         .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION", "TEST_TMPDIR",
                         absl::StrCat("ALONE=", folder_.string(), "/alone")}});
    said_ = bazel.ReadAll();
    return bazel.Wait(absl::Minutes(4));
  }

  TestDaemon daemon_;
  const fs::path folder_;
  std::string said_;
};

TEST_F(BazelTest, TestsUnderPermitTargetTakeTurns) {
  WriteWorkspace();
  // As documented in docs/guides/ci.md.
  Write("tools/BUILD", "sh_binary(name = \"gpu_slot\", srcs = [\"gpu_slot.sh\"])\n");
  Write("tools/gpu_slot.sh",
        absl::StrCat("#!/bin/sh\nexec ", fs::absolute(ProgramPath("client/cli/berth")).string(),
                     " run --label \"$TEST_TARGET\" -- \"$@\"\n"));
  Write("tests/BUILD",
        absl::StrCat("[sh_test(name = \"t%d\" % i, srcs = [\"one.sh\"], args = [\"an argument\"]) for i in "
                     "range(",
                     kTests, ")]\n"));
  Write("tests/one.sh",
        "#!/bin/sh\n[ \"$1\" = an ] && [ -n \"$BERTH_SESSION\" ] || exit 1\nmkdir $ALONE || exit 1\nls / "
        ">/dev/null\nrmdir "
        "$ALONE\n");
  const std::string common =
      "--spawn_strategy=local --nocache_test_results --local_test_jobs=6 --test_env=BERTH_FOLDER "
      "--test_env=ALONE ";
  EXPECT_EQ(Bazel(absl::StrCat("test ", common, "--run_under=//tools:gpu_slot //tests:all")), 0) << said_;
  EXPECT_TRUE(
      absl::StrContains(said_, absl::StrCat("Executed ", kTests, " out of ", kTests, " tests: ", kTests)))
      << said_;
  const v1::ListPoolsResponse pools = Must(daemon_.inspector().ListPools());
  EXPECT_EQ(pools.pools(0).granted_total(), uint64_t{kTests});
  EXPECT_EQ(pools.pools(0).peak(), 1u);
}

}  // namespace
}  // namespace berth::testing

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    fprintf(stderr, "usage: bazel_test <path of WORKSPACE>\n");
    return 2;
  }
  berth::testing::g_workspace_file = argv[1];
  return RUN_ALL_TESTS();
}
