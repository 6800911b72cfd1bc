#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/device.pb.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"

namespace berth::cli {
namespace {

// Replacing a worker takes at most a second, and there are up to 64 devices.
constexpr absl::Duration kPatience = absl::Minutes(2);
constexpr absl::Duration kPause = absl::Milliseconds(50);

absl::Status Upgrade(const Globals& globals, const Inspector& inspector) {
  BERTH_ASSIGN_OR_RETURN(const v1::Node before, inspector.GetNode());
  BERTH_RETURN_IF_ERROR(inspector.UpgradeNode().status());
  const absl::Time deadline = SteadyNow() + kPatience;
  while (true) {
    BERTH_ASSIGN_OR_RETURN(const v1::Node node, inspector.GetNode());
    const bool failed = !node.upgrade_fault().empty();
    if (!node.upgrading() && failed) return absl::AbortedError(node.upgrade_fault());
    if (!node.upgrading() && node.epoch() != before.epoch()) {
      return Show(globals, node, [&] {
        return absl::StrCat("upgraded from ", before.version(), " to ", node.version(), ", epoch ", node.epoch(), "\n");
      });
    }
    if (SteadyNow() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("the daemon was not replaced within ",
                                                      absl::FormatDuration(kPatience), ": ",
                                                      failed ? node.upgrade_fault() : "see the daemon's log"));
    }
    absl::SleepFor(kPause);
  }
}

}  // namespace

void AddUpgrade(Command app, const Globals& globals) {
  const Command verb = app.AddSubcommand(
      "upgrade", "Replace the running daemon with the installed program (operator); no lease ends and no call fails");
  verb.Runs([&globals] {
    return Inspect(globals, /*admin=*/true, [&](const Inspector& inspector) { return Upgrade(globals, inspector); });
  });
}

}  // namespace berth::cli
