#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/device.pb.h"
#include "client/cli/outstanding.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

constexpr char kEffect[] =
    "The reset ends every session, permit, reservation and plan, frees every block and makes every handle stale. The "
    "daemon cannot list them.\n"
    "Processes continue to use the GPUs, while the daemon grants the same units and bytes to others.\n";

absl::Status Reset(const Globals& globals, bool yes, const Inspector& inspector) {
  BERTH_ASSIGN_OR_RETURN(const v1::Node node, inspector.GetNode());
  // If the ledger is readable the daemon refuses the reset; its error names the alternatives.
  if (node.ledger_fault().empty()) {
    BERTH_ASSIGN_OR_RETURN(const Outstanding out, LookAtOutstanding(inspector));
    PrintError(Describe(out, absl::Now()));
  } else {
    BERTH_RETURN_IF_ERROR(Confirm(absl::StrCat(node.ledger_fault(), "\n", kEffect), "Reset the node?", yes));
  }
  BERTH_ASSIGN_OR_RETURN(const v1::ResetNodeResponse answer, inspector.ResetNode());
  return Show(globals, answer, [] { return std::string("every lease ended\n"); });
}

}  // namespace

void AddReset(Command app, const Globals& globals) {
  const Command verb =
      app.AddSubcommand("reset", "Discard a ledger that cannot be read, with every lease (operator); asks first");
  verb.SetFooter(
      "The daemon refuses while it can read the ledger. Then `berth stop --end-leases` ends every lease, and\n"
      "`berth sessions end` and `berth permits revoke` end single leases.");
  const auto yes = std::make_shared<bool>(false);
  verb.AddFlag("--yes", yes.get(), "Do not ask");
  verb.Runs([&globals, yes] {
    return Inspect(globals, /*admin=*/true,
                   [&](const Inspector& inspector) { return Reset(globals, *yes, inspector); });
  });
}

}  // namespace berth::cli
