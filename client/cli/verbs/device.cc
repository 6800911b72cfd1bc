#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/resources.pb.h"
#include "client/cli/device_name.h"
#include "client/cli/outstanding.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

using Act = absl::StatusOr<v1::Device> (Inspector::*)(uint32_t) const;

// Adds the argument that names a subcommand's device.
std::shared_ptr<std::string> AddName(Command one) {
  const auto name = std::make_shared<std::string>();
  one.AddOption("DEVICE", name.get(), "The device's ordinal, UUID or unique prefix").Required();
  return name;
}

absl::Status ShowState(const Globals& globals, const v1::Device& device) {
  return Show(globals, device, [&] {
    const std::string why =
        device.drain_reason().empty() ? "" : absl::StrCat(" (", device.drain_reason(), ")");
    return absl::StrCat("device ", device.ordinal(), ": ", v1::Device::State_Name(device.state()), why, "\n");
  });
}

void AddAct(Command verb, const Globals& globals, const char* name, const char* description, Act act) {
  const Command one = verb.AddSubcommand(name, description);
  const std::shared_ptr<std::string> device = AddName(one);
  one.Runs([&globals, device, act] {
    return Inspect(globals, /*admin=*/true, [&](const Inspector& inspector) -> absl::Status {
      BERTH_ASSIGN_OR_RETURN(const v1::Device named, FindDevice(inspector, *device));
      BERTH_ASSIGN_OR_RETURN(const v1::Device answer, (inspector.*act)(named.ordinal()));
      if (act == &Inspector::UndrainDevice) ComplainOfUnsavedSettings(inspector);
      return ShowState(globals, answer);
    });
  });
}

// The effect of an action on the users of the device, as text for the user.
struct Loss {
  const char* effect;
  const char* question;
};

// Adds an action that ends leases: prints which leases, and asks for confirmation.
void AddEndingAct(Command verb, const Globals& globals, const char* name, const char* description, Act act, Loss loss) {
  const Command one = verb.AddSubcommand(name, absl::StrCat(description, "; asks first"));
  const std::shared_ptr<std::string> device = AddName(one);
  const auto yes = std::make_shared<bool>(false);
  one.AddFlag("--yes", yes.get(), "Do not ask");
  one.Runs([&globals, device, yes, act, loss] {
    return Inspect(globals, /*admin=*/true, [&](const Inspector& inspector) -> absl::Status {
      BERTH_ASSIGN_OR_RETURN(const v1::Device named, FindDevice(inspector, *device));
      BERTH_ASSIGN_OR_RETURN(const Outstanding out, LookAtOutstanding(inspector, named.ordinal()));
      const std::string effect =
          absl::StrCat("device ", named.ordinal(), " has ", Describe(out, absl::Now()), loss.effect);
      BERTH_RETURN_IF_ERROR(Confirm(effect, loss.question, *yes));
      BERTH_ASSIGN_OR_RETURN(const v1::Device answer, (inspector.*act)(named.ordinal()));
      return ShowState(globals, answer);
    });
  });
}

void AddDrain(Command verb, const Globals& globals) {
  const Command drain = verb.AddSubcommand("drain", "Grant no new lease on the device; existing leases stay");
  const std::shared_ptr<std::string> device = AddName(drain);
  const auto reason = std::make_shared<std::string>();
  drain.AddOption("--reason", reason.get(), "The reason, shown to refused requests (default: drained by an operator)")
      .MayBeEmpty();
  drain.Runs([&globals, device, reason] {
    return Inspect(globals, /*admin=*/true, [&](const Inspector& inspector) -> absl::Status {
      BERTH_ASSIGN_OR_RETURN(const v1::Device named, FindDevice(inspector, *device));
      BERTH_ASSIGN_OR_RETURN(const v1::Device answer, inspector.DrainDevice(named.ordinal(), *reason));
      ComplainOfUnsavedSettings(inspector);
      return ShowState(globals, answer);
    });
  });
}

}  // namespace

void AddDevice(Command app, const Globals& globals) {
  const Command verb = app.AddSubcommand("device", "Take a device in or out of service (operator)");
  verb.RequireSubcommand();
  AddAct(verb, globals, "enable", "Return a stopped device to service if it passes its self-test",
         &Inspector::EnableDevice);
  AddDrain(verb, globals);
  AddAct(verb, globals, "undrain", "Grant leases on a drained device again", &Inspector::UndrainDevice);
  AddAct(verb, globals, "restart", "Replace the device's worker; blocks stay", &Inspector::RestartDevice);
  AddAct(verb, globals, "restart-context", "End the device's context worker, and its CUDA_IPC blocks with it",
         &Inspector::RestartContext);
  AddEndingAct(verb, globals, "reset", "Declare the device's memory lost: its blocks become stale",
               &Inspector::ResetDevice,
               {.effect = "The reset makes those blocks stale permanently; the permits stay out.\n",
                .question = "Reset the device?"});
  AddEndingAct(
      verb, globals, "drop", "Declare that the device leaves the node, until the daemon's next start",
      &Inspector::DropDevice,
      {.effect =
           "The drop makes those blocks stale permanently. Until its next start, the daemon refuses requests that "
           "only this device can serve. The permits stay out.\n",
       .question = "Drop the device?"});
}

}  // namespace berth::cli
