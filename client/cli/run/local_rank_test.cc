#include "client/cli/run/local_rank.h"

#include <map>
#include <string>

#include "gtest/gtest.h"

namespace berth::cli {
namespace {

TEST(LocalRankTest, LauncherVariableChoosesDevice) {
  const struct {
    const char* name;
    const char* devices;
    std::map<std::string, std::string> environment;
    const char* uuid;
  } rows[] = {
      {"torchrun", "A,B,C", {{"LOCAL_RANK", "2"}, {"RANK", "7"}}, "C"},
      {"Open MPI", "A,B", {{"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}, "B"},
      {"Slurm", "A,B", {{"SLURM_LOCALID", "0"}}, "A"},
      {"MPICH", "A,B", {{"MPI_LOCALRANKID", "1"}}, "B"},
      {"torchrun in a Slurm job", "A,B,C", {{"SLURM_LOCALID", "0"}, {"LOCAL_RANK", "1"}}, "B"},
      {"more ranks than devices", "A,B", {{"LOCAL_RANK", "5"}}, "B"},
      {"no number", "A,B", {{"LOCAL_RANK", "first"}, {"SLURM_LOCALID", "1"}}, "B"},
      {"below 0", "A,B", {{"LOCAL_RANK", "-1"}}, nullptr},
      {"no rank", "A,B", {}, nullptr},
      {"no devices", "", {{"LOCAL_RANK", "0"}}, nullptr},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    const auto found = DeviceOfRank(row.devices, [&](const char* variable) {
      const auto at = row.environment.find(variable);
      return at == row.environment.end() ? nullptr : at->second.c_str();
    });
    ASSERT_EQ(found.has_value(), row.uuid != nullptr);
    EXPECT_EQ(found.has_value() ? found->uuid : "", row.uuid == nullptr ? "" : row.uuid);
  }
}

}  // namespace
}  // namespace berth::cli
