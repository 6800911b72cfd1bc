// Cgroups: a cgroup of its own for the broker, if the service's cgroup may be divided (systemd's Delegate=yes). The
// kernel then limits the broker's memory separately, so that no other process pays for the broker.
//
//   <the service's>/supervisor    supervisors, workers, every other process
//   <the service's>/broker   the broker, and its child processes until they move to the other cgroup
//
// A process starts in its parent's cgroup. A process that belongs elsewhere is moved before it serves. A cgroup that
// limits its children contains no processes itself (cgroups(7): no internal processes).

#ifndef DAEMON_SUPERVISOR_PROCESSES_CGROUPS_H_
#define DAEMON_SUPERVISOR_PROCESSES_CGROUPS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace berth {

// Thread-compatible.
class Cgroups {
 public:
  // Returns the kernel's memory limit for a broker that limits itself to `bound` bytes: 1.5 times `bound` plus 256 MiB.
  // The 256 MiB cover memory that is charged to the broker without being its own: the ledger, the history's pages,
  // sockets. The broker therefore ends itself first; the kernel only kills a broker that had no time to check.
  static uint64_t KernelBound(uint64_t bound) { return bound + bound / 2 + (uint64_t{256} << 20); }

  // Returns the folder of the cgroup that this process's service may divide. Returns nullopt if the service may not
  // divide it, as on most manual starts.
  static std::optional<std::string> Find();
  // As Find(), for the given content of /proc/self/cgroup and cgroup mount point. `is_delegated` decides whether a
  // folder's cgroup may be divided.
  static std::optional<std::string> FindIn(const std::string& self, const std::string& mount,
                                           bool (*is_delegated)(const std::string& folder));

  // Creates both cgroups in `folder`. Moves this process, and every process that is in neither, into the supervisor's
  // cgroup. Enables the memory controller for both if it is available.
  // Errors: those of the file system; processes moved until then stay where they are.
  static absl::StatusOr<Cgroups> Divide(const std::string& folder);

  // Moves the process into the broker's cgroup. Errors: those of the file system.
  absl::Status PlaceBroker(int pid) const;
  // Sets the memory limit of the broker's cgroup to KernelBound(bound). Errors: kFailedPrecondition if there is no
  // memory controller; those of the file system.
  absl::Status BoundBroker(uint64_t bound) const;

 private:
  Cgroups(std::string folder, bool bounds) : folder_(std::move(folder)), bounds_(bounds) {}

  std::string folder_;
  bool bounds_;
};

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_PROCESSES_CGROUPS_H_
