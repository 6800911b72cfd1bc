#include "absl/strings/str_cat.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

using Act = absl::StatusOr<v1::Device> (Inspector::*)(uint32_t) const;

void AddAct(CLI::App* verb, const Globals& globals, Verb* chosen, const char* name, const char* description,
            Act act) {
  CLI::App* const one = verb->add_subcommand(name, description);
  const auto device = std::make_shared<uint32_t>(0);
  one->add_option("DEVICE", *device, "The device's ordinal")->required();
  one->callback([&globals, chosen, device, act] {
    *chosen = [&globals, device, act] {
      return Inspect(globals, /*admin=*/true, [&](const Inspector& inspector) -> absl::Status {
        BERTH_ASSIGN_OR_RETURN(const v1::Device answer, (inspector.*act)(*device));
        return Show(globals, answer, [&] {
          return absl::StrCat("device ", answer.ordinal(), ": ", v1::Device::State_Name(answer.state()),
                              "\n");
        });
      });
    };
  });
}

}  // namespace

void AddDevice(CLI::App& app, const Globals& globals, Verb* chosen) {
  CLI::App* const verb = app.add_subcommand("device", "Take a device in or out of service (operator)");
  verb->require_subcommand(1);
  AddAct(verb, globals, chosen, "enable", "Bring a stopped device back", &Inspector::EnableDevice);
  AddAct(verb, globals, chosen, "restart", "Replace the device's worker; blocks live on",
         &Inspector::RestartDevice);
  AddAct(verb, globals, chosen, "restart-context",
         "End the device's context worker, and CUDA_IPC blocks with it", &Inspector::RestartContext);
  AddAct(verb, globals, chosen, "reset", "Say that the device's memory was lost: its blocks are stale",
         &Inspector::ResetDevice);
  AddAct(verb, globals, chosen, "drop", "Say that the device leaves the node; until the daemon's next start",
         &Inspector::DropDevice);
}

}  // namespace berth::cli
