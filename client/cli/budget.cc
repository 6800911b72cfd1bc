#include "absl/strings/str_cat.h"
#include "client/cli/format.h"
#include "client/cli/verbs.h"
#include "common/bytes.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

struct Options {
  uint32_t device = 0;
  std::string budget;
};

ExitStatus Set(const Globals& globals, const Options& options) {
  const absl::StatusOr<Bytes> budget = ParseBytes(options.budget);
  if (!budget.ok()) {
    Report(budget.status());
    return {.code = kUsage};
  }
  return Inspect(globals, /*admin=*/true, [&](const Inspector& inspector) -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(const v1::Device device, inspector.SetDeviceBudget(options.device, *budget));
    return Show(globals, device, [&] {
      return absl::StrCat("device ", device.ordinal(), ": budget ", FormatCount(device.budget_bytes()),
                          ", outstanding ", FormatCount(device.bytes().outstanding()), "\n");
    });
  });
}

}  // namespace

void AddBudget(CLI::App& app, const Globals& globals, Verb* chosen) {
  CLI::App* const verb = app.add_subcommand("budget", "Change how many bytes Berth hands out on a device");
  verb->require_subcommand(1);
  CLI::App* const set = verb->add_subcommand("set", "Set a device's budget (operator); lowering it drains");
  const auto options = std::make_shared<Options>();
  set->add_option("DEVICE", options->device, "The device's ordinal")->required();
  set->add_option("BYTES", options->budget, "The budget, e.g. 40GiB")->required();
  set->callback(
      [&globals, chosen, options] { *chosen = [&globals, options] { return Set(globals, *options); }; });
}

}  // namespace berth::cli
