#include "client/cli/run/local_rank.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace berth::cli {
namespace {

constexpr const char* kVariables[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID"};

}  // namespace

std::optional<RankedDevice> DeviceOfRank(absl::string_view devices,
                                         absl::FunctionRef<const char*(const char*)> variable_of) {
  const std::vector<std::string> uuids = absl::StrSplit(devices, ',', absl::SkipEmpty());
  if (uuids.empty()) return std::nullopt;
  for (const char* const variable : kVariables) {
    const char* const text = variable_of(variable);
    uint64_t rank = 0;
    if (text == nullptr || !absl::SimpleAtoi(text, &rank)) continue;
    return RankedDevice{
        .uuid = uuids[rank % uuids.size()], .variable = variable, .rank = rank, .devices = uuids.size()};
  }
  return std::nullopt;
}

}  // namespace berth::cli
