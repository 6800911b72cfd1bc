#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/cli/device_table.h"
#include "client/cli/format.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// A drained device is not sick: its operator has drained it on purpose.
bool IsSick(const v1::Device& device) {
  return device.state() != v1::Device::READY && device.state() != v1::Device::DRAINING;
}

// ", 2 blocks lost"; empty if no block was lost.
std::string LostBlocks(const v1::ListDevicesResponse& devices) {
  const uint64_t lost = CountLostBlocks(devices.devices());
  return lost == 0 ? "" : absl::StrCat(", ", lost, lost == 1 ? " block lost" : " blocks lost");
}

// Fails if a device does not serve. A daemon that does not answer has already failed the verb.
absl::Status Look(const Globals& globals, const Inspector& inspector) {
  BERTH_ASSIGN_OR_RETURN(const v1::Node node, inspector.GetNode());
  BERTH_ASSIGN_OR_RETURN(const v1::ListDevicesResponse devices, inspector.ListDevices());
  const auto sick = std::count_if(devices.devices().begin(), devices.devices().end(), IsSick);
  const auto drained =
      std::count_if(devices.devices().begin(), devices.devices().end(),
                    [](const v1::Device& device) { return device.state() == v1::Device::DRAINING; });
  if (globals.json) {
    BERTH_ASSIGN_OR_RETURN(const std::string json, FormatJson({{"node", &node}, {"devices", &devices}}));
    Print(json);
  } else if (sick == 0 && node.ledger_fault().empty()) {
    const std::string drained_text = drained > 0 ? absl::StrCat(", ", drained, " drained") : "";
    Print(absl::StrCat("healthy: Berth ", node.version(), " serves for ", FormatSince(node.serve_time(), absl::Now()),
                       ", ", devices.devices_size() - drained, " of ", devices.devices_size(), " devices ready",
                       drained_text, LostBlocks(devices),
                       node.stopping() ? "; an operator is stopping it, so it grants no permits" : "", "\n"));
  } else {
    Print(absl::StrCat(DeviceTable(devices.devices()), FormatLostBlocks(devices.devices())));
  }
  if (!globals.json) Print(FormatPressure(node.pressure()));
  if (!node.ledger_fault().empty()) return absl::FailedPreconditionError(node.ledger_fault());
  if (sick == 0) return absl::OkStatus();
  const bool dropped = std::any_of(devices.devices().begin(), devices.devices().end(),
                                   [](const v1::Device& device) { return device.state() == v1::Device::DROPPED; });
  return absl::FailedPreconditionError(
      absl::StrCat(sick, " of ", devices.devices_size(), " devices do not serve: `berth devices` shows why, and ",
                   "`berth device enable` tests a stopped device again",
                   dropped ? "; the daemon's next start returns a dropped device" : ""));
}

}  // namespace

void AddHealth(Command app, const Globals& globals) {
  const Command verb =
      app.AddSubcommand("health",
                        "Check the daemon and its devices; ends with 0: all serve; 1: a device does not; 69: no daemon "
                        "answers");
  verb.Runs(
      [&globals] { return LookAtNode(globals, [&](const Inspector& inspector) { return Look(globals, inspector); }); });
}

}  // namespace berth::cli
