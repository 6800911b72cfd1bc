// PermitRequest: the permit request on the command line, with the same options for every verb that acquires a permit
// for a command: `run`, `acquire`, `ctest-run`.

#ifndef CLIENT_CLI_RUN_PERMIT_REQUEST_H_
#define CLIENT_CLI_RUN_PERMIT_REQUEST_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/cancellation.h>
#include <berth/end_notice.h>
#include <berth/permit.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/cli/command.h"
#include "client/cli/exit_status.h"

namespace berth::cli {

struct PermitRequest {
  std::string pool;
  uint64_t units = 1;
  std::string timeout;
  bool no_wait = false;
  std::string label;
  bool independent = false;
  bool quiet = false;
  bool exclusive = false;
  int32_t priority = 0;
  // `gpus`: number of devices; 0 for none. `device`: which device, as in PermitOptions. Several devices form a gang:
  // each gets `units` and `mem`, or none is granted.
  uint64_t gpus = 0;
  std::string device;
  // Lists of candidate devices, each separated by commas; empty: all.
  std::vector<std::string> among;
  // `min_capability`: "9.0"; empty for any. `island_of`: a device; empty for any island.
  std::string min_capability;
  std::string island_of;
  bool wait_for_device = false;
  // Name the devices to the command by their ordinals.
  bool ordinals = false;
  // Bytes that the command allocates on its device without Berth.
  std::string mem;
  // Units by device UUID, all granted or none. Replaces `units`, `gpus` and `device`.
  std::map<std::string, uint64_t> placed;
  // Called with the permit's events, on a thread of the SDK; may be empty. Not a command-line option.
  std::function<void(const PermitEvent&)> on_event;
};

// The permits that a verb holds for its command. Move-only; the destructor returns them.
class HeldPermits {
 public:
  HeldPermits(std::shared_ptr<Session> session, std::vector<Permit> permits, std::vector<std::string> environment)
      : session_(std::move(session)), permits_(std::move(permits)), environment_(std::move(environment)) {}

  // The UUIDs of the devices, or their ordinals, comma-separated in the order in which CUDA then numbers them; empty
  // without devices.
  std::string Devices(bool ordinals = false) const;
  // Environment entries (NAME=VALUE) for the API of the devices.
  const std::vector<std::string>& environment() const { return environment_; }

  // Whether a device is that of an enclosing permit.
  bool nested() const;

  // Why the first ended permit ended, as far as the daemon has reported it; empty while all permits count.
  std::optional<EndNotice> end() const;

  // As end(). Waits for a daemon that restarts, as long as a release does: the next daemon may have ended the permits.
  std::optional<EndNotice> AwaitEnd() const;

  // Returns the permits; the end of this process returns any that fail here. Returns why the first ended permit ended;
  // empty if the daemon took them all, or did not answer.
  std::optional<EndNotice> Release();
  // Detaches the permits; they return when the session ends.
  void Leave();

 private:
  std::shared_ptr<Session> session_;
  std::vector<Permit> permits_;
  std::vector<std::string> environment_;
};

void AddPermitOptions(Command verb, PermitRequest* request);

// The part of a verb's help text with its exit codes when it gets no permit.
inline constexpr char kPermitExitCodes[] =
    "  124  no permit was free before --timeout expired\n"
    "  75   no permit was free (--no-wait)\n"
    "  69   no daemon answers, or this user has no access\n"
    "  64   the command line is invalid\n";

// Validates the parts of the request that need no daemon. Errors: kInvalidArgument naming the text.
absl::Status Check(const PermitRequest& request);

// The maximum wait of the request. Requires: Check() was OK.
absl::Duration MaxWait(const PermitRequest& request);

// The label; if none was given, the name of `program`, as far as it is a valid label.
std::string LabelOf(const PermitRequest& request, absl::string_view program);

// Acquires the requested permits as adoptable, so that acquires of the command and its children nest in them. An
// independent request inside a joined session is not adoptable. After a long wait, reports the current holders on
// stderr. `cancellation` ends the wait. Requires: Check() was OK.
absl::StatusOr<HeldPermits> AcquirePermits(const std::shared_ptr<Session>& session, const PermitRequest& request,
                                           absl::string_view label, Cancellation* cancellation);

// Reports on stderr why there is no permit or no session, and returns how the verb ends.
ExitStatus FailedToAcquire(const absl::Status& status, const PermitRequest& request);

// Returns the environment (NAME=VALUE) of a command for which `permits` are held: the session entry, the daemon's
// folder, and the devices. The devices are in BERTH_DEVICE, the variables of the devices' API, the bound of the choice,
// and the mark of the rank.
absl::StatusOr<std::vector<std::string>> EnvironmentOf(Session& session, const HeldPermits& permits,
                                                       const PermitRequest& request);

}  // namespace berth::cli

#endif  // CLIENT_CLI_RUN_PERMIT_REQUEST_H_
