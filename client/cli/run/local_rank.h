// DeviceOfRank: the device of a lease that a rank uses.
//
// Launchers number the ranks of a node from 0 and set each rank's number in a variable. Ranks that each run under their
// own wrapper (`berth run --gpus 1` inside `berth run --gpus 8`) share the lease's devices by that number.

#ifndef CLIENT_CLI_RUN_LOCAL_RANK_H_
#define CLIENT_CLI_RUN_LOCAL_RANK_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace berth::cli {

// Returns a variable's value, or null.
using VariableOf = absl::FunctionRef<const char*(const char*)>;

struct RankedDevice {
  std::string uuid;
  // The variable that contained the rank.
  std::string variable;
  uint64_t rank = 0;
  // Number of devices of the lease.
  uint64_t devices = 0;
  // The rank is a launcher's inside the lease, and at or above `devices`: it shares the device with a lower rank.
  bool shares = false;
};

// Returns the device for this process's rank among `devices`, comma-separated UUIDs. The rank is the first of
// LOCAL_RANK (torchrun), OMPI_COMM_WORLD_LOCAL_RANK (Open MPI), SLURM_LOCALID (Slurm) and MPI_LOCALRANKID (MPICH, Intel
// MPI) that is set to a number. Returns nothing without devices or rank.
std::optional<RankedDevice> DeviceOfRank(absl::string_view devices, VariableOf variable_of);

// `berth run` marks the ranks of its command, so that a run inside a rank is not taken for another rank of the lease.
inline constexpr char kRankVariable[] = "BERTH_RANK";
// Returns whether a nested run already gave this process, or an ancestor, one of the lease's devices.
bool HasRanksDevice(VariableOf variable_of);
// Returns the value of kRankVariable for a command with devices. A nested run gives its command the device of a rank.
// Any other run names its own rank, which its command inherits and which is none inside the new lease.
std::string RankMark(bool nested, VariableOf variable_of);

}  // namespace berth::cli

#endif  // CLIENT_CLI_RUN_LOCAL_RANK_H_
