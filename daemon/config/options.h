// The daemon's options. The supervisor parses them from the command line once, and passes them to the other roles as
// flags.

#ifndef DAEMON_CONFIG_OPTIONS_H_
#define DAEMON_CONFIG_OPTIONS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <berth/bytes.h>

#include "absl/time/time.h"
#include "daemon/device/monitor/device_record.h"

namespace berth {

// With a shorter deadline, a starting worker would count as hanging: cuInit takes 0.2 s.
inline constexpr absl::Duration kLeastCallDeadline = absl::Milliseconds(500);

enum class Role { kSupervisor, kBroker, kWorker, kContextWorker, kInventory, kMemoryScrubCheck, kMonitor, kSelfTest };

struct Options {
  Role role = Role::kSupervisor;
  // The folder of the daemon's sockets.
  std::string folder;
  // The group, by name or number, whose members may lease from root's daemon.
  std::string client_group = "berth";
  // The group whose members may read everything.
  std::string observer_group = "berth-observer";
  BackendChoice backend = BackendChoice::kAuto;
  // Number of host devices, and the bytes of each; 0 means half of the available memory, at most 8 GiB.
  uint32_t host_devices = 1;
  Bytes host_bytes;
  // The file that describes host devices instead (daemon/device/monitor/node_script.h); empty for none.
  std::string host_devices_file;
  // Whether the memory-scrub check runs on GPUs before they are shared.
  bool memory_scrub_check = true;
  // The configuration file; empty for none.
  std::string config;
  // The folder of the data that outlives the daemon, such as compiled modules.
  std::string state;
  // Caps of permit pools, by name; a pool missing in the configuration file is created.
  std::map<std::string, uint64_t> pools;
  // Budget of every device; unset means min(free, total / 2).
  std::optional<Bytes> device_budget;
  // Warm blocks per size and device; unset leaves it to the configuration file.
  std::optional<uint32_t> warm_blocks;
  // Streams besides the default stream; unset leaves it to the configuration file.
  std::optional<uint32_t> streams_per_device;
  // The longest time of a worker's driver call; unset leaves it to the configuration file.
  std::optional<absl::Duration> call_deadline;
  // How long an unneeded context worker stays; unset leaves it to the configuration file.
  std::optional<absl::Duration> context_idle;
  // Connections of gRPC clients; unset leaves it to the configuration file.
  std::optional<uint32_t> max_connections;
  // Receives "ready\n" once the daemon serves, and is then closed; -1 for none.
  int ready_fd = -1;

  // Options that the supervisor passes to its children.
  uint32_t device = 0;
  // The UUID by which a process finds the device at its driver; empty if unknown.
  std::string device_uuid;
  // For the supervisor: take over from a dead one, with the state that the broker behind this fd hands over; -1 for
  // none. With `renew`, then replace all other processes.
  int broker_fd = -1;
  bool renew = false;
  // For the broker, and the supervisors that it starts: the path of the program that an upgrade executes; empty if
  // unknown.
  std::string program;
  // The supervisor's pid; 0 for a role started by hand.
  int parent = 0;
  // Print the version and exit.
  bool version = false;
};

// Parses the command line into `*options`. Returns nothing, or the exit code after printing help or an error.
std::optional<int> ParseOptions(int argc, const char* const* argv, Options* options);

// Returns the supervisor's options as flags for inventory and broker, without the role.
std::vector<std::string> FlagsForChildren(const Options& options);

// Returns $BERTH_STATE; else the service's folder from systemd ($STATE_DIRECTORY); else "state" in the daemon's folder,
// which usually does not survive a boot.
std::string DefaultState(const std::string& folder);

// Returns $BERTH_FOLDER; else /run/berth for root and $XDG_RUNTIME_DIR/berth for a user; empty if none of these exists.
std::string DefaultFolder();

}  // namespace berth

#endif  // DAEMON_CONFIG_OPTIONS_H_
