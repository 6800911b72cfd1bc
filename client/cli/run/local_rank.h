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

struct RankedDevice {
  std::string uuid;
  // The variable that contained the rank.
  std::string variable;
  uint64_t rank = 0;
  // Number of devices of the lease. A rank at or above this number shares a device with a lower rank.
  uint64_t devices = 0;
};

// Returns the device for this process's rank among `devices`, comma-separated UUIDs. The rank is the first of
// LOCAL_RANK (torchrun), OMPI_COMM_WORLD_LOCAL_RANK (Open MPI), SLURM_LOCALID (Slurm) and MPI_LOCALRANKID (MPICH, Intel
// MPI) that is set to a number. `variable_of` returns a variable's value, or null. Returns nothing without devices or
// rank.
std::optional<RankedDevice> DeviceOfRank(absl::string_view devices,
                                         absl::FunctionRef<const char*(const char*)> variable_of);

}  // namespace berth::cli

#endif  // CLIENT_CLI_RUN_LOCAL_RANK_H_
