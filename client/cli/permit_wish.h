// PermitWish: what the command line asks of a pool, the same for every verb that takes a permit for a command:
// `run`, `acquire`, `ctest-run`.

#ifndef CLIENT_CLI_PERMIT_WISH_H_
#define CLIENT_CLI_PERMIT_WISH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/cancellation.h"
#include "client/cli/exit_status.h"
#include "client/permit.h"
#include "client/session.h"

namespace berth::cli {

struct PermitWish {
  std::string pool;
  uint64_t units = 1;
  std::string timeout;
  bool no_wait = false;
  std::string label;
  bool independent = false;
  bool quiet = false;
  bool exclusive = false;
  int32_t priority = 0;
  // 0 for no device; and which: as in PermitOptions. Several are a gang: `units` and `mem` of each, or nothing.
  uint64_t gpus = 0;
  std::string device;
  // "9.0", and the UUID of a device; empty for any.
  std::string min_capability;
  std::string island_of;
  // Bytes that the command takes on its device past Berth.
  std::string mem;
  // Units on devices by their UUIDs, all of them or nothing, in the place of `units`, `gpus` and `device`.
  std::map<std::string, uint64_t> placed;
  // Told what happens to the permit, on a thread of the SDK's; may be empty. No option.
  std::function<void(PermitEvent)> on_event;
};

// What a verb holds for its command. Move-only; gives back when it goes.
class HeldPermits {
 public:
  HeldPermits(std::vector<Permit> permits, std::vector<std::string> environment)
      : permits_(std::move(permits)), environment_(std::move(environment)) {}

  // The UUIDs of the devices, in the order in which CUDA then sees them, with commas; empty for none.
  std::string Devices() const;
  // What the devices' API is to read, as NAME=VALUE.
  const std::vector<std::string>& environment() const { return environment_; }

  // Gives back. What fails the end of this process makes good.
  void Release();
  // Leaves the permits to the end of the session.
  void Leave();

 private:
  std::vector<Permit> permits_;
  std::vector<std::string> environment_;
};

// Adds the options of a wish to a verb.
void AddPermitOptions(CLI::App* verb, PermitWish* wish);

// The line of a verb's help that says how it ends when it gets no permit.
inline constexpr char kPermitExitCodes[] =
    "  124  no permit in time (--timeout)\n"
    "  75   no permit free (--no-wait)\n"
    "  69   no daemon answers\n"
    "  77   not allowed\n"
    "  64   a wrong command line\n";

// What of a wish can be said to be wrong without a daemon. Errors: kInvalidArgument naming the text.
absl::Status Check(const PermitWish& wish);

// How long the wish waits at most. Requires: Check() was OK.
absl::Duration MaxWait(const PermitWish& wish);

// The label where none was given: the name of `program`, as far as it can be one.
std::string LabelOf(const PermitWish& wish, absl::string_view program);

// Acquires what is wished, adoptable, so that what the command and its children acquire nests in it; says on stderr
// who holds what is waited for, once that is long. `cancellation` ends the wait. Requires: Check() was OK.
absl::StatusOr<HeldPermits> AcquireWish(const std::shared_ptr<Session>& session, const PermitWish& wish,
                                        absl::string_view label, Cancellation* cancellation);

// Says on stderr why there is no permit, or no session to acquire in, and how the verb ends for it.
ExitStatus FailedToAcquire(const absl::Status& status, const PermitWish& wish);

// What a command for which `permits` are held is to have in its environment: the way into the session, where the
// daemon is, and its devices (BERTH_DEVICE, and what their API reads). As NAME=VALUE.
absl::StatusOr<std::vector<std::string>> EnvironmentOf(Session& session, const HeldPermits& permits);

}  // namespace berth::cli

#endif  // CLIENT_CLI_PERMIT_WISH_H_
