// The daemon's options: parsed from the command line once, in the vault, and handed on to the other roles as
// flags again.

#ifndef DAEMON_OPTIONS_H_
#define DAEMON_OPTIONS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/bytes.h"
#include "daemon/device/device_record.h"

namespace berth {

// Less would take a worker that is only being started to hang: cuInit takes 0.2 s.
inline constexpr absl::Duration kLeastCallDeadline = absl::Milliseconds(500);

enum class Role { kVault, kBroker, kWorker, kContextWorker, kInventory, kClearsCheck, kMonitor, kSelfTest };

struct Options {
  Role role = Role::kVault;
  // Of the daemon's sockets.
  std::string folder;
  // The group whose members may look at everything.
  std::string observer_group = "berth-observer";
  BackendChoice backend = BackendChoice::kAuto;
  // Host devices, and the bytes of each; 0 means half of what is available, at most 8 GiB.
  uint32_t host_devices = 1;
  Bytes host_bytes;
  // The file that describes host devices instead (daemon/device/node_script.h); empty for none.
  std::string host_devices_file;
  // Whether GPUs are looked at for memory that comes back uncleared, before they are shared.
  bool clears_check = true;
  // The configuration file; empty for none.
  std::string config;
  // The folder of what outlives the daemon: compiled modules.
  std::string state;
  // Caps of permit pools, by name; one that the configuration file does not name is made.
  std::map<std::string, uint64_t> pools;
  // Of every device; unset means min(free, total / 2).
  std::optional<Bytes> device_budget;
  // Blocks kept ready per size and device; unset leaves it to the configuration file.
  std::optional<uint32_t> warm_blocks;
  // Beside the default stream; unset leaves it to the configuration file.
  std::optional<uint32_t> streams_per_device;
  // How long a worker may be at one driver call; unset leaves it to the configuration file.
  std::optional<absl::Duration> call_deadline;
  // How long a context worker stays that nobody needs; unset leaves it to the configuration file.
  std::optional<absl::Duration> context_idle;
  // Of clients on gRPC; unset leaves it to the configuration file.
  std::optional<uint32_t> max_connections;
  // Gets "ready\n" once the daemon serves, and is closed; -1 for none.
  int ready_fd = -1;

  // The vault's words to its children.
  uint32_t device = 0;
  // What the driver is to have at that ordinal; empty where nobody knows.
  std::string device_uuid;
  // Of the vault: go on where another one ended, by what the broker behind this fd hands over; -1 for none. Then
  // replace all other processes.
  int broker_fd = -1;
  bool renew = false;
  // The vault's pid; 0 for a role that was started by hand.
  int parent = 0;
  // Print the version and end.
  bool version = false;
};

// What the broker role runs on; meanings as in Options.
struct BrokerOptions {
  std::string folder;
  std::string state;
  std::string config;
  std::map<std::string, uint64_t> pools;
  std::optional<Bytes> device_budget;
  std::optional<uint32_t> warm_blocks;
  std::optional<uint32_t> streams_per_device;
  std::optional<absl::Duration> call_deadline;
  std::optional<absl::Duration> context_idle;
  std::optional<uint32_t> max_connections;
  // The socket to the vault (daemon/vault/custody.h).
  int custody_fd = -1;
  // What a vault is started with.
  std::vector<std::string> vault_flags;
};

// Reads the command line into `*options`.
// Returns: nothing, or the code to exit with after help was printed or a mistake named.
std::optional<int> ParseOptions(int argc, const char* const* argv, Options* options);

// The flags that give inventory and broker what the vault was told, less the role.
std::vector<std::string> FlagsForChildren(const Options& options);

// $BERTH_STATE; else what systemd has made for the service ($STATE_DIRECTORY); else "state" in the daemon's folder,
// which as a rule lives with the boot.
std::string DefaultState(const std::string& folder);

// $BERTH_FOLDER; else /run/berth for root and $XDG_RUNTIME_DIR/berth for a user; empty if there is none of
// these.
std::string DefaultFolder();

}  // namespace berth

#endif  // DAEMON_OPTIONS_H_
