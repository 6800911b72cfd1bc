// Cgroups: the broker in a cgroup of its own, where the service's may be divided (systemd's Delegate=yes), so that the
// kernel holds it to a bound of its own, and nobody else pays for it.
//
//   <the service's>/vault    vaults, workers, everybody else
//   <the service's>/broker   the broker, and what it starts until that has gone to the other
//
// A process is in a cgroup from its start, its parent's; who belongs elsewhere is put there before it serves. A cgroup
// that has others below it that are bound has no processes itself (cgroups(7): no internal processes).

#ifndef DAEMON_VAULT_CGROUPS_H_
#define DAEMON_VAULT_CGROUPS_H_

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
  // What the kernel lets a broker have that bounds itself to `bound` bytes: half as much again, and room for what is
  // not its own but charged to it (the ledger, the history's pages, sockets), so that it ends itself first, and the
  // kernel ends one that has no time to look.
  static uint64_t KernelBound(uint64_t bound) { return bound + bound / 2 + (uint64_t{256} << 20); }

  // The folder of the cgroup that this process's service may divide; nothing where it may not, which is what most who
  // start a daemon see to.
  static std::optional<std::string> Find();
  // The same of what /proc/self/cgroup says, under where cgroups are mounted. `is_delegated` says it of a folder.
  static std::optional<std::string> FindIn(const std::string& self, const std::string& mount,
                                           bool (*is_delegated)(const std::string& folder));

  // Makes both cgroups in `folder`, and puts this process and who is in none of them into the vault's. Where the memory
  // controller is there, it is theirs, too.
  // Errors: those of the file system; everybody is where they can be, then.
  static absl::StatusOr<Cgroups> Divide(const std::string& folder);

  // Puts the process into the broker's. Errors: those of the file system.
  absl::Status PlaceBroker(int pid) const;
  // Has the kernel hold the broker's to KernelBound(bound). Errors: kFailedPrecondition where there is no memory
  // controller; those of the file system.
  absl::Status BoundBroker(uint64_t bound) const;

 private:
  Cgroups(std::string folder, bool bounds) : folder_(std::move(folder)), bounds_(bounds) {}

  std::string folder_;
  bool bounds_;
};

}  // namespace berth

#endif  // DAEMON_VAULT_CGROUPS_H_
