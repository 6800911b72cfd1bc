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

TEST(LocalRankTest, OnlyRanksOfLeaseShare) {
  const std::string nested = RankMark(/*nested=*/true, [](const char*) -> const char* { return nullptr; });
  const struct {
    const char* name;
    std::map<std::string, std::string> environment;
    bool shares;
  } rows[] = {
      {"a rank within the devices", {{"LOCAL_RANK", "1"}}, false},
      {"a rank beyond the devices", {{"LOCAL_RANK", "2"}}, true},
      {"inside a rank", {{"LOCAL_RANK", "2"}, {"BERTH_RANK", nested}}, false},
      {"the rank of the lease's holder", {{"LOCAL_RANK", "2"}, {"BERTH_RANK", "LOCAL_RANK=2"}}, false},
      {"beside the holder's other rank", {{"LOCAL_RANK", "2"}, {"BERTH_RANK", "SLURM_LOCALID=2"}}, true},
      {"an empty mark", {{"LOCAL_RANK", "2"}, {"BERTH_RANK", ""}}, true},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    const auto variable_of = [&](const char* variable) {
      const auto at = row.environment.find(variable);
      return at == row.environment.end() ? nullptr : at->second.c_str();
    };
    EXPECT_EQ(DeviceOfRank("A,B", variable_of)->shares, row.shares);
  }
}

TEST(LocalRankTest, MarkNamesRankOfHolderOrItsDevice) {
  const auto rank = [](const char* variable) { return variable == std::string("SLURM_LOCALID") ? "07" : nullptr; };
  const auto none = [](const char*) -> const char* { return nullptr; };
  EXPECT_EQ(RankMark(/*nested=*/false, none), "");
  EXPECT_EQ(RankMark(/*nested=*/false, rank), "SLURM_LOCALID=7");
  EXPECT_FALSE(HasRanksDevice(none));
  const std::string mark = RankMark(/*nested=*/true, rank);
  EXPECT_TRUE(HasRanksDevice([&](const char*) { return mark.c_str(); }));
}

}  // namespace
}  // namespace berth::cli
