#include "client/cli/run/local_rank.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace berth::cli {
namespace {

constexpr const char* kVariables[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID"};

// The mark of a command that has the device of a rank.
constexpr absl::string_view kHasDevice = "device";

struct Rank {
  const char* variable;
  uint64_t number = 0;
};

std::optional<Rank> RankOf(VariableOf variable_of) {
  for (const char* const variable : kVariables) {
    const char* const text = variable_of(variable);
    uint64_t number = 0;
    if (text != nullptr && absl::SimpleAtoi(text, &number)) return Rank{.variable = variable, .number = number};
  }
  return std::nullopt;
}

std::string MarkOf(const std::optional<Rank>& rank) {
  return rank.has_value() ? absl::StrCat(rank->variable, "=", rank->number) : "";
}

absl::string_view InheritedMark(VariableOf variable_of) {
  const char* const mark = variable_of(kRankVariable);
  return mark == nullptr ? "" : mark;
}

}  // namespace

std::optional<RankedDevice> DeviceOfRank(absl::string_view devices, VariableOf variable_of) {
  const std::vector<std::string> uuids = absl::StrSplit(devices, ',', absl::SkipEmpty());
  const std::optional<Rank> rank = RankOf(variable_of);
  if (uuids.empty() || !rank.has_value()) return std::nullopt;
  const bool of_lease = !HasRanksDevice(variable_of) && InheritedMark(variable_of) != MarkOf(rank);
  return RankedDevice{.uuid = uuids[rank->number % uuids.size()],
                      .variable = rank->variable,
                      .rank = rank->number,
                      .devices = uuids.size(),
                      .shares = of_lease && rank->number >= uuids.size()};
}

bool HasRanksDevice(VariableOf variable_of) { return InheritedMark(variable_of) == kHasDevice; }

std::string RankMark(bool nested, VariableOf variable_of) {
  return nested ? std::string(kHasDevice) : MarkOf(RankOf(variable_of));
}

}  // namespace berth::cli
