#include "absl/strings/str_cat.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

using Act = absl::StatusOr<v1::Device> (Inspector::*)(uint32_t) const;

absl::Status ShowState(const Globals& globals, const v1::Device& device) {
  return Show(globals, device, [&] {
    const std::string why =
        device.drain_reason().empty() ? "" : absl::StrCat(" (", device.drain_reason(), ")");
    return absl::StrCat("device ", device.ordinal(), ": ", v1::Device::State_Name(device.state()), why, "\n");
  });
}

void AddAct(CLI::App* verb, const Globals& globals, Verb* chosen, const char* name, const char* description,
            Act act) {
  CLI::App* const one = verb->add_subcommand(name, description);
  const auto device = std::make_shared<uint32_t>(0);
  one->add_option("DEVICE", *device, "The device's ordinal")->required();
  one->callback([&globals, chosen, device, act] {
    *chosen = [&globals, device, act] {
      return Inspect(globals, /*admin=*/true, [&](const Inspector& inspector) -> absl::Status {
        BERTH_ASSIGN_OR_RETURN(const v1::Device answer, (inspector.*act)(*device));
        return ShowState(globals, answer);
      });
    };
  });
}

void AddDrain(CLI::App* verb, const Globals& globals, Verb* chosen) {
  CLI::App* const drain = verb->add_subcommand(
      "drain", "Lease nothing new on the device; what is out stays until it is given back");
  const auto device = std::make_shared<uint32_t>(0);
  const auto reason = std::make_shared<std::string>();
  drain->add_option("DEVICE", *device, "The device's ordinal")->required();
  drain->add_option("--reason", *reason, "Why, for whom it keeps from the device");
  drain->callback([&globals, chosen, device, reason] {
    *chosen = [&globals, device, reason] {
      return Inspect(globals, /*admin=*/true, [&](const Inspector& inspector) -> absl::Status {
        BERTH_ASSIGN_OR_RETURN(const v1::Device answer, inspector.DrainDevice(*device, *reason));
        return ShowState(globals, answer);
      });
    };
  });
}

}  // namespace

void AddDevice(CLI::App& app, const Globals& globals, Verb* chosen) {
  CLI::App* const verb = app.add_subcommand("device", "Take a device in or out of service (operator)");
  verb->require_subcommand(1);
  AddAct(verb, globals, chosen, "enable", "Bring a stopped device back, if it passes its self-test",
         &Inspector::EnableDevice);
  AddDrain(verb, globals, chosen);
  AddAct(verb, globals, chosen, "undrain", "Lease on a drained device again", &Inspector::UndrainDevice);
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
